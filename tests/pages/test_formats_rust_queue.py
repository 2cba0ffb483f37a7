"""The bytes shown in ``docs/formats/rust-queue.md`` are the bytes the encoders write."""

import re
from pathlib import Path

import pytest

from lodeq.segments.formats.rust_queue.codec import RustQueue
from lodeq.segments.formats.rust_queue.index import (
    ActiveFile,
    Index,
    IndexEntry,
    Manifest,
    SealedFile,
    encode_current,
    encode_index,
    encode_manifest,
)
from lodeq.segments.formats.rust_queue.reader import Reader, Variant
from lodeq.segments.source import BytesSource

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats" / "rust-queue.md"
BLOCK = re.compile(r"^```hex (?P<name>[\w ]+)\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)

SEALED = SealedFile(0, 1, 31, "/q/2026/01/15/20260115-0000.data")
ACTIVE = ActiveFile(1, 12, 1, "/q/2026/01/16/20260116-0001.data")
EXAMPLES = {
    "crc32 record": RustQueue(Variant.CRC32).encode(b"hello world"),
    "crc64 payload record": RustQueue(Variant.CRC64_PAYLOAD).encode(b"hello world"),
    "crc64 record record": RustQueue(Variant.CRC64_RECORD).encode(b"hello world"),
    "index": encode_index(Index(2, (IndexEntry(0, 0), IndexEntry(2, 31)))),
    "manifest": encode_manifest(Manifest(3, ACTIVE, (SEALED,))),
    "current": encode_current(1),
}


def shown() -> dict[str, bytes]:
    """Each block of the page: its bytes, comments (from ``;`` on) left out."""
    page = PAGE.read_text("utf-8")
    return {
        block["name"]: bytes.fromhex(
            "".join(line.partition(";")[0] for line in block["lines"].splitlines())
        )
        for block in BLOCK.finditer(page)
    }


def test_every_example_is_shown() -> None:
    assert set(shown()) == {*EXAMPLES, "empty record"}


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_what_is_shown_is_what_is_written(name: str) -> None:
    assert shown()[name].hex(" ") == EXAMPLES[name].hex(" ")


def test_the_empty_record_is_taken_for_one() -> None:
    assert Reader(BytesSource(shown()["empty record"]), Variant.CRC32).is_empty(0)


def test_every_variant_is_named() -> None:
    page = PAGE.read_text("utf-8")
    assert all(f"| `{variant.name}` |" in page for variant in Variant)
