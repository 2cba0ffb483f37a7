"""Claims that leave tasks for some functions to others: these keep their place, the others come."""

import asyncio
import random

import pytest
from support_behaviour import in_memory, payloads, settle, sound

from lodeq import ALL_TENANTS, NewTask, UsageError

pytestmark = pytest.mark.anyio
NEW = frozenset({"new"})


def task(name, n, **options):
    return NewTask(f"{name}{n}", function=name, **options)


async def test_tasks_of_a_skipped_function_keep_their_place(clock):
    async with in_memory(clock) as engine:
        mail, every = engine.queue("mail"), engine.queue("mail", tenant=ALL_TENANTS)
        await mail.enqueue_many([task("old" if n % 2 else "new", n) for n in range(6)])
        await mail.enqueue("none")  # of no function
        await mail.enqueue_many([task("new", 9, priority=9)])
        got = await every.claim(limit=2, skip_functions=["new", "other"])
        assert payloads(got) == ["old1", "old3"]
        got = await every.claim(limit=10, skip_functions=["new"])
        assert payloads(got) == ["old5", "none"]
        assert await every.claim(limit=10, skip_functions=["new"]) == []
        stats = await mail.stats()
        assert (stats.ready, stats.delayed, stats.leased) == (4, 0, 4)
        got = await every.claim(limit=10)
        assert payloads(got) == ["new9", "new0", "new2", "new4"]
        assert {lease.attempt for lease in got} == {1}
        await sound(engine)


async def test_one_who_skips_does_not_stand_in_the_way_of_one_who_does_not(clock):
    async with in_memory(clock) as engine:
        mail, every = engine.queue("mail"), engine.queue("mail", tenant=ALL_TENANTS)
        picky = [asyncio.ensure_future(every.claim(wait=60, skip_functions=NEW)) for _ in range(2)]
        await settle()
        other = asyncio.ensure_future(every.claim(wait=60))
        await settle()
        await mail.enqueue_many([task("new", 1), task("new", 2)])
        assert payloads(await other) == ["new1"]
        await settle()
        assert not any(one.done() for one in picky)
        await mail.enqueue_many([task("old", 3)])
        assert payloads(await picky[0]) == ["old3"]
        await engine.queue("mail", tenant="acme").enqueue("x", function="old")
        assert payloads(await picky[1]) == ["x"]
        assert payloads(await every.claim(limit=5)) == ["new2"]
        await sound(engine)


async def test_a_wait_ends_empty_where_there_are_only_such_tasks(clock):
    async with in_memory(clock) as engine:
        every = engine.queue("mail", tenant=ALL_TENANTS)
        await engine.queue("mail").enqueue_many([task("new", 1)])
        picky = asyncio.ensure_future(every.claim(wait=5, skip_functions=NEW))
        await settle()
        await clock.advance(5)
        assert await picky == []
        await sound(engine)


async def test_behind_many_of_them_they_are_granted_all_the_same(clock):
    """A look is bounded: rather is a task drawn in vain than one behind it left alone."""
    async with in_memory(clock) as engine:
        mail, every = engine.queue("mail"), engine.queue("mail", tenant=ALL_TENANTS)
        await mail.enqueue_many([task("new", n) for n in range(64)])
        assert await every.claim(skip_functions=NEW) == []
        await mail.enqueue_many([task("old", 1)])
        got = await every.claim(skip_functions=NEW)
        assert payloads(got) == ["new0"]
        assert payloads(await every.claim(skip_functions=NEW)) == ["old1"]
        await got[0].release(delay=0.1)
        assert (await mail.stats()).delayed == 1
        await sound(engine)


async def test_after_a_minute_in_line_they_are_granted_all_the_same(clock):
    async with in_memory(clock) as engine:
        every = engine.queue("mail", tenant=ALL_TENANTS)
        await engine.queue("mail").enqueue_many([task("new", 1), task("old", 2)])
        await clock.advance(59)
        assert payloads(await every.claim(limit=5, skip_functions=NEW)) == ["old2"]
        await clock.advance(1)
        assert payloads(await every.claim(limit=5, skip_functions=NEW)) == ["new1"]
        await sound(engine)


async def test_a_queue_with_a_limit_of_its_own_leaves_nothing_to_others(clock):
    async with in_memory(clock) as engine:
        await engine.configure("mail", concurrency=2)
        mail, every = engine.queue("mail"), engine.queue("mail", tenant=ALL_TENANTS)
        waiting = asyncio.ensure_future(every.claim(limit=5, wait=60, skip_functions=NEW))
        await settle()
        await mail.enqueue_many([task("new", 1), task("new", 2), task("old", 3)])
        got = await waiting
        assert payloads(got) == ["new1", "new2"]
        assert await every.claim(limit=5, skip_functions=NEW) == []
        await got[0].complete()
        assert payloads(await every.claim(limit=5, skip_functions=NEW)) == ["old3"]
        await sound(engine)


async def test_keys_with_a_limit_are_counted_beside_it(clock):
    async with in_memory(clock) as engine:
        await engine.configure("mail", key_concurrency="1/customer")
        mail, every = engine.queue("mail"), engine.queue("mail", tenant=ALL_TENANTS)
        acme = {"labels": {"customer": "acme"}}
        await mail.enqueue_many(
            [task("new", 0, **acme), *(task("old", n, **acme) for n in (1, 2)), task("old", 3)]
        )
        got = await every.claim(limit=5, skip_functions=NEW)
        assert payloads(got) == ["old1", "old3"]
        stats = await mail.stats()
        assert (stats.ready, stats.waiting) == (1, 1)
        await got[0].complete()
        await settle()
        assert payloads(await every.claim(limit=5, skip_functions=NEW)) == ["old2"]
        assert await every.claim(limit=5, skip_functions=NEW) == []
        await sound(engine)


async def test_tenants_keep_their_turns(clock):
    """Whose tasks are passed over has its turn first again, and the others take theirs evenly."""
    async with in_memory(clock) as engine:
        every = engine.queue("mail", tenant=ALL_TENANTS)
        await engine.queue("mail", tenant="a").enqueue_many([task("new", n) for n in range(3)])
        for tenant in "bcd":
            tasks = [NewTask(f"{tenant}{n}", function="old") for n in range(5)]
            await engine.queue("mail", tenant=tenant).enqueue_many(tasks)
        got = [payloads(await every.claim(skip_functions=NEW))[0] for _ in range(7)]
        assert got == ["b0", "c0", "d0", "b1", "c1", "d1", "b2"]
        assert payloads(await every.claim(limit=3)) == ["new0", "c2", "d2"]
        await sound(engine)


async def test_with_a_boost_nothing_is_left_to_others(clock):
    async with in_memory(clock) as engine:
        mail = engine.queue("mail")
        every = engine.queue("mail", tenant=ALL_TENANTS, boost_after=5)
        await mail.enqueue_many([task("old", 0, priority=0)])
        await clock.advance(6)
        await mail.enqueue_many([task("new", n, priority=9) for n in range(3)])
        await mail.enqueue_many([task("old", n) for n in range(1, 9)])
        got = [payloads(await every.claim(skip_functions=NEW))[0] for _ in range(8)]
        assert got == ["new0", "new1", "new2", "old1", "old2", "old3", "old4", "old0"]
        await sound(engine)


async def test_what_is_past_its_ttl_ends(clock):
    async with in_memory(clock) as engine:
        mail, every = engine.queue("mail"), engine.queue("mail", tenant=ALL_TENANTS)
        await mail.enqueue_many([task("new", 1, ttl=1)])
        clock.step_wall(2)
        assert await every.claim(skip_functions=NEW) == []
        assert (await mail.stats()).ready == 0
        await sound(engine)


async def test_wrong_arguments_are_refused(clock):
    async with in_memory(clock) as engine:
        mail, every = engine.queue("mail"), engine.queue("mail", tenant=ALL_TENANTS)
        with pytest.raises(UsageError, match="skip_functions needs a queue of ALL_TENANTS"):
            await mail.claim(skip_functions=["new"])
        with pytest.raises(UsageError, match="not one name"):
            await every.claim(skip_functions="new")
        for wrong in ([""], [1], [b"new"]):
            with pytest.raises(UsageError, match="no name of a function"):
                await every.claim(skip_functions=wrong)
        with pytest.raises(UsageError, match="257 names; 256 at most"):
            await every.claim(skip_functions=[str(n) for n in range(257)])
        with pytest.raises(UsageError, match="skip_functions"):
            await mail.claim(dead=True, skip_functions=["new"])


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("seed", range(4))
async def test_claims_that_skip_and_claims_that_do_not_share_a_line(clock, shards, seed):
    """Random calls beside a list: who skips gets the first in line that it does not skip."""
    rng = random.Random(seed)
    names = ("old", "new", "newer", "")
    async with in_memory(clock, shards=shards) as engine:
        mail, every = engine.queue("mail"), engine.queue("mail", tenant=ALL_TENANTS)
        line, leased, n = [], [], 0
        for _ in range(300):
            kind = rng.randrange(5)
            if kind < 2 and len(line) < 60:
                priority, name = rng.choice((3, 5)), rng.choice(names)
                await clock.advance(0.001, turns=2)
                await mail.enqueue(n, priority=priority, function=name or None)
                line.append((-priority, n, name))
                n += 1
            elif kind < 4:
                skip = rng.sample(names[:3], rng.randrange(3))
                limit = rng.choice((1, 2, 5))
                got = await every.claim(limit=limit, skip_functions=skip)
                fit = [one for one in sorted(line) if one[2] not in skip][:limit]
                assert len(got) >= min(1, len(fit))  # fewer than asked for are allowed
                fit = fit[: len(got)]
                assert sorted(payloads(got)) == sorted(one[1] for one in fit)
                line = [one for one in line if one not in fit]
                leased += zip(
                    sorted(got, key=lambda x: x.payload),
                    sorted(fit, key=lambda x: x[1]),
                    strict=True,
                )
            elif leased:
                lease, was = leased.pop(rng.randrange(len(leased)))
                if rng.random() < 0.5:
                    await lease.release()
                    line.append(was)
                else:
                    await lease.complete()
            stats = await mail.stats()
            assert (stats.ready, stats.leased) == (len(line), len(leased))
        await sound(engine)
