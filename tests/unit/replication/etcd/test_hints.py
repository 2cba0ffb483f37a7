"""Hints of appends: one of many is written, and the last is never left out."""

import asyncio

import pytest
from support_behaviour import StillClock

pytest.importorskip("grpc")

from lodeq.errors import LodeqError
from lodeq.replication.etcd.hints import HINT_S, Hints
from lodeq.replication.etcd.keys import Keys
from lodeq.replication.port import LogUnavailableError

pytestmark = pytest.mark.anyio
KEYS = Keys(b"/lodeq/c/")


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Clock(StillClock):
    now = 100.0

    def mono(self):
        return self.now


class Endpoints:
    """Takes requests; the test waits for the next one."""

    try_s = 1.0
    error: LodeqError | None = None

    def __init__(self):
        self.sent = asyncio.Queue()

    async def call(self, _rpc, request, _budget_s):
        self.sent.put_nowait(request)
        if self.error is not None:
            raise self.error


def rig():
    clock, endpoints = Clock(), Endpoints()
    return clock, endpoints, Hints(endpoints, KEYS, clock)


def told_by(request):
    (leads,) = request.compare
    (op,) = request.success
    assert leads.key == KEYS.of_shard("leader", 3)
    assert op.request_put.key == KEYS.of_shard("hint", 3)
    return leads.create_revision, int(op.request_put.value)


async def test_an_append_tells_when_the_last_hint_is_a_while_ago():
    clock, endpoints, hints = rig()
    assert hints.is_due(3)
    assert hints.put(3, 12).request_put.value == b"12"
    hints.told(3)
    assert not hints.is_due(3)
    assert hints.is_due(4), "each shard has hints of its own"
    clock.now += 2 * HINT_S
    assert hints.is_due(3)
    assert endpoints.sent.empty()


async def test_the_last_of_many_appends_is_told_of_by_itself():
    clock, endpoints, hints = rig()
    hints.told(3)
    for last in (13, 14, 15):
        hints.owe(3, 57, last)
    assert told_by(await endpoints.sent.get()) == (57, 15)
    assert endpoints.sent.empty()
    assert not hints.is_due(3), "that was one"
    clock.now += 2 * HINT_S
    assert hints.is_due(3)


async def test_an_append_that_tells_pays_what_is_owed():
    clock, endpoints, hints = rig()
    hints.told(3)
    hints.owe(3, 57, 13)
    clock.now += 2 * HINT_S
    hints.told(3)
    hints.owe(3, 57, 14)
    assert told_by(await endpoints.sent.get()) == (57, 14)
    assert endpoints.sent.empty()


async def test_a_hint_that_fails_fails_nobody(caplog):
    _clock, endpoints, hints = rig()
    endpoints.error = LogUnavailableError("down")
    hints.told(3)
    hints.owe(3, 57, 13)
    await endpoints.sent.get()
    await hints.close()
    assert not caplog.records


async def test_nothing_is_told_after_the_end():
    _clock, endpoints, hints = rig()
    hints.told(3)
    hints.owe(3, 57, 13)
    await hints.close()
    await asyncio.sleep(0)
    assert not hints._timers
    assert not hints._owed
    assert endpoints.sent.empty()
