"""``python -m capplan`` is the ``capplan`` command."""

from capplan.cli.main import run

run()
