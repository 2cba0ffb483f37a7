"""Leases of workers in other processes end when they end, however often the store is opened."""

import pytest
from support_behaviour import StillClock, sound
from support_live import copy_live

import lodeq
from lodeq import LeaseLostError
from lodeq.engine.recovery.open_shard import open_store
from lodeq.repository.api.lease_proof import LeaseProof
from lodeq.repository.api.view import view_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path):
    """A store that is opened again and again, with one clock; ``killed`` is what a kill leaves."""

    class Store:
        clock = StillClock()
        path = tmp_path / "s"
        images = 0

        def open(self):
            return lodeq.open(self.path, clock=self.clock)

        def killed(self):
            self.images += 1
            image = tmp_path / f"image{self.images}"
            copy_live(self.path, image)
            image.chmod(0o700)
            return image

        async def grant(self, **options):
            async with self.open() as engine:
                queue = engine.queue("mail")
                await queue.enqueue(b"x")
                (lease,) = await queue.claim(exported=True, **options)
                return lease

        async def counts(self):
            async with self.open() as engine:
                stats = await engine.queue("mail").stats()
                await sound(engine)
                return stats.ready, stats.leased

    return Store()


async def test_a_lease_ends_although_every_opening_is_shorter_than_it(store):
    await store.grant(lease=2)
    seen = []
    for _ in range(5):
        store.clock.jump(0.5)
        seen.append(await store.counts())
    assert seen == [(0, 1), (0, 1), (0, 1), (1, 0), (1, 0)]
    async with store.open() as engine:
        (again,) = await engine.queue("mail").claim()
        assert again.attempt == 2
        (failed,) = await engine.attempts(again.task_id)
        assert (failed.number, failed.reason) == (1, "lease expired")


async def test_a_lease_ends_with_its_last_attempt_between_two_openings(store):
    async with store.open() as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x", max_attempts=1)
        await queue.claim(exported=True, lease=2)
    store.clock.jump(3)
    async with store.open() as engine:
        (dead,) = await engine.queue("mail").list("dead")
        assert dead.reason == "lease expired"


async def test_a_heartbeat_is_remembered_over_a_close(store):
    async with store.open() as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        (lease,) = await queue.claim(exported=True, lease=30)
        for _ in range(4):
            await store.clock.advance(20)
            await lease.heartbeat()
    store.clock.jump(29)
    assert await store.counts() == (0, 1)
    store.clock.jump(2)
    assert await store.counts() == (1, 0)


async def test_a_shorter_heartbeat_is_remembered_over_a_close(store):
    async with store.open() as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        (lease,) = await queue.claim(exported=True, lease=600)
        await lease.heartbeat(5)
    store.clock.jump(6)
    assert await store.counts() == (1, 0)


@pytest.mark.slow
async def test_openings_do_not_lengthen_a_lease(store):
    await store.grant(lease=30.06)
    for _ in range(100):
        store.clock.jump(0.3)
        assert await store.counts() == (0, 1)
    store.clock.jump(0.3)
    assert await store.counts() == (1, 0)


async def test_after_a_kill_it_starts_again_in_full_but_once(store):
    async with store.open() as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        await queue.claim(exported=True, lease=30)
        await store.clock.advance(20)
        image = store.killed()
    store.path = image
    for passed, expected in ((20, (0, 1)), (9, (0, 1)), (2, (1, 0))):
        async with store.open() as engine:
            stats = await engine.queue("mail").stats()
            assert stats.leased == 1
            await engine.fsync()
            image = store.killed()
        store.path = image  # killed again, and again
        store.clock.jump(passed)
        if expected == (1, 0):
            assert await store.counts() == expected


async def test_a_heartbeat_after_a_kill_earns_another_start_in_full(store):
    first = await store.grant(lease=30)
    proof = LeaseProof(first.task_id, first.epoch, first.token)
    for _ in range(3):
        async with store.open() as engine:
            await engine.fsync()
            image = store.killed()
        store.path = image
        async with store.open() as engine:
            lease = await view_of(engine).proved_lease(proof)
            await store.clock.advance(20)
            await lease.heartbeat()
            await engine.fsync()
            image = store.killed()
        store.path = image
        store.clock.jump(40)
    assert await store.counts() == (0, 1)


async def test_what_only_looks_at_a_killed_store_does_not_hide_the_kill(store):
    async with store.open() as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        (lease,) = await queue.claim(exported=True, lease=30)
        for _ in range(3):
            await store.clock.advance(20)
            await lease.heartbeat()
        image = store.killed()
    store.path = image
    open_store(image).close()  # as `lodeq compact` does
    assert await store.counts() == (0, 1)


@pytest.mark.parametrize("step_s", [-86_400, 3600, 86_400])
async def test_a_clock_that_was_set_while_the_store_was_closed(store, step_s):
    await store.grant(lease=30)
    store.clock.step_wall(step_s)
    assert await store.counts() == ((0, 1) if step_s < 0 else (1, 0))
    store.clock.jump(20)
    await store.counts()
    store.clock.jump(20)
    assert await store.counts() == (1, 0)


@pytest.mark.parametrize("step_s", [-86_400, 86_400])
async def test_a_clock_that_was_set_while_the_store_was_open(store, step_s):
    async with store.open() as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x")
        await queue.claim(exported=True, lease=30)
        store.clock.step_wall(step_s)
        await store.clock.advance(10)
    store.clock.jump(10)
    assert await store.counts() == (0, 1)
    store.clock.jump(11)
    assert await store.counts() == (1, 0)


async def test_a_lease_that_ended_while_the_store_was_closed_is_fenced(store):
    lease = await store.grant(lease=2)
    store.clock.jump(3)
    async with store.open() as engine:
        proof = LeaseProof(lease.task_id, lease.epoch, lease.token)
        with pytest.raises(LeaseLostError):
            await view_of(engine).proved_lease(proof)
