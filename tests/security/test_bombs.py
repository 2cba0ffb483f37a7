"""Stored bytes that would grow: refused before they do.

``tests/fuzz`` and ``tests/unit/repository/test_compression.py`` hold the decoders to the size that
is declared. Here it is the declaration that lies, in a record whose checksum is right.
"""

import json
import os
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard

import lodeq
from lodeq.engine.bulk.inbox import outcome
from lodeq.engine.bulk.inbox_past import ended_jobs
from lodeq.engine.files.paths import inbox_path
from lodeq.engine.records import compression
from lodeq.engine.records.compression import VALUE_BYTES_MAX, ZLIB, ZSTD, inflate
from lodeq.engine.records.keyspace import TASK
from lodeq.engine.records.task import decode_task, encode_task
from lodeq.engine.recovery.checkpoint import MANIFEST, read_manifest
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.errors import CorruptionError, RecordCorruptError, SegmentCorruptError, StorageError
from lodeq.repository.model.codec import decode_value
from lodeq.segments.journal.log_format import (
    decode_head,
    decode_header,
    encode_end,
    encode_frame,
    encode_header,
)
from lodeq.segments.journal.small_files import SLOT_AT, Position, encode_slot
from lodeq.testing import ManualClock

MIB = 1 << 20
ZEROS = bytes(MIB)
BOMB_BYTES = 64 * MIB


def zlib_bomb():
    engine = zlib.compressobj(9)
    return b"".join([*(engine.compress(ZEROS) for _ in range(BOMB_BYTES // MIB)), engine.flush()])


def zstd_bomb():
    engine = zstandard.ZstdCompressor().compressobj()
    return b"".join([*(engine.compress(ZEROS) for _ in range(BOMB_BYTES // MIB)), engine.flush()])


def peak_bytes(call, error=RecordCorruptError):
    """What refusing it allocates at most, seen from Python."""
    tracemalloc.start()
    try:
        with pytest.raises(error):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("code", "bomb"), [(ZLIB, zlib_bomb), (ZSTD, zstd_bomb)])
@pytest.mark.parametrize("declared", [BOMB_BYTES, (1 << 32) - 1])
def test_a_record_that_declares_what_no_task_has_is_not_inflated(code, bomb, declared):
    data = bomb()
    assert len(data) < BOMB_BYTES // 500, "no bomb at all"
    assert peak_bytes(lambda: inflate(code, data, declared)) < MIB


@pytest.mark.parametrize(("code", "pack"), [(ZLIB, zlib.compress), (ZSTD, zstandard.compress)])
def test_the_largest_value_is_inflated(code, pack):
    whole = bytes(VALUE_BYTES_MAX)
    assert inflate(code, pack(whole), len(whole)) == whole


def test_more_than_a_submission_takes_is_not_decoded():
    """A byte of msgpack can cost seventy in memory: the size is looked at first."""
    data = b"\xdd" + VALUE_BYTES_MAX.to_bytes(4, "big") + b"\x80" * VALUE_BYTES_MAX
    assert peak_bytes(lambda: decode_value(1, 0, data, len(data), None)) < MIB


def test_the_largest_payload_an_engine_takes_is_below_the_bound():
    lodeq.Limits(payload_bytes_max=3 * MIB, result_bytes_max=3 * MIB)
    with pytest.raises(lodeq.UsageError):
        lodeq.Limits(result_bytes_max=VALUE_BYTES_MAX)
    assert lodeq.Limits(payload_bytes_max=64 * MIB).value_bytes_max < VALUE_BYTES_MAX


@pytest.mark.anyio
async def test_a_planted_bomb_is_told_as_damage_and_blocks_nobody(tmp_path, monkeypatch):
    """By whoever could write the folder, or from a backup that was not what it seemed."""
    async with lodeq.open(tmp_path / "store", compression="zlib") as engine:
        first = await engine.queue("mail").enqueue(bytes(10_000))
        await engine.queue("mail").enqueue(b"second")
    shared = SharedMemory(8 * MIB)
    store = RocksStore.open(tmp_path / "store" / "shard0", shared=shared, create=False)
    record = decode_task(store.get(TASK + first.id))
    planted = record._replace(payload=zlib_bomb(), raw_bytes=BOMB_BYTES)
    store.write([(TASK + first.id, encode_task(planted))])
    store.close()

    def fail(*_):
        raise AssertionError("it was inflated")

    monkeypatch.setattr(compression.zlib, "decompressobj", fail)
    async with lodeq.open(tmp_path / "store") as engine:
        bomb, second = await engine.queue("mail").claim(limit=2)
        with pytest.raises(RecordCorruptError, match="not a possible size"):
            _ = bomb.payload
        assert second.payload == b"second"
        await bomb.bury("unreadable")
        await second.complete()


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b'{"format":"lodeq-checkpoint","version":1' + b" " * MIB,
    ],
    ids=["depth", "depth of maps", "unfinished"],
)
def test_a_manifest_made_to_hurt_is_damage(tmp_path, raw):
    (tmp_path / MANIFEST).write_bytes(raw)
    with pytest.raises(CorruptionError):
        read_manifest(tmp_path)


def test_a_manifest_of_huge_numbers_is_damage(tmp_path):
    """Python itself bounds how many digits become a number."""
    body = {"format": "lodeq-checkpoint", "version": 1, "shards": [[0, 1, 1]]}
    text = json.dumps(body).replace("1, 1]", "1, " + "9" * 1_000_000 + "]")
    (tmp_path / MANIFEST).write_bytes(text.encode())
    with pytest.raises(CorruptionError):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "raw",
    [b"[" * MIB, b'{"a":' * MIB, b"[1]", b"null", b"{" + b" " * (17 * MIB)],
    ids=["depth", "depth of maps", "a list", "nothing", "size"],
)
def test_what_became_of_a_job_is_read_or_refused(tmp_path, raw):
    folder = Path(inbox_path(str(tmp_path))) / "done"
    folder.mkdir(parents=True)
    (folder / "job.json").write_bytes(raw)
    with pytest.raises(StorageError, match="cannot be read"):
        outcome(str(tmp_path), "job")
    assert ended_jobs(str(tmp_path), "done", 1 << 60) == []


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["position", "2023/11/14/00000000000000000001.idx"])
async def test_a_small_file_of_a_journal_that_has_grown_is_not_read(tmp_path, name):
    kept = lodeq.journal.Roll(records=1)
    clock = ManualClock()
    async with lodeq.journal.open(tmp_path / "j", roll=kept, clock=clock) as journal:
        for i in range(3):
            await journal.append(b"%d" % i, until="fsynced")
    (grown,) = (tmp_path / "j").glob("**/position" if name == "position" else "**/*1.idx")
    os.truncate(grown, 1 << 30)
    tracemalloc.start()
    try:
        async with lodeq.journal.open(tmp_path / "j", clock=clock) as journal:
            assert len(await journal.tailer(start=2).read()) == 2
            tailer = journal.tailer()
            tailer.seek_time(0)
            assert len(await tailer.read()) == 3
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.anyio
@pytest.mark.parametrize("number", [(1 << 64) - 1, 10**20 - 1])
async def test_a_journal_that_claims_to_be_at_its_end_is_told_as_damage(tmp_path, number):
    async with lodeq.journal.open(tmp_path / "j") as journal:
        await journal.append(b"a", until="fsynced")
    (log,) = (tmp_path / "j").rglob("*.log")
    log.rename(log.with_name(f"{number:020d}.log"))
    with pytest.raises(CorruptionError, match="no record has that number"):
        await lodeq.journal.open(tmp_path / "j")


@pytest.mark.anyio
async def test_a_position_that_claims_to_be_at_the_end_is_none(tmp_path):
    async with lodeq.journal.open(tmp_path / "j") as journal:
        await journal.append(b"a", until="fsynced")
    raw = bytearray((tmp_path / "j" / "position").read_bytes())
    for generation in (98, 99):
        slot = encode_slot(Position(generation, (1 << 64) - 1, 1, 0))
        raw[SLOT_AT[generation % 2] : SLOT_AT[generation % 2] + len(slot)] = slot
    (tmp_path / "j" / "position").write_bytes(raw)
    async with lodeq.journal.open(tmp_path / "j") as journal:
        assert (await journal.append(b"b", until="fsynced")).first == 2


@pytest.mark.parametrize("first", [(1 << 64) - 1, (1 << 64) - (1 << 32) + 1])
def test_a_frame_of_numbers_that_cannot_be_counted_is_damage(first):
    for raw in (encode_frame(first, 0, [b"a"]), encode_end(first, 0)):
        with pytest.raises(SegmentCorruptError, match="no record has number"):
            decode_head(raw)
    with pytest.raises(SegmentCorruptError, match="no record has number"):
        decode_header(encode_header(first, 0))
