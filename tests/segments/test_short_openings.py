"""A store that is only ever opened for moments is looked after as well, bit by bit."""

import os

import pytest
from support_behaviour import StillClock, sound

import lodeq
from lodeq.repository.api.view import view_of

pytestmark = pytest.mark.anyio

BODY = b"x" * 50_000


@pytest.fixture
def opening(tmp_path):
    clock = StillClock()

    def opening(**options):
        return lodeq.open(tmp_path / "s", clock=clock, **options)

    opening.clock = clock
    opening.files = lambda: sorted(os.listdir(tmp_path / "s" / "bodies0"))
    return opening


async def send(opening, *, keeps=False):
    async with opening() as engine:
        queue = engine.queue("kept" if keeps else "mail", retention=0)
        await queue.enqueue(BODY)
        if not keeps:
            async with await queue.claim_one():
                pass


async def test_body_files_do_not_pile_up(opening):
    for _ in range(12):
        await send(opening)
        assert len(opening.files()) <= 2


@pytest.mark.slow
async def test_those_that_piled_up_go_a_share_at_a_time(opening):
    for _ in range(40):
        await send(opening, keeps=True)
    async with opening() as engine:
        queue = engine.queue("kept")
        for lease in await queue.claim(limit=30):
            await lease.complete(keep=False)
    seen = [len(opening.files())]
    while seen[-1] > 10:
        async with opening():
            pass
        seen.append(len(opening.files()))
        assert seen[-2] - 16 <= seen[-1] < seen[-2]
    async with opening() as engine:
        assert [task.payload for task in await engine.queue("kept").peek(limit=99)] == [BODY] * 10
        await sound(engine)


async def test_what_is_due_is_done(opening):
    async with opening() as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"ends", ttl=5)
        await queue.enqueue(b"later", delay=5)
    opening.clock.jump(10)
    async with opening():
        pass
    async with opening(reaper=False) as engine:
        queue = engine.queue("mail")
        assert [task.payload for task in await queue.list("ready")] == [b"later"]
        assert len(await queue.list("expired")) == 1
        await sound(engine)


@pytest.mark.slow
async def test_all_upkeep_at_once(opening):
    """Files that are half dead are copied, too."""
    async with opening() as engine:
        queue = engine.queue("mail", retention=0)
        await queue.enqueue_many([lodeq.NewTask(BODY) for _ in range(10)])
        for lease in await queue.claim(limit=8):
            await lease.complete()
    for _ in range(30):
        await send(opening, keeps=True)
    async with opening() as engine:
        for lease in await engine.queue("kept").claim(limit=30):
            await lease.complete(keep=False)
    async with opening() as engine:
        await view_of(engine).upkeep()
        assert len(opening.files()) == 1
        assert sum(f.bytes for f in engine._state.shards[0].bodies.files.files()) < 3 * len(BODY)
        assert (await engine.verify()).ok
