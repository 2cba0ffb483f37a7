"""The line of a client: who is next, and when it stands still."""

import threading

import anyio
import pytest

import lodeq
from lodeq.client.calls import Call
from lodeq.client.transport.line import Lane, Line, SyncLine, delays

pytestmark = pytest.mark.anyio
LANE = Lane.LEASE
N = LANE.value


async def test_the_first_to_come_is_the_first_to_go():
    line, order = Line(LANE, 30.0), []

    async def call(n):
        await line.enter(0.0)
        order.append(n)

    async with anyio.create_task_group() as group:
        for n in range(2 * N):
            group.start_soon(call, n)
            await anyio.wait_all_tasks_blocked()
        await anyio.wait_all_tasks_blocked()
        assert order == list(range(N))
        line.leave(is_answered=True)
        await anyio.wait_all_tasks_blocked()
        assert order == list(range(N + 1))
        for _ in range(N - 1):
            line.leave(is_answered=True)
            await anyio.wait_all_tasks_blocked()
    assert order == list(range(2 * N))


async def test_who_leaves_the_line_keeps_nobody_waiting():
    line = Line(LANE, 30.0)
    for _ in range(N):
        await line.enter(0.0)
    waits, entered = [], []

    async def call(n):
        with anyio.CancelScope() as scope:
            waits.append(scope)
            await line.enter(0.0)
            entered.append(n)

    async with anyio.create_task_group() as group:
        for n in range(3):
            group.start_soon(call, n)
            await anyio.wait_all_tasks_blocked()
        waits[0].cancel()
        await anyio.wait_all_tasks_blocked()
        line.leave(is_answered=True)  # the second has its turn, and does not take it
        waits[1].cancel()
        await anyio.wait_all_tasks_blocked()
        if 1 in entered:
            line.leave(is_answered=True)
    assert 2 in entered


async def test_a_line_that_stands_still_is_given_up():
    line = Line(LANE, 0.0)
    for _ in range(N):
        await line.enter(0.0)
    with pytest.raises(lodeq.errors.UnreachableError, match="was not sent"):
        await line.enter(0.0)
    line.leave(is_answered=False)
    await line.enter(0.0)  # the place is not lost


def test_of_threads_the_first_to_come_is_the_first_to_go():
    line, order = SyncLine(LANE, 30.0), []
    for _ in range(N):
        line.enter(0.0)

    def call(n):
        line.enter(0.0)
        order.append(n)
        line.leave(is_answered=True)

    threads = []
    for n in range(3):
        threads.append(threading.Thread(target=call, args=(n,)))
        threads[-1].start()
        while len(line._waiting) <= n:
            threading.Event().wait(0.001)
    line.leave(is_answered=True)
    for one in threads:
        one.join()
    assert order == [0, 1, 2]


def test_a_line_of_threads_that_stands_still_is_given_up():
    line = SyncLine(LANE, 0.001)
    for _ in range(N):
        line.enter(0.0)
    with pytest.raises(lodeq.errors.UnreachableError, match="was not sent"):
        line.enter(0.0)
    line.leave(is_answered=False)
    line.enter(0.0)


def test_each_kind_of_call_has_a_lane():
    assert Lane.of(Call("POST", "/tasks")) is Lane.PLAIN
    assert Lane.of(Call("POST", "/leases/heartbeat")) is Lane.LEASE
    assert Lane.of(Call("POST", "/leases/claim", wait_s=1.0)) is Lane.POLL


def test_tries_are_bounded():
    assert list(delays(0.0)) == []
    assert sum(delays(30.0)) == pytest.approx(30.0)
    assert max(delays(30.0)) == 1.0
