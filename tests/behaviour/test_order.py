"""In what order tasks come out, whatever happened to them on the way."""

import asyncio
import random
from collections import Counter

import pytest
from support_behaviour import StillClock, drain, in_memory, payloads, settle, sound

import lodeq
from lodeq import ALL_TENANTS, Backoff, NewTask
from lodeq.repository.state import long_polls
from lodeq.repository.tasks import claim, claim_order

pytestmark = pytest.mark.anyio

at_once = Backoff(base=0)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("limit", [1, 3, 64])
async def test_priority_then_fifo(clock, shards, limit):
    async with in_memory(clock, shards=shards) as engine:
        queue = engine.queue("mail")
        put = []
        for i in range(100):
            priority = (i * 7) % 10
            put.append((-priority, i))
            await queue.enqueue([priority, i], priority=priority)
            clock.jump(0.001 * (i % 3))
        assert await drain(queue, limit=limit) == [[-p, i] for p, i in sorted(put)]
        await sound(engine)


@pytest.mark.parametrize("shards", [1, 4])
async def test_the_order_survives_a_restart(tmp_path, shards):
    clock = StillClock()
    put = []
    for part in range(3):
        async with lodeq.open(tmp_path / "s", shards=shards, clock=clock) as engine:
            queue = engine.queue("mail")
            for i in range(part * 20, part * 20 + 20):
                put.append((-(i % 4), i))
                await queue.enqueue(i, priority=i % 4)
            clock.step_wall(-5)  # not even a clock that went back changes it
    async with lodeq.open(tmp_path / "s", clock=clock) as engine:
        assert await drain(engine.queue("mail"), limit=7) == [i for _, i in sorted(put)]
        await sound(engine)


async def test_an_enqueue_many_keeps_the_order_of_its_list(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await asyncio.gather(
            *(queue.enqueue_many([NewTask([n, i]) for i in range(50)]) for n in range(4))
        )
        got = await drain(queue, limit=9)
        for n in range(4):
            assert [i for m, i in got if m == n] == list(range(50))


@pytest.mark.parametrize("shards", [1, 4])
async def test_nacked_at_the_tail_released_at_the_old_place(clock, shards):
    async with in_memory(clock, shards=shards) as engine:
        queue = engine.queue("mail", backoff=at_once)
        for i in range(8):
            await queue.enqueue(i)
        leases = await queue.claim(limit=5)
        await leases[1].nack()
        await leases[3].release()
        await leases[0].release()
        await leases[2].nack(delay=0)
        await leases[4].release()
        await queue.enqueue(8)
        assert await drain(queue, limit=1) == [0, 3, 4, 5, 6, 7, 1, 2, 8]
        await sound(engine)


async def test_a_release_keeps_its_place_behind_a_window_that_moved_on(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        n = 3000
        await queue.enqueue_many([NewTask(i) for i in range(n)])
        leases = await queue.claim(limit=2500)
        for lease in leases[10:2400:100]:
            await lease.release()
        got = await drain(queue, limit=100)
        assert got == [*range(10, 2400, 100), *range(2500, n)]
        await sound(engine)


async def test_released_attempts_are_not_counted_and_nacked_ones_are(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", backoff=at_once)
        await queue.enqueue(b"x")
        for attempt in (1, 1, 2, 2, 3):
            lease = await queue.claim_one()
            assert lease.attempt == attempt
            if attempt == 1 and (await engine.stats()).claimed_total == 1:
                await lease.release()
            elif (await engine.stats()).claimed_total in (2, 4):
                await lease.nack()
            else:
                await lease.release()
        await sound(engine)


async def test_the_expired_go_to_the_tail(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", lease=10)
        for i in range(4):
            await queue.enqueue(i)
        await queue.claim(limit=2)
        await clock.advance(11)
        assert await drain(queue, limit=1) == [2, 3, 0, 1]


async def test_due_tasks_line_up_by_when_they_became_ready(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue("d20", delay=20)
        await queue.enqueue("d10", delay=10)
        await queue.enqueue("now")
        await queue.enqueue("d10 high", delay=10, priority=9)
        await clock.advance(11)
        await queue.enqueue("later")
        await clock.advance(11)
        assert await drain(queue, limit=1) == ["d10 high", "now", "d10", "later", "d20"]
        await sound(engine)


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("limit", [1, 7])
async def test_three_tenants_with_a_load_of_10_1_1_are_served_in_turn(clock, shards, limit):
    async with in_memory(clock, shards=shards) as engine:
        for tenant, n in (("big", 200), ("small", 20), ("tiny", 20)):
            await engine.queue("mail", tenant=tenant).enqueue_many([NewTask(tenant)] * n)
        every = engine.queue("mail", tenant=ALL_TENANTS)
        got = []
        while len(got) < 60:
            for lease in await every.claim(limit=min(limit, 60 - len(got))):
                assert lease.tenant == lease.payload
                got.append(lease.payload)
                await lease.complete()
        assert Counter(got) == {"big": 20, "small": 20, "tiny": 20}
        for i in range(0, 60, 3):
            assert len(set(got[i : i + 3])) == 3
        assert await drain(every) == ["big"] * 180
        assert (await every.stats()).ready == 0
        await sound(engine)


async def test_priority_counts_within_a_tenant_not_between_them(clock):
    async with in_memory(clock) as engine:
        a, b = (engine.queue("mail", tenant=t) for t in "ab")
        for i in range(3):
            await a.enqueue(["a", i], priority=9)
            await b.enqueue(["b", i], priority=i)
        got = await drain(engine.queue("mail", tenant=ALL_TENANTS), limit=1)
        assert [x for x in got if x[0] == "b"] == [["b", 2], ["b", 1], ["b", 0]]
        assert [x[0] for x in got] == ["a", "b"] * 3


async def test_a_paused_tenant_does_not_hold_up_the_others(clock):
    async with in_memory(clock) as engine:
        for tenant in "abc":
            await engine.queue("mail", tenant=tenant).enqueue_many([NewTask(tenant)] * 2)
        await engine.queue("mail", tenant="b").pause()
        every = engine.queue("mail", tenant=ALL_TENANTS)
        assert payloads(await every.claim(limit=9)) == ["a", "c", "a", "c"]
        await engine.queue("mail", tenant="b").resume()
        assert payloads(await every.claim(limit=9)) == ["b", "b"]


@pytest.mark.parametrize("shards", [1, 4])
async def test_several_queues_are_merged_by_priority_and_age(clock, shards):
    async with in_memory(clock, shards=shards) as engine:
        a, b, c = (engine.queue(name) for name in "abc")
        for i in range(6):
            await (a, b, c)[i % 3].enqueue(i)
        await c.enqueue("first", priority=9)
        got = []
        while leases := await engine.claim(["a", b, "c", "none"], limit=2):
            got += payloads(leases)
        assert got == ["first", 0, 1, 2, 3, 4, 5]


async def test_a_wait_on_several_queues_is_woken_by_any(clock):
    async with in_memory(clock, shards=2) as engine:
        for name in "ab":
            waiting = asyncio.ensure_future(engine.claim(["a", "b"], wait=10))
            await settle()
            await engine.queue(name).enqueue(name)
            assert payloads(await waiting) == [name]
        assert not engine._state.waiters.by_tenant_queue


async def test_waiting_claims_are_served_first_come_first_served(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        waiting = [asyncio.ensure_future(queue.claim_one(wait=50)) for _ in range(5)]
        await settle()
        for i in range(5):
            await queue.enqueue(i)
        assert [(await w).payload for w in waiting] == list(range(5))


async def test_starvation_serves_the_oldest_overdue_once_in_eight(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", boost_after=60)
        for i in range(10):
            await queue.enqueue(["low", i], priority=0)
        await clock.advance(61)
        for i in range(100):
            await queue.enqueue(["high", i], priority=9)
        got = []
        for _ in range(64):
            (lease,) = await queue.claim()
            got.append(lease.payload)
            await lease.complete()
        assert [x for x in got if x[0] == "low"] == [["low", i] for i in range(8)]
        for i in range(0, 64, 8):
            assert sum(x[0] == "low" for x in got[i : i + 8]) == 1
        await sound(engine)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("limit", [1, 3, 8, 13, 64])
async def test_one_of_every_eight_tasks_granted_is_the_oldest_overdue(clock, limit, shards):
    async with in_memory(clock, shards=shards) as engine:
        queue = engine.queue("mail", boost_after=60)
        for i in range(20):
            await queue.enqueue(["low", i], priority=0)
        await clock.advance(61)
        await queue.enqueue_many([NewTask(["high", i], priority=9) for i in range(300)])
        got = []
        while len(got) < 128:
            leases = await queue.claim(limit=limit)
            got += payloads(leases)
            await engine.complete_many([(lease, None) for lease in leases])
        assert [x for x in got if x[0] == "low"][:16] == [["low", i] for i in range(16)]
        for i in range(0, 128, 8):
            assert [x[0] for x in got[i : i + 8]] == ["high"] * 7 + ["low"]
        await sound(engine)


@pytest.mark.parametrize("limit", [1, 7, 64])
async def test_over_all_tenants_one_of_every_eight_of_a_tenant_is_overdue(clock, limit):
    async with in_memory(clock) as engine:
        tenants = [engine.queue("mail", tenant=name) for name in "abc"]
        for i in range(4):
            for one in tenants[:2]:
                await one.enqueue([one.tenant, "low", i], priority=0)
        await clock.advance(61)
        for one in tenants:
            await one.enqueue_many(
                [NewTask([one.tenant, "high", i], priority=9) for i in range(40)]
            )
        every = engine.queue("mail", tenant=ALL_TENANTS, boost_after=60)
        got = []
        while len(got) < 3 * 32:
            leases = await every.claim(limit=min(limit, 3 * 32 - len(got)))
            got += payloads(leases)
            await engine.complete_many([(lease, None) for lease in leases])
        for at, one in enumerate(tenants):
            own = got[at::3]  # they are served in turns all the same
            assert {x[0] for x in own} == {one.tenant}
            low = [n for n, x in enumerate(own) if x[1] == "low"]
            assert low == (list(range(7, 32, 8)) if at < 2 else [])
        await sound(engine)


async def test_several_queues_of_all_tenants_serve_what_is_overdue(clock):
    async with in_memory(clock) as engine:
        one = engine.queue("mail", tenant="a")
        for i in range(4):
            await one.enqueue(["low", i], priority=0)
        await clock.advance(61)
        await one.enqueue_many([NewTask(["high", i], priority=9) for i in range(60)])
        every = engine.queue("mail", tenant=ALL_TENANTS, boost_after=60)
        got = []
        for limit in (1, 20, 30):
            got += payloads(await engine.claim([every, "other"], limit=limit))
        assert [n for n, x in enumerate(got) if x[0] == "low"] == [7, 15, 23, 31]
        await sound(engine)


async def test_a_claim_over_several_queues_serves_their_oldest_overdue_in_turn(clock):
    async with in_memory(clock) as engine:
        slow = engine.queue("slow", boost_after=60)
        fast = engine.queue("fast", boost_after=60)
        for i in range(3):
            await slow.enqueue(["slow", i], priority=0)
            await fast.enqueue(["old", i], priority=0)
        await clock.advance(61)
        await fast.enqueue_many([NewTask(["new", i], priority=9) for i in range(60)])
        got = []
        for limit in (5, 1, 20, 30):
            got += payloads(await engine.claim([slow, fast, "other"], limit=limit))
        assert [n for n, x in enumerate(got) if x[0] != "new"] == list(range(7, 48, 8))
        assert [x for x in got if x[0] != "new"] == [
            [name, i] for i in range(3) for name in ("slow", "old")
        ]


async def test_without_overdue_tasks_starvation_changes_nothing(clock):
    async with in_memory(clock) as engine:
        queue = engine.queue("mail", boost_after=60)
        for i in range(16):
            await queue.enqueue(i, priority=i % 2)
        assert await drain(queue, limit=1) == [*range(1, 16, 2), *range(0, 16, 2)]


@pytest.mark.parametrize("gone", ["claimed", "cancelled"])
async def test_tenants_that_have_nothing_left_do_not_hold_up_the_others(clock, gone):
    async with in_memory(clock) as engine:
        queues = [engine.queue("mail", tenant=tenant) for tenant in "abc"]
        for queue in queues:
            receipt = await queue.enqueue(queue.tenant)
            if queue.tenant != "c" and gone == "claimed":
                await queue.claim_one()
            elif queue.tenant != "c":
                await engine.cancel(receipt.id)
        every = engine.queue("mail", tenant=ALL_TENANTS)
        assert payloads(await every.claim()) == ["c"]


async def test_several_queues_do_not_look_again_at_tenants_that_have_nothing_left(clock):
    async with in_memory(clock) as engine:
        for i in range(20):
            await engine.queue("mail", tenant=f"t{i}").enqueue(i)
        every = engine.queue("mail", tenant=ALL_TENANTS)
        got = []
        while leases := await engine.claim([every, "other"], limit=3):
            got += payloads(leases)
        assert got == list(range(20))
        assert not engine._state.queue_states[b"mail"].turns


@pytest.mark.parametrize("shards", [1, 3])
async def test_leases_of_a_dead_process_go_back_in_the_order_of_their_seq(tmp_path, clock, shards):
    async with lodeq.open(tmp_path / "s", clock=clock, shards=shards, inbox=False) as engine:
        queue = engine.queue("mail")
        for n in range(40):
            await queue.enqueue(n, priority=n % 2)
        for _ in range(3):  # those that came back are younger than those that did not
            for lease in await queue.claim(limit=4):
                await lease.nack(delay=0)
        lines = {
            p: [t.payload for t in await queue.list("ready") if t.priority == p] for p in (0, 1)
        }
        held = [lease.payload for _ in range(5) for lease in await queue.claim(limit=6)]
        order = [n for p in (1, 0) for n in held if n % 2 == p]
        clock.jump(1)
        await queue.enqueue("later", priority=1)
    async with lodeq.open(tmp_path / "s", clock=clock, inbox=False) as engine:
        queue = engine.queue("mail")
        got = payloads(await queue.claim(limit=100))
        assert sorted(lines[0] + lines[1]) == list(range(40))
        behind = [n for n in got if n in held]
        assert behind == order  # in their priority, as they were before
        high = [n for n in got if n == "later" or n % 2]
        assert high.index("later") < min(high.index(n) for n in held if n % 2)  # at the tail
        assert (await engine.verify()).ok


@pytest.mark.slow
async def test_more_leases_than_a_slice_go_back_in_order(tmp_path, clock):
    async with lodeq.open(tmp_path / "s", clock=clock, shards=2, inbox=False) as engine:
        queue = engine.queue("mail")
        await queue.enqueue_many([NewTask(n, shard_key=str(n)) for n in range(700)])
        assert payloads(await queue.claim(limit=1000)) == list(range(700))
    async with lodeq.open(tmp_path / "s", clock=clock, inbox=False) as engine:
        assert payloads(await engine.queue("mail").claim(limit=1000)) == list(range(700))
        await sound(engine)


@pytest.mark.parametrize("seed", range(12))
async def test_what_is_merged_from_many_queues_is_the_best_of_all_each_time(clock, seed):
    """Against the definition: among the heads of all, by priority and age; tenants take turns."""
    rng = random.Random(seed)
    async with in_memory(clock, shards=rng.choice([1, 3])) as engine:
        names = ["a", "b", "c", "d"]
        waiting = {}  # what a claim could get, by queue and tenant, best first
        for n in range(120):
            queue, tenant = rng.choice(names), rng.choice(["", "t1", "t2"])
            priority = rng.randrange(10)
            clock.jump(0.001)
            await engine.queue(queue, tenant=tenant).enqueue(n, priority=priority)
            waiting.setdefault((queue, tenant), []).append((9 - priority, n))
        for tasks in waiting.values():
            tasks.sort()
        every = engine.queue("a", tenant=ALL_TENANTS)
        keys = [every, "b", engine.queue("c", tenant="t1"), engine.queue("a", tenant="t2"), "d"]
        turns = list(dict.fromkeys(tenant for queue, tenant in waiting if queue == "a"))
        wanted, got = [], []
        while True:
            heads = []
            turn = next((one for one in turns if waiting.get(("a", one))), None)
            for nth, key in enumerate(
                (("a", turn), ("b", ""), ("c", "t1"), ("a", "t2"), ("d", ""))
            ):
                if waiting.get(key):
                    heads.append((waiting[key][0], nth, key))
            if not heads:
                break
            (_, n), _, key = min(heads)
            waiting[key].pop(0)
            if key[0] == "a":
                turns.remove(key[1])
                turns.append(key[1])
            wanted.append(n)
        while leases := await engine.claim(keys, limit=rng.choice([1, 7, 64])):
            got += payloads(leases)
        assert got == wanted


@pytest.mark.interpreted
async def test_what_a_task_costs_does_not_grow_with_the_number_of_queues(clock, monkeypatch):
    async with in_memory(clock) as engine:
        names = [f"q{n}" for n in range(100)]
        await engine.enqueue_many([NewTask(b"", queue=name) for name in names * 3])
        head, looks = claim_order.head, 0

        def counted(*args, **options):
            nonlocal looks
            looks += 1
            return head(*args, **options)

        monkeypatch.setattr(claim_order, "head", counted)
        assert len(await engine.claim(names, limit=300)) == 300
        assert looks <= len(names) + 2 * 300


@pytest.mark.parametrize("is_alone", [True, False])
async def test_paused_tenants_are_passed_over_once_and_not_by_every_claim(clock, is_alone):
    async with in_memory(clock) as engine:
        for i in range(20):
            for n in range(2):
                await engine.queue("mail", tenant=f"t{i:02d}").enqueue([i, n])
        for i in range(18):
            await engine.queue("mail", tenant=f"t{i:02d}").pause()
        every = engine.queue("mail", tenant=ALL_TENANTS)
        queues = [every] if is_alone else [every, "other"]
        assert payloads(await engine.claim(queues, limit=2)) == [[18, 0], [19, 0]]
        assert set(engine._state.queue_states[b"mail"].turns) == {b"t18", b"t19"}
        await engine.queue("mail", tenant="t03").resume()
        assert payloads(await engine.claim(queues, limit=3)) == [[18, 1], [19, 1], [3, 0]]
        waiting = asyncio.ensure_future(engine.claim(queues, limit=9, wait=5))
        assert payloads(await waiting) == [[3, 1]]
        waiting = asyncio.ensure_future(engine.claim(queues, limit=40, wait=5))
        await settle()
        await engine.queue("mail", tenant="t00").enqueue([0, 2])  # back into the line, and out
        await settle()
        assert not waiting.done()
        assert not engine._state.queue_states[b"mail"].turns
        await every.resume()
        got = payloads(await waiting)
        while leases := await engine.claim(queues, limit=40):
            got += payloads(leases)
        assert sorted(got) == sorted(
            [*([i, n] for i in range(18) if i != 3 for n in (0, 1)), [0, 2]]
        )
        await sound(engine)


async def test_a_claim_from_many_tenants_goes_on_in_the_next_turn(clock, monkeypatch):
    """The head of each tenant may have to be read: 50 of them cost as much as a thousand rows."""
    taken, take, head = [], claim.take, claim_order.head

    def look(state, shard_queue, *, may_rescan):
        clock.jump(0.0005)
        return head(state, shard_queue, may_rescan=may_rescan)

    def part(state, request):
        found = take(state, request)
        taken.append(len(found[0]))
        return found

    monkeypatch.setattr(claim_order, "head", look)
    monkeypatch.setattr(claim, "take", part)
    async with in_memory(clock) as engine:
        for i in range(200):
            await engine.queue("mail", tenant=f"t{i:03d}").enqueue_many(
                [NewTask([n, i]) for n in range(2)]
            )
        every = engine.queue("mail", tenant=ALL_TENANTS)
        want = [[n, i] for n in range(2) for i in range(200)]
        assert payloads(await every.claim(limit=150)) == want[:150]
        assert sum(taken) == 150
        assert max(taken) <= 32
        assert payloads(await every.claim(limit=500)) == want[150:]
        waiting = asyncio.ensure_future(every.claim(limit=64, wait=5))
        await settle()
        await engine.queue("mail").enqueue_many([NewTask(i, tenant=f"t{i:03d}") for i in range(64)])
        got = payloads(await waiting)  # a part, at once: the others are for whoever comes next
        got += payloads(await every.claim(limit=64))
        assert got == list(range(64))
        await sound(engine)


async def test_a_queue_that_is_resumed_serves_who_waits_tenants_by_tenants(clock, monkeypatch):
    monkeypatch.setattr(long_polls, "NOTED_MAX", 8)
    async with in_memory(clock) as engine:
        every = engine.queue("mail", tenant=ALL_TENANTS)
        await every.pause()
        for i in range(40):
            await engine.queue("mail", tenant=f"t{i:02d}").enqueue(i)
        for i in range(20):
            await engine.queue("mail", tenant=f"t{i:02d}").pause()
        last = engine.queue("mail", tenant="t39")
        waiting = [
            asyncio.ensure_future(every.claim(limit=2, wait=5)),
            asyncio.ensure_future(last.claim(wait=5)),
        ]
        await settle()
        polls, noted = engine._state.waiters, []
        note = type(polls).note
        monkeypatch.setattr(
            type(polls), "note", lambda self, one: noted.append(one.tenant) or note(self, one)
        )
        engine._state.set_pause(b"mail", None, is_paused=False)
        assert len(noted) <= 8, "a queue may have a hundred thousand tenants"
        assert payloads(await waiting[0]) == [20, 21]
        assert payloads(await waiting[1]) == [39]
        assert not {f"t{i:02d}".encode() for i in range(20)} & set(noted)
        await every.pause()  # in the store as well
        await every.resume()
        await sound(engine)
