"""Tables on a terminal and in a pipe."""

import io

from capplan.cli.output import show_table
from capplan.quantities.tables import columns

ROWS = [["deepseek-r1", "70,272"], ["[bold]x[/bold]", "1"]]


def test_a_terminal_gets_a_table_with_every_cell_as_it_is():
    stream = io.StringIO()
    show_table(ROWS, ["model", "bytes"], stream)
    text = stream.getvalue()
    for cell in ("model", "bytes", "deepseek-r1", "70,272", "[bold]x[/bold]"):
        assert cell in text


def test_a_pipe_gets_plain_columns():
    text = columns(ROWS, ["model", "bytes"])
    assert text.isascii()
    assert text.splitlines()[1].split() == ["deepseek-r1", "70,272"]
