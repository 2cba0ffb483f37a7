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
from lodeq.replication.etcd.hints import HINT_S, HINTS_MAX, Hints
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
    """The hints of a transaction, by shard."""
    assert not request.compare
    puts = [op.request_put for op in request.success]
    keys = {KEYS.of_shard("hint", shard): shard for shard in range(100)}
    return {keys[one.key]: int(one.value) for one in puts}


def append(hints, shard, last, *, is_added=True):
    """An append that takes effect at once; what it has told of."""
    taken = hints.take({shard: last})
    hints.sent({shard: last}, taken, is_added=is_added)
    return taken


async def test_a_hint_is_due_when_the_last_one_is_a_while_ago():
    clock, endpoints, hints = rig()
    assert append(hints, 3, 12) == {3: 12}
    assert hints.puts({3: 12})[0].request_put.value == b"12"
    assert append(hints, 3, 13) == {}
    clock.now += 2 * HINT_S
    assert append(hints, 3, 14) == {3: 14}
    assert endpoints.sent.empty()
    await hints.close()


async def test_an_append_tells_of_what_other_shards_owe():
    clock, endpoints, hints = rig()
    append(hints, 3, 12)
    append(hints, 4, 7)
    append(hints, 5, 8)
    append(hints, 4, 9)
    clock.now += 1.5 * HINT_S
    assert append(hints, 3, 13) == {3: 13, 4: 9, 5: 8}
    clock.now += 1.5 * HINT_S
    assert append(hints, 3, 14) == {3: 14}, "they are told of"
    assert endpoints.sent.empty()
    assert hints._timer is None


async def test_a_lost_append_leaves_owed_what_its_shard_owed_before():
    clock, endpoints, hints = rig()
    append(hints, 3, 12)
    append(hints, 3, 13)
    clock.now += 1.5 * HINT_S
    assert append(hints, 3, 14, is_added=False) == {3: 14}
    assert written_by(await endpoints.sent.get()) == {3: 13}
    append(hints, 3, 15)
    clock.now += 1.5 * HINT_S
    assert append(hints, 3, 16) == {3: 16}
    assert not hints._owed
    await hints.close()


async def test_the_hints_of_the_last_of_many_appends_are_written_by_themselves():
    clock, endpoints, hints = rig()
    append(hints, 3, 12)
    for last in (13, 14, 15):
        append(hints, 3, last)
        append(hints, 4, last + 10)
    assert written_by(await endpoints.sent.get()) == {3: 15, 4: 25}
    assert endpoints.sent.empty()
    assert append(hints, 3, 16) == {}, "those were some"
    clock.now += 2 * HINT_S
    assert append(hints, 3, 17) == {3: 17}
    await hints.close()


async def test_a_transaction_has_so_many_hints_at_most():
    clock, endpoints, hints = rig()
    append(hints, 99, 1)
    for shard in range(HINTS_MAX + 2):
        append(hints, shard, 1)
    clock.now += 1.5 * HINT_S
    assert len(append(hints, 99, 2)) == HINTS_MAX
    assert len(written_by(await endpoints.sent.get())) == 3
    await hints.close()


async def test_what_a_failed_append_was_to_tell_of_other_shards_is_owed_again():
    clock, _endpoints, hints = rig()
    append(hints, 3, 12)
    append(hints, 4, 7)
    clock.now += 1.5 * HINT_S
    assert append(hints, 3, 13, is_added=False) == {3: 13, 4: 7}
    append(hints, 4, 8)
    clock.now += 1.5 * HINT_S
    assert append(hints, 5, 2) == {4: 8, 5: 2}, "of its own entry nobody knows"
    await hints.close()


async def test_a_hint_that_fails_fails_nobody(caplog):
    _clock, endpoints, hints = rig()
    endpoints.error = LogUnavailableError("down")
    append(hints, 3, 12)
    append(hints, 3, 13)
    await endpoints.sent.get()
    await hints.close()
    assert not caplog.records


async def test_none_is_written_after_the_end():
    _clock, endpoints, hints = rig()
    append(hints, 3, 12)
    taken = hints.take({4: 7})
    append(hints, 3, 13)
    await hints.close()
    hints.sent({4: 7}, taken, is_added=True)
    await asyncio.sleep(0)
    assert hints._timer is None
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
