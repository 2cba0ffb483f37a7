"""Snapshots, loads and purges: calls that work on the data at large."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...client.bulk import ingest_doc, snapshot_doc
from ...client.records import plain_doc
from ...repository.bulk.purge import purge_parts
from . import schemas
from .document_reader import at_most
from .request_context import RequestContext
from .server_state import runtime_of

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["forget_loads", "ingest", "purge_archived", "release_snapshot", "snapshot", "snapshots"]


async def snapshot(context: RequestContext) -> Response:
    """Copy every shard for readers, below the store's own folder."""
    context.query(schemas.NoQuery)
    keep = (await context.read(schemas.TakeSnapshot)).keep
    engine = context.server.engine
    taken = await (engine.snapshot() if keep is None else engine.snapshot(keep=keep))
    return context.answer(snapshot_doc(taken), 201)


async def snapshots(context: RequestContext) -> Response:
    """List the snapshots that are whole, oldest first."""
    context.query(schemas.NoQuery)
    found = await context.server.engine.snapshots()
    return context.answer({"snapshots": [snapshot_doc(one) for one in found]})


async def release_snapshot(context: RequestContext) -> Response:
    """Remove a snapshot, pinned or not."""
    context.query(schemas.NoQuery)
    await context.server.engine.release_snapshot(context.path("snapshot_id"))
    return context.answer({})


async def ingest(context: RequestContext) -> Response:
    """Take in the loads that wait in the inbox, or one of them."""
    context.query(schemas.NoQuery)
    job = (await context.read(schemas.Ingest)).job
    return context.answer(ingest_doc(await context.server.engine.ingest(job)))


async def forget_loads(context: RequestContext) -> Response:
    """Forget loads that ended before, and what was staged and never published."""
    context.query(schemas.NoQuery)
    older_than = (await context.read(schemas.ForgetLoads)).older_than
    return context.answer(plain_doc(await context.server.engine.forget_loads(older_than)))


async def purge_archived(context: RequestContext) -> Response:
    """Remove results and dead letters that are archived, by id and moment.

    Rows come in the request, never as a path: a caller must not make the server read its files.
    """
    context.query(schemas.NoQuery)
    server, document = context.server, await context.read(schemas.PurgeArchived)
    at_most(document.parts, "parts", server.settings.batch_max)
    parts: dict[tuple[int, str], list[bytes]] = {}
    for part in document.parts:
        parts.setdefault((part.shard, part.kind), []).append(part.rows)
    server.engine_state.check()
    store_id = runtime_of(server.engine).opened.store_id
    planned = bytes.fromhex(document.store_id), document.shards
    return context.answer(
        plain_doc(await purge_parts(server.engine_state, store_id, planned, parts))
    )
