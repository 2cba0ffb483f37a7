"""Tasks that wait for tasks of shards that another process leads; either leader may be lost."""

import asyncio
import json
import random

import pytest
from support_behaviour import settle, sound
from support_hosting import HostingCluster
from support_replication import Cluster, rows

import lodeq
from lodeq import NewTask
from lodeq.engine.runtime.ids import shard_of, slot_of
from lodeq.repository.api.view import view_of
from lodeq.repository.workflows import joins, other_leaders
from lodeq.repository.workflows.joins import KEPT_MS

pytestmark = pytest.mark.anyio
NAMES = ("a", "b", "c")


class Calls:
    """Documents between engines of this process."""

    def __init__(self):
        self.engines = {}
        self.told = []
        self.gone = set()
        self.lost_answers = 0

    async def tell_joins(self, url, document):
        self.told.append(document)
        if url in self.gone:
            raise lodeq.UnreachableError(f"{url} is gone")
        try:
            sent = json.loads(json.dumps(document))
            answer = await view_of(self.engines[url]).take_joins(sent)
        except lodeq.LodeqError as error:
            raise lodeq.UnreachableError(str(error)) from error
        if self.lost_answers:
            self.lost_answers -= 1
            raise lodeq.UnreachableError("the answer is lost")
        return json.loads(json.dumps(answer))


@pytest.fixture
async def trio(clock):
    """(cluster, calls, a, b, c): a leads shard 0, b leads shard 1, c nothing yet."""
    cluster, calls = Cluster(), Calls()
    options = {"clock": clock, "shards": 2, "reaper": False}
    async with (
        cluster.open("a", **options) as a,
        cluster.open("b", **options) as b,
        cluster.open("c", **options) as c,
    ):
        for name, engine in zip(NAMES, (a, b, c), strict=True):
            calls.engines[name] = engine
            view_of(engine).reach_leaders(calls)
        await cluster.elect("a", 0)
        await cluster.elect("b", 1)
        yield cluster, calls, a, b, c


async def reaped(*engines, passes=4):
    """Do what reapers do for workflows."""
    for _ in range(passes):
        for engine in engines:
            for groups in engine._state.flows.slices():
                for one in [shard.coalescer.wait(g) for shard, g in groups.items() if g.ops]:
                    await one
        await settle()


def outbox(engine):
    shards = engine._state.hosted
    return [key for one in shards for key, _ in one.store.scan(b"u/", b"u0", 1 << 20)]


async def sources(*engines):
    """A task on a shard that each of these leads."""
    return [(await engine.queue("parts").enqueue(b"p")).id for engine in engines]


async def complete_all(*engines, queue="parts"):
    count = 0
    for engine in engines:
        leases = await engine.queue(queue).claim(limit=64)
        await engine.complete_many([(lease, lease.task_id) for lease in leases])
        count += len(leases)
    return count


async def test_a_task_waits_for_tasks_of_another_leader(trio):
    _, calls, a, b, _ = trio
    ids = await sources(a, b, b)
    waits = await a.enqueue_after(NewTask(b"late", "joins"), ids)
    await complete_all(b)
    await reaped(a, b)
    assert (await a.get(waits)).state == "waiting"
    await complete_all(a)
    await reaped(a, b)
    (lease,) = await a.queue("joins").claim(limit=4)
    assert (lease.task_id, lease.attempt) == (waits, 1)
    parts = await a.parts_page(waits)
    assert [(one.status, one.value) for one in parts] == [("completed", bytes(id)) for id in ids]
    assert outbox(a) == outbox(b) == []
    told = len(calls.told)
    await reaped(a, b)
    assert len(calls.told) == told  # nothing is left to tell
    for engine in (a, b):
        await sound(engine)
    assert rows(a) == rows(b)


async def test_tasks_that_have_ended_elsewhere_are_known_at_once(trio):
    _, _, a, b, _ = trio
    ids = await sources(b)
    await complete_all(b)
    (own,) = await sources(a)
    waits = await a.enqueue_after(NewTask(b"late", "joins"), [own, *ids])
    await complete_all(a)
    assert (await a.get(waits)).state == "ready"
    assert (await a.parts_page(waits))[1].value == bytes(ids[0])


async def test_an_unknown_task_of_another_leader_is_refused(trio):
    _, _, a, b, _ = trio
    (own,) = await sources(a)
    (gone,) = await sources(b)
    gone = lodeq.TaskId(bytes(gone)[:-1] + bytes([gone[-1] ^ 1]))
    before = rows(a)[0]
    with pytest.raises(lodeq.UnknownDependencyError) as caught:
        await a.enqueue_after(NewTask(b"late", "joins"), [own, gone])
    assert caught.value.task_id == gone
    assert rows(a)[0] == before


async def test_a_leader_that_is_not_reached_refuses_nothing_for_good(trio):
    _, calls, a, b, _ = trio
    ids = await sources(a, b)
    calls.gone.add("b")
    with pytest.raises(lodeq.NotLeaderError) as caught:
        await a.enqueue_after(NewTask(b"late", "joins"), ids)
    assert caught.value.leader is None  # whoever asks stays with this one
    calls.gone.clear()
    assert await a.enqueue_after(NewTask(b"late", "joins"), ids)


@pytest.mark.parametrize("lost", ["join's", "members'", "both"])
@pytest.mark.parametrize("has_ended", [False, True])
async def test_whoever_leads_next_goes_on(trio, lost, has_ended):
    cluster, calls, a, b, _ = trio
    ids = await sources(a, b)
    waits = await a.enqueue_after(NewTask(b"late", "joins"), ids)
    if has_ended:
        calls.gone |= {"a", "b"}
        await complete_all(a, b)
        await reaped(a, b)
        assert (await a.get(waits)).state == "waiting"
        calls.gone.clear()
    if lost in ("join's", "both"):
        cluster.nodes["a"].cut()
        calls.gone.add("a")
        await cluster.elect("c", 0)
    if lost in ("members'", "both"):
        cluster.nodes["b"].cut()
        calls.gone.add("b")
        await cluster.elect("c", 1)
    there = [engine for name, engine in calls.engines.items() if name not in calls.gone]
    await reaped(*there)
    await complete_all(*there)
    await reaped(*there)
    leader = calls.engines[cluster.leaders[0]]
    (lease,) = await leader.queue("joins").claim(limit=4)
    assert (lease.task_id, lease.attempt) == (waits, 1)
    for engine in there:
        await sound(engine)


@pytest.mark.parametrize("has_ended", [False, True])
async def test_what_waits_for_a_leader_that_is_gone_is_passed_over_in_slices(
    trio, monkeypatch, has_ended
):
    """However much it is, others have their turns, and little of it is in memory."""
    monkeypatch.setattr(joins, "SLICE", 2)
    monkeypatch.setattr(joins, "ELSEWHERE_MAX", 3)
    cluster, calls, a, b, c = trio
    ids = await sources(a, *[b] * 12)
    waits = [await a.enqueue_after(NewTask(b"late", "joins"), ids) for _ in range(4)]
    await complete_all(a)
    calls.gone |= {"a", "b"}
    if has_ended:
        await complete_all(b)
        teller = b
    else:  # it asks after those that it does not lead
        cluster.nodes["a"].cut()
        await cluster.elect("c", 0)
        teller = c
    flows = teller._state.flows
    steps = 0
    for groups in flows.slices():
        assert not groups
        steps += 1
    assert steps >= 6
    assert len(flows.asks_elsewhere.get(teller._state.shards[1], ())) == (0 if has_ended else 12)
    calls.gone = set() if has_ended else {"a"}
    await complete_all(b)
    await reaped(teller, b, passes=20)
    leases = await (a if has_ended else c).queue("joins").claim(limit=9)
    assert {lease.task_id for lease in leases} == set(waits)


async def test_an_end_that_is_told_twice_counts_once(trio):
    _, calls, a, b, _ = trio
    ids = await sources(a, b)
    waits = await a.enqueue_after(NewTask(b"late", "joins"), ids)
    await complete_all(b)
    calls.lost_answers = 1
    await reaped(b, passes=1)
    assert outbox(b)
    await reaped(b)
    assert outbox(b) == []
    assert [one.status for one in await a.parts_page(waits)] == [None, "completed"]
    await complete_all(a)
    await reaped(a)
    assert len(await a.queue("joins").claim(limit=4)) == 1


async def test_a_redrive_elsewhere_takes_an_end_back(trio):
    _, _, a, b, _ = trio
    ids = await sources(a, b)
    waits = await a.enqueue_after(NewTask(b"late", "joins"), ids, on_failure="wait")
    await complete_all(a)
    (lease,) = await b.queue("parts").claim()
    await lease.bury("no")
    await reaped(a, b)
    assert (await a.get(waits)).state == "waiting"
    assert await b.queue("parts").redrive([ids[1]]) == 1
    await reaped(a, b)
    assert [one.status for one in await a.parts_page(waits)] == ["completed", None]
    await complete_all(b)
    await reaped(a, b)
    assert (await a.get(waits)).state == "ready"
    assert outbox(a) == outbox(b) == []


async def test_a_redrive_of_what_waits_redrives_dead_tasks_of_all_leaders(trio):
    _, calls, a, b, _ = trio
    ids = await sources(a, b, b)
    waits = await a.enqueue_after(NewTask(b"late", "joins"), ids, on_failure="wait")
    for engine in (a, b):
        for lease in await engine.queue("parts").claim(limit=2):
            await lease.bury("no")
    await reaped(a, b)
    calls.gone.add("b")
    with pytest.raises(lodeq.NotLeaderError) as caught:
        await a.redrive_workflow(waits)
    assert caught.value.leader is None  # whoever asks stays with this one
    calls.gone.clear()
    assert await a.redrive_workflow(waits) == 2  # the one that is led here was redriven
    assert await a.redrive_workflow(waits) == 0
    await reaped(a, b)
    await complete_all(a, b)
    await reaped(a, b)
    assert (await a.get(waits)).state == "ready"
    for engine in (a, b):
        await sound(engine)


async def test_a_shard_that_comes_here_while_its_leader_is_told_is_no_closed_engine(trio):
    cluster, _, a, b, _ = trio
    (source,) = await sources(b)
    await cluster.elect("a", 1)
    with pytest.raises(lodeq.NotLeaderError):
        await a._state.flows.attach_elsewhere(bytes(16), [(0, source)], False)
    with pytest.raises(lodeq.NotLeaderError):
        await a._state.flows.redrive_elsewhere([source])


async def test_a_dead_task_elsewhere_may_still_be_redriven_for_a_new_one(trio):
    _, _, a, b, _ = trio
    ids = await sources(a, b)
    (lease,) = await b.queue("parts").claim()
    await lease.bury("no")
    waits = await a.enqueue_after(NewTask(b"late", "joins"), ids, on_failure="wait")
    await complete_all(a)
    await b.queue("parts").redrive([ids[1]])
    await reaped(a, b)
    await complete_all(b)
    await reaped(a, b)
    assert (await a.get(waits)).state == "ready"


async def test_an_end_that_meets_no_task_yet_is_told_again(trio, clock, monkeypatch):
    """Its edge is there before the task that waits is; where that never comes, it is given up."""
    _, _, a, b, _ = trio
    ids = await sources(a, b)
    real = a._state.flows.attach_elsewhere

    async def slowly(*args):
        found = await real(*args)
        await complete_all(b)
        await reaped(b)  # told, and nobody knows the join
        assert outbox(b)
        return found

    monkeypatch.setattr(a._state.flows, "attach_elsewhere", slowly)
    waits = await a.enqueue_after(NewTask(b"late", "joins"), ids)
    await complete_all(a)
    await reaped(a, b)
    assert (await a.get(waits)).state == "ready"
    assert outbox(b) == []

    async def never(*args):
        await slowly(*args)
        raise lodeq.NotLeaderError("the leader is killed here")

    ids = await sources(a, b)
    monkeypatch.setattr(a._state.flows, "attach_elsewhere", never)
    with pytest.raises(lodeq.NotLeaderError):
        await a.enqueue_after(NewTask(b"late", "joins"), ids)
    assert outbox(b)
    await clock.advance(joins.UNBORN_S + 1)
    await reaped(a, b)
    assert outbox(b) == []


async def test_an_end_counts_when_its_result_is_here_to_be_read(trio, clock):
    cluster, _, a, b, _ = trio
    ids = await sources(a, b)
    waits = await a.enqueue_after(NewTask(b"late", "joins"), ids)
    node, (replica, held) = cluster.nodes["a"], (cluster.nodes["a"].replica, [])

    class Late:
        def __getattr__(self, name):
            return getattr(replica, name)

        def apply(self, entry):
            if entry.shard == 1:
                held.append(entry)
            else:
                replica.apply(entry)

    node.replica = Late()
    await complete_all(a, b)
    await reaped(a, b)
    assert held
    assert (await a.get(waits)).state == "waiting"
    node.replica = replica
    for entry in held:
        replica.apply(entry)
    await clock.advance(2 * other_leaders.LATER_S)
    await reaped(a, b)
    assert (await a.get(waits)).state == "ready"
    assert [one.value for one in await a.parts_page(waits)] == [bytes(one) for one in ids]


# -- shards that are not here ------------------------------------------------------------


@pytest.fixture
async def apart(clock):
    """(cluster, a, b): a has the shards 0 and 1 and leads 0; b has and leads 1, 2 and 3."""
    cluster, calls = HostingCluster(), Calls()
    options = {"clock": clock, "shards": 4, "reaper": False}
    async with (
        cluster.open_some("a", {0, 1}, **options) as a,
        cluster.open_some("b", {1, 2, 3}, **options) as b,
    ):
        for name, engine in (("a", a), ("b", b)):
            calls.engines[name] = engine
            view_of(engine).reach_leaders(calls)
        for shard, name in enumerate("abbb"):
            await cluster.elect(name, shard)
        yield cluster, a, b


async def put_on(engine, shard, **options):
    """The id of a new task of ``parts`` on that shard of four."""
    key = next(
        key for key in map(str, range(999)) if slot_of(b"parts\0\0" + key.encode()) >> 10 == shard
    )
    receipt = await engine.queue("parts").enqueue(b"p", dedup_key=key, **options)
    assert shard_of(receipt.id, 4) == shard
    return receipt.id


async def test_an_end_counts_whose_shard_is_not_here(apart):
    _, a, b = apart
    ids = [await put_on(b if n else a, n) for n in range(4)]
    waits = await a.enqueue_after(NewTask(b"late", "joins"), ids)
    await complete_all(b)
    await reaped(b)  # one document: first of a shard that is here, then of others
    await complete_all(a)
    await reaped(a, b)
    assert (await a.get(waits)).state == "ready"
    assert outbox(b) == []
    parts = await a.parts_page(waits)  # values are where their shards are
    assert [one.status for one in parts] == ["completed"] * 4
    assert [one.value for one in parts] == [*map(bytes, ids[:2]), None, None]
    await sound(a)


async def test_a_task_is_of_no_workflow_that_is_known_here(apart):
    """Its own workflow may be on any shard, and half of them are not here."""
    _, a, _ = apart
    for receipt in await a.queue("parts").enqueue_many([NewTask(b"p")] * 16):
        with pytest.raises(lodeq.TaskNotFoundError, match="no workflow that is known"):
            await a.workflow_info(receipt.id)


async def test_an_end_is_sent_again_when_the_shard_goes_where_it_was_counted(apart):
    cluster, a, b = apart
    await cluster.elect("a", 1)
    ids = [await put_on(a, n) for n in (1, 0)]  # the join is with the first
    waits = await a.enqueue_after(NewTask(b"late", "joins"), ids)
    await complete_all(a)
    await reaped(a, passes=1)
    assert outbox(a)  # counted, and not yet synced there
    await cluster.elect("b", 1)
    await cluster.nodes["a"].unhost(1)
    await reaped(a, b)
    assert outbox(a) == outbox(b) == []
    assert (await b.get(waits)).state == "ready"


async def test_results_for_a_join_that_is_not_here_are_kept_for_some_days(apart, clock):
    _, a, b = apart
    ids = [await put_on(a, 0), *[await put_on(b, n) for n in (2, 3)]]
    await a.enqueue_after(NewTask(b"late", "joins"), ids, on_failure="wait")
    done, dead = await b.queue("parts").claim(limit=2)
    await done.complete(b"v")
    await dead.bury("no")
    joins = b._state.flows
    places = [(b._state.shard_of(one.task_id), one.task_id) for one in (done, dead)]
    for is_kept in (True, False):
        assert [joins.pins(*place) for place in places] == [is_kept, is_kept]
        assert joins.awaits(*places[1]) is is_kept
        await clock.advance(KEPT_MS / 1000 + 1)


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"shard": 2},
        {"shard": True},
        {"shard": 0, "attach": [["00", "00", 0, True]]},
        {"shard": 0, "ends": [["0" * 32, "f" * 32, 0, 1, 0, 0]]},  # of shard 1
        {"shard": 0, "ends": [["0" * 32, "0" * 32, 0, 9, 0, 0]]},
        {"shard": 0, "asks": [["0" * 32, "0" * 32, -1, 0, 0]]},
        {"shard": 0, "asks": [["0" * 32, "0" * 32, 0, 0, 0]] * 600},
        {"shard": 0, "asks": 3},
    ],
)
async def test_what_leaders_do_not_say_is_refused(trio, document):
    _, _, a, *_ = trio
    with pytest.raises(lodeq.UsageError):
        await view_of(a).take_joins(document)


@pytest.mark.parametrize("seed", range(12))
async def test_random_leaders(trio, clock, seed):
    """Each task runs once, after all others, whatever moves meanwhile or is lost on the way."""
    cluster, calls, *engines = trio
    draw = random.Random(f"{seed} joins over leaders")
    parts, ended, waiting, ran = [], set(), {}, []

    def leading():
        return [
            one for one in engines if any(not s.coalescer.is_following for s in one._state.shards)
        ]

    async def step():
        engine = draw.choice(leading())
        kind = draw.choice(("part", "part", "wait", "wait", "end", "end", "move", "lose", "reap"))
        if kind == "part":
            parts.append((await engine.queue("parts").enqueue(b"p")).id)
        elif kind == "wait" and parts:
            after = draw.sample(parts, min(len(parts), draw.randint(1, 4)))
            home = engine._state.shard_of(after[0])
            leader = calls.engines[cluster.leaders[home.index]]
            try:
                waiting[await leader.enqueue_after(NewTask(b"w", "joins"), after)] = after
            except lodeq.NotLeaderError:
                pass
        elif kind == "end":
            for lease in await engine.queue("parts").claim(limit=2):
                await lease.complete(b"v")
                ended.add(lease.task_id)
            for lease in await engine.queue("joins").claim(limit=2):
                assert ended.issuperset(waiting[lease.task_id])
                ran.append(lease.task_id)
                await lease.complete()
        elif kind == "move":
            await cluster.elect(draw.choice(NAMES), draw.randrange(2))
        elif kind == "lose":
            calls.lost_answers = draw.randint(0, 2)
            calls.gone = set(draw.sample(NAMES, draw.randint(0, 1)))
        else:
            await reaped(*engines, passes=1)

    for _ in range(60):
        await step()
        await settle(draw.randint(0, 3))
    calls.gone, calls.lost_answers = set(), 0
    await clock.advance(joins.UNBORN_S + 1)
    for _ in range(6):
        await reaped(*engines)
        for engine in leading():
            while leases := await engine.queue("parts").claim(limit=64):
                for lease in leases:
                    await lease.complete(b"v")
                    ended.add(lease.task_id)
            for lease in await engine.queue("joins").claim(limit=64):
                assert ended.issuperset(waiting[lease.task_id])
                ran.append(lease.task_id)
                await lease.complete()
        await clock.advance(1)
    assert sorted(ran) == sorted(waiting)
    await clock.advance(joins.UNBORN_S + 1)  # tasks that were refused: their edges
    await reaped(*engines)
    for engine in engines:  # rows between shards of one leader go when they are synced there
        await engine.fsync()
    await reaped(*engines)
    assert all(not outbox(engine) for engine in engines)
    for engine in engines:
        await sound(engine)


async def test_a_task_whose_dependencies_take_too_long_is_refused(clock):
    """One is told of at once, and then another one's log is slow: the end of the first is over."""
    cluster, calls = Cluster(), Calls()
    options = {"clock": clock, "shards": 3, "reaper": False}
    async with cluster.open("a", **options) as a, cluster.open("b", **options) as b:
        for name, engine in (("a", a), ("b", b)):
            calls.engines[name] = engine
            view_of(engine).reach_leaders(calls)
        for name, shard in (("a", 0), ("a", 2), ("b", 1)):
            await cluster.elect(name, shard)
        keys = {a._state.shard_of_slot(slot_of(b"%d" % n)).index: f"{n}" for n in range(99)}
        own = (await a.queue("own").enqueue(b"p", shard_key=keys[2])).id
        far = (await b.queue("parts").enqueue(b"p", shard_key=keys[1])).id
        (lease,) = await a.queue("own").claim()
        real, held = cluster.commit, []
        cluster.commit = lambda one: (held.append if one.shard == 2 else real)(one)
        completed = asyncio.ensure_future(lease.complete())
        await settle()
        task = NewTask(b"late", "joins", shard_key=keys[0])
        waiting = asyncio.ensure_future(a.enqueue_after(task, [own, far]))
        await settle()
        assert held
        assert not waiting.done()
        await complete_all(b)
        await clock.advance(joins.UNBORN_S + 1)
        await reaped(b)
        assert outbox(b) == []  # nobody knows the join
        cluster.commit = real
        for one in held:
            real(one)
        await completed
        with pytest.raises(lodeq.NotLeaderError, match="took too long: try again"):
            await waiting
        waits = await a.enqueue_after(task, [own, far])
        assert (await a.get(waits)).state == "ready"


async def test_all_that_was_to_be_asked_elsewhere_is_asked_here_once_that_shard_is_here(
    clock, monkeypatch
):
    """Joins of several shards, and more than goes into one document."""
    monkeypatch.setattr(other_leaders, "SLICE", 1)
    cluster, calls = Cluster(), Calls()
    options = {"clock": clock, "shards": 3, "reaper": False}
    async with cluster.open("a", **options) as a, cluster.open("b", **options) as b:
        for name, engine in zip("ab", (a, b), strict=True):
            calls.engines[name] = engine
            view_of(engine).reach_leaders(calls)
        for shard in range(3):
            await cluster.elect("a", shard)
        names = [f"k{n}" for n in range(99)]
        homes = {key: a._state.shard_of_slot(slot_of(key.encode())).index for key in names}
        for shard in (0, 1):
            key, there = (next(k for k in names if homes[k] == at) for at in (shard, 2))
            source = (await a.queue("parts").enqueue(b"p", shard_key=there)).id
            await a.enqueue_after(NewTask(b"late", "joins", shard_key=key), [source])
        calls.gone.add("a")
        for shard in (0, 1):
            await cluster.elect("b", shard)
        await reaped(b)
        flows, shards = b._state.flows, b._state.shards
        assert len(flows.asks_elsewhere[shards[2]]) == 2
        assert not flows._asks
        await cluster.elect("b", 2)
        flows.tell()
        await settle()
        assert {shards[0], shards[1]} <= flows._asks.keys()
        await reaped(b)
        await complete_all(b)
        await reaped(b)
        assert len(await b.queue("joins").claim(limit=4)) == 2
        await sound(b)
