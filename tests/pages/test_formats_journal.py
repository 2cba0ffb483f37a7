"""The bytes shown in ``docs/formats/journal.md`` are the bytes that are written."""

import re
from pathlib import Path

import pytest

from lodeq.segments.journal import log_format as log
from lodeq.segments.journal import small_files as small

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats" / "journal.md"
BLOCK = re.compile(r"^```hex (?P<name>[\w ]+)\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)

NOW_US = 1_700_000_000_000_000
FRAME = log.encode_frame(1, NOW_US, [b"hi", b""], metas=[b"", log.encode_meta({"k": "v"}, 0, 0)])
ENDS_AT = log.HEADER_BYTES + len(FRAME)
EXAMPLES = {
    "header": log.encode_header(1, NOW_US),
    "frame": FRAME,
    "end": log.encode_end(3, NOW_US),
    "position": small.encode_slot(small.Position(7, 2, 1, ENDS_AT)),
    "index": small.encode_index(
        small.LogIndex(1, 256, ENDS_AT, [small.IndexEntry(1, NOW_US, log.HEADER_BYTES)])
    ),
    "tailer": small.encode_place(small.TailerPosition(3, NOW_US)),
}


def shown() -> dict[str, bytes]:
    """Each block of the page: its bytes, comments (from ``;`` on) left out."""
    return {
        block["name"]: bytes.fromhex(
            "".join(line.partition(";")[0] for line in block["lines"].splitlines())
        )
        for block in BLOCK.finditer(PAGE.read_text("utf-8"))
    }


def test_every_example_is_shown() -> None:
    assert set(shown()) == set(EXAMPLES)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_what_is_shown_is_what_is_written(name: str) -> None:
    assert shown()[name].hex(" ") == EXAMPLES[name].hex(" ")
