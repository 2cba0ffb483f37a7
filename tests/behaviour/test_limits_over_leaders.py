"""A limit of a queue whose shards several processes lead: each has its share."""

import pytest
from support_replication import Cluster

import lodeq
from lodeq.engine.records.keyspace import EXPIRY
from lodeq.repository.background import state_rebuild

pytestmark = pytest.mark.anyio
SHARDS = 6
NAMES = ("a", "b", "c")


@pytest.fixture
async def nodes(clock):
    """(cluster, engines): each of three leads two of six shards."""
    cluster = Cluster()
    options = {"clock": clock, "shards": SHARDS, "reaper": False}
    async with (
        cluster.open("a", **options) as a,
        cluster.open("b", **options) as b,
        cluster.open("c", **options) as c,
    ):
        for shard in range(SHARDS):
            await cluster.elect(NAMES[shard % 3], shard)
        yield cluster, {"a": a, "b": b, "c": c}


async def fill(engines, n=20):
    for engine in engines.values():
        await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x")] * n)


async def claimed(engines, limit=100):
    """How many each node grants."""
    return [
        len(await engine.queue("mail", lease=3600).claim(limit=limit))
        for engine in engines.values()
    ]


async def test_leases_of_all_leaders_are_not_above_the_limit(nodes):
    _, engines = nodes
    await fill(engines)
    await engines["a"].configure("mail", concurrency=10)
    found = await claimed(engines)
    assert sum(found) == 10
    assert min(found) >= 2
    assert await claimed(engines) == [0, 0, 0]
    await engines["a"].configure("mail", concurrency=16)
    assert sum(await claimed(engines)) == 6


async def test_starts_of_all_leaders_are_not_above_the_rate(nodes, clock):
    _, engines = nodes
    await fill(engines)
    await engines["a"].configure("mail", rate="12/s")
    await clock.advance(1)
    assert await claimed(engines) == [4, 4, 4]
    assert await claimed(engines) == [0, 0, 0]
    await clock.advance(1)
    assert sum(await claimed(engines)) == 12


async def test_a_small_limit_starves_nobody_and_a_small_rate_keeps_its_mean(nodes, clock):
    _, engines = nodes
    await fill(engines)
    await engines["a"].configure("mail", concurrency=1)
    assert await claimed(engines) == [1, 1, 1]
    await engines["a"].configure("mail", concurrency=None, rate="1/s")
    await clock.advance(60)
    starts = 0
    for _ in range(30):
        starts += sum(await claimed(engines))
        await clock.advance(1)
    assert 27 <= starts <= 30 + 2  # in one window there may be one of each leader


async def test_a_move_takes_the_share_along(nodes, clock):
    cluster, engines = nodes
    await fill(engines)
    await engines["a"].configure("mail", concurrency=12, rate="12/s")
    await clock.advance(1)
    assert await claimed(engines) == [4, 4, 4]
    await cluster.elect("b", 3)  # of a
    await clock.advance(0.5)
    assert await claimed(engines) == [0, 0, 0]  # its share of the rate counts as used
    live = {
        name: engine._state.queue_limits.by_queue[b"mail"].live for name, engine in engines.items()
    }
    assert sum(live.values()) == 12  # leases go with their shard
    caps = {
        name: engine._state.queue_limits.by_queue[b"mail"].concurrency
        for name, engine in engines.items()
    }
    assert caps == {"a": 2, "b": 6, "c": 4}
    await clock.advance(5)
    found = await claimed(engines)
    over = max(0, live["a"] - caps["a"])  # until these end
    assert sum(live.values()) + sum(found) <= 12 + over <= 12 + 2
    for shard in range(SHARDS):
        await cluster.elect("c", shard)
    assert engines["c"]._state.queue_limits.by_queue[b"mail"].concurrency == 12


async def test_a_move_costs_a_long_rate_no_more_than_the_share_that_moved(nodes, clock):
    """Neither who loses a shard, be it the first, nor who gains it forgets its other shards."""
    cluster, engines = nodes
    for _ in range(2):  # one for each shard
        await fill(engines)
    await engines["a"].configure("mail", rate="60/d")  # 10 for each shard
    await clock.advance(1)
    assert await claimed(engines, limit=2) == [2, 2, 2]
    await cluster.elect("b", 0)
    await clock.advance(1)
    assert await claimed(engines) == [8, 18, 18]  # 10 may have been started in what moved
    await clock.advance(86_400)
    assert sum(await claimed(engines)) <= 60


async def test_what_waits_for_its_key_goes_with_its_shard(clock):
    """A lease of the leader before goes back; of those that wait the new one lets as many go."""
    cluster = Cluster()
    async with (
        cluster.open("a", clock=clock, shards=2) as a,
        cluster.open("b", clock=clock, shards=2) as b,
    ):
        for shard in range(2):
            await cluster.elect("a", shard)
        await a.configure("mail", key_concurrency="1/customer")
        tasks = [
            lodeq.NewTask(n, labels={"customer": "acme"}, shard_key="acme", max_attempts=9)
            for n in range(3)
        ]
        receipts = await a.queue("mail").enqueue_many(tasks)
        (lease,) = await a.queue("mail", lease=30).claim(limit=3)
        assert (await a.queue("mail").stats()).waiting == 2
        shard = a._state.shard_of(receipts[0].id).index
        await cluster.elect("b", shard)
        await clock.advance(1)
        there, got = b.queue("mail", lease=3600), []
        for _ in range(3):
            (held,) = await there.claim(limit=3)
            got.append(held.payload)
            with pytest.raises(lodeq.LeaseLostError):
                await lease.complete()
            await held.complete()
            await clock.advance(1)
        assert sorted(got) == [0, 1, 2]
        assert (await b.verify()).ok


async def test_who_waits_for_a_key_is_let_go_however_long_an_election_takes(clock, monkeypatch):
    """Many deleted rows are passed in turns of the loop: the reaper has passes meanwhile."""
    cluster = Cluster()
    async with (
        cluster.open("a", clock=clock, shards=1) as a,
        cluster.open("b", clock=clock, shards=1) as b,
    ):
        await cluster.elect("a")
        await a.configure("mail", key_concurrency="1/customer")
        tasks = [lodeq.NewTask(n, labels={"customer": "acme"}, max_attempts=1) for n in range(2)]
        await a.queue("mail").enqueue_many(tasks)
        (lease,) = await a.queue("mail").claim(limit=2)  # it goes with its leader, and dies
        assert (await a.queue("mail").stats()).waiting == 1
        real, passed = state_rebuild._first, 0

        def slowly(shard, lower, upper):
            nonlocal passed
            for _ in range(1000 if lower == EXPIRY else 0):
                passed += 1
                b._state.deadlines.wake_reaper()
                yield
            return (yield from real(shard, lower, upper))

        monkeypatch.setattr(state_rebuild, "_first", slowly)
        await cluster.elect("b")
        assert passed == 1000
        await clock.advance(1)
        (found,) = await b.queue("mail").claim(limit=2)
        assert found.payload == 1
        with pytest.raises(lodeq.LeaseLostError):
            await lease.complete()
