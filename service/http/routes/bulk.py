"""Snapshots, loads and purges: calls that work on the data at large."""

from __future__ import annotations

from starlette.responses import Response

from ....client.bulk import ingest_doc, snapshot_doc
from ....client.documents.records import plain_doc
from .. import schemas
from ..access.roles import Role
from ..document_reader import at_most
from ..named_queues import WHOLE
from ..operations import operation
from ..request_context import RequestContext

__all__ = ["forget_loads", "ingest", "purge_archived", "release_snapshot", "snapshot", "snapshots"]


@operation("POST /snapshots", by_status={201: schemas.Snapshot}, needs=Role.ADMIN, names=WHOLE)
async def snapshot(context: RequestContext, document: schemas.TakeSnapshot) -> Response:
    """Copy every shard for readers, below the store's own folder."""
    keep = document.keep
    engine = context.server.engine
    taken = await (engine.snapshot() if keep is None else engine.snapshot(keep=keep))
    return context.answer(snapshot_doc(taken), 201)


@operation(
    "GET /snapshots",
    {"snapshots": schemas.list_of(schemas.Snapshot)},
    needs=Role.READER,
    names=WHOLE,
)
async def snapshots(context: RequestContext) -> Response:
    """List the snapshots that are whole, oldest first."""
    found = await context.server.engine.snapshots()
    return context.answer({"snapshots": [snapshot_doc(one) for one in found]})


@operation("DELETE /snapshots/{snapshot_id}", needs=Role.ADMIN, names=WHOLE)
async def release_snapshot(context: RequestContext) -> Response:
    """Remove a snapshot, pinned or not."""
    await context.server.engine.release_snapshot(context.path("snapshot_id"))
    return context.answer({})


@operation(
    "POST /ingest",
    {"ok": bool, "tasks": schemas.Count, "jobs": schemas.list_of(schemas.IngestedJob)},
    needs=Role.ADMIN,
    names=WHOLE,
)
async def ingest(context: RequestContext, document: schemas.Ingest) -> Response:
    """Take in the loads that wait in the inbox, or one of them."""
    return context.answer(ingest_doc(await context.server.engine.ingest(document.job)))


@operation("POST /forget_loads", schemas.ForgottenLoads, needs=Role.ADMIN, names=WHOLE)
async def forget_loads(context: RequestContext, document: schemas.ForgetLoads) -> Response:
    """Forget loads that ended before, and what was staged and never published."""
    forgotten = await context.server.engine.forget_loads(document.older_than)
    return context.answer(plain_doc(forgotten))


@operation("POST /purge_archived", schemas.PurgeReport, needs=Role.ADMIN, names=WHOLE)
async def purge_archived(context: RequestContext, document: schemas.PurgeArchived) -> Response:
    """Remove results and dead letters that are archived, by id and moment.

    Rows come in the request, never as a path: a caller must not make the server read its files.
    """
    server = context.server
    at_most(document.parts, "parts", server.settings.batch_max)
    parts: dict[tuple[int, str], list[bytes]] = {}
    for part in document.parts:
        parts.setdefault((part.shard, part.kind), []).append(part.rows)
    planned = bytes.fromhex(document.store_id), document.shards
    return context.answer(plain_doc(await server.view.purge_parts(planned, parts)))
