"""Reads of several requests, between which the log is truncated: that is no damage."""

import pytest
from support_behaviour import StillClock
from support_shared_log import record_of

from lodeq.errors import RecordCorruptError
from lodeq.replication.etcd import rpc_pb2 as pb
from lodeq.replication.etcd.address import parse_address
from lodeq.replication.etcd.endpoints import Endpoints
from lodeq.replication.etcd.keys import Keys
from lodeq.replication.etcd.reader import LogReader
from lodeq.replication.fragments import cut_record
from lodeq.replication.port import CompactedError
from lodeq.replication.record import Batch, encode_record

pytestmark = pytest.mark.anyio
KEYS = Keys(b"/lodeq/c/")
TAIL, FLOOR = KEYS.of_shard("tail", 0), KEYS.of_shard("floor", 0)


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Member:
    """A member with these keys; behind so many requests only the others are there."""

    def __init__(self, keys: dict[bytes, bytes], then: dict[bytes, bytes], after: int = 1) -> None:
        self.endpoint = "m"
        self.keys = keys
        self.then = then
        self.left = after

    async def call(self, rpc, request, timeout_s, metadata):
        if not self.left:
            self.keys = self.then
        self.left -= 1
        header = pb.ResponseHeader(cluster_id=1, revision=9)
        answers = [self.read(op.request_range) for op in request.success]
        return pb.TxnResponse(header=header, succeeded=True, responses=answers)

    def read(self, one):
        end = one.range_end or one.key + b"\0"
        found = sorted(key for key in self.keys if one.key <= key < end)
        if one.sort_order == pb.RangeRequest.DESCEND:
            found.reverse()
        kvs = [pb.KeyValue(key=key, value=self.keys[key]) for key in found[: one.limit or None]]
        return pb.ResponseOp(response_range=pb.RangeResponse(kvs=kvs))


def reader_of(member: Member) -> LogReader:
    endpoints = Endpoints(parse_address("etcd://m/c"), StillClock())
    endpoints.members = [member]
    return LogReader(endpoints, KEYS, 1.0)


def of_four(first: int):
    record = record_of(0, 7, first, ((b"k", b"v"),))
    return record._replace(batches=tuple(Batch(n, ((b"k", b"v"),)) for n in range(4)))


def stored(record, bytes_max: int = 1 << 20) -> dict[bytes, bytes]:
    cut = cut_record(record, bytes_max)
    found = {KEYS.record(0, record.first): cut.stored}
    return found | {KEYS.fragment(record, n): part for n, part in enumerate(cut.fragments)}


LATER = {TAIL: b"8", FLOOR: b"5"} | stored(of_four(5))


async def test_a_record_that_goes_while_its_beginning_is_looked_for_has_been_truncated():
    member = Member({TAIL: b"8"} | stored(of_four(1)) | stored(of_four(5)), LATER)
    with pytest.raises(CompactedError) as caught:
        await reader_of(member).read(0, 2, 1)
    assert caught.value.floor == 5


async def test_a_record_whose_fragments_go_while_they_are_read_has_been_truncated():
    size = len(encode_record(of_four(1))) // 3
    member = Member({TAIL: b"8"} | stored(of_four(1), size) | stored(of_four(5)), LATER)
    with pytest.raises(CompactedError) as caught:
        await reader_of(member).read(0, 0, 1)
    assert caught.value.floor == 5


async def test_what_is_missing_above_the_floor_is_damage():
    member = Member({TAIL: b"8"} | stored(of_four(5)), {}, after=9)
    with pytest.raises(RecordCorruptError, match="the record with entry 3 is missing"):
        await reader_of(member).read(0, 2, 1)
    del (keys := dict(LATER))[FLOOR]
    whole = {TAIL: b"8"} | stored(of_four(1), 40) | stored(of_four(5))
    with pytest.raises(RecordCorruptError, match="the record at 1 lacks a fragment"):
        await reader_of(Member(whole, keys)).read(0, 0, 1)


async def test_a_floor_that_another_node_has_moved_further_leaves_nothing_to_look_for():
    member = Member({TAIL: b"8", FLOOR: b"3"} | stored(of_four(1)), LATER, after=0)
    with pytest.raises(CompactedError):
        await reader_of(member).begin(0, 3)
