"""The metrics of a replica, and what a scrape does not wait for."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support_behaviour import StillClock, settle
from support_log_cluster import LogCluster

from lodeq.replication.memory.log import MemoryLogClient
from lodeq.replication.port import Checkpoint, LogSpace
from lodeq.service.metrics.collector import LodeqCollector, render
from lodeq.service.metrics.table import METRICS

pytestmark = pytest.mark.anyio
OURS = {name for name in METRICS if name.startswith("lodeq_replica_")}


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def cluster():
    async with LogCluster(StillClock()) as cluster:
        cluster.shards = 2
        await cluster.open_all("a", "b")
        await cluster.until_equal()
        await cluster.pass_time(2)  # all have told one another where they are
        yield cluster


async def told(collector):
    text = (await render(collector)).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in OURS
    }


async def test_each_metric_is_told_once_the_log_has_answered(cluster, monkeypatch):
    async def space(self):
        return LogSpace(1000, 2000, 5000)

    monkeypatch.setattr(MemoryLogClient, "space", space, raising=False)
    node = cluster.leader(0)
    made = cluster.clock.wall_us() // 1000 - 60_000
    await node.replicator.publish(Checkpoint(node.name, "file:///x", "d", (1, 1), made))
    with LodeqCollector(node.engine) as collector:
        first = await told(collector)
        assert ("lodeq_replica_log_used_bytes",) not in first  # a scrape does not wait for the log
        await settle(25)
        found = await told(collector)
    assert {name for name, *_ in found} == OURS
    last = cluster.tails()
    assert found["lodeq_replica_leads", "0"] == 1
    assert [found["lodeq_replica_log_last", str(shard)] for shard in range(2)] == last
    assert found["lodeq_replica_log_first", "1"] == 1
    assert found["lodeq_replica_members",] == 2
    assert 0 < found["lodeq_replica_session_seconds",] <= 3
    assert found["lodeq_replica_problems",] == 0
    assert found["lodeq_replica_log_used_bytes",] == 1000
    assert found["lodeq_replica_log_quota_bytes",] == 5000
    assert found["lodeq_replica_checkpoint_age_seconds",] == pytest.approx(60, abs=1)


async def test_a_follower_leads_nothing_and_knows_who_does(cluster):
    leader = cluster.leader(0)
    (other,) = [node for node in cluster.nodes.values() if node is not leader]
    with LodeqCollector(other.engine) as collector:
        found = await told(collector)
    assert found["lodeq_replica_leads", "0"] == 0
    assert found["lodeq_replica_has_leader", "0"] == 1
    assert found["lodeq_replica_lag_entries", "0"] == 0


async def test_without_the_log_there_is_neither_session_nor_leader(cluster):
    node = cluster.leader(0)
    cluster.network.has_quorum = False
    await cluster.pass_time(8)
    with LodeqCollector(node.engine) as collector:
        found = await told(collector)
        await settle(25)
    assert found["lodeq_replica_session_seconds",] == 0
    assert found["lodeq_replica_leads", "0"] == 0
