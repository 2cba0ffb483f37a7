"""The bytes shown on the pages of ``.sqs`` and ``.rdq`` are the bytes the codecs write."""

import re
from pathlib import Path

import pytest

from lodeq.segments.bodies.sqs import HEADER, Sqs
from lodeq.segments.formats.rdq import Rdq

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "formats"
BLOCK = re.compile(r"^```hex (?P<name>[\w ]+)\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)

CODECS = {"sqs": "bodies/sqs.py", "rdq": "formats/rdq.py"}
ID = bytes(range(16))
EXAMPLES = {
    "sqs": {
        "header": HEADER,
        "gap of 3": Sqs().holes(3),
        "gap of 5": Sqs().holes(5),
        "gap of 70": Sqs().holes(70),
        "message": Sqs().encode(ID, b"abc", checksum=False),
        "message with checksum": Sqs().encode(ID, b"abc"),
    },
    "rdq": {
        "empty message": Rdq().encode(ID, b""),
        "message": Rdq().encode(ID, b"abc"),
        "message behind a hole": b"\0" + Rdq().encode(ID, bytes(4592))[:8],
    },
}


def shown(format: str) -> dict[str, bytes]:
    """Each block of a page: its bytes, comments (from ``;`` on) left out."""
    return {
        block["name"]: bytes.fromhex(
            "".join(line.partition(";")[0] for line in block["lines"].splitlines())
        )
        for block in BLOCK.finditer((PAGES / f"{format}.md").read_text("utf-8"))
    }


@pytest.mark.parametrize("format", list(EXAMPLES))
def test_what_is_shown_is_what_is_written(format: str) -> None:
    assert shown(format) == EXAMPLES[format]


@pytest.mark.parametrize("format", list(EXAMPLES))
def test_every_reason_is_on_its_page(format: str) -> None:
    page = (PAGES / f"{format}.md").read_text("utf-8")
    code = (ROOT / "segments" / CODECS[format]).read_text("utf-8")
    code = re.sub(r"__all__ = \[.*?\]", "", code, flags=re.DOTALL)
    reasons = set(re.findall(r'"([a-z]+(?:_[a-z]+)+)"', code))
    assert len(reasons) >= 6
    assert sorted(reason for reason in reasons if f"`{reason}`" not in page) == []
