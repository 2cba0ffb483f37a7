"""A leader that is frozen: its socket accepts, nothing answers, and others take its shards."""

import threading
from functools import partial

import anyio
import pytest
from support_cluster_client import client, cluster

import lodeq
import lodeq.sync
from lodeq import NewTask
from lodeq.client.blocking.cluster import nodes as blocking_nodes
from lodeq.client.cluster import claims, fast_calls
from lodeq.client.cluster import nodes as client_nodes
from lodeq.client.cluster.topology import Topology
from lodeq.client.transport import blocking_link, connection, shared_link

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SILENCE_S = 0.08


@pytest.fixture
def anyio_backend():
    return "asyncio"  # servers run on it


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """All that is waited for is short; the order of things is the same."""
    for module in (connection, blocking_link, shared_link):
        monkeypatch.setattr(module, "SILENCE_S", SILENCE_S)
    for module in (claims, fast_calls):
        monkeypatch.setattr(module, "STALE_S", 0.3)
    for module in (client_nodes, blocking_nodes):
        monkeypatch.setattr(module, "MAP_S", 0.2)
        monkeypatch.setattr(module, "_PING", module.MAP._replace(timeout_s=0.1))


@pytest.fixture
async def nodes():
    async with cluster(freezable=True) as found:
        yield found


@pytest.fixture
async def engine(nodes):
    async with client(nodes) as engine:
        yield engine


async def leases_of(engine, nodes, leader):
    """Leases whose shard that node leads, of enough tasks."""
    mail = engine.queue("mail")
    await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(60)])
    leases = await mail.claim(limit=60)
    assert len(leases) == 60
    return [one for one in leases if nodes.log.leaders[one.task_id.slot * 6 >> 12] == leader]


async def until(holds):
    with anyio.fail_after(10):
        while not holds():  # noqa: ASYNC110 - nothing tells it
            await anyio.sleep(0.01)


async def test_calls_at_a_frozen_leader_end_when_another_leads(nodes, engine):
    frozen = nodes.names[0]
    mine = await leases_of(engine, nodes, frozen)
    mail, topology = engine.queue("mail"), engine._transport.nodes.topology
    node = topology.known(frozen)
    found = {}

    async def keep(name, call):
        try:
            found[name] = await call
        except lodeq.LodeqError as error:
            found[name] = error

    async with anyio.create_task_group() as group:
        nodes.freeze(frozen)
        group.start_soon(keep, "read", engine.get(mine[0].task_id))
        group.start_soon(keep, "complete", mine[1].complete("x"))
        group.start_soon(keep, "nack", mine[2].nack())
        group.start_soon(keep, "heartbeats", engine.heartbeat_many(mine[3:6]))
        group.start_soon(keep, "heartbeat", mine[6].heartbeat())
        group.start_soon(keep, "many", engine.complete_many([(one, 1) for one in mine[7:9]]))
        await until(lambda: topology.is_doubted(node))
        await anyio.sleep(4 * SILENCE_S)
        assert not found  # nobody has its place yet: it may only be slow
        await nodes.lead(1, 1, 2, 2, 1, 2)
        await until(lambda: len(found) == 6)
    assert found["read"].id == mine[0].task_id
    assert found["complete"] is None
    assert isinstance(found["nack"], lodeq.CommitUnknownError)
    assert found["heartbeats"] == [None] * 3
    assert not isinstance(found["heartbeat"], Exception)
    assert found["many"] == [None] * 2
    assert (await engine.result(mine[1].task_id)).value == "x"
    assert len({(await mail.enqueue(n)).id for n in range(9)}) == 9


async def test_new_tasks_pass_a_silent_node_over(nodes, engine):
    mail, at = engine.queue("mail"), engine._transport.nodes
    node = at.topology.known(nodes.names[0])

    def leader_of(receipt):
        return at.topology.leader(at.topology.shard_of(bytes(receipt.id)))

    receipts = [await mail.enqueue(n) for n in range(6)]
    while leader_of(receipts[-3]) != node:  # who calls alone goes from one to the next
        receipts.append(await mail.enqueue("again"))
    nodes.freeze(nodes.names[0])
    lost = []

    async def enqueue():
        try:
            await mail.enqueue("x")
        except lodeq.CommitUnknownError as error:
            lost.append(error)

    async with anyio.create_task_group() as group:
        for _ in range(3):  # at the node that is frozen, whose turn it is
            group.start_soon(enqueue)
        await until(lambda: at.topology.is_doubted(node))
        for n in range(6):  # none waits for it
            await mail.enqueue(n)
        await nodes.lead(1, 1, 2, 2, 1, 2)
    assert len(lost) == 3
    again = [await mail.enqueue("same", dedup_key="k") for _ in range(2)]
    assert [one.duplicate for one in again] == [False, True]


async def test_a_slow_node_is_waited_for(nodes, engine):
    """Nobody has its place: others say that it leads."""
    (lease, *_) = await leases_of(engine, nodes, nodes.names[0])
    node = engine._transport.nodes.topology.known(nodes.names[0])
    link = engine._transport.nodes.link(node)
    asked = []
    at = engine._transport.nodes

    async def is_given_up():
        asked.append(await at.is_given_up(node))
        return asked[-1]

    link._framed._connection._is_given_up = is_given_up
    relay = nodes.relays[nodes.names[0]]
    passed = []
    async with anyio.create_task_group() as group:

        async def read():
            passed.append(await engine.get(lease.task_id))

        for one in relay.connections:
            one.clear()
        group.start_soon(read)
        await until(lambda: len(asked) >= 2)
        assert asked == [False] * len(asked)
        assert not passed
        for one in relay.connections:
            one.set()
    assert passed[0].id == lease.task_id


async def test_a_claim_at_a_frozen_leader_goes_on_elsewhere(nodes, engine):
    mail = engine.queue("mail")
    await nodes.lead(0, 0, 0, 0, 0, 0)
    await mail.enqueue_many([NewTask(n) for n in range(4)])
    (first,) = await mail.claim()
    await first.complete()
    nodes.freeze(nodes.names[0])
    found = []

    async with anyio.create_task_group() as group:

        async def claim():
            found.extend(await mail.claim(limit=4, wait=8))

        group.start_soon(claim)
        node = engine._transport.nodes.topology.known(nodes.names[0])
        await until(lambda: engine._transport.nodes.topology.is_doubted(node))
        await nodes.lead(1, 1, 1, 2, 2, 2)
    assert len(found) == 3


async def test_the_blocking_client_gives_a_frozen_leader_up_too(nodes):
    def begin():
        engine = lodeq.sync.connect(nodes.url)
        mail = engine.queue("mail")
        mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(60)])
        return engine, mail.claim(limit=60)

    engine, leases = await anyio.to_thread.run_sync(begin)
    frozen = nodes.names[0]
    mine = [one for one in leases if nodes.log.leaders[one.task_id.slot * 6 >> 12] == frozen]
    nodes.freeze(frozen)
    found = []

    def script():
        mine[0].complete("x")
        found.append(engine.result(mine[0].task_id).value)

    topology = engine._transport.nodes.topology
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, script)
        await until(lambda: topology.is_doubted(topology.known(frozen)))
        assert not found
        await nodes.lead(1, 1, 2, 2, 1, 2)
    assert found == ["x"]
    await anyio.to_thread.run_sync(engine.close)


async def test_who_has_been_replaced():
    topology = Topology(["tcp://a:1", "tcp://b:1", "tcp://c:1"])
    a, b, c = (f"tcp://{name}:1" for name in "abc")

    def told(*leaders, led=()):
        return {"shards": 3, "led": led, "leaders": leaders, "members": []}

    topology.take(told("a:1", "a:1", None, led=[2]), b)
    assert not topology.is_superseded(a, told("a:1", "a:1", None, led=[2]), b)
    assert not topology.is_superseded(a, told(None, None, None, led=[2]), b)  # nobody yet
    assert not topology.is_superseded(a, told("a:1", None, None, led=[1, 2]), b)  # one has moved
    assert topology.is_superseded(a, told(None, None, None, led=[1, 2]), b)
    assert topology.is_superseded(a, told("b:1", "c:1", "b:1"), c)
    topology.doubt(a, until=10.0)
    topology.take(told("b:1", "a:1", "b:1"), c)
    assert topology.leading() == [b]  # another will do
    assert topology.tellers()[-1] == a
    topology.lost(b)
    assert topology.leading() == [a]  # there is no other
    topology.end_doubts(9.0)
    assert topology.is_doubted(a)
    topology.end_doubts(10.0)
    assert not topology.is_doubted(a)
    topology.doubt(a, until=20.0)
    topology.take(told(None, None, "b:1", led=[0]), a)  # it answers
    assert not topology.is_doubted(a)


async def test_a_client_on_trio_gives_a_frozen_leader_up_too(nodes):
    frozen, found, told = nodes.names[0], [], {}

    async def main():
        async with lodeq.connect(nodes.url) as engine:
            mail = engine.queue("mail")
            await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(60)])
            leases = await mail.claim(limit=60)
            told["at"] = engine._transport.nodes.topology
            leaders = nodes.log.leaders
            mine = [one for one in leases if leaders[one.task_id.slot * 6 >> 12] == frozen]
            await anyio.to_thread.run_sync(is_frozen.wait)
            await mine[0].complete("x")
            found.append((await engine.result(mine[0].task_id)).value)

    is_frozen = threading.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, partial(anyio.run, main, backend="trio"))
        await until(lambda: told)
        nodes.freeze(frozen)
        is_frozen.set()
        topology = told["at"]
        await until(lambda: topology.is_doubted(topology.known(frozen)))
        assert not found
        await nodes.lead(1, 1, 2, 2, 1, 2)
    assert found == ["x"]
