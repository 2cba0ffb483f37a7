"""Snapshots, loads and purges: what works on the data at large."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ...client.bulk import ingest_doc, snapshot_doc
from ...client.records import plain_doc
from ...errors import UsageError
from ...repository.bulk.purge import purge_parts
from .request_context import DocumentReader, RequestContext

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["forget_loads", "ingest", "purge_archived", "release_snapshot", "snapshot", "snapshots"]

_STORE_ID = re.compile("[0-9a-f]{32}")


async def snapshot(exchange: RequestContext) -> Response:
    """A copy of every shard to be read, below the store's own folder."""
    exchange.query()
    members = await exchange.members(is_needed=False)
    keep = members.take("keep")
    members.done()
    options: dict[str, Any] = {} if keep is None else {"keep": keep}
    return exchange.answer(snapshot_doc(await exchange.hub.engine.snapshot(**options)), 201)


async def snapshots(exchange: RequestContext) -> Response:
    """Those that are whole, oldest first."""
    exchange.query()
    found = await exchange.hub.engine.snapshots()
    return exchange.answer({"snapshots": [snapshot_doc(one) for one in found]})


async def release_snapshot(exchange: RequestContext) -> Response:
    """Remove a snapshot, pinned or not."""
    exchange.query()
    await exchange.hub.engine.release_snapshot(exchange.path("snapshot_id"))
    return exchange.answer({})


async def ingest(exchange: RequestContext) -> Response:
    """Take in what waits in the inbox, or one load of it."""
    exchange.query()
    members = await exchange.members(is_needed=False)
    job = members.take("job")
    members.done()
    return exchange.answer(ingest_doc(await exchange.hub.engine.ingest(job)))


async def forget_loads(exchange: RequestContext) -> Response:
    """Forget loads that ended before, and what was staged for nothing."""
    exchange.query()
    members = await exchange.members()
    older_than = members.need("older_than")
    members.done()
    return exchange.answer(plain_doc(await exchange.hub.engine.forget_loads(older_than)))


async def purge_archived(exchange: RequestContext) -> Response:
    """Remove results and dead letters that are archived, by id and moment.

    Rows come in the request, never as a path: a caller must not make the server read its files.
    """
    exchange.query()
    hub = exchange.hub
    members = await exchange.members()
    planned = (_store_id(members), _natural(members, "shards"))
    parts: dict[tuple[int, str], list[bytes]] = {}
    for one in members.items("parts", hub.settings.batch_max):
        part = DocumentReader(members.form, one, "a part")
        key = (_natural(part, "shard"), part.text("kind", ""))
        parts.setdefault(key, []).append(part.raw("rows"))
        part.done()
    members.done()
    hub.core.check()
    store_id = hub.engine._runtime.opened.store_id
    return exchange.answer(plain_doc(await purge_parts(hub.core, store_id, planned, parts)))


def _natural(members: DocumentReader, name: str) -> int:
    members.check(name)
    value = members.whole(name)
    if type(value) is not int or value < 0:
        raise UsageError(f"{name} must be a whole number, 0 or more")
    return value


def _store_id(members: DocumentReader) -> bytes:
    text = members.need("store_id")
    if not isinstance(text, str) or not _STORE_ID.fullmatch(text):
        raise UsageError("store_id must be the 32 hexadecimal digits that the plan has")
    return bytes.fromhex(text)
