"""Opening: what is refused at once, and what a cancelled or failed opening leaves behind."""

import asyncio
import random
import subprocess
import sys

import pytest
import trio
import trio.testing
from anyio.lowlevel import checkpoint

import lodeq
import lodeq.testing
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records.compression import Compressor
from lodeq.engine.records.keyspace import LEASE, counters_key
from lodeq.engine.recovery.open_shard import open_memory
from lodeq.engine.runtime.ids import SeededRng
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.api.open import build
from lodeq.repository.api.read_only import open_read_only

CACHE_BYTES = 8 << 20


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("lodeq.repository.api.open.LOCK_POLL_S", 0.001)


def open_(path, **options):
    return lodeq.open(path, block_cache_bytes=CACHE_BYTES, **options)


def test_a_wait_for_the_lock_ends_with_the_lock(tmp_path, quick):
    async def main():
        first = await open_(tmp_path / "s")
        second = asyncio.create_task(open_(tmp_path / "s", lock_wait=10).__aenter__())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not second.done()
        await first.close()
        await (await second).close()

    asyncio.run(main())


def test_cancelled_while_it_waits_for_the_lock(tmp_path, quick):
    async def main():
        reported = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        async with open_(tmp_path / "s"):
            waiting = asyncio.create_task(open_(tmp_path / "s", lock_wait=10).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            over = loop.create_future()
            loop.call_later(0.002, over.set_result, None)  # behind the timer of the wait
            await over
        assert reported == []

    asyncio.run(main())


def test_cancelled_on_trio_it_leaves_no_task(tmp_path):
    async def main():
        async with open_(tmp_path / "s"):
            before = trio.lowlevel.current_statistics().tasks_living
            with trio.move_on_after(0.01) as scope:
                await open_(tmp_path / "s", lock_wait=1000)
            assert scope.cancelled_caught
            for _ in range(5):
                await checkpoint()
            assert trio.lowlevel.current_statistics().tasks_living == before
            await trio.sleep(1)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    "options",
    [
        {"submit_queue_max": 0},
        {"submit_queue_max": True},
        {"commit_batch_max": 0},
        {"commit_batch_max": "64"},
    ],
)
def test_limits_of_the_line_are_checked_in_memory_too(options):
    async def main():
        with pytest.raises(
            lodeq.UsageError, match=r"expected (commit_batch|submit_queue)_max as an int from 1"
        ):
            await lodeq.testing.open(**options)

    asyncio.run(main())


def test_a_store_that_cannot_be_loaded_leaves_no_task(monkeypatch):
    def broken(state, shard):
        state.spawner.call_later(1000, lambda: None)  # as the syncer of what open has written
        raise lodeq.RecoveryRefusedError("a delayed row")

    async def main():
        before = trio.lowlevel.current_statistics().tasks_living
        with pytest.raises(lodeq.RecoveryRefusedError):
            await lodeq.testing.open()
        for _ in range(5):
            await checkpoint()
        assert trio.lowlevel.current_statistics().tasks_living == before

    monkeypatch.setattr("lodeq.repository.api.open.load_deadlines", broken)
    trio.run(main)


@pytest.mark.parametrize("key", [LEASE + b"i" * 16, counters_key(b"mail", b"")])
def test_a_damaged_row_that_open_needs_is_refused_with_advice(key):
    async def main():
        rng = SeededRng(1)
        opened = open_memory(shards=2, durability="nosync", rng=rng)
        opened.shards[1].store.write([(key, b"damaged")])
        with pytest.raises(lodeq.RecoveryRefusedError, match=r"shard 1: a row is dam.*salvage"):
            await build(
                opened,
                clock=lodeq.testing.ManualClock(),
                rng=rng,
                limits=None,
                compressor=Compressor(None),
                interval_s=1.0,
                commit_batch_max=64,
                submit_queue_max=1024,
                reaper=True,
            )

    asyncio.run(main())


def break_reads(monkeypatch, begins):
    """Whatever begins at such a key lies in a damaged block."""

    def damaged(read):
        def reading(self, key, *how):
            if key.startswith(begins):
                raise lodeq.CorruptionError("block checksum mismatch")
            return read(self, key, *how)

        return reading

    for name in ("get", "scan", "scan_part", "scan_last"):
        monkeypatch.setattr(RocksStore, name, damaged(getattr(RocksStore, name)))


READ = [
    ks.STAMP,
    ks.OPEN,
    ks.RING,
    ks.SECRET,
    ks.OLD_GHOSTS,
    ks.BODY_FILES,
    ks.BODY_AT,
    ks.COUNTERS,
    ks.PAUSE,
    ks.UNCOUNTED,
    ks.LEASE,
]


@pytest.mark.slow
@pytest.mark.parametrize("recovery", ["strict", "salvage"])
@pytest.mark.parametrize("begins", READ, ids=repr)
def test_a_block_that_open_cannot_read_is_refused_with_advice_and_leaves_nothing_open(
    tmp_path, monkeypatch, begins, recovery
):
    """Each row that an open reads; a salvage would have read the table block by block before."""

    async def main():
        await (await open_(tmp_path / "s")).close()
        with monkeypatch.context() as patched:
            break_reads(patched, begins)
            advice = 'block checksum.*recovery="salvage"'
            with pytest.raises(lodeq.RecoveryRefusedError, match=advice):
                await open_(tmp_path / "s", recovery=recovery)
        async with open_(tmp_path / "s", recovery=recovery) as engine:
            assert (await engine.verify()).ok

    asyncio.run(main())


@pytest.mark.parametrize("begins", [ks.STAMP, ks.OPEN, ks.COUNTERS, ks.PAUSE], ids=repr)
def test_who_looks_at_a_block_that_cannot_be_read_is_told_so(tmp_path, monkeypatch, begins):

    async def main():
        await (await open_(tmp_path / "s")).close()
        break_reads(monkeypatch, begins)
        with pytest.raises(lodeq.RecoveryRefusedError, match="block checksum"):
            await open_read_only(tmp_path / "s")

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [
        {"limits": {"pending_max": 3}},
        {"limits": lodeq.Limits},
        {"clock": 3},
        {"rng": random},
        {"replicator": "etcd://h"},
    ],
)
def test_an_opening_that_fails_early_leaves_nothing_locked(tmp_path, options):
    async def main():
        for _ in range(2):
            with pytest.raises(lodeq.UsageError):
                await open_(tmp_path / "s", **options)
        async with open_(tmp_path / "s") as engine:
            assert (await engine.health()).ok

    asyncio.run(main())


@pytest.mark.parametrize("name", ["EngineState", "Reaper", "ShardMaker", "EngineRuntime"])
def test_whatever_fails_in_an_opening_leaves_nothing_locked(tmp_path, monkeypatch, name):
    def fail(*_, **__):
        raise RuntimeError(name)

    async def main():
        with monkeypatch.context() as patched:
            patched.setattr(f"lodeq.repository.api.open.{name}", fail)
            with pytest.raises(RuntimeError, match=name):
                await open_(tmp_path / "s")
        async with open_(tmp_path / "s"):
            pass

    asyncio.run(main())


LATER = """
import asyncio, sys
import lodeq

async def main(path):
    async with lodeq.open(path, block_cache_bytes=8 << 20) as engine:
        before = set(sys.modules)
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        async with await queue.claim_one():
            pass
        await engine.snapshots()
        taken = await engine.snapshot()
        await engine.release_snapshot(taken.id)
        await engine.verify()
    sys.stdout.write(repr(sorted(set(sys.modules) - before)))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
def test_nothing_is_imported_once_a_store_is_open(tmp_path):
    """Where no file can be opened, an import would fail in the middle of a call."""
    command = [sys.executable, "-c", LATER, str(tmp_path / "s")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]"
