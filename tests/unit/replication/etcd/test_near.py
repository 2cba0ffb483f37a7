"""Near reads: what one member has, and when that will not do."""

import asyncio

import grpc
import pytest
from support_behaviour import StillClock
from support_shared_log import record_of

from lodeq.errors import LogRolledBackError
from lodeq.replication.etcd import rpc_pb2 as pb
from lodeq.replication.etcd.address import parse_address
from lodeq.replication.etcd.endpoints import Endpoints
from lodeq.replication.etcd.keys import Keys
from lodeq.replication.etcd.near_pages import PAGES_MAX
from lodeq.replication.etcd.reader import LogReader
from lodeq.replication.port import Position
from lodeq.replication.record import encode_record

pytestmark = pytest.mark.anyio
KEYS = Keys(b"/lodeq/c/")
RECORDS = [record_of(0, 7, n, ((b"k", b"v"),)) for n in (1, 2, 3)]


@pytest.fixture
def anyio_backend():
    return "asyncio"


def failed(code: str) -> grpc.RpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode[code], grpc.aio.Metadata(), grpc.aio.Metadata())


class Member:
    """A member that has the first ``n_near`` records, and all once it has asked the others."""

    def __init__(self, n_near: int, *, revision: int = 9, is_down: bool = False) -> None:
        self.endpoint = "m"
        self.n_near = n_near
        self.revision = revision
        self.is_down = is_down
        self.cluster_id = 1
        self.asked: list[str] = []
        self.limits: list[list[int]] = []

    async def call(self, rpc, request, timeout_s, metadata):
        reads = [op.request_range for op in request.success]
        is_near = all(one.serializable for one in reads)
        assert is_near or not any(one.serializable for one in reads)
        self.asked.append("near" if is_near else "all")
        if self.is_down and is_near:
            raise failed("UNAVAILABLE")
        n = self.n_near if is_near else len(RECORDS)
        revision = self.revision if is_near else 9
        answers = []
        for at in range(0, len(reads), 3):
            tail_key, start = reads[at + 1].key, reads[at + 2].key
            has_records = tail_key == KEYS.of_shard("tail", 0)
            tail = [pb.KeyValue(key=tail_key, value=b"%d" % n)] if has_records else []
            stored = [
                pb.KeyValue(key=KEYS.record(0, one.first), value=encode_record(one))
                for one in RECORDS[:n]
                if has_records and KEYS.record(0, one.first) >= start
            ]
            answers += [
                pb.RangeResponse(),
                pb.RangeResponse(kvs=tail),
                pb.RangeResponse(kvs=stored),
            ]
        self.limits.append([one.limit for one in reads[2::3]])
        header = pb.ResponseHeader(cluster_id=self.cluster_id, revision=revision)
        return pb.TxnResponse(
            header=header,
            succeeded=True,
            responses=[pb.ResponseOp(response_range=one) for one in answers],
        )


def reader_of(member: Member) -> LogReader:
    endpoints = Endpoints(parse_address("etcd://m/c"), StillClock())
    endpoints.members = [member]
    endpoints.expect(Position(1, 5))
    return LogReader(endpoints, KEYS, 1.0)


async def test_what_the_member_has_will_do():
    member = Member(2)
    assert await reader_of(member).read(0, 0, 1 << 20, is_near=True) == RECORDS[:2]
    assert member.asked == ["near"]


async def test_one_that_has_nothing_asks_the_others():
    member = Member(1)
    assert await reader_of(member).read(0, 1, 1 << 20, is_near=True) == RECORDS[1:]
    assert member.asked == ["near", "all"]


@pytest.mark.parametrize("how", [{"revision": 4}, {"is_down": True}])
async def test_one_that_lags_or_is_away_asks_the_others(how):
    member = Member(2, **how)
    assert await reader_of(member).read(0, 0, 1 << 20, is_near=True) == RECORDS
    assert member.asked == ["near", "all"]


async def test_one_that_is_silent_is_not_asked_a_second_time():
    silent, other = Member(2, is_down=True), Member(2)
    reader = reader_of(silent)
    reader._endpoints.members.append(other)
    assert await reader.read(0, 0, 1 << 20, is_near=True) == RECORDS
    assert (silent.asked, other.asked) == (["near"], ["all"])


async def test_one_that_refuses_a_token_is_not_silent():
    """The next call gets a new token; a member that is left is not asked first again."""
    member, other = Member(2), Member(2)
    reader = reader_of(member)
    reader._endpoints.members.append(other)

    async def refuse(*_):
        raise failed("UNAUTHENTICATED")

    member.call = refuse
    assert await reader._near.read(0, b"", 16) is None
    del member.call
    assert await reader.read(0, 0, 1 << 20, is_near=True) == RECORDS[:2]
    assert (member.asked, other.asked) == (["near"], [])


async def test_another_etcd_is_refused_however_near():
    member = Member(2)
    member.cluster_id = 2
    with pytest.raises(LogRolledBackError, match="cluster id"):
        await reader_of(member).read(0, 0, 1 << 20, is_near=True)


async def test_other_reads_are_not_content_with_that():
    member = Member(2)
    assert await reader_of(member).read(0, 0, 1 << 20) == RECORDS
    assert member.asked == ["all"]


async def test_pages_of_one_turn_go_in_one_call():
    member = Member(2)
    reader = reader_of(member)
    reads = [reader.read(shard, 0, 1 << 20, is_near=True) for shard in range(3)]
    found = await asyncio.gather(*reads)
    assert found == [RECORDS[:2], [], []]
    assert member.asked == ["near", "all", "all"], "nothing here: the others are asked, each alone"
    assert member.limits[0] == [5, 5, 5], "an answer has no more records than that of one"


async def test_a_call_has_so_many_pages_at_most():
    member = Member(2)
    near = reader_of(member)._near
    pages = [near.read(shard, b"", 16) for shard in range(PAGES_MAX + 1)]
    await asyncio.gather(*pages)
    assert member.limits == [[2] * PAGES_MAX, [16]]


async def test_what_ends_a_call_ends_all_who_wait_for_it():
    member = Member(2)
    member.cluster_id = 2
    reader = reader_of(member)
    reads = [reader.read(shard, 0, 1 << 20, is_near=True) for shard in range(2)]
    found = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(one) for one in found] == [LogRolledBackError] * 2


async def test_one_who_goes_takes_nobody_along():
    member = Member(2)
    reader = reader_of(member)
    goes = asyncio.ensure_future(reader.read(1, 0, 1 << 20, is_near=True))
    stays = asyncio.ensure_future(reader.read(0, 0, 1 << 20, is_near=True))
    await asyncio.sleep(0)
    goes.cancel()
    assert (await asyncio.gather(goes, stays, return_exceptions=True))[1] == RECORDS[:2]
