"""The bytes shown on the page of LedgerQ are the bytes the codecs write, and its limits theirs."""

import re
from pathlib import Path

from lodeq.segments.formats.ledgerq import codec, index, state
from lodeq.segments.formats.ledgerq.codec import (
    LedgerQ,
    SegmentHeader,
    content,
    encode,
    encode_header,
)
from lodeq.segments.formats.ledgerq.index import Index, IndexEntry, encode_index
from lodeq.segments.formats.ledgerq.state import (
    GoTime,
    Metadata,
    RetryEntry,
    RetryState,
    encode_metadata,
    encode_retry,
)
from lodeq.segments.item import Record

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formats" / "ledgerq.md").read_text("utf-8")
BLOCK = re.compile(r"^```hex (?P<name>[\w ]+)\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
NOW = 1_700_000_000_000_000_000
GZIP = bytes.fromhex("1f8b08000000000000ff4a240000010000ffff7717b1ca20000000")
FULL = Record(
    0,
    75,
    GZIP,
    sequence=7,
    timestamp_ns=NOW,
    expires_ns=NOW + 5_000_000_000,
    priority=1,
    headers={"k": "v"},
    encoding="gzip",
    kind=1,
)
EXAMPLES = {
    "segment header": encode_header(SegmentHeader(1, NOW, 1, 7)),
    "plain record": encode(Record(0, 35, b"hello", sequence=1, timestamp_ns=NOW)),
    "full record": encode(FULL),
    "index": encode_index(Index(1, (IndexEntry(1, 64, NOW),))),
    "metadata": encode_metadata(Metadata(next_id=8, read_id=3)),
}
SHOWN = {
    block["name"]: bytes.fromhex(
        "".join(line.partition(";")[0] for line in block["lines"].splitlines())
    )
    for block in BLOCK.finditer(PAGE)
}


def test_what_is_shown_is_what_is_written() -> None:
    assert {name: raw.hex(" ") for name, raw in SHOWN.items()} == {
        name: raw.hex(" ") for name, raw in EXAMPLES.items()
    }


def test_what_is_shown_is_what_is_read() -> None:
    assert LedgerQ().decode(SHOWN["full record"]) == FULL
    assert content(FULL) == b"a" * 32


def test_the_json_shown_is_what_is_written() -> None:
    [shown] = re.findall(r"^```json\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)
    failed_at = GoTime(NOW - 3_600_000_000_000 + 500_000_000, 60)
    state = RetryState(3, (RetryEntry(3, 1, failed_at, "no <crust>"),))
    assert encode_retry(state).decode() == shown


def test_the_limits_are_those_of_the_code() -> None:
    limits = PAGE.partition("## Limits")[2].partition("##")[0]
    for limit in (
        codec.RECORD_BYTES_MAX,
        codec.CONTENT_BYTES_MAX,
        state.STATE_BYTES_MAX,
    ):
        assert f"| {limit >> 20} MiB" in limits
    assert f"{index.INDEX_INTERVAL_BYTES:,} bytes or more" in PAGE
