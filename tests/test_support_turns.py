"""The measure of turns sees a long one, however slow the core is."""

import asyncio
import time

import pytest
import support_turns
from support_turns import LoopHeldError, held_at_most

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def busy_for(ms):
    """So much CPU time of this thread."""
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass


async def hold(ms):
    asyncio.get_running_loop().call_soon(busy_for, ms)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.mark.parametrize(("yardstick_ms", "ms"), [(0.5, 20), (1.0, 20), (2.0, 40), (99.0, 80)])
async def test_who_holds_the_loop_is_found(monkeypatch, yardstick_ms, ms):
    """A core that needs twice as long for the yardstick has twice the time; a fast one, no less."""
    monkeypatch.setattr(support_turns, "yardstick_ms", lambda: yardstick_ms)
    held = pytest.raises(LoopHeldError, match=f"at most 20.0: .*busy_for.*{ms}")
    with held, held_at_most(20.0):
        await hold(ms)


async def test_a_core_that_is_slow_has_longer(monkeypatch):
    monkeypatch.setattr(support_turns, "yardstick_ms", lambda: 3.9)
    with held_at_most(20.0):
        await hold(25)


async def test_the_slower_of_before_and_after_counts(monkeypatch):
    yards = [1.0, 3.9]
    monkeypatch.setattr(support_turns, "yardstick_ms", lambda: yards.pop(0))
    with held_at_most(20.0):
        await hold(25)


def test_the_yardstick_is_work():
    assert support_turns.yardstick_ms() > 0.05
