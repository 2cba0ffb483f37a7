"""The lifecycle journals of replicas: each writes its own, of the same events."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from support_behaviour import sound, until
from support_replication import Cluster, whole_rows

import lodeq
from lodeq.engine.records.keyspace import EVENTS, EVENTS_END
from lodeq.errors import NotLeaderError
from lodeq.lifecycle import Event, Missed, Reader, open_tailer
from lodeq.repository.background.event_publisher import EventPublisher

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def by_hand(monkeypatch):
    """Events are moved by ``published`` alone, and when the engine is closed."""
    monkeypatch.setattr(EventPublisher, "start", lambda _: None)


def opened(cluster, path, name, clock, **how):
    how.setdefault("journal", "tasks")
    return lodeq.open(path / name, replicator=cluster.node(name), clock=clock, **how)


@asynccontextmanager
async def replicas(path, clock, *names):
    cluster = Cluster()
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(opened(cluster, path, name, clock)) for name in names
        ]
        await cluster.elect(names[0])
        yield cluster, engines


async def lives(engine, count):
    """Enqueue, claim and complete so many tasks."""
    queue = engine.queue("q")
    for _ in range(count):
        await queue.enqueue(b"x")
        (lease,) = await queue.claim()
        await lease.complete(keep=False)


def rows(engine):
    return len(engine._state.shards[0].store.scan(EVENTS, EVENTS_END, 9999))


async def published(engine):
    await engine.fsync()
    while await engine._runtime.event_publisher.step():
        pass


async def read(path, name, reader=None):
    """Read all that the journal of a replica has for a reader."""
    reader = Reader() if reader is None else reader
    tailer = open_tailer(path / name, "tasks")
    try:
        return [one for record in await tailer.read(9999) for one in reader.read(record)]
    finally:
        tailer.close()


def kinds(found):
    return [one.kind.name for one in found]


async def test_every_replica_writes_the_same_events(tmp_path, clock):
    async with replicas(tmp_path, clock, "a", "b") as (cluster, (a, b)):
        await lives(a, 3)
        await published(a)  # b has moved none yet
        assert (rows(a), rows(b)) == (0, 9)
        await cluster.elect("b")
        await lives(b, 2)
        await published(b)
        assert (rows(a), rows(b)) == (6, 0)
        await published(a)
        for engine in (a, b):
            await sound(engine)
        assert whole_rows(a) == whole_rows(b)
        deleted = [
            key
            for entry in cluster.logs[0]
            for key, value in entry.ops
            if key[:2] == EVENTS and value is None
        ]
        assert deleted == []  # in no entry
    async with opened(cluster, tmp_path, "a", clock) as a:  # and none comes again
        await published(a)
    found = await read(tmp_path, "a")
    assert kinds(found) == ["ENQUEUED", "CLAIMED", "COMPLETED"] * 5
    assert found == await read(tmp_path, "b")
    assert {one.incarnation for one in found} == {2, 3}


async def test_what_was_not_committed_has_no_event(tmp_path, clock):
    async with replicas(tmp_path, clock, "a", "b") as (cluster, (a, b)):
        await lives(a, 1)
        await a.fsync()
        cluster.is_held = True
        call = asyncio.ensure_future(a.queue("q").enqueue(b"lost"))
        await until(lambda: cluster.waiting)
        assert await a._runtime.event_publisher.step()  # it reads the store, where more is queued
        cluster.drop(NotLeaderError("deposed", leader="b"))
        cluster.is_held = False
        with pytest.raises(NotLeaderError):
            await call
        await cluster.elect("b")
        await lives(b, 1)
        for engine in (a, b):
            await published(engine)
    found = await read(tmp_path, "a")
    assert kinds(found) == ["ENQUEUED", "CLAIMED", "COMPLETED"] * 2
    assert found == await read(tmp_path, "b")


async def test_a_reader_goes_on_at_another_replica_where_it_was(tmp_path, clock):
    async with replicas(tmp_path, clock, "a", "b") as (cluster, (a, b)):
        await lives(a, 3)
        for engine in (a, b):
            await published(engine)
        reader = Reader()
        before = await read(tmp_path, "a", reader)
        place = reader.seen  # what a reader stores with its work
        cluster.nodes["a"].cut()
        await cluster.elect("b")
        await lives(b, 2)
        await published(b)
        after = await read(tmp_path, "b", Reader(place))
        assert kinds(before + after) == ["ENQUEUED", "CLAIMED", "COMPLETED"] * 5
        assert before + after == await read(tmp_path, "b")


async def test_a_replica_that_was_copied_says_which_events_it_may_have_missed(tmp_path, clock):
    async with replicas(tmp_path, clock, "a", "b") as (cluster, (a, _)):
        await lives(a, 1)
        await published(a)
        early = Reader()
        await read(tmp_path, "a", early)
        await lives(a, 1)
        await published(a)
        late = Reader()
        await read(tmp_path, "a", late)
        await lives(a, 1)  # these rows are in the copy
        await a.checkpoint(tmp_path / "copy")
        lodeq.restore(tmp_path / "copy", tmp_path / "c")
        for _ in range(2):  # one mark, however often it is opened
            async with opened(cluster, tmp_path, "c", clock) as c:
                cluster.nodes["c"].catch_up()
                await published(c)
            cluster.nodes["c"].replica = None
        await lives(a, 1)
        async with opened(cluster, tmp_path, "c", clock) as c:
            cluster.nodes["c"].catch_up()
            await published(c)
            mark, *events = await read(tmp_path, "c", Reader(early.seen))
            (last,) = late.seen.values()
            assert mark == Missed(0, *last)
            assert kinds(events) == ["ENQUEUED", "CLAIMED", "COMPLETED"] * 2
            assert await read(tmp_path, "c", Reader(late.seen)) == events
            assert await read(tmp_path, "c") == events
            await published(a)
            assert await read(tmp_path, "a", Reader(late.seen)) == events
        cluster.nodes["c"].replica = None


async def test_a_replica_without_a_journal_keeps_no_events(tmp_path, clock):
    async with replicas(tmp_path, clock, "a", "b") as (cluster, (a, b)):
        async with opened(cluster, tmp_path, "c", clock) as c:
            cluster.nodes["c"].catch_up()
            await lives(a, 1)
            await published(c)
            reader = Reader()
            await read(tmp_path, "c", reader)
        async with opened(cluster, tmp_path, "c", clock, journal=None) as c:
            await lives(a, 1)
            assert rows(c) == 0
            assert rows(b) > 0
            await sound(c)
        async with opened(cluster, tmp_path, "c", clock) as c:
            await lives(a, 1)
            await published(c)
            mark, *events = await read(tmp_path, "c", reader)  # and says that it has missed some
            assert isinstance(mark, Missed)
            assert [type(one) for one in events] == [Event] * 3
        cluster.nodes["c"].replica = None


class Kept:
    """A journal in memory."""

    def __init__(self):
        self.payloads = []

    async def append_many(self, payloads, *, until=None):
        self.payloads += payloads

    async def sync(self):
        pass

    async def close(self):
        pass


async def test_a_shard_that_takes_anothers_place_has_its_events_published(clock):
    cluster, kept = Cluster(), Kept()
    async with cluster.open("a", clock=clock) as a:
        publisher = EventPublisher(a._state, lambda: kept)
        before = a._state.shards[0].coalescer.events
        publisher.replace(a._state.shards[0])
        assert a._state.shards[0].coalescer.events is not before
        await cluster.elect("a")
        await lives(a, 2)
        await a.fsync()
        assert await publisher.step()
        assert not await publisher.step()
        reader = Reader()
        found = [one for payload in kept.payloads for one in reader.read(payload)]
        assert kinds(found) == ["ENQUEUED", "CLAIMED", "COMPLETED"] * 2
