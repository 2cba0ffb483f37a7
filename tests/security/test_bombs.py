"""Stored bytes that would grow: refused before they do.

``tests/fuzz`` and ``tests/unit/repository/test_compression.py`` hold the decoders to the size that
is declared. Here it is the declaration that lies, in a record whose checksum is right.
"""

import json
import tracemalloc
import zlib

import pytest
import zstandard

import lodeq
from lodeq.engine import compression
from lodeq.engine.checkpoint import MANIFEST, read_manifest
from lodeq.engine.compression import VALUE_BYTES_MAX, ZLIB, ZSTD, inflate
from lodeq.engine.keyspace import TASK
from lodeq.engine.records.task import decode_task, encode_task
from lodeq.engine.rocks import RocksStore, SharedMemory
from lodeq.errors import CorruptionError, RecordCorruptError
from lodeq.repository.codec import decode_value

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
        lodeq.Limits(payload_bytes_max=VALUE_BYTES_MAX)


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
