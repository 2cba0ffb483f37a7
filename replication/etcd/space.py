"""Space in etcd: how much of its quota is used, compaction of old revisions, defragmentation.

Whatever is truncated stays in etcd as old revisions until these are compacted. Compaction makes
pages of its file free for what comes; only defragmentation makes the file smaller. Past its quota
etcd raises an alarm and refuses every write, those of sessions included, until it is disarmed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import grpc

from ...errors import LodeqError, OpenError
from ..port import LogSpace, LogUnavailableError
from . import rpc_pb2 as pb
from .address import EtcdAddress
from .endpoints import Endpoints, RefusedError
from .rpc import Member, Refusal, Rpc
from .version import Fitness, fitness_of

__all__ = ["Space"]

_log: Final = logging.getLogger(__name__)
COMPACT_EVERY: Final = 5_000  # revisions
COMPACT_KEEP: Final = 1_000  # for watchers that lag
_DEFRAGMENT_S: Final = 60.0  # a member serves nothing meanwhile


class Space:
    """Asks and tends the members of one address."""

    def __init__(self, endpoints: Endpoints, address: EtcdAddress) -> None:
        self._endpoints = endpoints
        self._address = address
        self._compacted = 0
        self._trial: list[str] = []  # as last said

    async def check_versions(self) -> None:
        """Look at the release of every member that answers.

        Raises:
            OpenError: one of them may corrupt its data.
        """
        trial = []
        for member, status in await self._statuses():
            fitness = fitness_of(status.version)
            if fitness is Fitness.CORRUPTS:
                raise OpenError(
                    f"{member.endpoint} is etcd {status.version}, which may corrupt its data: use "
                    "3.4.32, 3.5.14 or newer"
                )
            if fitness is Fitness.TRIAL:
                trial.append(f"{member.endpoint} ({status.version or 'no version'})")
        if trial and trial != self._trial:  # a node that cannot connect tries again all the time
            self._trial = trial
            _log.warning(
                "not fit for production: etcd at %s; use 3.4.32, 3.5.14 or newer",
                ", ".join(trial),
                extra={"event": "log_version_too_old", "detail": ", ".join(trial)},
            )

    async def _statuses(self) -> list[tuple[Member, pb.StatusResponse]]:
        members = self._endpoints.members
        found = await asyncio.gather(*(self._status(member) for member in members))
        return [(m, status) for m, status in zip(members, found, strict=True) if status is not None]

    async def _status(self, member: Member) -> pb.StatusResponse | None:
        try:
            status: pb.StatusResponse = await self._endpoints.ask(
                member, Rpc.STATUS, pb.StatusRequest(), self._endpoints.try_s
            )
        except grpc.RpcError:
            return None  # it may be down: the others do
        return status

    async def look(self) -> LogSpace:
        """How much is used, at the member where it is most; whoever leads etcd is asked first then.

        Raises:
            LogUnavailableError: no member answered.
        """
        found = await self._statuses()
        if not found:
            raise LogUnavailableError("no member of etcd said how much space it uses")
        self._prefer_leader(found)
        statuses = [status for _, status in found]
        return LogSpace(
            used_bytes=max(status.dbSizeInUse for status in statuses),
            file_bytes=max(status.dbSize for status in statuses),
            quota_bytes=min(status.dbSizeQuota or self._address.quota_bytes for status in statuses),
            is_full=any("NOSPACE" in error for status in statuses for error in status.errors),
        )

    def _prefer_leader(self, found: Sequence[tuple[Member, pb.StatusResponse]]) -> None:
        """Ask the leader of etcd first: any other member sends on to it what changes something."""
        leaders = [
            (status.header.raft_term, number)
            for number, (_, status) in enumerate(found)
            if status.leader and status.leader == status.header.member_id
        ]
        if leaders:  # of two, the one of the older term does not know yet that it was replaced
            self._endpoints.prefer(found[max(leaders)[1]][0])

    async def compact_sometimes(self) -> None:
        """Compact when enough revisions have come since the last time."""
        if self._endpoints.revision - self._compacted >= COMPACT_EVERY:
            await self.compact(keep=COMPACT_KEEP)

    async def compact(self, *, keep: int = 0) -> None:
        """Let go of revisions but for the last ``keep``; watchers that lag behind start anew."""
        revision = self._endpoints.revision - keep
        if revision <= self._compacted:
            return
        request = pb.CompactionRequest(revision=revision, physical=False)
        try:
            await self._endpoints.call(Rpc.COMPACT, request, self._address.ttl_s)
        except RefusedError as error:
            if error.refusal is not Refusal.COMPACTED:  # somebody else has been faster
                raise LogUnavailableError(str(error)) from error
        self._compacted = revision

    async def defragment(self) -> list[str]:
        """Make the files of all members smaller, one after the other; none serves meanwhile.

        Returns the endpoints where it did not succeed.
        """
        return await self._each(Rpc.DEFRAGMENT, pb.DefragmentRequest(), _DEFRAGMENT_S)

    async def _each(self, rpc: Rpc, request: Any, timeout_s: float) -> list[str]:
        failed = []
        for member in self._endpoints.members:
            try:
                await self._endpoints.ask(member, rpc, request, timeout_s)
            except grpc.RpcError:
                failed.append(member.endpoint)
        return failed

    async def disarm(self) -> None:
        """Take the alarm back, after space was made: etcd takes writes again.

        Raises:
            LodeqError: it was refused.
        """
        found = await self._alarm(pb.AlarmRequest(action=pb.AlarmRequest.GET))
        for one in found.alarms:
            if one.alarm == pb.NOSPACE:
                await self._alarm(
                    pb.AlarmRequest(
                        action=pb.AlarmRequest.DEACTIVATE, memberID=one.memberID, alarm=one.alarm
                    )
                )

    async def _alarm(self, request: pb.AlarmRequest) -> pb.AlarmResponse:
        try:
            answer: pb.AlarmResponse = await self._endpoints.call(
                Rpc.ALARM, request, self._address.ttl_s
            )
        except RefusedError as error:
            raise LodeqError(str(error)) from error
        return answer
