"""A client of a cluster: each call finds the node that leads, whatever moves meanwhile."""

import anyio
import anyio.lowlevel
import pytest
from support_cluster_client import client, cluster

import lodeq
import lodeq.sync
from lodeq import NewTask

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"  # servers run on it


@pytest.fixture
async def nodes():
    async with cluster() as found:
        yield found


@pytest.fixture
async def engine(nodes):
    async with client(nodes) as engine:
        yield engine


async def test_a_life_of_a_task(engine):
    mail = engine.queue("mail")
    receipt = await mail.enqueue({"to": "a"})
    (lease,) = await mail.claim(wait=1)
    assert (lease.task_id, lease.payload) == (receipt.id, {"to": "a"})
    await lease.heartbeat()
    await lease.progress(0.5, "half")
    assert (await engine.get(receipt.id)).progress.note == "half"
    await lease.complete("done")
    assert (await engine.result(receipt.id, wait=1)).value == "done"


async def test_unkeyed_tasks_go_to_all_nodes_in_turn(nodes, engine):
    mail = engine.queue("mail")
    for n in range(30):
        await mail.enqueue(n)
    ready = [len(await nodes.engines[name].queue("mail").claim(limit=100)) for name in nodes.names]
    assert ready == [10, 10, 10]


async def test_keyed_tasks_of_one_batch_are_placed_by_their_keys(nodes, engine):
    mail = engine.queue("mail")
    tasks = [NewTask(n, dedup_key=f"key-{n}") for n in range(40)] + [NewTask("plain")]
    receipts = await mail.enqueue_many(tasks)
    assert not any(one.duplicate for one in receipts)
    assert len({one.id.slot * 6 >> 12 for one in receipts}) == 6
    again = await mail.enqueue_many(tasks[:40])
    assert [one.id for one in again] == [one.id for one in receipts[:40]]
    assert all(one.duplicate for one in again)
    payloads = [(await engine.get(one.id)).payload for one in receipts]
    assert payloads == [*range(40), "plain"]


async def test_whole_queue_calls_count_each_task_once(engine):
    mail = engine.queue("mail")
    await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(50)])
    assert (await mail.stats()).ready == 50
    stats = await engine.stats()
    assert (stats.ready, [one.shard for one in stats.shards]) == (50, [*range(6)])
    assert (await engine.queues())["mail", ""].ready == 50
    listed = []
    while page := await mail.list("ready", limit=7, after=listed[-1] if listed else None):
        listed += page
    assert sorted(task.payload for task in listed) == [*range(50)]
    assert listed == sorted(listed, key=lambda task: task.position)
    found = [task async for task in engine.find_all(lodeq.TaskFilter(queue="mail"))]
    assert found == listed
    assert (await engine.count(lodeq.TaskFilter(queue="mail"))) == lodeq.FoundCount(50, True)
    chosen = lodeq.TaskFilter(ids=[task.id for task in found[::3]])
    named, cursor = [], None
    while True:
        page = await engine.find(chosen, limit=4, cursor=cursor)
        named += page
        cursor = page.cursor
        if cursor is None:
            break
    assert named == sorted(found[::3], key=lambda task: task.id, reverse=True)
    assert await engine.count(chosen) == lodeq.FoundCount(17, True)
    assert (await engine.act("cancel", chosen, limit=1000)).done == 17
    assert await mail.purge() == 33
    assert (await engine.stats()).ready == 0


# -- leaders that change -----------------------------------------------------------------


async def test_every_kind_of_call_follows_a_leader_that_has_moved(nodes, engine):
    mail = engine.queue("mail")
    receipts = await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(30)])
    leases = await mail.claim(limit=12)
    assert len(leases) == 12
    await nodes.lead(1, 2, 0, 1, 2, 0)
    assert await engine.heartbeat_many(leases) == [None] * 12
    await nodes.lead(2, 0, 1, 2, 0, 1)
    assert await engine.complete_many([(one, None) for one in leases[:6]]) == [None] * 6
    await nodes.lead(0, 1, 2, 0, 1, 2)
    await leases[6].heartbeat()
    await nodes.lead(1, 2, 0, 1, 2, 0)
    await leases[6].complete("six")
    await leases[7].nack(reason="why")
    await nodes.lead(2, 0, 1, 2, 0, 1)
    await leases[8].release()
    await leases[9].bury("dead")
    assert (await engine.result(leases[6].task_id)).value == "six"
    await nodes.lead(0, 1, 2, 0, 1, 2)
    assert (await mail.stats()).dead == 1
    assert [task.id for task in await mail.dead_letters()] == [leases[9].task_id]
    await nodes.lead(1, 2, 0, 1, 2, 0)
    assert await mail.redrive([leases[9].task_id]) == 1
    again = await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(30)])
    held = {one.id for one in again if one.duplicate}
    done = {one.task_id for one in leases[:7]}
    assert held == {one.id for one in receipts} - done
    await nodes.lead(2, 0, 1, 2, 0, 1)
    await mail.pause()
    assert await mail.claim(limit=5) == []
    await nodes.lead(0, 1, 2, 0, 1, 2)
    assert await mail.resume()
    await nodes.lead(1, 2, 0, 1, 2, 0)
    flow = await engine.workflow(name="flow")
    await nodes.lead(2, 0, 1, 2, 0, 1)
    await flow.add([NewTask(1, "mail")])
    assert [one.name for one in (await engine.workflows()).workflows] == ["flow"]
    await nodes.lead(0, 1, 2, 0, 1, 2)
    assert len((await engine.history()).results) == 7
    assert await engine.cancel(leases[10].task_id)


@pytest.mark.slow
async def test_a_lease_is_not_lost_while_its_shard_has_no_leader(nodes, engine):
    engine._transport.nodes.patience_s = 0.0
    mail = engine.queue("mail")
    await mail.enqueue("x", dedup_key="x")
    (lease,) = await mail.claim()
    shard = lease.task_id.slot * 6 >> 12
    leader = nodes.log.leaders[shard]
    nodes.log.leaders[shard] = None
    for node in nodes.log.nodes.values():
        node.replica.follow(shard)
    assert await engine.heartbeat_many([lease]) == [None]
    with pytest.raises((lodeq.NotLeaderError, lodeq.UnreachableError)):
        await lease.heartbeat()
    assert lease.is_live
    await nodes.log.elect(leader, shard)
    assert await engine.heartbeat_many([lease]) == [None]
    await lease.complete()


async def test_a_result_is_waited_for_over_a_change_of_leader(nodes, engine):
    mail = engine.queue("mail")
    receipt = await mail.enqueue("x")
    found = []

    async def wait():
        found.append(await engine.result(receipt.id, wait=20))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        (lease,) = await mail.claim(wait=1)
        await nodes.lead(1, 2, 0, 1, 2, 0)
        await lease.complete("late")
    assert found[0].value == "late"


# -- claims ------------------------------------------------------------------------------


async def test_a_claim_waits_at_all_leaders_and_takes_no_more_than_its_limit(nodes, engine):
    mail = engine.queue("mail")
    found = []

    async def wait():
        found.extend(await mail.claim(limit=1, wait=20))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        while not all(one._state.claim_sets.waiting for one in nodes.engines.values()):
            await anyio.lowlevel.checkpoint()
        for one in nodes.engines.values():
            assert not one._state.leases
        for name in nodes.names:  # at once, on every node
            await nodes.engines[name].queue("mail").enqueue(name)
    assert len(found) == 1
    assert sum(len(one._state.leases) for one in nodes.engines.values()) == 1
    assert (await mail.stats()).ready == 2


async def test_a_claim_that_is_cancelled_takes_nothing_along(nodes, engine):
    mail = engine.queue("mail")
    with anyio.move_on_after(0.05):
        await mail.claim(wait=20)
    await mail.enqueue("x")
    assert (await mail.stats()).ready == 1
    assert len(await mail.claim(limit=9)) == 1


# -- what cannot be reached --------------------------------------------------------------


@pytest.mark.slow
async def test_whole_queue_calls_say_which_shards_are_missing(nodes, engine):
    engine._transport.nodes.patience_s = 0.0
    mail = engine.queue("mail")
    await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(60)])
    there = 0
    for shard in (0, 1, 3, 4):
        shard_queue = (
            nodes.engines[nodes.names[shard % 3]]
            ._state.tenant_queue(b"mail", b"")
            .shard_queues[shard]
        )
        there += shard_queue.ready
    await nodes.stop(nodes.names[2])
    with pytest.raises(lodeq.IncompleteError, match=r"shards \[2, 5\]") as caught:
        await mail.stats()
    assert caught.value.shards == (2, 5)
    assert caught.value.found.ready == there < 60
    with pytest.raises(lodeq.IncompleteError) as caught:
        await mail.list("ready", limit=1000)
    assert len(caught.value.found) == there
    with pytest.raises(lodeq.IncompleteError) as caught:
        await engine.queues()
    assert caught.value.found["mail", ""].ready == there
    assert not (await engine.health()).ok
    await nodes.lead(0, 1, 0, 1, 0, 1)
    assert (await mail.stats()).ready == 60
    assert await mail.purge() == 60


async def test_a_node_that_is_down_takes_no_new_tasks(nodes, engine):
    await nodes.stop(nodes.names[1])
    await nodes.lead(0, 2, 2, 0, 2, 0)
    mail = engine.queue("mail")
    receipts = [await mail.enqueue(n) for n in range(9)]
    assert len({one.id for one in receipts}) == 9
    assert len(await mail.claim(limit=9)) == 9


# -- trust -------------------------------------------------------------------------------


def test_a_leader_is_followed_only_if_it_is_known():
    from lodeq.client.cluster.topology import Topology

    topology = Topology(["tcp://a:1", "tcp://b:1"])
    doc = {"shards": 2, "led": [0], "leaders": [None, "b:1"], "members": ["tcp://c:1"]}
    topology.take(doc, "tcp://a:1")
    assert topology.by_leader() == {"tcp://a:1": [0], "tcp://b:1": [1]}
    topology.refused("tcp://b:1", [1], "tcp://evil:1")
    assert topology.leader(1) is None
    assert "tcp://evil:1" not in topology.urls
    topology.take({**doc, "leaders": [None, "http://C:1/"]}, "tcp://a:1")
    assert topology.leader(1) == "tcp://c:1"


@pytest.mark.parametrize("url", ["lodeq://", "lodeq://a:1,,b:1", "lodeq://a", "lodeq://a:1, b:1"])
async def test_addresses_that_are_none(url):
    with pytest.raises(lodeq.UsageError):
        await lodeq.connect(url)


async def test_the_blocking_client_finds_its_way_too(nodes):
    def script():
        with lodeq.sync.connect(nodes.url) as engine:
            mail = engine.queue("mail")
            mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(20)])
            leases = mail.claim(limit=20)
            assert len(leases) == 20
            assert engine.complete_many([(one, None) for one in leases[1:]]) == [None] * 19
            assert mail.stats().leased == 1
            assert mail.claim(wait=0.05) == []
            leases[0].complete("x")
            assert engine.result(leases[0].task_id).value == "x"

    await anyio.to_thread.run_sync(script)


@pytest.mark.slow
@pytest.mark.parametrize("refusal", [lodeq.NotLeaderError("moved"), lodeq.UnreachableError("gone")])
@pytest.mark.parametrize("what", ["enqueue", "complete"])
async def test_what_may_be_done_is_never_said_to_be_undone(engine, monkeypatch, refusal, what):
    """The first answer is lost, and then nobody is found: the call may have been done."""
    mail = engine.queue("mail")
    await mail.enqueue(b"x")
    (lease,) = await mail.claim()
    nodes = engine._transport.nodes
    nodes.patience_s = 0
    engine.fast = None  # the short way asks another way, and leaves the rest to this one
    outcomes = [lodeq.CommitUnknownError("lost")]

    async def ask(node, call):
        raise outcomes.pop() if outcomes else refusal

    monkeypatch.setattr(nodes, "ask", ask)
    calls = {"enqueue": lambda: mail.enqueue(b"y", dedup_key="k"), "complete": lease.complete}
    with pytest.raises(lodeq.CommitUnknownError):
        await calls[what]()


async def test_tasks_that_were_enqueued_are_named_where_no_leader_is_found(engine, monkeypatch):
    mail, nodes = engine.queue("mail"), engine._transport.nodes
    engine.fast = None
    (done,) = await mail.enqueue_many([NewTask(b"x")])
    leaders, ask = nodes.leaders, nodes.ask
    asked = []

    async def none_left():
        if asked:
            raise lodeq.UnreachableError("nobody leads anything")
        return await leaders()

    async def partly(node, call):
        asked.append(node)
        doc = await ask(node, call._replace(doc={**call.doc, "tasks": call.doc["tasks"][:1]}))
        error = lodeq.NotLeaderError("the second is another's")
        error.receipts = [doc["receipts"][0], None]
        raise error

    monkeypatch.setattr(nodes, "leaders", none_left)
    monkeypatch.setattr(nodes, "ask", partly)
    with pytest.raises(lodeq.UnreachableError) as caught:
        await mail.enqueue_many([NewTask(b"1"), NewTask(b"2")])
    first, second = caught.value.receipts
    assert first.id != done.id
    assert second is None
