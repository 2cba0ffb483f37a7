"""The page of a cluster: shown where the store is a replica, and nowhere else."""

import asyncio

import pytest
from support_behaviour import StillClock
from support_dashboard import TOKEN, app_of, browsing, row, tile, watch
from support_log_cluster import LogCluster

from lodeq.replication.memory.log import MemoryLogClient
from lodeq.replication.port import Checkpoint, LogSpace

pytestmark = pytest.mark.anyio
NAMES = ("a", "b", "c")
LINK = '<a href="/nodes">Cluster</a>'


@pytest.fixture
async def cluster():
    async with LogCluster(StillClock()) as cluster:
        cluster.shards = 2
        await cluster.open_all(*NAMES)
        await cluster.until_equal()
        await cluster.pass_time(2)  # all have told one another where they are
        yield cluster


async def test_a_store_that_is_no_replica_has_no_such_page(engine):
    async with browsing(engine) as client:
        assert LINK not in (await client.get("/")).text
        page = await client.get("/nodes")
        assert page.status_code == 404
        assert "no node of a cluster" in page.text


async def test_nodes_and_shards_are_shown(cluster):
    leader = cluster.leader(0)
    async with browsing(leader.engine) as client:
        assert LINK in (await client.get("/")).text
        page = await client.get("/nodes")
        assert page.status_code == 200
        assert "healthy" in page.text
        assert tile(page, "Live nodes") == "3"
        assert tile(page, "Without a leader") == "0"
        assert tile(page, "Session").endswith("left")
        led = sum(leader.leads(shard) for shard in range(2))
        assert tile(page, "Led here") == f"{led} of 2 shards"
        name, url, _, _, leads, lag, checkpoint = row(page, f"node {leader.name}")
        assert name == f"{leader.name} this one"
        assert (url, leads, lag, checkpoint) == (f"http://{leader.name}", str(led), "0", "none")
        tails = cluster.tails()
        cells = row(page, "shard 0")
        assert cells[:2] == ["0", leader.name]
        assert cells[2:6] == ["leading", "1", str(tails[0]), str(tails[0])]


async def test_a_checkpoint_and_a_node_that_is_gone(cluster):
    node = cluster.nodes["a"]
    made = cluster.clock.wall_us() // 1000 - 90_000
    await node.replicator.publish(Checkpoint("a", "file:///x", "d", (1, 1), made))
    async with browsing(cluster.nodes["b"].engine) as client:
        assert row(await client.get("/nodes"), "node a")[-1] == "1 m 30 s ago"
        cluster.network.freeze("a")
        await cluster.pass_time(8)
        page = await client.get("/nodes")
        assert row(page, "node a")[0] == "a not live"
        assert tile(page, "Live nodes") == "2"


async def test_a_drained_node_says_so(cluster):
    await cluster.nodes["a"].replicator.drain(is_on=True)
    await cluster.pass_time(3)
    async with browsing(cluster.nodes["b"].engine) as client:
        assert row(await client.get("/nodes"), "node a")[0] == "a drained"


async def test_a_log_that_is_gone_is_told(cluster):
    node = cluster.nodes["a"]
    cluster.network.has_quorum = False
    await cluster.pass_time(8)
    async with browsing(node.engine) as client:
        asked = asyncio.ensure_future(client.get("/nodes"))
        await cluster.until(asked.done)
        page = asked.result()
        assert page.status_code == 200
        assert tile(page, "Session") == "none"
        assert tile(page, "Led here") == "0 of 2 shards"
        assert row(page, "node a")[-1] == "not known"


async def test_how_full_the_log_is(cluster, monkeypatch):
    async def space(self):
        return LogSpace(3 << 20, 4 << 20, 4 << 20)

    monkeypatch.setattr(MemoryLogClient, "space", space, raising=False)
    async with browsing(cluster.nodes["a"].engine) as client:
        assert tile(await client.get("/nodes"), "Log") == "3.0 MiB of 4.0 MiB"


async def test_the_page_is_live(cluster):
    node, seen = cluster.nodes["a"], []
    watching = asyncio.ensure_future(watch(app_of(node.engine), "/live/nodes", seen))
    try:
        await cluster.until(lambda: b"<dt>Live nodes</dt><dd>3" in b"".join(seen))
        cluster.network.freeze("c")
        await cluster.until(lambda: b"<dt>Live nodes</dt><dd>2" in b"".join(seen))
    finally:
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        cluster.network.thaw("c")


async def test_a_session_opens_the_page_and_none_of_the_nodes_routes(cluster):
    """Other nodes fetch whole checkpoints there: that takes the token."""
    async with browsing(cluster.nodes["a"].engine, token=TOKEN) as client:
        await client.post(
            "/login",
            content=f"token={TOKEN}",
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        assert (await client.get("/nodes")).status_code == 200
        for path in ("/cluster/status", "/cluster/checkpoints/x", "/cluster"):
            answer = await client.get(path, headers={"accept": "*/*"})
            assert answer.status_code == 401, path
