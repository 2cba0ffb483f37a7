"""An engine that only looks: everything is seen, nothing is changed, whoever holds the store."""

import asyncio
import os
import tempfile
import threading
from datetime import timedelta

import anyio
import pytest
from support_cli import picture

import lodeq
from lodeq import NewTask, NotLeaderError, TaskFilter
from lodeq.engine.offline.read_only import look_at
from lodeq.repository.api import read_only
from lodeq.repository.api.read_only import oldest_lease_age, open_read_only
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio
CACHE_BYTES = 8 << 20


def open_(path, **options):
    return lodeq.open(path, block_cache_bytes=CACHE_BYTES, **options)


async def some_of_each(engine):
    """Ids by state."""
    queue = engine.queue("mail")
    ids = {"ready": [(await queue.enqueue(b"z" * 100_000, shard_key=str(i))).id for i in range(6)]}
    ids["delayed"] = [(await queue.enqueue(b"late", delay=3600)).id]
    done, dead, leased = await queue.claim(limit=3)
    await done.complete({"answer": 42})
    await dead.bury("poison")
    ids["ready"] = [id for id in ids["ready"] if id not in (done.task_id, dead.task_id)]
    ids["ready"].remove(leased.task_id)
    ids |= {"completed": [done.task_id], "dead": [dead.task_id], "leased": [leased.task_id]}
    return ids


@pytest.mark.parametrize("shards", [1, 3])
async def test_it_shows_all_a_service_holds_and_writes_nothing(tmp_path, shards):
    async with open_(tmp_path / "s", shards=shards) as engine:
        ids = await some_of_each(engine)
        before = picture(tmp_path)
        async with open_read_only(tmp_path / "s") as seen:
            queue = seen.queue("mail")
            for state, expected in ids.items():
                assert {task.id for task in await queue.list(state)} == set(expected), state
            assert (await queue.peek(1))[0].payload == b"z" * 100_000
            assert (await seen.result(ids["completed"][0])).value == {"answer": 42}
            assert (await seen.get(ids["dead"][0])).reason == "poison"
            found = (await seen.queues())["mail", ""]
            assert (found.ready, found.delayed, found.leased, found.dead) == (3, 1, 1, 1)
            assert 0 <= found.oldest_ready_age < 60
            assert 0 <= oldest_lease_age(seen) < 60
            assert (await seen.verify()).ok
            assert (await seen.stats()).results == 1 + 1  # of the completed, and of the dead one
        assert picture(tmp_path) == before
        assert (await engine.queue("mail").stats()).leased == 1


async def test_what_would_write_is_refused(tmp_path):
    async with open_(tmp_path / "s") as engine:
        ids = await some_of_each(engine)
        async with open_read_only(tmp_path / "s") as seen:
            queue = seen.queue("mail")
            for call in (
                lambda: queue.enqueue(b"no"),
                lambda: queue.enqueue_many([NewTask(b"no")]),
                queue.claim,
                lambda: seen.cancel(ids["ready"][0]),
                queue.redrive,
                queue.purge,
                queue.pause,
            ):
                with pytest.raises(NotLeaderError, match="is read-only"):
                    await call()
        assert len(await engine.queue("mail").list("ready")) == 3


async def test_a_closed_store_and_a_checkpoint(tmp_path):
    async with open_(tmp_path / "s") as engine:
        ids = await some_of_each(engine)
        await engine.checkpoint(tmp_path / "copy")
    for root in (tmp_path / "s", tmp_path / "copy"):
        before = picture(root)
        async with open_read_only(root) as seen:
            # Closed: the lease of the dead process is still there; the next open gives it back.
            assert {t.id for t in await seen.queue("mail").list("leased")} == set(ids["leased"])
        assert picture(root) == before


async def test_while_it_is_written_to(tmp_path):
    """Tables and logs come and go between the links and the open; what is seen is consistent."""
    async with open_(tmp_path / "s") as engine:
        queue, stop = engine.queue("mail"), asyncio.Event()

        async def write():
            while not stop.is_set():
                await queue.enqueue_many([NewTask(os.urandom(512)) for _ in range(50)])
                await queue.enqueue("stays", delay=3600)
                for lease in await queue.claim(limit=40):
                    await lease.complete(keep=False)
                for shard in engine._state.shards:
                    shard.store.flush()

        writing = asyncio.create_task(write())
        counts = []
        for _ in range(10):
            async with open_read_only(tmp_path / "s") as seen:
                assert (await seen.verify()).findings == ()
                counts.append((await seen.stats()).delayed)  # that only ever grows
        stop.set()
        await writing
        assert counts == sorted(counts)
        assert counts[0] < counts[-1]


async def test_no_store(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(lodeq.StorePathError, match="holds no store"):
            async with open_read_only(path):
                pass
    assert list(tmp_path.iterdir()) == []


async def test_what_cannot_be_read_is_refused_and_left_alone(tmp_path, monkeypatch):
    async with open_(tmp_path / "s", shards=2):
        pass
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    current = tmp_path / "s" / "shard1" / "CURRENT"
    current.write_text("nothing\n")
    with pytest.raises(lodeq.RecoveryRefusedError, match="shard1 cannot be read as it is"):
        look_at(tmp_path / "s")
    assert list((tmp_path / "tmp").iterdir()) == []
    assert current.read_text() == "nothing\n"


async def test_a_cancelled_look_leaves_nothing(tmp_path, monkeypatch):
    """Its thread comes to its end all the same: what it has opened is let go."""
    async with open_(tmp_path / "s"):
        pass
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "work"))
    opened, may_end = [], threading.Event()

    def slow(path):
        opened.append(look_at(path))
        assert may_end.wait(30)
        return opened[0]

    monkeypatch.setattr(read_only, "look_at", slow)

    async def start():
        await open_read_only(tmp_path / "s")

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        while not opened:
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
        may_end.set()
    assert os.listdir(tmp_path / "work") == []


@pytest.mark.parametrize("state", ["ready", "delayed"])
async def test_tasks_of_a_clock_that_was_ahead_are_found(tmp_path, state):
    clock = ManualClock()
    clock.step_wall(timedelta(days=3000))
    async with open_(tmp_path / "s", clock=clock) as engine:
        await engine.queue("mail").enqueue(b"x", delay=60 if state == "delayed" else None)
        async with open_read_only(tmp_path / "s") as seen:
            assert await seen.count(TaskFilter(state=state)) == lodeq.FoundCount(1, is_exact=True)
