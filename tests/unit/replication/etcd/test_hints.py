"""Hints of appends: one of many is written, and the last is never left out."""

import asyncio
from types import SimpleNamespace

import pytest
from support_behaviour import StillClock
from support_shared_log import record_of

pytest.importorskip("grpc")

from lodeq.errors import LodeqError
from lodeq.replication.etcd import rpc_pb2 as pb
from lodeq.replication.etcd.appends import Appender
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


def written_by(request):
    (leads,) = request.compare
    (op,) = request.success
    assert leads.key == KEYS.of_shard("leader", 3)
    assert op.request_put.key == KEYS.of_shard("hint", 3)
    return leads.create_revision, int(op.request_put.value)


async def test_a_hint_is_due_when_the_last_one_is_a_while_ago():
    clock, endpoints, hints = rig()
    assert hints.is_due(3)
    assert hints.put(3, 12).request_put.value == b"12"
    hints.wrote(3)
    assert not hints.is_due(3)
    assert hints.is_due(4), "each shard has hints of its own"
    clock.now += 2 * HINT_S
    assert hints.is_due(3)
    assert endpoints.sent.empty()


async def test_the_hint_of_the_last_of_many_appends_is_written_by_itself():
    clock, endpoints, hints = rig()
    hints.wrote(3)
    for last in (13, 14, 15):
        hints.owe(3, 57, last)
    assert written_by(await endpoints.sent.get()) == (57, 15)
    assert endpoints.sent.empty()
    assert not hints.is_due(3), "that was one"
    clock.now += 2 * HINT_S
    assert hints.is_due(3)


async def test_an_append_that_writes_one_pays_what_is_owed():
    clock, endpoints, hints = rig()
    hints.wrote(3)
    hints.owe(3, 57, 13)
    clock.now += 2 * HINT_S
    hints.wrote(3)
    hints.owe(3, 57, 14)
    assert written_by(await endpoints.sent.get()) == (57, 14)
    assert endpoints.sent.empty()


async def test_a_hint_that_fails_fails_nobody(caplog):
    _clock, endpoints, hints = rig()
    endpoints.error = LogUnavailableError("down")
    hints.wrote(3)
    hints.owe(3, 57, 13)
    await endpoints.sent.get()
    await hints.close()
    assert not caplog.records


async def test_none_is_written_after_the_end():
    _clock, endpoints, hints = rig()
    hints.wrote(3)
    hints.owe(3, 57, 13)
    await hints.close()
    await asyncio.sleep(0)
    assert not hints._timers
    assert not hints._owed
    assert endpoints.sent.empty()


async def test_appends_that_go_on_write_one_now_and_then():
    clock, endpoints, sent = Clock(), Endpoints(), []

    async def call(_rpc, request, _budget_s):
        sent.append([op.request_put.key for op in request.success])
        return pb.TxnResponse(succeeded=True, header=pb.ResponseHeader(revision=len(sent)))

    endpoints.call = call
    session = SimpleNamespace(until=lambda: 1e9, left_s=lambda: 9.0)
    appender = Appender(endpoints, KEYS, session, clock, 1 << 20)
    assert await appender.begin(3, 57, None) is not None
    sent.clear()
    for n in range(1, 9):
        await appender.append(record_of(3, 57, n, ((b"k", b"v"),)))
        clock.now += 0.4 * HINT_S
    assert len(sent) == 8
    hint = KEYS.of_shard("hint", 3)
    assert [hint in keys for keys in sent] == [n % 3 == 0 for n in range(8)]
    await appender.close()
