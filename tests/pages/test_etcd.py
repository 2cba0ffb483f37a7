"""The keys and bytes that docs/etcd.md shows, and the numbers it names."""

import re

from support_sources import ROOT, text_of

from lodeq.replication.etcd.keys import Keys, encode
from lodeq.replication.fragments import cut_record
from lodeq.replication.port import Checkpoint, Genesis, Member
from lodeq.replication.record import Batch, LogRecord, decode_record, encode_record

PAGE = text_of(ROOT / "docs" / "etcd.md")
BLOCK = re.search(r"```text\n(/lodeq/.*?)```", PAGE, re.DOTALL)
NONCE = bytes(range(16))


def shown() -> dict[str, bytes]:
    """By key: what stands behind it, on its line and the indented ones below."""
    found: dict[str, bytes] = {}
    key = ""
    for line in BLOCK[1].splitlines():
        if line.startswith("/"):
            key, _, value = line.partition(" ")
            found[key] = b""
        else:
            value = line
        found[key] += bytes.fromhex(value)
    return found


def made() -> dict[str, bytes]:
    keys = Keys(b"/lodeq/orders/")
    record = LogRecord(
        NONCE, 3, 57, 12, (Batch(1 << 40 | 12, ((b"key", b"value"), (b"gone", None))),)
    )
    large = record._replace(first=13)
    cut = cut_record(large, 48)
    pairs = [
        (keys.genesis, encode(Genesis("orders", 16, NONCE))),
        (keys.of_node("member", "n1"), encode(Member("n1", "lodeq://n1:7711", "0.1.0"))),
        (
            keys.of_node("checkpoint", "n1"),
            encode(Checkpoint("n1", "lodeq://n1:7711", "d1", (9, 12), 5)),
        ),
        (keys.of_shard("leader", 3), b"n1"),
        (keys.of_shard("tail", 3), b"13"),
        (keys.of_shard("hint", 3), b"13"),
        (keys.of_shard("floor", 3), b"12"),
        (keys.of_shard("fence", 3), b"1764151200000"),
        (keys.record(3, 12), encode_record(record)),
        (keys.record(3, 13), cut.stored),
        *((keys.fragment(large, n), part) for n, part in enumerate(cut.fragments)),
    ]
    return {key.decode(): value for key, value in pairs}


def test_the_bytes_on_the_page_are_those_of_the_adapter():
    assert shown() == made()


def test_the_packed_record_on_the_page_is_one():
    block = re.search(r"one release of the library:\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    ops = ((b"key", b"value" * 300),)
    record = LogRecord(NONCE, 3, 57, 14, (Batch(1 << 40 | 14, ops),))
    assert decode_record(bytes.fromhex(block[1])) == record
