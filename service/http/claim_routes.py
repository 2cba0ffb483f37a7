"""Leases out, and what is done with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...client.calls import CLAIM_ID_BYTES
from ...client.wire import Form, Stored
from ...errors import LeaseLostError, LodeqError, RecordCorruptError, UsageError
from ...repository.api import lease_proof
from ...repository.api.lease_proof import LeaseProof
from ...repository.model.codec import MSGPACK
from ...repository.tasks.lease import Lease
from .enqueue_routes import follow_ups
from .request_context import DocumentReader, RequestContext

if TYPE_CHECKING:
    from starlette.responses import Response

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
    "release",
]

# A worker passes over every tenant of which as many tasks run as may, and cannot split the claim.
SKIPPED_MAX: Final = 65_536


async def claim(exchange: RequestContext) -> Response:
    """Up to ``limit`` ready tasks; waits for the first of them."""
    hub, members = exchange.hub, await exchange.members()
    form = members.form
    given = members.items("queues", hub.settings.batch_max)
    queues = []
    for doc in given:
        place = DocumentReader(form, {"queue": doc} if isinstance(doc, str) else doc, "a queue")
        queues.append(hub.queue_in(place))
        place.done()
    wait = hub.wait_s(members.take("wait", 0.0))
    options: dict[str, Any] = {
        "limit": members.whole("limit", 1),
        "lease": members.take("lease"),
        "worker": members.text("worker", ""),
        "wait": wait,
        "exported": True,
    }
    most = max(hub.settings.batch_max, SKIPPED_MAX)
    skipped = members.items("skip_tenants", most) if members.has("skip_tenants") else []
    claim_id = members.claim_id()
    members.done()
    call: Callable[[], Awaitable[list[Lease]]]
    if skipped:
        if len(queues) != 1:
            raise UsageError("skip_tenants is for a claim from one queue")
        options["skip_tenants"] = skipped
    if len(queues) == 1:
        call = partial(queues[0].claim, **options)
    else:
        call = partial(hub.engine.claim, queues, **options)
    leases: list[Lease] = []

    async def granted() -> list[Lease]:
        leases.extend(await call())  # known from here on, wherever this is cancelled
        return leases

    claim = hub.claims.begin(claim_id)
    try:
        if not claim.is_cancelled:
            await (exchange.poll(granted, leases, claim) if wait else granted())
        docs = (lease_doc(exchange.out, lease) for lease in leases)
        answer = await exchange.answer_list("leases", docs, {})
        if leases:
            await exchange.check_here(leases)
    except BaseException:  # cancelled, or the client has gone: nobody will see them
        hub.claims.end(claim, ())
        hub.give_back(leases)
        raise
    if not hub.claims.end(claim, leases):
        hub.give_back(leases)
        return exchange.answer({"leases": []})
    for lease in leases:  # it may live for hours yet: whoever has it has its payload as well
        lease.record = None
    return answer


async def cancel_claim(exchange: RequestContext) -> Response:
    """Take a claim back, whose answer its client has not got: what it was granted goes back."""
    hub, members = exchange.hub, await exchange.members()
    claim_id = members.claim_id()
    members.done()
    if claim_id is None or len(claim_id) != CLAIM_ID_BYTES:
        raise UsageError(f"claim_id must be the {CLAIM_ID_BYTES} bytes the claim was sent with")
    leases = hub.claims.cancel(claim_id)
    hub.give_back(leases)
    return exchange.answer({"released": len(leases)})


def lease_doc(form: Form, lease: Lease) -> dict[str, Any]:
    """What ``client.records.Granted`` reads."""
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
    }
    try:
        kind, data, headers = lease.stored
    except RecordCorruptError:  # told where the payload is asked for, as it is embedded
        kind, data, headers = MSGPACK, b"", b""
    form.put(doc, "payload", Stored(kind, data))
    if headers:
        form.put(doc, "headers", Stored(MSGPACK, headers))
    return doc


# -- one lease -------------------------------------------------------------------------


def _held(members: DocumentReader) -> LeaseProof:
    task_id = members.id("task_id")
    members.check("epoch")
    epoch = members.whole("epoch")
    if isinstance(epoch, bool) or not isinstance(epoch, int):
        raise UsageError("epoch must be a whole number")
    return LeaseProof(task_id, epoch, members.raw("token"))


async def heartbeat(exchange: RequestContext) -> Response:
    """Move one deadline."""
    members = await exchange.members()
    held, seconds = _held(members), members.seconds("seconds")
    members.done()
    lease = await lease_proof.require(exchange.hub.core, held)
    deadline = await lease.heartbeat(seconds)
    return exchange.answer({"deadline": deadline.isoformat()})


async def complete(exchange: RequestContext) -> Response:
    """End one task, with result and follow-ups."""
    members = await exchange.members()
    held = _held(members)
    most = exchange.hub.core.limits.result_bytes_max
    result = await exchange.value(members.value("result"), most, "result")
    then = await follow_ups(exchange, members.form, members.take("then", []))
    keep, durable = members.flag("keep", True), members.durable()
    members.done()
    await lease_proof.complete(
        exchange.hub.core, held, result, then=then, keep=keep, durable=durable
    )
    return exchange.answer({})


async def nack(exchange: RequestContext) -> Response:
    """Give one back: it failed."""
    members = await exchange.members()
    held, delay, reason = _held(members), members.seconds("delay"), members.text("reason", "")
    members.done()
    await (await lease_proof.require(exchange.hub.core, held)).nack(delay=delay, reason=reason)
    return exchange.answer({})


async def release(exchange: RequestContext) -> Response:
    """Give one back unworked."""
    members = await exchange.members()
    held, delay = _held(members), members.seconds("delay")
    members.done()
    await (await lease_proof.require(exchange.hub.core, held)).release(delay=delay)
    return exchange.answer({})


async def bury(exchange: RequestContext) -> Response:
    """Move one to the dead letters."""
    members = await exchange.members()
    held, reason = _held(members), members.text("reason", "")
    members.done()
    await (await lease_proof.require(exchange.hub.core, held)).bury(reason)
    return exchange.answer({})


async def cancel(exchange: RequestContext) -> Response:
    """End one for good, if it is still ours."""
    members = await exchange.members()
    held = _held(members)
    members.done()
    await (await lease_proof.require(exchange.hub.core, held)).cancel()
    return exchange.answer({})


# -- many ------------------------------------------------------------------------------


async def complete_many(exchange: RequestContext) -> Response:
    """End many tasks; ``lost`` names those that were not ours any more."""
    members = await exchange.members()
    most = exchange.hub.core.limits.result_bytes_max
    pairs = []
    for doc in members.items("leases", exchange.hub.settings.batch_max):
        one = DocumentReader(members.form, doc, "a lease")
        pairs.append((_held(one), await exchange.value(one.value("result"), most, "result")))
        one.done()
        await exchange.turns.give()
    durable = members.durable()
    members.done()
    outcomes = await lease_proof.complete_many(exchange.hub.core, pairs, durable)
    return exchange.answer({"lost": _lost(outcomes)})


async def heartbeat_many(exchange: RequestContext) -> Response:
    """Move many deadlines."""
    core, members = exchange.hub.core, await exchange.members()
    held = []
    for doc in members.items("leases", exchange.hub.settings.batch_max):
        one = DocumentReader(members.form, doc, "a lease")
        held.append(_held(one))
        one.done()
    seconds = members.seconds("seconds")
    members.done()
    outcomes: list[LodeqError | None] = []
    deadlines: list[str | None] = []
    for one_held in held:
        await exchange.turns.give()
        try:
            lease = await lease_proof.require(core, one_held)
            deadline = await lease.heartbeat(seconds)
        except LeaseLostError as error:
            outcomes.append(error)
            deadlines.append(None)
        else:
            outcomes.append(None)
            deadlines.append(deadline.isoformat())
    return exchange.answer({"lost": _lost(outcomes), "deadlines": deadlines})


def _lost(outcomes: Any) -> dict[str, str]:
    """By position, as text: JSON has no other keys."""
    return {str(n): str(error) for n, error in enumerate(outcomes) if error is not None}
