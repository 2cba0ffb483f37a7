"""Appends of several shards that come together: one transaction, and each its own outcome."""

import asyncio
from types import SimpleNamespace

import pytest
from support_behaviour import StillClock
from support_shared_log import record_of

pytest.importorskip("grpc")

from lodeq.errors import ClosedError
from lodeq.replication.etcd import rpc_pb2 as pb
from lodeq.replication.etcd.appends import Appender
from lodeq.replication.etcd.joint import ALONE_MIN, PARTS_MAX
from lodeq.replication.etcd.keys import Keys
from lodeq.replication.port import FencedError, LogUnavailableError

pytestmark = pytest.mark.anyio
KEYS = Keys(b"/lodeq/c/")
TERM = 1


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Etcd:
    """Keys and their revisions in memory, and what was asked of them."""

    try_s = 1.0

    def __init__(self, shards):
        self.revision = TERM
        self.kept = {}
        for shard in range(shards):
            self.put(KEYS.of_shard("leader", shard), b"n")
        self.asked = []
        self.lost = 0  # so many answers are
        self.gate = None
        self.error = None
        self.is_asked = asyncio.Event()

    def put(self, key, value):
        held = self.kept.get(key)
        created = held.create_revision if held else self.revision
        self.kept[key] = pb.KeyValue(
            key=key, value=value, create_revision=created, mod_revision=self.revision
        )

    def holds(self, one):
        held = self.kept.get(one.key, pb.KeyValue())
        if one.target == pb.Compare.CREATE:
            return held.create_revision == one.create_revision
        return held.mod_revision == one.mod_revision

    async def call(self, _rpc, request, _budget_s):
        self.asked.append(request)
        if self.gate is not None:
            self.is_asked.set()
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        answer = self.take(request)
        if self.lost:
            self.lost -= 1
            raise LogUnavailableError("lost")
        return answer

    def take(self, request):
        is_held = all(map(self.holds, request.compare))
        if is_held and request.success:
            self.revision += 1
        found = []
        for op in request.success if is_held else request.failure:
            if op.HasField("request_put"):
                self.put(op.request_put.key, op.request_put.value)
            elif op.HasField("request_range"):
                kv = self.kept.get(op.request_range.key)
                found.append(pb.RangeResponse(kvs=[kv] if kv else []))
        return pb.TxnResponse(
            succeeded=is_held,
            header=pb.ResponseHeader(revision=self.revision),
            responses=[pb.ResponseOp(response_range=one) for one in found],
        )

    def tail(self, shard):
        return int(self.kept[KEYS.of_shard("tail", shard)].value)

    def written(self):
        """The records of each transaction, by shard."""
        return [
            [
                shard
                for shard in range(50)
                for op in one.success
                if op.request_put.key == KEYS.record(shard, 1)
            ]
            for one in self.asked
        ]


async def leading(shards):
    etcd = Etcd(shards)
    session = SimpleNamespace(until=lambda: 1e9, left_s=lambda: 9.0)
    appender = Appender(etcd, KEYS, session, StillClock(), 1 << 20)
    for shard in range(shards):
        assert await appender.begin(shard, TERM, None) is not None
    etcd.asked.clear()
    return etcd, appender


def record(shard, first=1, value=b"v"):
    return record_of(shard, TERM, first, ((b"k", value),))


def outcomes(etcd, appender, records):
    return asyncio.gather(*map(appender.append, records), return_exceptions=True)


async def test_what_comes_together_is_one_transaction():
    etcd, appender = await leading(3)
    assert await outcomes(etcd, appender, map(record, range(3))) == [None] * 3
    assert etcd.written() == [[0, 1, 2]]
    assert [etcd.tail(shard) for shard in range(3)] == [1, 1, 1]
    again = [record(shard, 2) for shard in range(3)]
    assert await outcomes(etcd, appender, again) == [None] * 3, "each knows where its tail is"
    hints = [op for op in etcd.asked[0].success if op.request_put.key.find(b"/hint/") > 0]
    assert len(hints) == 3
    await appender.close()


async def test_one_whose_term_is_over_takes_nobody_along():
    etcd, appender = await leading(3)
    etcd.kept[KEYS.of_shard("leader", 1)].create_revision += 1
    found = await outcomes(etcd, appender, map(record, range(3)))
    assert [type(one) for one in found] == [type(None), FencedError, type(None)]
    assert etcd.written() == [[0, 1, 2], [0], [1], [2]]
    assert KEYS.record(1, 1) not in etcd.kept
    await appender.close()


async def test_an_answer_that_is_lost_leaves_each_open_until_its_tail_is_settled():
    etcd, appender = await leading(2)
    etcd.lost = 1
    found = await outcomes(etcd, appender, map(record, range(2)))
    assert [type(one) for one in found] == [LogUnavailableError] * 2
    later = await outcomes(etcd, appender, [record(0, 2)])
    assert [type(one) for one in later] == [FencedError], "not before it is settled"
    await appender.close()


async def test_of_two_copies_of_a_whole_one_takes_effect():
    etcd, appender = await leading(2)
    first = etcd.take

    def twice(request):
        first(request)
        etcd.take = first
        return first(request)

    etcd.take = twice
    assert await outcomes(etcd, appender, map(record, range(2))) == [None, None]
    assert etcd.written() == [[0, 1], [0], [1]], "each has found its own"
    assert await outcomes(etcd, appender, [record(0, 2), record(1, 2)]) == [None, None]
    assert [etcd.tail(0), etcd.tail(1)] == [2, 2]
    await appender.close()


async def test_what_an_earlier_copy_has_added_is_told_of():
    etcd, appender = await leading(2)
    assert await outcomes(etcd, appender, map(record, range(2))) == [None, None]  # with hints
    first = etcd.take

    def twice(request):
        first(request)
        etcd.take = first
        return first(request)

    etcd.take = twice
    assert await outcomes(etcd, appender, [record(0, 2), record(1, 2)]) == [None, None]
    assert appender._hints._owed == {0: 2, 1: 2}, "nobody knows whether that copy told of it"
    await appender.close()


async def test_a_whole_has_so_many_parts_and_bytes_at_most():
    etcd, appender = await leading(PARTS_MAX + 2)
    assert set(await outcomes(etcd, appender, map(record, range(PARTS_MAX + 2)))) == {None}
    assert etcd.written() == [list(range(PARTS_MAX)), [PARTS_MAX, PARTS_MAX + 1]]
    assert max(len(one.success) + len(one.compare) for one in etcd.asked) < 128
    etcd, appender = await leading(3)
    large = [record(shard, value=bytes(range(256)) * 1400) for shard in range(3)]
    appender._packer = None
    assert await outcomes(etcd, appender, large) == [None] * 3
    assert etcd.written() == [[0], [1], [2]]
    await appender.close()


async def test_one_who_goes_meanwhile_takes_nobody_along():
    etcd, appender = await leading(2)
    etcd.gate = asyncio.Event()
    goes, stays = (asyncio.ensure_future(appender.append(record(n))) for n in range(2))
    await etcd.is_asked.wait()
    goes.cancel()
    etcd.gate.set()
    assert await stays is None
    with pytest.raises(FencedError):
        await appender.append(record(0, 2))  # whether the first is there is not known
    await appender.close()


async def test_what_ends_a_whole_ends_all_who_wait_for_it():
    etcd, appender = await leading(2)
    etcd.error = ClosedError("the connection to etcd is closed")
    found = await outcomes(etcd, appender, map(record, range(2)))
    assert [type(one) for one in found] == [ClosedError] * 2
    assert len(etcd.asked) == 1
    await appender.close()


async def test_who_has_long_been_alone_waits_for_nobody():
    etcd, appender = await leading(2)
    for first in range(1, ALONE_MIN + 1):
        await appender.append(record(0, first))
    etcd.asked.clear()
    etcd.gate = asyncio.Event()
    step = appender.append(record(0, ALONE_MIN + 1))
    step.send(None)  # up to where it waits, in this very turn
    assert len(etcd.asked) == 1
    step.close()
    await appender.close()


async def test_the_first_company_is_waited_for_again():
    etcd, appender = await leading(3)
    for first in range(1, ALONE_MIN + 1):
        await appender.append(record(2, first))
    etcd.asked.clear()
    assert await outcomes(etcd, appender, map(record, range(2))) == [None, None]
    assert etcd.written() == [[0], [1]], "the first was gone before the other came"
    etcd.asked.clear()
    assert await outcomes(etcd, appender, [record(0, 2), record(1, 2)]) == [None, None]
    assert len(etcd.asked) == 1
    await appender.close()


async def test_one_who_goes_in_a_call_of_its_own_leaves_its_tail_open():
    etcd, appender = await leading(1)
    for first in range(1, ALONE_MIN + 1):
        await appender.append(record(0, first))
    etcd.gate = asyncio.Event()
    goes = asyncio.ensure_future(appender.append(record(0, ALONE_MIN + 1)))
    await etcd.is_asked.wait()
    goes.cancel()
    with pytest.raises(asyncio.CancelledError):
        await goes
    with pytest.raises(FencedError):
        await appender.append(record(0, ALONE_MIN + 2))
    await appender.close()
