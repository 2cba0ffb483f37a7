"""Payloads above 3 MiB: what users do with them, what is on the disk, and what a turn may take."""

import asyncio
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest
from support_loop import on_loop
from support_turns import held_at_most

import lodeq
from lodeq import Limits, NewTask
from lodeq.engine.bulk.arrow.columns import read_columns
from lodeq.engine.bulk.ranges import key_ranges
from lodeq.engine.bulk.reader import open_shard
from lodeq.engine.records.keyspace import BODY, BODY_AT, BODY_AT_END, BODY_END
from lodeq.engine.records.task import WHOLE_BYTES_MAX
from lodeq.engine.recovery.checkpoint import checkpoint_bodies
from lodeq.repository.api import runtime
from lodeq.repository.api.in_place_reshard import reshard
from lodeq.segments.bodies.layout import Location
from lodeq.segments.bodies.reader import BodyReader
from lodeq.segments.bodies.streams import StreamWriter
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing

MIB = 1 << 20
LIMITS = Limits(payload_bytes_max=64 * MIB)
LARGE = os.urandom(5 * MIB)


def opened(path: Path, **how: Any) -> Any:
    return lodeq.open(path / "s", limits=LIMITS, **how)


def files_of(path: Path, shard: int = 0) -> list[str]:
    folder = path / "s" / f"bodies{shard}"
    return sorted(os.listdir(folder)) if folder.exists() else []


async def collected(engine: lodeq.Engine) -> None:
    """Everything that is garbage has gone."""
    await engine._runtime.body_gc.do_all()


def rows(engine: lodeq.Engine) -> int:
    return sum(
        len(shard.store.scan(lower, upper, 100))
        for shard in engine._state.shards
        for lower, upper in ((BODY, BODY_END), (BODY_AT, BODY_AT_END))
    )


async def slices_of(*sizes: int) -> AsyncIterator[bytes]:
    for n, size in enumerate(sizes):
        yield bytes([n]) * size


@pytest.mark.parametrize("durability", ["nosync", "fsync"])
@on_loop
async def test_it_goes_round(tmp_path: Path, durability: str) -> None:
    async with opened(tmp_path, durability=durability, shards=2) as engine:
        queue = engine.queue("q")
        first = await queue.enqueue(LARGE, priority=7, headers={"a": 1}, dedup_key="k")
        again = await queue.enqueue(LARGE, dedup_key="k")
        assert (again.duplicate, again.id) == (True, first.id)
        await queue.enqueue_many([NewTask(LARGE[: 4 * MIB]), NewTask(b"small"), NewTask(LARGE)])
        leases = await queue.claim(limit=9)
        assert [lease.payload_bytes for lease in leases] == [5 * MIB, 4 * MIB, 5, 5 * MIB]
        assert (leases[0].headers, leases[0].queue) == ({"a": 1}, "q")
        with pytest.raises(lodeq.PayloadNotLoadedError, match="read_payload"):
            _ = leases[0].payload
        assert leases[2].payload == await leases[2].read_payload() == b"small"
        for lease, payload in zip(leases, (LARGE, LARGE[: 4 * MIB], b"small", LARGE), strict=True):
            assert await lease.read_payload() == payload
            async with await lease.open_payload(slice_bytes=MIB) as reader:
                assert reader.size == len(payload)
                assert b"".join([data async for data in reader]) == payload
        assert (await engine.verify()).ok
        await leases[0].release()
        await leases[1].nack(delay=0)
        await leases[2].complete()
        await leases[3].bury("no")
        assert await queue.redrive([leases[3].task_id]) == 1
        for lease in await queue.claim(limit=9):
            assert len(await lease.read_payload()) == lease.payload_bytes
            await lease.complete()
        assert rows(engine) == 0
        await collected(engine)
        assert files_of(tmp_path) == files_of(tmp_path, 1) == []


@on_loop
async def test_it_is_there_after_a_restart_and_by_its_id(tmp_path: Path) -> None:
    async with opened(tmp_path, body_bytes_min=None) as engine:  # that is about smaller ones
        receipt = await engine.queue("q").enqueue(LARGE, delay=3600)
    async with lodeq.open(tmp_path / "s", limits=Limits(payload_bytes_max=1)) as engine:
        task = await engine.get(receipt.id)
        assert task is not None
        assert task.state == "delayed"
        with pytest.raises(lodeq.PayloadNotLoadedError):
            _ = task.payload
        assert await engine.read_payload(receipt.id) == LARGE
        async with await engine.open_payload(receipt.id) as reader:
            assert await reader.read(10) == LARGE[:10]
            assert await engine.cancel(receipt.id)
            await collected(engine)
            assert files_of(tmp_path) == []
            assert await reader.read() == LARGE[10:]  # who has it open reads on
        for read in (engine.read_payload, engine.open_payload):
            with pytest.raises(lodeq.TaskNotFoundError):
                await read(receipt.id)


@on_loop
async def test_a_negative_number_reads_all_that_is_left(tmp_path: Path) -> None:
    async with lodeq.open(tmp_path / "s") as engine:
        receipt = await engine.queue("q").enqueue(LARGE)
        async with await engine.open_payload(receipt.id) as reader:
            assert await reader.read(10) + await reader.read(-1) == LARGE


@on_loop
async def test_tasks_of_one_call_share_one_file(tmp_path: Path) -> None:
    async with opened(tmp_path, compression="zlib") as engine:  # it is stored as it was given
        same = bytes(4 * MIB)
        receipts = await engine.queue("q").enqueue_many([NewTask(same, priority=2)] * 2)
        assert len({receipt.id for receipt in receipts}) == 2
        leases = await engine.queue("q").claim(limit=2)
        for lease in leases:
            assert await lease.read_payload() == same


@on_loop
async def test_a_replaced_or_refused_one_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        old = await queue.enqueue(LARGE, dedup_key="k")
        with pytest.raises(lodeq.DuplicateTaskError):
            await queue.enqueue(LARGE, dedup_key="k", on_conflict="raise")
        new = await queue.enqueue(LARGE, dedup_key="k", on_conflict="replace")
        assert new.replaced == old.id
        await collected(engine)
        assert len(files_of(tmp_path)) == 1
        assert await engine.read_payload(new.id) == LARGE


@on_loop
async def test_what_takes_no_streamed_payload_says_so(tmp_path: Path) -> None:
    over = bytes(WHOLE_BYTES_MAX + 1)
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        with pytest.raises(lodeq.PayloadTooLargeError, match="only bytes are taken"):
            await queue.enqueue({"a": over})
        with pytest.raises(lodeq.PayloadTooLargeError, match="only bytes are taken"):
            await queue.enqueue(bytearray(over))
        with pytest.raises(lodeq.PayloadTooLargeError, match="limit is 67108864: store it"):
            await queue.enqueue(bytes(65 * MIB))
        with pytest.raises(lodeq.LimitError, match="atomic"):
            await queue.enqueue_many([NewTask(over)], atomic=True)
        receipt = await queue.enqueue(b"x")
        with pytest.raises(lodeq.UsageError, match="waits for no other task"):
            await queue.enqueue(over, after=[receipt.id])
        (lease,) = await queue.claim()
        with pytest.raises(lodeq.UsageError, match="follow-ups"):
            await lease.complete(then=[NewTask(over)])
        assert files_of(tmp_path) == []
    async with open_testing(clock=ManualClock(), seed=1, limits=LIMITS) as engine:
        with pytest.raises(lodeq.PayloadTooLargeError, match="a store in memory"):
            await engine.queue("q").enqueue(over)
        with pytest.raises(lodeq.PayloadTooLargeError, match="a store in memory"):
            await engine.queue("q").enqueue_stream(slices_of(len(over)))


@on_loop
async def test_a_damaged_one_is_told_where_it_is_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        receipt = await engine.queue("q").enqueue(LARGE)
        (name,) = files_of(tmp_path)
        with (tmp_path / "s" / "bodies0" / name).open("r+b") as file:
            file.seek(2 * MIB)
            file.write(b"damage")
        assert [found.kind for found in (await engine.verify()).findings] == ["body"]
        (lease,) = await engine.queue("q").claim()
        with pytest.raises(lodeq.RecordCorruptError, match="bad_checksum"):
            await lease.read_payload()
        async with await engine.open_payload(receipt.id) as reader:
            with pytest.raises(lodeq.RecordCorruptError, match="bad_checksum"):
                [_ async for _ in reader]


# -- streams ---------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["nosync", "fsync"])
@on_loop
async def test_a_stream_of_any_size_becomes_a_task(tmp_path: Path, durability: str) -> None:
    async with opened(tmp_path, durability=durability) as engine:
        queue = engine.queue("q")
        for sizes in ((), (10, 0, 20), (40_000,), (1_000,) * 200, (2 * MIB,) * 3):
            wanted = b"".join([data async for data in slices_of(*sizes)])
            receipt = await queue.enqueue_stream(slices_of(*sizes), headers={"n": len(sizes)})
            assert await engine.read_payload(receipt.id) == wanted
            (lease,) = await queue.claim()
            assert lease.payload_bytes == len(wanted)
            assert await lease.read_payload() == wanted
            assert lease.headers == {"n": len(sizes)}
            await lease.complete()
        assert (await engine.verify()).ok
        await collected(engine)
        assert files_of(tmp_path) == []


@on_loop
async def test_files_and_plain_iterables_are_read_in_a_thread(tmp_path: Path) -> None:
    def some() -> Iterator[bytes]:
        asyncio.run(asyncio.sleep(0))  # a loop runs in no thread that has one
        yield LARGE

    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        for source in (BytesIO(LARGE), [LARGE[:MIB], memoryview(LARGE)[MIB:]], some()):
            receipt = await queue.enqueue_stream(source, dedup_key="k")
            assert await engine.read_payload(receipt.id) == LARGE
            await engine.cancel(receipt.id)


@on_loop
async def test_a_stream_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async def broken(*sizes: int) -> AsyncIterator[bytes]:
        async for data in slices_of(*sizes):
            yield data
        raise OSError("the line is dead")

    async def strange() -> AsyncIterator[Any]:
        yield LARGE
        yield "text"

    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        for sizes in ((10,), (WHOLE_BYTES_MAX, 10)):
            with pytest.raises(OSError, match="the line is dead"):
                await queue.enqueue_stream(broken(*sizes))
        with pytest.raises(lodeq.PayloadTooLargeError):
            await queue.enqueue_stream(slices_of(*[8 * MIB] * 9))
        with pytest.raises(lodeq.UsageError, match="slices of bytes, not str"):
            await queue.enqueue_stream(strange())
        for wrong in (LARGE, "text", 5):
            with pytest.raises(lodeq.UsageError, match="a file or an iterable of bytes"):
                await queue.enqueue_stream(wrong)
        with pytest.raises(lodeq.UsageError, match="no option 'after'"):
            await queue.enqueue_stream(slices_of(1), after=[])
        with pytest.raises(lodeq.UsageError, match="priority"):
            await queue.enqueue_stream(slices_of(1), priority=11)
        assert (files_of(tmp_path), rows(engine)) == ([], 0)
        assert (await queue.stats()).ready == 0


@on_loop
async def test_a_source_that_breaks_off_is_not_taken_for_one_that_is_over(tmp_path: Path) -> None:
    class Source:
        def __init__(self, *gives: Any) -> None:
            self.gives = iter(gives)

        def read(self, size: int) -> Any:
            return next(self.gives)

    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        for wrong in ([LARGE, None, LARGE], Source(LARGE, None, b"")):  # nothing there just now
            with pytest.raises(lodeq.UsageError, match="slices of bytes, not NoneType"):
                await queue.enqueue_stream(wrong)
        with pytest.raises(lodeq.UsageError, match="slices of bytes, not str"):
            await queue.enqueue_stream(StringIO(""))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(queue.enqueue_stream(Source(LARGE)), 60)
        assert (files_of(tmp_path), rows(engine)) == ([], 0)


@on_loop
async def test_a_cancelled_stream_leaves_nothing(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield LARGE
        reached.set()
        await asyncio.Event().wait()

    async with opened(tmp_path) as engine:
        task = asyncio.create_task(engine.queue("q").enqueue_stream(endless()))
        await reached.wait()
        assert files_of(tmp_path)[0].endswith(".sqs.part")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert files_of(tmp_path) == []


@on_loop
async def test_empty_slices_are_not_kept(tmp_path: Path) -> None:
    async def mostly_nothing() -> AsyncIterator[bytes]:
        for part in (b"a", b"b"):
            for _ in range(100_000):
                yield b""
            yield part

    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        tracemalloc.start()
        try:
            await queue.enqueue_stream(mostly_nothing())
            assert tracemalloc.get_traced_memory()[1] < 400_000  # a list of them takes 1.6 MB
        finally:
            tracemalloc.stop()
        (lease,) = await queue.claim()
        assert lease.payload == b"ab"


@on_loop
async def test_a_checkpoint_does_not_fail_over_a_stream_that_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed, cancelled = asyncio.Event(), threading.Event()
    loop, finish, link = asyncio.get_running_loop(), StreamWriter._finish, checkpoint_bodies

    def named(body: StreamWriter, *, is_durable: bool) -> Location:
        at = finish(body, is_durable=is_durable)
        loop.call_soon_threadsafe(renamed.set)
        linking.wait(60)
        return at

    def linked(*files: Any) -> None:
        linking.set()
        cancelled.wait(60)
        link(*files)

    linking = threading.Event()
    monkeypatch.setattr(StreamWriter, "_finish", named)
    monkeypatch.setattr(runtime, "checkpoint_bodies", linked)
    async with opened(tmp_path) as engine:
        await engine.queue("q").enqueue(bytes(50_000))
        upload = asyncio.create_task(engine.queue("q").enqueue_stream(slices_of(5 * MIB)))
        await renamed.wait()
        checkpoint = asyncio.create_task(engine.checkpoint(tmp_path / "c"))
        await asyncio.sleep(0)
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        cancelled.set()
        await checkpoint
        assert os.listdir(tmp_path / "c" / "bodies0") == ["1.sqs"]


@on_loop
async def test_a_close_ends_what_is_under_way(tmp_path: Path) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def waiting() -> AsyncIterator[bytes]:
        yield LARGE
        reached.set()
        await go_on.wait()
        yield LARGE

    async with opened(tmp_path) as engine:
        task = asyncio.create_task(engine.queue("q").enqueue_stream(waiting()))
        await reached.wait()
    assert files_of(tmp_path) == []
    async with opened(tmp_path) as engine:  # it may take the number of that file
        receipt = await engine.queue("q").enqueue(LARGE)
        go_on.set()
        with pytest.raises(lodeq.ClosedError):
            await task
        assert await engine.read_payload(receipt.id) == LARGE
        assert files_of(tmp_path) == ["1.sqs"]


def test_threads_and_scripts_do_the_same(tmp_path: Path) -> None:
    with lodeq.sync.open(tmp_path / "s", limits=LIMITS) as engine:
        queue = engine.queue("q")
        receipt = queue.enqueue_stream(BytesIO(LARGE), priority=9)
        assert engine.read_payload(receipt.id) == LARGE
        with engine.open_payload(receipt.id) as reader:
            assert (reader.size, b"".join(reader)) == (len(LARGE), LARGE)
        (lease,) = queue.claim()
        assert lease.payload_bytes == len(LARGE)
        assert lease.read_payload() == LARGE
        assert b"".join(lease.open_payload(slice_bytes=MIB)) == LARGE
        lease.complete()


# -- crashes ---------------------------------------------------------------------------------


@on_loop
async def test_what_a_crash_has_left_goes_and_its_number_is_not_used_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        await engine.queue("q").enqueue(LARGE)
    folder = tmp_path / "s" / "bodies0"
    (folder / "2.sqs.part").write_bytes(b"half")  # died while it was written
    (folder / "3.sqs").write_bytes((folder / "1.sqs").read_bytes())  # and before its rows were
    async with opened(tmp_path) as engine:
        second = await engine.queue("q").enqueue(LARGE)
        await collected(engine)
        assert files_of(tmp_path) == ["1.sqs", "4.sqs"]
        assert await engine.read_payload(second.id) == LARGE
        assert (await engine.verify()).ok


# -- turns of the loop -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.turns
@on_loop
async def test_no_turn_takes_long(tmp_path: Path) -> None:
    whole = os.urandom(64 * MIB)
    async with opened(tmp_path, durability="fsync") as engine:
        queue = engine.queue("q")
        await queue.enqueue(LARGE)
        with held_at_most(20):
            for lease in await queue.claim():
                await lease.read_payload()
                await lease.complete()
            receipt = await queue.enqueue(whole)
            await queue.enqueue_many([NewTask(whole), NewTask(whole, dedup_key="k")])
            await queue.enqueue_stream(BytesIO(whole))
            await engine.get(receipt.id)
            assert len(await queue.list("ready")) == 4
            async with await engine.open_payload(receipt.id) as reader:
                async for _ in reader:
                    pass
            leases = await queue.claim(limit=64)
            for lease in leases:
                data = await lease.read_payload()
                assert len(data) == len(whole)
                del data
                await lease.complete()
            await engine.verify()
            await collected(engine)
        assert len(leases) == 4


# -- what is done to a whole store -----------------------------------------------------------


def test_checkpoint_restore_reshard_and_compact_keep_them(tmp_path: Path) -> None:
    payloads = {n: bytes([n]) * (4 * MIB) for n in range(6)}
    root = tmp_path / "s"

    @on_loop
    async def fill() -> None:
        async with opened(tmp_path) as engine:
            for n, payload in payloads.items():
                await engine.queue("q").enqueue(payload, headers={"n": n})
            await engine.checkpoint(tmp_path / "c")
            for lease in await engine.queue("q").claim(limit=2):
                await lease.complete()

    @on_loop
    async def check(path: Path, wanted: set[int], shards: int) -> None:
        async with lodeq.open(path, limits=LIMITS) as engine:
            await collected(engine)
            tasks = await engine.queue("q").list("ready")
            assert {task.headers["n"] for task in tasks} == wanted
            for task in tasks:
                assert await engine.read_payload(task.id) == payloads[task.headers["n"]]
            assert (await engine.verify()).ok
        folders = [path / f"bodies{shard}" for shard in range(shards)]
        count = sum(len(os.listdir(folder)) for folder in folders if folder.exists())
        assert count == len(wanted)

    fill()
    lodeq.restore(tmp_path / "c", tmp_path / "r")
    check(tmp_path / "r", set(payloads), 1)
    tracemalloc.start()
    reshard(root, 3)
    assert tracemalloc.get_traced_memory()[1] < 3 * MIB  # none of them as a whole
    tracemalloc.stop()
    check(root, set(payloads) - {0, 1}, 3)


@pytest.mark.slow
def test_columns_have_them_a_bounded_number_at_a_time(tmp_path: Path) -> None:
    @on_loop
    async def fill() -> None:
        async with opened(tmp_path) as engine:
            for n in range(6):
                await engine.queue("q").enqueue(bytes([n]) * (4 * MIB))
                await engine.queue("q").enqueue(b"small")

    fill()
    bodies = BodyReader.of(str(tmp_path / "s" / "bodies0"))
    with open_shard(str(tmp_path / "s"), 0) as reader:
        batches = [
            batch
            for one in key_ranges(reader, "tasks")
            for batch in read_columns(
                reader,
                one,
                "tasks",
                ["payload", "payload_bytes"],
                bodies=lambda _, row: bodies.read_row(row),
            )
        ]
    bodies.close()
    found = [row for batch in batches for row in batch.to_pylist()]
    assert sum(row["payload"] == b"small" for row in found) == 6
    large = [row for row in found if row["payload"] != b"small"]
    assert sorted(row["payload"][0] for row in large) == list(range(6))
    assert {len(row["payload"]) for row in large} == {row["payload_bytes"] for row in large}
    assert max(batch.nbytes for batch in batches) < 9 * MIB


# -- memory ----------------------------------------------------------------------------------

CHILD = """
import asyncio, resource, sys
import lodeq

N, SLICES = 200, 16


async def slices(n, all_here):
    yield bytes([n]) * (256 << 10)
    await all_here.wait()  # every one of them has begun
    for _ in range(SLICES - 1):
        yield bytes([n]) * (256 << 10)


async def main():
    async with lodeq.open(sys.argv[1]) as engine:
        queue = engine.queue("q")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        all_here = asyncio.Barrier(N)
        await asyncio.gather(*(queue.enqueue_stream(slices(n, all_here)) for n in range(N)))
        leases = []
        while len(leases) < N:
            leases += await queue.claim(limit=N, lease=600)

        async def take(lease):
            async with lease:
                async with await lease.open_payload() as reader:
                    first = await reader.read(1)
                    await all_here.wait()
                    size = len(first)
                    async for data in reader:
                        assert set(data) == set(first)
                        size += len(data)
                    assert size == SLICES * (256 << 10)

        await asyncio.gather(*map(take, leases))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


asyncio.run(main())
"""


@pytest.mark.slow
def test_of_two_hundred_under_way_a_slice_each_is_in_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "s")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) << 10 < 250 * MIB  # all of them have 800 MiB
