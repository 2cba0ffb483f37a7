"""What a client of a cluster asks: who leads what, and whether a node has tasks to claim."""

from __future__ import annotations

from functools import partial

from msgspec import UNSET
from starlette.responses import Response

from ....errors import UsageError
from .. import schemas
from ..access.roles import ANY, Role
from ..document_reader import at_most
from ..named_queues import claimed_queues, no_queue
from ..operations import operation
from ..request_context import RequestContext

__all__ = ["cluster", "ready"]


@operation(
    "GET /cluster",
    {
        "shards": schemas.Count,
        "led": list[schemas.Count],
        "leaders": list[str | None],
        "members": list[str],
        "now_us": schemas.Count,
        "seq": schemas.Count,
    },
    needs=ANY,
    names=no_queue,
)
async def cluster(context: RequestContext) -> Response:
    """Say which shards this node leads, and where the leaders of the others are."""
    view = context.server.view
    view.check()
    found = view.cluster()
    return context.answer(
        {
            "shards": found.shards,
            "led": list(found.led),
            "leaders": list(found.leaders),
            "members": list(found.members),
            "now_us": found.now_us,
            "seq": found.seq,
        }
    )


@operation("POST /leases/ready", {"ready": bool}, needs=Role.WORKER, names=claimed_queues)
async def ready(context: RequestContext, document: schemas.Ready) -> Response:
    """Wait until a claim would get a task; nothing is leased by it."""
    server = context.server
    at_most(document.queues, "queues", server.settings.batch_max)
    at_most(
        document.skip_tenants, "skip_tenants", max(server.settings.batch_max, schemas.SKIPPED_MAX)
    )
    if document.skip_tenants and len(document.queues) != 1:
        raise UsageError("skip_tenants is for a claim from one queue")
    queues = [
        server.queue(one) if isinstance(one, str) else server.queue_of(one)
        for one in document.queues
    ]
    if not queues:
        raise UsageError("queues must be a non-empty list of names or Queue objects")
    wait_s = server.wait_s(document.wait)
    call = partial(server.view.ready, queues, wait_s, document.skip_tenants)
    claim_id = None if document.claim_id is UNSET else document.claim_id
    claim = server.claims.begin(claim_id, context.access.owner)
    found = False
    try:
        if not claim.is_cancelled:
            found = await (context.poll(call, False, claim) if wait_s else call())
    finally:
        server.claims.end(claim, ())
    return context.answer({"ready": found})
