"""What a served engine offers for the data at large, in both ways to wait."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from ..engine.values import Snapshot
from ..repository.model.arguments import SNAPSHOT_S
from ..repository.model.ingest_report import IngestReport
from ..repository.model.reports import ForgottenLoads, PurgeReport
from ..repository.model.values import Duration
from . import bulk
from .calls import Call, Session
from .records import flat_of

if TYPE_CHECKING:
    from .link import Link, SyncLink

__all__ = ["RemoteBulk", "SyncRemoteBulk"]


class RemoteBulk:
    """The part of ``RemoteEngine`` that sends, and what is built on that alone."""

    _link: Link
    session: Session

    async def send(self, call: Call) -> Any:
        """One request of ``calls``; its document."""
        return await self._link.send(call)

    async def snapshot(self, *, keep: Duration = SNAPSHOT_S) -> Snapshot:
        """See ``Engine.snapshot``, also for Durability. Its ``path`` is the server's.

        Cancellation: the server may take it all the same; it lapses.
        """
        return bulk.snapshot_of(await self.send(bulk.snapshot(keep)))

    async def snapshots(self) -> list[Snapshot]:
        """See ``Engine.snapshots``, also for Durability and Cancellation."""
        return [bulk.snapshot_of(one) for one in (await self.send(bulk.snapshots()))["snapshots"]]

    async def release_snapshot(self, id: str) -> None:
        """See ``Engine.release_snapshot``, also for Durability and Cancellation."""
        await self.send(bulk.release_snapshot(id))

    async def purge_archived(self, plan: str | os.PathLike[str]) -> PurgeReport:
        """See ``Engine.purge_archived``, also for Durability and Cancellation.

        ``plan`` is the client's: it is read here, and its rows are sent, 131,072 at a time.
        """
        report, calls = PurgeReport(), bulk.purge_archived(self.session, plan)
        following = partial(next, calls, None)
        while (call := await to_thread.run_sync(following)) is not None:
            report = bulk.added(report, await self.send(call))
        return report

    async def ingest(self, job: str | None = None) -> IngestReport:
        """See ``Engine.ingest``, also for Durability. The inbox is the server's.

        Cancellation: the server goes on.
        """
        return bulk.ingest_of(await self.send(bulk.ingest(job)))

    async def forget_loads(self, older_than: Duration) -> ForgottenLoads:
        """See ``Engine.forget_loads``, also for Durability. The inbox is the server's.

        Cancellation: the server goes on.
        """
        return flat_of(ForgottenLoads, await self.send(bulk.forget_loads(older_than)))


class SyncRemoteBulk:
    """The same of ``SyncRemoteEngine``."""

    _link: SyncLink
    session: Session

    def send(self, call: Call) -> Any:
        """One request of ``calls``; its document."""
        return self._link.send(call)

    def snapshot(self, *, keep: Duration = SNAPSHOT_S) -> Snapshot:
        """See ``RemoteEngine.snapshot``, also for Durability and Cancellation."""
        return bulk.snapshot_of(self.send(bulk.snapshot(keep)))

    def snapshots(self) -> list[Snapshot]:
        """See ``Engine.snapshots``, also for Durability and Cancellation."""
        return [bulk.snapshot_of(one) for one in self.send(bulk.snapshots())["snapshots"]]

    def release_snapshot(self, id: str) -> None:
        """See ``Engine.release_snapshot``, also for Durability and Cancellation."""
        self.send(bulk.release_snapshot(id))

    def purge_archived(self, plan: str | os.PathLike[str]) -> PurgeReport:
        """See ``RemoteEngine.purge_archived``, also for Durability and Cancellation."""
        report = PurgeReport()
        for call in bulk.purge_archived(self.session, plan):
            report = bulk.added(report, self.send(call))
        return report

    def ingest(self, job: str | None = None) -> IngestReport:
        """See ``RemoteEngine.ingest``, also for Durability and Cancellation."""
        return bulk.ingest_of(self.send(bulk.ingest(job)))

    def forget_loads(self, older_than: Duration) -> ForgottenLoads:
        """See ``RemoteEngine.forget_loads``, also for Durability and Cancellation."""
        return flat_of(ForgottenLoads, self.send(bulk.forget_loads(older_than)))
