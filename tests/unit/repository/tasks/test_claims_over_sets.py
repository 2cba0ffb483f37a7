"""Claims over kept sets of queues take the rows that a look at each queue would, in its order."""

import asyncio
import os
import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

import pytest
from support_loop import on_loop, settle

import lodeq
from lodeq import ALL_TENANTS, Backoff, Engine, Lease, Queue
from lodeq.repository.background.reaper import forget_idle_tenant_queues
from lodeq.repository.state.caches import claim_sets, ready_cache
from lodeq.repository.tasks import claim as claim_module
from lodeq.repository.tasks import claim_order
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing

QUEUES = [f"q{n}" for n in range(7)]
TENANTS = ["", "t1", "t2", "t3"]


class Reference:
    """The straightforward way: every queue is looked at, by every claim."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def pick(self, request: Any, out: list[Any], bytes_left: int) -> None:
        where = {key: nth for nth, key in enumerate(request.keys)}
        looks = [0] * len(request.keys)
        heads: list[Any] = []
        for key, nth in where.items():
            self.look(key, nth, looks, heads, may_rescan=True)
        state = self.state
        while len(out) < request.limit and bytes_left > 0:
            picked = None
            if request.boosts:
                picked = claim_order._pick_overdue(state, request, may_rescan=not out)
            if picked is None:
                while heads and heads[0][2] != looks[heads[0][1]]:
                    heappop(heads)
                if not heads:
                    break
                _, _, _, shard_queue, index, tenant = heappop(heads)
                turns = shard_queue.tenant_queue.queue_state.turns
                if tenant in turns:
                    turns.move_to_end(tenant)
                picked = claim_order._pop(state, shard_queue, index)
            if request.boosts:
                state.merged_claims += 1
            out.append(picked)
            bytes_left -= picked[1][5]
            tenant_queue = picked[0].tenant_queue
            for key in (tenant_queue.key, tenant_queue.any_key):
                nth = where.get(key, -1)
                if nth >= 0:
                    self.look(key, nth, looks, heads, may_rescan=False)

    def look(
        self, key: Any, nth: int, looks: list[int], heads: list[Any], *, may_rescan: bool
    ) -> None:
        looks[nth] += 1
        queue, tenant = key
        queue_state = self.state.queue_states.get(queue)
        if queue_state is None or queue_state.is_paused:
            return
        empty = []
        for name in queue_state.turns if tenant is None else (tenant,):
            tenant_queue = queue_state.tenant_queues.get(name)
            if tenant_queue is None or not tenant_queue.ready:
                empty.append(name)
                continue
            found = None
            if not tenant_queue.is_paused:
                found = claim_order._best(self.state, tenant_queue, may_rescan=may_rescan)
            if found is not None:
                heappush(heads, (found[0], nth, looks[nth], found[1], found[2], name))
                break
        for name in empty:
            queue_state.turns.pop(name, None)


class Life:
    """One of two engines that live the same life."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.leases: list[Lease] = []
        self.polls: list[asyncio.Task[list[Lease]]] = []
        self.said: list[Any] = []
        self.handles: dict[Any, Queue] = {}

    def queue(self, name: str, tenant: Any = "", boost: float | None = None) -> Queue:
        key = (name, tenant, boost)
        if key not in self.handles:
            self.handles[key] = self.engine.queue(
                name, tenant=tenant, backoff=Backoff(base=0), lease=1e6, boost_after=boost
            )
        return self.handles[key]

    def took(self, leases: list[Lease]) -> None:
        self.leases += leases
        self.said.append([lease.payload for lease in leases])


class Step(NamedTuple):
    do: Callable[[Life], Any]


def over(life: Life, names: list[Any]) -> list[Any]:
    """Queue objects and names, as a caller would pass them."""
    return [
        name if isinstance(name, str) else life.queue(name[0], name[1], name[2]) for name in names
    ]


def random_set(rng: random.Random, queues: list[str]) -> list[Any]:
    """Keys of a claim; one queue may come with a tenant and with all of them."""
    names: list[Any] = []
    for name in rng.sample(queues, rng.randint(2, len(queues))):
        kind = rng.random()
        if kind < 0.4:
            names.append(name)
        elif kind < 0.5:
            names.append((name, rng.choice(TENANTS), None))
        elif kind < 0.6:
            names.append((name, rng.choice(TENANTS), rng.choice([0.0, 0.5, 3.0])))
        else:
            names.append((name, ALL_TENANTS, None))
            if kind > 0.8:
                names.append((name, rng.choice(TENANTS), None))
    return names


async def step(
    rng: random.Random, life: Life, queues: list[str], sets: list[list[Any]], n: int
) -> None:
    """One step: the draws are the same for both engines."""
    engine, clock = life.engine, life.clock
    kind = rng.choices(
        ["put", "many", "set", "own", "any", "end", "pause", "cancel", "time", "wait", "forget"],
        [30, 4, 25, 8, 6, 14, 3, 3, 4, 8, 2]
        if len(queues) > 3
        else [20, 1, 14, 12, 4, 4, 1, 2, 2, 1, 1],  # tenants have nothing left, again and again
    )[0]
    queue = life.queue(rng.choice(queues), rng.choice(TENANTS))
    if kind == "put" or (len(queues) < 4 and kind == "many"):
        delay = rng.choice([None, None, None, 0.4])
        await queue.enqueue(n, priority=rng.choice([5, 5, 5, 2, 9]), delay=delay)
    elif kind == "many":
        plain = rng.random() < 0.5
        await queue.enqueue_many(
            [
                lodeq.NewTask([n, i], priority=5 if plain else rng.randrange(10))
                for i in range(rng.randint(1, 30))
            ]
        )
    elif kind == "set":
        names = rng.choice(sets) if rng.random() < 0.8 else random_set(rng, queues)
        limit = rng.choice([1, 1, 1, 3, 20])
        life.took(await engine.claim(over(life, names), limit=limit, lease=1e6))
    elif kind == "own":
        life.took(await queue.claim(limit=rng.choice([1, 1, 4])))
    elif kind == "any":
        every = life.queue(queue.name, ALL_TENANTS)
        skip = rng.choice([(), (), ("t1",)])
        life.took(await every.claim(limit=rng.choice([1, 3]), skip_tenants=skip))
    elif kind == "end":
        way = rng.choice(["complete", "release", "nack", "release"])
        at = rng.randrange(1 << 30)
        if life.leases:
            lease = life.leases.pop(at % len(life.leases))
            await getattr(lease, way)()
    elif kind == "pause":
        one = life.queue(queue.name, rng.choice([ALL_TENANTS, queue.tenant]))
        await (one.pause if rng.random() < 0.4 else one.resume)()
    elif kind == "cancel":
        for task in (await queue.list("ready", limit=5))[: rng.randint(0, 5)]:
            await engine.cancel(task.id)
    elif kind == "time":
        clock.advance(rng.choice([0.01, 0.2, 1.0, 5.0]))
    elif kind == "wait":
        names = rng.choice(sets)
        wait, limit = rng.choice([0.3, 10.0]), rng.choice([1, 1, 2])
        life.polls.append(
            asyncio.ensure_future(
                engine.claim(over(life, names), wait=wait, limit=limit, lease=1e6)
            )
        )
    else:
        for _ in forget_idle_tenant_queues(engine._state):
            pass
    await settle()
    for poll in [poll for poll in life.polls if poll.done()]:
        life.polls.remove(poll)
        life.took(poll.result())


@pytest.mark.interpreted
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.sample
@pytest.mark.parametrize("seed", range(int(os.environ.get("LODEQ_LOOK_SEEDS", "12"))))
def test_the_rows_of_a_look_at_each_queue(
    seed: int, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(lives(seed, shards, monkeypatch))


async def lives(seed: int, shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    if seed % 3:
        monkeypatch.setattr(ready_cache, "READY_ROWS", 4)
        monkeypatch.setattr(claim_order, "REFILL_ROWS", 2)
    if seed % 4 == 3:
        monkeypatch.setattr(claim_sets, "SETS_MAX", 2)
    clocks = [ManualClock(), ManualClock()]
    async with (
        open_testing(clock=clocks[0], seed=seed, shards=shards) as kept,
        open_testing(clock=clocks[1], seed=seed, shards=shards) as plain,
    ):
        reference, real = Reference(plain._state), claim_order._pick_merged

        def pick(state: Any, request: Any, out: list[Any], bytes_left: int) -> None:
            if state is plain._state:
                reference.pick(request, out, bytes_left)
            else:
                real(state, request, out, bytes_left)

        monkeypatch.setattr(claim_order, "_pick_merged", pick)
        monkeypatch.setattr(plain._state.claim_sets, "admit", lambda keys: None)
        queues = QUEUES if seed % 2 else QUEUES[:3]
        sets = [random_set(rng, queues) for _ in range(rng.choice([1, 2, 5]))]
        both = [Life(kept, clocks[0]), Life(plain, clocks[1])]
        for n in range(500):
            draws = rng.getrandbits(64)
            for life in both:
                await step(random.Random(draws), life, queues, sets, n)
            assert both[0].said == both[1].said, f"step {n}"
            both[0].said.clear()
            both[1].said.clear()
        assert kept._state.claim_sets.sets
        for life in both:
            for poll in life.polls:
                poll.cancel()
            await asyncio.gather(*life.polls, return_exceptions=True)
            assert (await life.engine.verify()).ok
        waiters = kept._state.claim_sets
        assert waiters.waiting == 0
        assert not any(one.waiters for one in waiters.sets.values())


async def drained(engine: Engine, queues: list[Any], limit: int = 1) -> list[Any]:
    found = []
    while leases := await engine.claim(queues, limit=limit):
        found += [lease.payload for lease in leases]
    return found


@pytest.mark.interpreted
@pytest.mark.parametrize("limit", [1, 8])
@pytest.mark.parametrize("shards", [1, 3])
@on_loop
async def test_a_claim_looks_only_at_queues_that_have_something_ready(
    shards: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are two hundred, over all shards, and tasks come in the order of one shard."""
    names, looked = [f"q{n}" for n in range(200)], []
    real, best = claim_order._look, claim_order._head_in_memory

    def look(state: Any, claim_set: Any, nth: int, **options: Any) -> None:
        looked.append(claim_set.keys[nth][0].decode())
        real(state, claim_set, nth, **options)

    def head(tenant_queue: Any, *passed: Any) -> Any:
        looked.append(tenant_queue.queue.decode())
        return best(tenant_queue, *passed)

    async with open_testing(clock=ManualClock(), shards=shards) as engine:
        for _ in range(2):  # the second claim keeps the set
            assert await engine.claim(names) == []
        monkeypatch.setattr(claim_order, "_look", look)
        monkeypatch.setattr(claim_order, "_head_in_memory", head)
        some = [engine.queue(names[n]) for n in (7, 150, 199)]
        where = set()
        for n in range(60):
            receipt = await some[n % 3].enqueue(n, dedup_key=b"%d" % n)  # its key says the shard
            where.add(engine._state.shard_of(receipt.id).index)
        assert len(where) == shards
        assert await drained(engine, names, limit) == list(range(60))
        assert set(looked) <= {queue.name for queue in some}
        assert len(looked) <= 3 * 60
        looked.clear()
        assert await engine.claim(names, limit=limit) == []
        assert looked == []


@on_loop
async def test_whose_turn_it_is_may_change_by_claims_of_others() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        every, other = engine.queue("a", tenant=ALL_TENANTS), engine.queue("b")
        one, two = engine.queue("a", tenant="t1"), engine.queue("a", tenant="t2")
        queues = [every, other]
        for known in range(2):  # the second claim knows the set
            await other.enqueue(known)
            assert [lease.payload for lease in await engine.claim(queues)] == [known]
        for n in range(2):
            await one.enqueue(["one", n], priority=5)
        await other.enqueue("other", priority=7)
        await two.enqueue("two", priority=9)
        await other.enqueue("first", priority=8)
        assert [lease.payload for lease in await engine.claim(queues)] == ["first"]
        assert [lease.payload for lease in await every.claim()] == [["one", 0]]
        assert await drained(engine, queues) == ["two", "other", ["one", 1]]


@on_loop
async def test_whose_turn_it_is_may_have_nothing_left() -> None:
    async with open_testing(clock=ManualClock()) as engine:
        every, other = engine.queue("a", tenant=ALL_TENANTS), engine.queue("b")
        one, two = engine.queue("a", tenant="t1"), engine.queue("a", tenant="t2")
        queues = [every, other]
        for known in range(2):
            await other.enqueue(known)
            await engine.claim(queues)
        for take in (
            lambda: one.claim(),
            lambda: one.claim(limit=2),
            lambda: engine.claim([one, "none"]),
        ):
            await one.enqueue("one", priority=5)
            await other.enqueue("other", priority=7)
            await two.enqueue("two", priority=9)
            await other.enqueue("first", priority=8)
            assert [lease.payload for lease in await engine.claim(queues)] == ["first"]
            assert [lease.payload for lease in await take()] == ["one"]
            assert await drained(engine, queues) == ["two", "other"]
        await one.enqueue("one", priority=5)
        await other.enqueue("other", priority=7)
        await two.enqueue("two", priority=9)
        await other.enqueue("first", priority=8)
        assert [lease.payload for lease in await engine.claim(queues)] == ["first"]
        (task,) = await one.list("ready")
        await engine.cancel(task.id)
        assert await drained(engine, queues) == ["two", "other"]


@pytest.mark.interpreted
@on_loop
async def test_what_is_put_back_is_claimed_in_its_old_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_testing(clock=ManualClock()) as engine:
        queues = ["a", "b", "c"]
        for name in "aabbc":
            await engine.queue(name).enqueue(name)
        assert len(await engine.claim(queues, limit=2)) == 2
        for n, name in enumerate("bcab"):
            await engine.queue(name).enqueue(n)
        records = claim_module.records_of

        def broken(*_: object) -> None:
            raise lodeq.StorageError("not now")

        monkeypatch.setattr(claim_module, "records_of", broken)
        with pytest.raises(lodeq.StorageError):
            await engine.claim(queues, limit=2)
        monkeypatch.setattr(claim_module, "records_of", records)
        assert await drained(engine, queues) == ["b", "b", "c", 0, 1, 2, 3]
