"""Hostile and careless input: one clear line, in bounded time and memory, or the right answer."""

import os
from pathlib import Path

import pytest

from capplan.cards.store import MAX_CARD_BYTES, read_json, read_text
from capplan.errors import InputError

# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="the host has no /dev/zero")
def test_an_endless_device_is_no_card(tmp_path):
    with pytest.raises(InputError, match="no regular file"):
        read_json(Path("/dev/zero"))
    (link := tmp_path / "card.json").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="no regular file"):
        read_text(link)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the host has no named pipes")
def test_a_pipe_nobody_writes_to_does_not_block(tmp_path):
    os.mkfifo(pipe := tmp_path / "card.json")
    with pytest.raises(InputError, match="no regular file"):
        read_json(pipe)


def test_reading_is_bounded_and_says_why(tmp_path):
    (large := tmp_path / "large.json").write_text("[" * (MAX_CARD_BYTES + 1))
    with pytest.raises(InputError, match="larger than 4 MB"):
        read_json(large)
    with pytest.raises(InputError, match="larger than 100 bytes"):
        read_text(large, 100)
    with pytest.raises(InputError, match=r"cannot be read \(is a folder\)"):
        read_text(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        read_text(tmp_path / "missing.json")
    with pytest.raises(InputError, match="null byte"):
        read_text(Path("a\0b"))
    (binary := tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_text(binary)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (marked := tmp_path / "card.json").write_bytes(b'\xef\xbb\xbf{"name": "card"}')
    assert read_json(marked) == {"name": "card"}
    assert read_text(marked, 20)[0] == "{"
