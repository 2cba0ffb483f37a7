"""Claims that pass tenants over: they get nothing, and nobody else waits because of them."""

import asyncio

import pytest
from support_behaviour import in_memory, payloads, settle, sound

from lodeq import ALL_TENANTS, InvalidNameError, UsageError

pytestmark = pytest.mark.anyio


async def test_a_skipped_tenant_gets_nothing_and_keeps_its_tasks(clock):
    async with in_memory(clock) as engine:
        every = engine.queue("mail", tenant=ALL_TENANTS)
        for tenant in ("", "acme", "blue"):
            for n in range(2):
                await engine.queue("mail", tenant=tenant).enqueue(f"{tenant}{n}")
        got = await every.claim(limit=10, skip_tenants={"acme", ""})
        assert payloads(got) == ["blue0", "blue1"]
        assert await every.claim(limit=10, skip_tenants=["acme", ""]) == []
        assert sorted(payloads(await every.claim(limit=10))) == ["0", "1", "acme0", "acme1"]
        await sound(engine)


async def test_one_who_skips_does_not_stand_in_the_way_of_one_who_does_not(clock):
    """Who waits first is served first, but not with what it will not take."""
    async with in_memory(clock) as engine:
        every = engine.queue("mail", tenant=ALL_TENANTS)
        picky = asyncio.ensure_future(every.claim(wait=60, skip_tenants=["acme"]))
        await settle()
        other = asyncio.ensure_future(every.claim(wait=60))
        await settle()
        await engine.queue("mail", tenant="acme").enqueue(1)
        assert payloads(await other) == [1]
        assert not picky.done()
        await engine.queue("mail", tenant="blue").enqueue(2)
        assert payloads(await picky) == [2]
        await sound(engine)


async def test_one_who_skips_gets_the_oldest_overdue_task_in_its_turn(clock):
    async with in_memory(clock) as engine:
        every = engine.queue("mail", tenant=ALL_TENANTS, boost_after=5)
        await engine.queue("mail").enqueue("oldest", priority=0)
        await clock.advance(6)
        for n in range(9):
            await engine.queue("mail").enqueue(n)
        got = [payloads(await every.claim(skip_tenants=["acme"]))[0] for _ in range(8)]
        assert got == [*range(7), "oldest"]
        await sound(engine)


async def test_only_a_queue_of_all_tenants_skips(clock):
    async with in_memory(clock) as engine:
        with pytest.raises(UsageError, match="ALL_TENANTS"):
            await engine.queue("mail").claim(skip_tenants=["acme"])
        every = engine.queue("mail", tenant=ALL_TENANTS)
        with pytest.raises(UsageError, match="not one name"):
            await every.claim(skip_tenants="acme")
        with pytest.raises(InvalidNameError):
            await every.claim(skip_tenants=["No Name"])
