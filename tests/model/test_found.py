"""What the model test has found, each in a few lines."""

import pytest

import lodeq
import lodeq.testing

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.usefixtures("no_history")
async def test_one_advance_goes_through_deadlines_that_follow_from_each_other():
    """A TTL ends a task at one second, and its result's retention is over at the eleventh.

    The result was filed in a group that was still open, where the sweep could not see it: within
    one ``advance`` it stayed, whatever the distance.
    """
    clock = lodeq.testing.ManualClock()
    async with lodeq.testing.open(clock=clock) as engine:
        queue = engine.queue("mail", retention=10)
        await queue.enqueue(b"x", ttl=0.5)
        clock.advance(10.9)
        assert (await queue.stats()).results == 1
        assert len(await queue.list("expired")) == 1
        await queue.enqueue(b"y", ttl=0.5)
        clock.advance(60)
        assert (await queue.stats()).results == 0
        assert await queue.list("expired") == []
