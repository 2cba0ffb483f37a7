"""A limit of a queue whose shards several processes lead: each has its share."""

import pytest
from support_replication import Cluster

import lodeq

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
