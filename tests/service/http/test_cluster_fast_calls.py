"""The short forms of the link in a cluster: to whoever leads, or the general way."""

import asyncio
from datetime import UTC, datetime

import anyio
import pytest
from support_cluster_client import client, cluster

import lodeq
import lodeq.sync
from lodeq import NewTask
from lodeq.client.blocking.fast_calls import SyncFastCalls
from lodeq.client.calls import Call
from lodeq.client.cluster import nodes as client_nodes
from lodeq.client.cluster.enqueues import enqueue
from lodeq.client.cluster.spread import anywhere
from lodeq.client.fast_calls import FastCalls
from lodeq.client.transport.transport import SyncTransport, Transport

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


@pytest.fixture
def sent(monkeypatch):
    """Paths of the calls that go as documents, but for the map."""
    found = []
    for transport in (Transport, SyncTransport):
        real = transport.send

        def send(self, call, real=real):
            if call.path != "/cluster":
                found.append(call.path)
            return real(self, call)

        monkeypatch.setattr(transport, "send", send)
    return found


async def test_the_calls_a_queue_lives_by_go_the_short_way(engine, sent):
    mail = engine.queue("mail")
    for n in range(3):  # opens the links
        await mail.enqueue(n)
    del sent[:]
    receipts = [await mail.enqueue(n) for n in range(6)]
    receipts += await mail.enqueue_many([NewTask(n) for n in range(6)])
    leases = await mail.claim(limit=15)
    assert await engine.heartbeat_many(leases) == [None] * 15
    await leases[0].heartbeat()
    await leases[0].complete("first")
    assert await engine.complete_many([(one, n) for n, one in enumerate(leases[1:])]) == [None] * 14
    assert sent == []
    assert {one.id for one in receipts} < {one.task_id for one in leases}
    assert (await engine.result(leases[0].task_id)).value == "first"
    values = [(await engine.result(one.task_id)).value for one in leases[1:]]
    assert values == [*range(14)]


async def test_the_blocking_client_goes_the_short_way_too(nodes, sent):
    def script():
        with lodeq.sync.connect(nodes.url) as engine:
            mail = engine.queue("mail")
            for n in range(3):
                mail.enqueue(n)
            del sent[:]
            mail.enqueue_many([NewTask(n) for n in range(6)])
            leases = mail.claim(limit=9)
            assert len(leases) == 9
            leases[0].complete()
            assert engine.heartbeat_many(leases[1:]) == [None] * 8
            assert engine.complete_many([(one, None) for one in leases[1:]]) == [None] * 8
            assert sent == []

    await anyio.to_thread.run_sync(script)


async def test_leases_that_had_ended_are_told_by_their_places(nodes, engine, sent):
    mail = engine.queue("mail")
    await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(30)])
    leases = await mail.claim(limit=30)
    ended = {4, 11, 12, 29}
    for n in ended:
        await engine.cancel(leases[n].task_id)
    del sent[:]
    beats = await engine.heartbeat_many(leases)
    assert {n for n, one in enumerate(beats) if one is not None} == ended
    ends = await engine.complete_many([(one, None) for one in leases])
    assert {n for n, one in enumerate(ends) if one is not None} == ended
    assert sent == []


async def test_a_node_that_leads_nothing_any_more_is_not_asked_twice(nodes, engine):
    mail = engine.queue("mail")
    for n in range(6):
        await mail.enqueue(n)
    leases = await mail.claim(limit=6)
    await nodes.lead(1, 1, 1, 2, 2, 2)
    assert len({(await mail.enqueue(n)).id for n in range(6)}) == 6
    await nodes.lead(0, 0, 0, 2, 2, 2)
    assert await engine.complete_many([(one, None) for one in leases]) == [None] * 6
    await nodes.lead(2, 2, 2, 2, 2, 2)
    assert len(await mail.enqueue_many([NewTask(n) for n in range(6)])) == 6
    await nodes.lead(0, 0, 1, 1, 1, 1)
    assert len(await mail.claim(limit=20)) == 12


async def test_what_a_node_takes_of_a_batch_is_not_sent_again(nodes, engine, monkeypatch):
    mail = engine.queue("mail")
    for n in range(3):
        await mail.enqueue(n)
    real = FastCalls.enqueue_many

    async def partly(self, template, tasks):
        done = await real(self, template, tasks[:2])
        error = lodeq.NotLeaderError("the rest is another's")
        error.receipts = [*done, None, None]
        raise error

    monkeypatch.setattr(FastCalls, "enqueue_many", partly)
    receipts = await mail.enqueue_many([NewTask(n) for n in "abcd"])
    assert [(await engine.get(one.id)).payload for one in receipts] == [*"abcd"]
    assert (await mail.stats()).ready == 7


@pytest.mark.parametrize("kind", [FastCalls, SyncFastCalls])
async def test_tasks_enqueued_before_an_error_are_named(nodes, monkeypatch, kind):
    """The server is asked alone: that is no matter of clusters."""
    receipt = lodeq.Receipt(lodeq.TaskId(bytes(16)))

    def refused(self, template, tasks):
        error = lodeq.BusyError("later")
        error.receipts = [receipt]
        raise error

    async def refused_later(self, template, tasks):
        refused(self, template, tasks)

    monkeypatch.setattr(kind, "enqueue_many", refused_later if kind is FastCalls else refused)
    tasks = [NewTask(1), NewTask(2)]
    if kind is FastCalls:
        async with lodeq.connect(nodes.names[0]) as engine:
            with pytest.raises(lodeq.BusyError) as caught:
                await engine.queue("mail").enqueue_many(tasks)
    else:

        def script():
            with lodeq.sync.connect(nodes.names[0]) as engine:
                engine.queue("mail").enqueue_many(tasks)

        with pytest.raises(lodeq.BusyError) as caught:
            await anyio.to_thread.run_sync(script)
    assert caught.value.receipts == [receipt, None]


async def test_a_heartbeat_counts_from_its_sending(engine, monkeypatch):
    from lodeq.client import lease_facts, requests
    from lodeq.client.lease_facts import may_be_live

    now = [1000.0]
    for module in (lease_facts, requests):
        monkeypatch.setattr(module, "_mono", lambda: now[0])
    mail = engine.queue("mail", lease=30)
    await mail.enqueue("x")
    (lease,) = await mail.claim()
    sent_at, real = now[0], engine.fast.heartbeat_many

    async def slowly(leases, seconds):
        found = await real(leases, seconds)
        now[0] += 20  # the answer takes so long
        return found

    monkeypatch.setattr(engine.fast, "heartbeat_many", slowly)
    assert await engine.heartbeat_many([lease]) == [None]
    now[0] = sent_at + 29.9
    assert may_be_live(lease)
    now[0] = sent_at + 30.1
    assert not may_be_live(lease)


@pytest.fixture
def now(monkeypatch):
    """The clock by which a client stays with a leader, stopped."""
    found = [1000.0]
    monkeypatch.setattr(client_nodes, "_mono", lambda: found[0])
    return found


def leaders_of(engine, receipts):
    topology = engine.fast._nodes.topology
    return [topology.leader(topology.shard_of(bytes(one.id))) for one in receipts]


async def all_linked(engine):
    """Enqueue until every link is open."""
    for n in range(3):
        await engine.queue("opening").enqueue(n)


async def test_callers_at_once_stay_with_one_leader(engine, now):
    await all_linked(engine)
    receipts = []

    async def call():
        receipts.extend([await engine.queue("mail").enqueue(n) for n in range(5)])

    turns = []
    for _ in range(3):
        del receipts[:]
        await asyncio.gather(*(call() for _ in range(4)))
        (leader,) = set(leaders_of(engine, receipts))
        turns.append(leader)
    assert len(set(turns)) == 3, "between them nobody called, and the next leader had its turn"


async def test_the_next_leader_has_its_turn_after_a_while(engine, now):
    await all_linked(engine)
    engine.fast._nodes.under_way.add("a call that is not answered yet")
    leaders = []
    for seconds in (0.0, client_nodes.STAY_S, 0.0, client_nodes.STAY_S * 0.9, client_nodes.STAY_S):
        now[0] += seconds
        leaders += leaders_of(engine, [await engine.queue("mail").enqueue(1)])
    first, second, *stayed, last = leaders
    assert stayed == [second, second]
    assert len({first, second, last}) == 3


async def test_who_calls_alone_meets_every_leader(engine, now):
    await all_linked(engine)
    receipts = [await engine.queue("mail").enqueue(n) for n in range(9)]
    found = leaders_of(engine, receipts)
    assert len(set(found[:3])) == 3
    assert found == found[:3] * 3


@pytest.mark.parametrize("way", [anywhere, enqueue])
async def test_a_leader_that_refuses_and_names_none_is_not_asked_again(
    engine, now, monkeypatch, way
):
    await all_linked(engine)
    nodes, asked, real = engine.fast._nodes, [], Transport.send

    async def send(self, call):
        if call.method == "POST":
            asked.append(self)
            if self is asked[0]:
                raise lodeq.NotLeaderError("it is about to have another leader")
        return await real(self, call)

    monkeypatch.setattr(Transport, "send", send)
    nodes.under_way.add("a call that is not answered yet")
    doc = {"queue": "mail", "tasks": [{"payload": b"x"}]}
    await way(nodes, Call("POST", "/tasks", doc, is_write=True))
    assert len(asked) == 2


async def test_a_claim_asks_first_where_the_last_tasks_went(engine, now, monkeypatch):
    await all_linked(engine)
    mail, asked, real = engine.queue("mail"), [], FastCalls.claim

    def claim(self, *given):
        asked.append(self)
        return real(self, *given)

    monkeypatch.setattr(FastCalls, "claim", claim)
    for n in range(6):
        await mail.enqueue(n)
        (lease,) = await mail.claim()
        await lease.complete()
    assert len(asked) == 6


async def test_a_claim_that_waited_asks_first_who_has_something(
    nodes, engine, sent, now, monkeypatch
):
    await all_linked(engine)
    for lease in await engine.queue("opening").claim(limit=3):
        await lease.complete()
    mail, asked, real = engine.queue("mail"), [], FastCalls.claim

    def claim(self, *given):
        asked.append(self)
        return real(self, *given)

    monkeypatch.setattr(FastCalls, "claim", claim)
    for name in nodes.names:
        del sent[:], asked[:]
        waiting = asyncio.create_task(mail.claim(wait=30))
        while sent.count("/leases/ready") < 3:
            await anyio.lowlevel.checkpoint()
        await nodes.engines[name].queue("mail").enqueue(name)
        (lease,) = await waiting
        assert lease.payload == name
        assert len(asked) == 4, "three that had nothing, and the one that has"
        await lease.complete()


@pytest.mark.parametrize(
    "name", ["enqueue", "enqueue_with", "enqueue_many", "enqueue_packed", "claim", "complete"]
)
async def test_a_call_that_was_given_up_is_not_under_way(engine, monkeypatch, name):
    await all_linked(engine)
    mail = engine.queue("mail")
    await mail.enqueue(1)
    (lease,) = await mail.claim()
    under_way = engine.fast._nodes.under_way
    calls = {
        "enqueue": lambda: mail.enqueue(2),
        "enqueue_with": lambda: mail.enqueue(2, priority=3),
        "enqueue_many": lambda: mail.enqueue_many([NewTask(3)]),
        "enqueue_packed": lambda: mail.enqueue_many(
            [NewTask(n, dedup_key=str(n)) for n in range(20)]
        ),
        "claim": mail.claim,
        "complete": lease.complete,
    }
    is_sent = asyncio.Event()

    async def never(self, *_):
        is_sent.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(FastCalls, name, never)
    task = asyncio.create_task(calls[name]())
    await is_sent.wait()
    assert len(under_way) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not under_way


async def test_a_key_says_who_is_asked(sent):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail", tenant="t")
        for n in range(6):  # opens the links
            await mail.enqueue(n)
        sent.clear()
        keyed = {key: await mail.enqueue(key, dedup_key=key) for key in map(str, range(20))}
        raw = {key: await mail.enqueue(key, dedup_key=b"%d!" % int(key)) for key in keyed}
        placed = [await mail.enqueue(n, shard_key=f"s-{n % 4}") for n in range(12)]
        free = [await mail.enqueue(n, priority=n % 10) for n in range(12)]
        assert sent == []
        again = [await mail.enqueue("again", dedup_key=key) for key in keyed]
        assert again == [lodeq.Receipt(one.id, True) for one in keyed.values()]
        shards = [engine._transport.nodes.topology.shard_of(one.id) for one in placed]
        assert shards == shards[:4] * 3
        ids = {one.id for one in (*keyed.values(), *raw.values(), *placed, *free)}
        assert len(ids) == 64
        for key in (5, "\ud800", ""):
            with pytest.raises(lodeq.UsageError, match="dedup_key"):
                await mail.enqueue(b"x", dedup_key=key)
        assert sent == []
        await nodes.lead(1, 1, 1, 2, 2, 2)
        again = [await mail.enqueue("again", dedup_key=key) for key in keyed]
        assert again == [lodeq.Receipt(one.id, True) for one in keyed.values()]


async def test_keys_of_many_say_who_is_asked(sent, monkeypatch):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail", tenant="t")
        for n in range(6):  # opens the links
            await mail.enqueue(n)
        sent.clear()
        tasks = [
            NewTask(n, dedup_key=f"k-{n}") if n % 3 else NewTask(n, priority=3) for n in range(60)
        ]
        receipts = await mail.enqueue_many(tasks)
        assert [(await engine.get(one.id)).payload for one in receipts] == [*range(60)]
        sent.clear()
        keyed = [one for one in tasks if one.dedup_key is not None]
        held = [lodeq.Receipt(receipts[n].id, True) for n in range(60) if n % 3]
        assert await mail.enqueue_many(keyed) == held
        assert await mail.enqueue_many([NewTask(n, priority=1) for n in range(9)]) != []
        one = [NewTask(b"x", dedup_key="k-1"), NewTask(b"y", dedup_key="k-1")]
        assert await mail.enqueue_many(one) == [held[0]] * 2
        assert sent == []
        with monkeypatch.context() as patch:
            patch.setattr(engine.session, "batch_max", 30)
            assert await mail.enqueue_many(keyed) == held
        assert set(sent) == {"/tasks"}
        with pytest.raises(lodeq.UsageError, match="ALL_TENANTS takes no enqueue"):
            await engine.queue("mail", tenant=lodeq.ALL_TENANTS).enqueue_many(keyed)
        await nodes.lead(1, 1, 1, 2, 2, 2)
        assert await mail.enqueue_many(keyed) == held
        await nodes.lead(0, 0, 0, 0, 0, 0)
        assert await mail.enqueue_many(keyed) == held


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 10, "dedup_key": "w"},
        {"dedup_window": 5},
        {"dedup_key": "w", "delay": 5, "run_at": datetime(2030, 1, 31, tzinfo=UTC)},
        {"dedup_key": "w", "shard_key": "s"},
        {"dedup_key": 5},
        {"on_conflict": "raise"},
    ],
    ids=str,
)
async def test_one_of_many_that_is_wrong_refuses_those_of_all_nodes(wrong):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        for n in range(6):
            await mail.enqueue(n)
        tasks = [NewTask(n, dedup_key=str(n)) for n in range(20)]
        tasks.insert(13, NewTask(b"x", **wrong))
        with pytest.raises(lodeq.UsageError) as caught:
            await mail.enqueue_many(tasks)
        assert caught.value.index == 13
        assert caught.value.receipts == [None] * 21
        assert (await mail.stats()).ready == 6
