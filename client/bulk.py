"""Documents and requests for snapshots, loads and purges of a served store.

As in ``records``, a document's writer and reader stand together; as in ``calls``, nothing here uses
a connection. The only file read here is a purge plan, which lies on the client's machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import quote

from ..engine.values import ShardMark, Snapshot
from ..errors import UsageError
from ..repository.model.arguments import age_s, duration_s
from ..repository.model.ingest_report import IngestedJob, IngestReport
from ..repository.model.reports import PurgeReport
from ..repository.model.values import Duration
from .calls import FORM, Call, Session
from .documents.records import flat_of

__all__ = [
    "added",
    "forget_loads",
    "ingest",
    "ingest_doc",
    "ingest_of",
    "purge_archived",
    "release_snapshot",
    "snapshot",
    "snapshot_doc",
    "snapshot_of",
    "snapshots",
]

ROWS_MAX: Final = 1 << 17  # of a purge, in one request: 3 MiB
_LONG_S: Final = 86_400.0  # as long as it takes


# -- documents -------------------------------------------------------------------------


def snapshot_doc(one: Snapshot) -> dict[str, Any]:
    """Write a snapshot."""
    return {
        "id": one.id,
        "path": one.path,
        "store_id": one.store_id.hex(),
        "store_format": one.store_format,
        "created_ms": one.created_ms,
        "expires_ms": one.expires_ms,
        "shards": [list(mark) for mark in one.shards],
        "journals": dict(one.journals),
        "bodies": list(one.bodies),
    }


def snapshot_of(doc: Mapping[str, Any]) -> Snapshot:
    """Read a snapshot."""
    return Snapshot(
        doc["id"],
        doc["path"],
        bytes.fromhex(doc["store_id"]),
        doc["store_format"],
        doc["created_ms"],
        doc["expires_ms"],
        tuple(ShardMark(*mark) for mark in doc["shards"]),
        doc["journals"],
        tuple(doc["bodies"]),
    )


def ingest_doc(report: IngestReport) -> dict[str, Any]:
    """Write the report of an ingest."""
    jobs = [asdict(job) for job in report.jobs]
    return {"ok": report.ok, "tasks": report.tasks, "jobs": jobs}


def ingest_of(doc: Mapping[str, Any]) -> IngestReport:
    """Read the report of an ingest."""
    return IngestReport(tuple(flat_of(IngestedJob, job) for job in doc["jobs"]))


def added(report: PurgeReport, doc: Mapping[str, Any]) -> PurgeReport:
    """Add the counts that one more request of a purge returned."""
    more = flat_of(PurgeReport, doc)
    return PurgeReport(
        report.results + more.results, report.dead + more.dead, report.absent + more.absent
    )


# -- requests --------------------------------------------------------------------------


def _write(method: str, path: str, doc: Any = None) -> Call:
    return Call(method, path, doc, wait_s=_LONG_S, is_write=True)


def snapshot(keep: Duration) -> Call:
    """Take a snapshot, kept for so many seconds."""
    return _write("POST", "/snapshots", {"keep": duration_s(keep, "keep", least=0.001)})


def snapshots() -> Call:
    """List the snapshots."""
    return Call("GET", "/snapshots", is_repeatable=True)


def release_snapshot(id: str) -> Call:
    """Remove a snapshot."""
    if not isinstance(id, str) or not id:
        raise UsageError(f"the id of a snapshot is text, not {id!r}")
    return _write("DELETE", f"/snapshots/{quote(id, safe='', errors='replace')}")


def ingest(job: str | None) -> Call:
    """Take in the loads that wait in the inbox, or one job's."""
    return _write("POST", "/ingest", {} if job is None else {"job": job})


def forget_loads(older_than: Duration) -> Call:
    """Forget loads that ended longer ago than so many seconds, an hour at least."""
    return _write("POST", "/forget_loads", {"older_than": age_s(older_than)})


def purge_archived(session: Session, plan: str | os.PathLike[str]) -> Iterator[Call]:
    """Purge by a plan on this machine: at least one request, more if it takes more. Blocks.

    Files are read and checked one after the other, as the engine does with a plan of its own.
    """
    from ..engine.offline.purge_plan import (  # noqa: PLC0415 - no other call reads files
        ROW_BYTES,
        EndedRows,
        read_plan,
    )

    found = read_plan(plan)
    base = {"store_id": found.store_id.hex(), "shards": found.shards}
    most = max(1, min(ROWS_MAX, session.body_bytes_max // 2 // ROW_BYTES))
    docs: list[dict[str, Any]] = []
    left = most
    for file in found.files:
        for part in EndedRows.read(found.folder, file).parts(most):
            rows = len(part) // ROW_BYTES
            if rows > left or len(docs) == session.batch_max:
                yield _write("POST", "/purge_archived", base | {"parts": docs})
                docs, left = [], most
            docs.append({"shard": file.shard, "kind": file.kind, "rows": FORM.raw(part)})
            left -= rows
    yield _write("POST", "/purge_archived", base | {"parts": docs})
