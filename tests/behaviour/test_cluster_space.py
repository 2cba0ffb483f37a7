"""A log service that fills up: truncated harder, then without enqueues, then without writes."""

import pytest
from support_log_cluster import LogCluster

import lodeq
from lodeq.errors import NotLeaderError, StorageFullError
from lodeq.replication.options import LogOptions
from lodeq.replication.port import Checkpoint, LogUnavailableError

pytestmark = pytest.mark.anyio
QUOTA_BYTES = 100_000
KIB = bytes(1024)


@pytest.fixture
async def small(clock):
    """(cluster, leader): three nodes, a log with a small quota, no other truncation."""
    async with LogCluster(clock, quota_bytes=QUOTA_BYTES) as cluster:
        await cluster.open_all(*"abc", options=LogOptions(truncate_s=None))
        yield cluster, cluster.leader()


async def fill(cluster, leader, share: float) -> None:
    """Enqueue until so much of the quota is used."""
    mail = leader.engine.queue("mail")
    while cluster.log.service.space().share < share:
        assert isinstance(await cluster.outcome(mail.enqueue(KIB)), lodeq.Receipt)


async def have_checkpoints(cluster) -> None:
    """Every node has a checkpoint of all that there is."""
    await cluster.until_equal()
    for node in cluster.nodes.values():
        mark = Checkpoint(node.name, "file:///x", "", tuple(cluster.tails()), 1)
        await cluster.outcome(node.replicator.publish(mark))


async def test_at_half_the_quota_the_log_is_truncated_and_compacted(small):
    cluster, leader = small
    await fill(cluster, leader, 0.45)
    await have_checkpoints(cluster)
    floor = cluster.log.service.state(0).floor
    await cluster.pass_time(2)
    assert cluster.log.service.state(0).floor == floor
    await fill(cluster, leader, 0.52)
    await cluster.pass_time(2)
    assert cluster.log.service.state(0).floor > floor
    assert cluster.log.service.space().share < 0.2
    await cluster.pass_time(1)
    assert leader.replicator.problems() == ()


async def test_a_node_that_is_behind_is_left_to_a_restore_when_space_is_short(small):
    cluster, leader = small
    await fill(cluster, leader, 0.2)
    behind = next(node for node in cluster.nodes.values() if node is not leader)
    behind.replicator._shards[0].node.replica.durable = lambda shard: 1
    await cluster.pass_time(2)
    await have_checkpoints(cluster)
    await fill(cluster, leader, 0.52)
    await cluster.pass_time(2)
    assert cluster.log.service.state(0).floor > 2


async def test_without_room_for_more_enqueues_are_refused_and_ends_go_on(small):
    cluster, leader = small
    mail = leader.engine.queue("mail")
    await fill(cluster, leader, 0.66)
    leases = await cluster.outcome(mail.claim(limit=4))
    await fill(cluster, leader, 0.71)
    await cluster.pass_time(1.1)
    for call in (mail.enqueue(b"x"), mail.enqueue(b"x", priority=1)):
        error = await cluster.outcome(call)
        assert isinstance(error, StorageFullError)
        assert "lodeq cluster checkpoint" in str(error)
    for call in (leases[0].complete(), leases[1].nack(), leases[2].release()):
        assert not isinstance(await cluster.outcome(call), Exception)
    assert "enqueues are refused" in leader.replicator.problems()[0]
    assert "enqueues are refused" in (await leader.engine.health()).reasons[0]
    await have_checkpoints(cluster)
    await cluster.pass_time(2)
    assert isinstance(await cluster.outcome(mail.enqueue(b"x")), lodeq.Receipt)
    assert (await leader.engine.health()).ok


async def test_nearly_full_it_takes_nothing_and_never_fills(small):
    cluster, leader = small
    mail = leader.engine.queue("mail")
    await fill(cluster, leader, 0.66)
    (lease,) = await cluster.outcome(mail.claim(limit=1))
    cluster.log.service.quota_bytes = round(cluster.log.service.space().used_bytes / 0.86)
    await cluster.pass_time(1.1)
    assert cluster.leader() is None
    tails = cluster.tails()
    error = await cluster.outcome(lease.complete())
    assert isinstance(error, NotLeaderError | lodeq.LeaseLostError)
    error = await cluster.outcome(mail.claim())
    assert isinstance(error, NotLeaderError)
    assert "of its quota: nothing is written" in str(error)
    assert isinstance(await cluster.outcome(mail.enqueue(b"x")), StorageFullError)
    assert "nothing is written" in leader.replicator.status().problems[0]
    await cluster.pass_time(10)
    assert cluster.tails() == tails
    assert not cluster.log.service.is_full
    # Who leads nothing truncates all the same, once there is something to start from.
    await have_checkpoints(cluster)
    await cluster.until_led()
    mail = cluster.leader().engine.queue("mail")
    assert isinstance(await cluster.outcome(mail.enqueue(b"x")), lodeq.Receipt)
    await cluster.until_equal()


async def test_a_full_log_refuses_writes_until_it_is_disarmed(small):
    cluster, leader = small
    log = leader.replicator.log
    cluster.log.service.is_full = True
    member = leader.replicator._member()
    with pytest.raises(LogUnavailableError):
        raise await cluster.outcome(log.report(member))
    assert (await cluster.outcome(log.space())).share == 1.0
    await cluster.until(lambda: cluster.leader() is None)
    cluster.log.disarm()
    await cluster.until_led()
    await cluster.until_equal()
