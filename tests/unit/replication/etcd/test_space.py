"""Releases and space as the members of etcd tell them."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest

from lodeq.errors import OpenError
from lodeq.replication.etcd import rpc_pb2 as pb
from lodeq.replication.etcd.address import parse_address
from lodeq.replication.etcd.space import Space
from lodeq.replication.port import LogSpace, LogUnavailableError

GIB = 1 << 30


class Members:
    """Endpoints whose members say this; one without a status does not answer."""

    def __init__(self, *statuses):
        self.try_s = 1.0
        self.members = [
            SimpleNamespace(endpoint=f"m{n}", status=status) for n, status in enumerate(statuses)
        ]

        self.preferred = None

    def prefer(self, member):
        self.preferred = member.endpoint

    async def ask(self, member, rpc, request, timeout_s):
        if member.status is None:
            raise grpc.RpcError
        return member.status


def space_of(*statuses) -> Space:
    return Space(Members(*statuses), parse_address("etcd://a/x?quota=4GiB"))


def release(version: str):
    return pb.StatusResponse(version=version)


def warnings(caplog, *versions) -> list[str]:
    asyncio.run(space_of(*map(release, versions)).check_versions())
    return [record.getMessage() for record in caplog.records]


def test_a_release_that_corrupts_data_is_refused():
    space = space_of(None, release("3.5.14"), release("3.5.1"))
    with pytest.raises(OpenError, match=r"m2 is etcd 3\.5\.1, which may corrupt its data"):
        asyncio.run(space.check_versions())


def test_releases_for_trials_are_named_in_one_warning(caplog):
    (said,) = warnings(caplog, "3.4.23", "3.5.14", "3.5.13")
    assert said.startswith("not fit for production: etcd at m0 (3.4.23), m2 (3.5.13)")


def test_they_are_named_once_however_often_a_node_connects(caplog):
    space = space_of(release("3.4.23"))
    for _ in range(3):
        asyncio.run(space.check_versions())
    assert len(caplog.records) == 1


def test_releases_for_production_are_not_spoken_of(caplog):
    assert warnings(caplog, "3.4.32", "3.5.14", "3.6.1") == []


def test_the_fullest_member_counts():
    small = pb.StatusResponse(dbSize=3 * GIB, dbSizeInUse=GIB)
    large = pb.StatusResponse(dbSize=2 * GIB, dbSizeInUse=2 * GIB, dbSizeQuota=3 * GIB)
    found = asyncio.run(space_of(small, None, large).look())
    assert found == LogSpace(2 * GIB, 3 * GIB, 3 * GIB)
    assert found.share == pytest.approx(2 / 3)


def test_without_a_quota_of_its_own_that_of_the_address_counts():
    found = asyncio.run(space_of(pb.StatusResponse(dbSize=GIB, dbSizeInUse=GIB)).look())
    assert found.share == 0.25


def test_an_alarm_is_full_whatever_the_sizes_say():
    errors = ["memberID:7 alarm:NOSPACE "]
    found = asyncio.run(space_of(pb.StatusResponse(dbSizeInUse=1, errors=errors)).look())
    assert found.is_full
    assert found.share == 1.0


def leading(member: int, leader: int, term: int):
    header = pb.ResponseHeader(member_id=member, raft_term=term)
    return pb.StatusResponse(header=header, leader=leader)


@pytest.mark.parametrize(
    ("statuses", "preferred"),
    [
        ([leading(1, 2, 5), leading(2, 2, 5), None], "m1"),
        ([leading(1, 1, 4), leading(2, 3, 5), leading(3, 3, 5)], "m2"),  # the first was isolated
        ([leading(1, 0, 6), leading(2, 0, 6), None], None),  # an election
        ([leading(1, 3, 5), leading(2, 3, 5), None], None),  # it does not answer
    ],
)
def test_the_leader_of_etcd_is_asked_first(statuses, preferred):
    space = space_of(*statuses)
    asyncio.run(space.look())
    assert space._endpoints.preferred == preferred


def test_nobody_says():
    with pytest.raises(LogUnavailableError, match="no member of etcd said"):
        asyncio.run(space_of(None).look())
