"""Claims, and the end of the leases that they grant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec import UNSET
from starlette.responses import Response

from ....client.documents.records import when_text
from ....client.documents.wire import Form, Stored
from ....errors import (
    LeaseLostError,
    LodeqError,
    NotLeaderError,
    PayloadNotLoadedError,
    RecordCorruptError,
    StoragePoisonedError,
    UsageError,
)
from ....repository.api.engine import claim_within
from ....repository.api.lease_proof import LeaseProof
from ....repository.model.arguments import SKIPPED_FUNCTIONS_MAX
from ....repository.model.codec import MSGPACK
from ....repository.model.faces import face_fields
from ....repository.tasks.lease import Lease
from .. import schemas
from ..access.roles import Role
from ..document_reader import at_most
from ..named_queues import claimed_queues, held_lease, held_leases, no_queue, require_follow_ups
from ..operations import operation
from ..request_context import RequestContext
from ..server_state import LARGE_BYTES
from ..unread_answers import ClaimShare
from .enqueue import new_tasks

__all__ = [
    "bury",
    "cancel",
    "cancel_claim",
    "claim",
    "complete",
    "complete_many",
    "heartbeat",
    "heartbeat_many",
    "lease_doc",
    "nack",
    "progress",
    "redrive",
    "release",
]


@operation(
    "POST /leases/claim",
    {"leases": schemas.list_of(schemas.Lease)},
    needs=Role.WORKER,
    names=claimed_queues,
)
async def claim(context: RequestContext, document: schemas.Claim) -> Response:
    """Claim up to ``limit`` ready tasks; waits for the first of them."""
    server = context.server
    batch_max = server.settings.batch_max
    at_most(document.queues, "queues", batch_max)
    at_most(document.skip_tenants, "skip_tenants", max(batch_max, schemas.SKIPPED_MAX))
    queues = [
        server.queue(one) if isinstance(one, str) else server.queue_of(one)
        for one in document.queues
    ]
    wait = server.wait_s(document.wait)
    options: dict[str, Any] = {
        "limit": document.limit,
        "lease": document.lease,
        "worker": document.worker,
        "wait": wait,
        "exported": True,
    }
    if document.skip_tenants:
        if len(queues) != 1:
            raise UsageError("skip_tenants is for a claim from one queue")
        options["skip_tenants"] = document.skip_tenants
    if document.skip_functions:
        at_most(document.skip_functions, "skip_functions", SKIPPED_FUNCTIONS_MAX)
        if len(queues) != 1:
            raise UsageError("skip_functions is for a claim from one queue")
        options["skip_functions"] = document.skip_functions
    if document.dead:
        if len(queues) != 1:
            raise UsageError("dead is for a claim from one queue")
        options["dead"] = True
    call: Callable[[], Awaitable[list[Lease]]]
    share = ClaimShare(server.claimed)
    if document.limit > 1 and not document.dead:
        del options["exported"]
        call = partial(claim_within, server.engine, queues, share, **options)
    elif len(queues) == 1:
        call = partial(queues[0].claim, **options)
    else:
        call = partial(server.engine.claim, queues, **options)
    leases: list[Lease] = []

    async def granted() -> list[Lease]:
        leases.extend(await call())  # known from here on, wherever this is cancelled
        return leases

    claim_id = None if document.claim_id is UNSET else document.claim_id
    claim = server.claims.begin(claim_id, context.access.owner)
    try:
        if not claim.is_cancelled:
            await (context.poll(granted, leases, claim) if wait else granted())
        docs = (lease_doc(context.out, lease) for lease in leases)
        if sum(lease.record_bytes for lease in leases) > LARGE_BYTES:
            async with server.pages:
                answer = await context.answer_list("leases", docs, {})
        else:
            answer = await context.answer_list("leases", docs, {})
        if leases:
            await context.check_here(leases)
    except BaseException:  # cancelled, or the client has gone: nobody will see them
        server.claims.end(claim, ())
        server.view.give_back(leases)
        raise
    finally:
        share.end()
    if not server.claims.end(claim, leases):
        server.view.give_back(leases)
        return context.answer({"leases": []})
    for lease in leases:  # it may live for hours yet: whoever has it has its payload as well
        lease.record = None
    if leases:
        context.call_if_unsent(partial(server.view.give_back, leases))
    return answer


@operation(
    "POST /leases/cancel_claim", {"released": schemas.Count}, needs=Role.WORKER, names=no_queue
)
async def cancel_claim(context: RequestContext, document: schemas.CancelClaim) -> Response:
    """Take back a claim whose answer its client has not received: its leases are released."""
    server = context.server
    leases = server.claims.cancel(document.claim_id, context.access.owner)
    server.view.give_back(leases)
    return context.answer({"released": len(leases)})


def lease_doc(form: Form, lease: Lease) -> dict[str, Any]:
    """The document of a lease: ``client.documents.records.Granted`` reads it."""
    doc: dict[str, Any] = {
        "task_id": form.id(lease.task_id),
        "epoch": lease.epoch,
        "token": form.raw(lease.token),
        "queue": lease.queue,
        "tenant": lease.tenant,
        "priority": lease.priority,
        "attempt": lease.attempt,
        "policy": form.raw(lease.packed_policy),
        "enqueued_at": lease.enqueued_at.isoformat(),
        "deadline": lease.deadline.isoformat(),
        "lease_s": lease.lease_s,
        "dead_at": when_text(lease.dead_at),
        "reason": lease.reason,
        "function": "",
        "preview": "",
        "labels": {},
        **face_fields(lease.face),
    }
    doc["payload_bytes"] = lease.payload_bytes
    try:
        kind, data, headers = lease.stored
    except PayloadNotLoadedError:  # the client reads it, in slices
        headers = lease.stored_headers
    except RecordCorruptError:  # raised where the payload is read, as from an embedded engine
        headers = b""
        form.put(doc, "payload", Stored(MSGPACK, b""))
    else:
        form.put(doc, "payload", Stored(kind, data))
    if headers:
        form.put(doc, "headers", Stored(MSGPACK, headers))
    return doc


# -- one lease -------------------------------------------------------------------------


def _proof(held: schemas.Held) -> LeaseProof:
    return LeaseProof(held.task_id, held.epoch, held.token)


async def _live(context: RequestContext, held: schemas.Held) -> Lease:
    return await context.server.view.proved_lease(_proof(held))


@operation(
    "POST /leases/heartbeat", {"deadline": schemas.Moment}, needs=Role.WORKER, names=held_lease
)
async def heartbeat(context: RequestContext, document: schemas.Heartbeat) -> Response:
    """Extend one lease."""
    deadline = await (await _live(context, document)).heartbeat(document.seconds)
    return context.answer({"deadline": deadline.isoformat()})


@operation("POST /leases/progress", needs=Role.WORKER, names=held_lease)
async def progress(context: RequestContext, document: schemas.HeldWithProgress) -> Response:
    """Report how far the run of a leased task has come; ``GET /tasks/{id}`` shows it."""
    await (await _live(context, document)).progress(document.fraction, document.note)
    return context.answer({})


@operation("POST /leases/complete", needs=Role.WORKER, names=held_lease)
async def complete(context: RequestContext, document: schemas.Complete) -> Response:
    """Complete one task, with result and follow-ups, which need the role of a producer."""
    if document.then:
        await require_follow_ups(context, _proof(document), document.then)
    result = await context.value(document, "result", context.server.limits.result_bytes_max)
    await context.server.view.complete_proved(
        _proof(document),
        result,
        then=await new_tasks(context, document.then),
        keep=document.keep,
        durable=document.durable,
    )
    return context.answer({})


@operation("POST /leases/nack", needs=Role.WORKER, names=held_lease)
async def nack(context: RequestContext, document: schemas.Nack) -> Response:
    """Give one back: it failed."""
    lease = await _live(context, document)
    await lease.nack(delay=document.delay, reason=document.reason)
    return context.answer({})


@operation("POST /leases/release", needs=Role.WORKER, names=held_lease)
async def release(context: RequestContext, document: schemas.Release) -> Response:
    """Give one back that was not worked on."""
    await (await _live(context, document)).release(delay=document.delay)
    return context.answer({})


@operation("POST /leases/bury", needs=Role.WORKER, names=held_lease)
async def bury(context: RequestContext, document: schemas.Bury) -> Response:
    """Move one to the dead letters."""
    await (await _live(context, document)).bury(document.reason)
    return context.answer({})


@operation("POST /leases/redrive", name="redrive_lease", needs=Role.WORKER, names=held_lease)
async def redrive(context: RequestContext, document: schemas.Held) -> Response:
    """Send a leased dead letter back to its queue, with a fresh set of attempts."""
    await (await _live(context, document)).redrive()
    return context.answer({})


@operation("POST /leases/cancel", name="cancel_lease", needs=Role.WORKER, names=held_lease)
async def cancel(context: RequestContext, document: schemas.Held) -> Response:
    """Cancel one for good, if its sender still has the lease."""
    await (await _live(context, document)).cancel()
    return context.answer({})


# -- many ------------------------------------------------------------------------------


@operation(
    "POST /leases/complete_many", {"lost": dict[str, str]}, needs=Role.WORKER, names=held_leases
)
async def complete_many(context: RequestContext, document: schemas.CompleteMany) -> Response:
    """Complete many tasks; ``lost`` names those whose lease has ended otherwise."""
    server = context.server
    at_most(document.leases, "leases", server.settings.batch_max)
    pairs = []
    for one in document.leases:
        result = await context.value(one, "result", server.limits.result_bytes_max)
        pairs.append((_proof(one), result))
        await context.turns.give()
    outcomes = await server.view.complete_many_proved(pairs, document.durable)
    return context.answer({"lost": _lost(outcomes)})


@operation(
    "POST /leases/heartbeat_many",
    {"lost": dict[str, str], "deadlines": list[schemas.Moment | None], "unknown": list[int]},
    needs=Role.WORKER,
    names=held_leases,
)
async def heartbeat_many(context: RequestContext, document: schemas.HeartbeatMany) -> Response:
    """Extend many leases; ``unknown`` names those whose shard this node may not lead any more.

    They are not lost by that: its leader extends them. Nor are those that a poisoned shard does not
    know any more: it may do so once it is reopened.
    """
    at_most(document.leases, "leases", context.server.settings.batch_max)
    outcomes: list[LodeqError | None] = []
    deadlines: list[str | None] = []
    unknown: list[int] = []
    refusal: NotLeaderError | None = None
    for n, held in enumerate(document.leases):
        await context.turns.give()
        try:
            deadline = await (await _live(context, held)).heartbeat(document.seconds)
        except LeaseLostError as error:
            outcomes.append(error)
            deadlines.append(None)
        except NotLeaderError as error:
            refusal = error
            unknown.append(n)
            outcomes.append(None)
            deadlines.append(None)
        except StoragePoisonedError:
            unknown.append(n)
            outcomes.append(None)
            deadlines.append(None)
        else:
            outcomes.append(None)
            deadlines.append(deadline.isoformat())
    if refusal is not None and len(unknown) == len(deadlines):
        raise refusal
    return context.answer({"lost": _lost(outcomes), "deadlines": deadlines, "unknown": unknown})


def _lost(outcomes: Any) -> dict[str, str]:
    """By position, as text: JSON has no other keys."""
    return {str(n): str(error) for n, error in enumerate(outcomes) if error is not None}
