"""A flipped bit is harmless, refused or reported; never a silent truncation.

``LODEQ_FLIPS`` (5) bits of every kind of file in eight stores; a million means one of every byte.
What the watermark cannot cover is tested as exactly that.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.nursery import Nursery
from fault import flips
from support_seeds import FIRST

EACH = int(os.environ.get("LODEQ_FLIPS", "5"))
CROSS_SECTION = 5  # from so many on every outcome is among them

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240 + 10 * min(EACH, 10_000))]


def stores() -> Iterator[object]:
    """All of them; in the sample are four, among which any two values are met together."""
    for mode, shards, ends in flips.STORES:
        is_in = (mode == "fsync") ^ (shards == 4) ^ (ends == "kill")
        yield pytest.param(mode, shards, ends, marks=[pytest.mark.sample] if is_in else [])


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as one:
        yield one


@pytest.mark.parametrize(("mode", "shards", "ends"), [*stores()])
def test_a_flip_is_harmless_refused_or_reported(
    nursery: Nursery, place: Path, mode: str, shards: int, ends: str
) -> None:
    base = flips.made(nursery, place / "base", mode, shards, ends)
    outcomes = flips.judged(nursery, base, place / "copy", flips.some(base, EACH, FIRST))
    seen = Counter(outcome.partition(": ")[2] for outcome in outcomes)
    assert seen.total() > 0
    if EACH >= CROSS_SECTION:
        assert {"harmless", "refused"} <= seen.keys(), outcomes


@pytest.mark.parametrize("mode", ["nosync", "fsync"])
def test_a_length_flipped_beyond_the_watermark_is_reported(
    nursery: Nursery, place: Path, mode: str
) -> None:
    """RocksDB takes it for a torn tail: commits younger than the watermark, at most a second.

    A record of RocksDB's log begins with a checksum (4 bytes), a length (2) and a type (1). One
    whose length reaches past the end of the file is how every torn tail begins.
    """
    base = flips.made(nursery, place / "base", mode, 1, "kill")
    (log,) = (name for name, size in base.files().items() if name.endswith(".log") and size)
    lengths = [(log, at + 5, 6) for at in record_offsets((base.path / log).read_bytes())]
    beyond, covered = lengths[-5:], lengths[1:6]
    gone: set[int] = set()
    outcomes = flips.judged(nursery, base, place / "copy", beyond, gone)
    assert outcomes == {"wal: reported": len(beyond)}
    # What was acknowledged may be in it, in either mode: docs/operations.md says so.
    assert gone
    assert gone <= {*base.later, *base.completed}
    # The same flip in front of the watermark is refused: the ring misses what it promises.
    outcomes = flips.judged(nursery, base, place / "copy", covered)
    assert outcomes == {"wal: refused": len(covered)}


@pytest.mark.parametrize("mode", ["nosync", "fsync"])
@pytest.mark.parametrize("ends", ["close", "kill"])
def test_a_length_flipped_in_a_manifest_is_refused_and_nothing_is_deleted(
    nursery: Nursery, place: Path, mode: str, ends: str
) -> None:
    """RocksDB may take it for a torn tail, too, and delete the tables that came after it."""
    base = flips.made(nursery, place / "base", mode, 4, ends)
    names = [name for name in base.files() if "MANIFEST" in name]
    assert len(names) == 4
    for name in names:
        starts = record_offsets((base.path / name).read_bytes())
        lengths = [(name, at + 5, 6) for at in starts]
        outcomes = flips.judged(nursery, base, place / "copy", lengths)
        assert outcomes["manifest: refused"] >= len(lengths) // 2


@pytest.mark.parametrize("ends", ["close", "kill"])
def test_a_record_type_that_rocksdb_reads_for_ever_is_no_hang(
    nursery: Nursery, place: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """One bit makes a full record (1) a recyclable one (5): RocksDB loops over it, GIL in hand."""
    base = flips.made(nursery, place / "base", "fsync", 1, ends)
    logs = [name for name, size in base.files().items() if size and "MANIFEST" in name]
    logs += [name for name, size in base.files().items() if size and name.endswith(".log")]
    assert len(logs) == (2 if ends == "kill" else 1)
    bits = []
    for name in logs:
        starts = record_offsets((base.path / name).read_bytes())
        bits += [(name, at + 6, 2) for at in (starts[0], starts[1], starts[-1])]
    monkeypatch.setattr(flips, "LIFE_S_MAX", 15.0)
    outcomes = flips.judged(nursery, base, place / "copy", bits)
    # The last record of a manifest may go, as that of a log, if nothing durable goes with it.
    assert outcomes["manifest: refused"] + outcomes["manifest: reported"] == 3
    assert outcomes["manifest: refused"] >= 2
    assert outcomes.total() == len(bits)
    if ends == "kill":
        assert (outcomes["wal: refused"], outcomes["wal: reported"]) == (2, 1)


def record_offsets(log: bytes) -> list[int]:
    """Where the records of a log, or manifest, of less than one block (32 KiB) begin."""
    found, at = [], 0
    while at + 7 <= len(log) and (size := int.from_bytes(log[at + 4 : at + 6], "little")):
        found.append(at)
        at += 7 + size
    assert at <= 1 << 15
    return found


def test_a_refused_open_leaves_no_copy_behind(nursery: Nursery, place: Path) -> None:
    base = flips.made(nursery, place / "base", "nosync", 1, "kill")
    names_another = ("shard0/CURRENT", len("MANIFEST-000000") - 1, 2)
    assert flips.judged(nursery, base, place / "copy", [names_another]) == {"current: refused": 1}
