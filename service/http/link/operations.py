"""The operations of the link: the common ones go straight to the engine, a call to its route.

A handler answers through its connection: at once, when the engine commits (an ``Outcome`` of
``direct_calls``), or in a task of its own where the common form does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ....client.calls import OPTIONS_BYTES_MAX
from ....client.documents.wire import MSGPACK_FORM, Stored
from ....engine.runtime.task_id import as_task_id
from ....errors import (
    LeaseLostError,
    NotLeaderError,
    PayloadTooLargeError,
    RecordCorruptError,
    StoragePoisonedError,
    UsageError,
)
from ....repository.api.direct_calls import Outcome
from ....repository.api.lease_proof import LeaseProof
from ....repository.api.queue import Queue as EngineQueue
from ....repository.model.arguments import duration_s
from ....repository.model.codec import CODEC, MSGPACK, CodecBytes, PackedBytes, decode_value
from ....repository.model.values import NewTask, Receipt
from ..document_reader import at_most
from ..payload_limits import document, engine_value
from ..routes.enqueue import task_options
from . import calls, requests
from .claims import claim
from .port import LinkPort
from .queues import fail, name_queue, queue_of

__all__ = ["HANDLERS"]

_CHECK_COST: Final = 16  # a byte that is checked, beside one that is answered
_TASK_COST: Final = 4 << 10  # a task of many
_SMALL: Final = 16 << 10  # bytes; checking a larger value takes turns of the loop
_HELD: Final = 1 << 10  # bytes of options; more are not held as objects by any number of requests
_OPTIONS_COST: Final = 4 * _CHECK_COST  # a byte of options, which become objects
_OPTIONS_BYTES_MAX: Final = 64 << 10  # without headers
_OPTIONS_TASK_COST: Final = 16 << 10  # a task of many with options
_DIRECT_TASKS_MAX: Final = 256  # of many with options, in one turn of the loop
_DIRECT_BYTES_MAX: Final = 64 << 10  # of their payloads that are checked
_DIRECT_MAX: Final = 512  # leases ended in one turn of the loop


# -- values --------------------------------------------------------------------------------


def _value(link: LinkPort, kind: int, data: bytes, what: str) -> Any:
    """A value as the engine takes it; None where checking it takes turns of the loop."""
    if not kind:
        return data
    if kind == CODEC:
        return CodecBytes(data)
    if len(data) > _SMALL:
        return None
    link.cost += _CHECK_COST * len(data)
    try:
        decode_value(MSGPACK, 0, data, len(data), None)
    except RecordCorruptError as exc:
        raise UsageError(f"{what} is not msgpack: {exc}") from exc
    return PackedBytes(data)


async def _checked(link: LinkPort, kind: int, data: bytes, bytes_max: int, what: str) -> Any:
    """The same for any value."""
    turns = link.serving.hub.view.turns()
    return await engine_value(Stored(kind, data), turns, bytes_max, what)


# -- queues and enqueue --------------------------------------------------------------------


class _Receipt(Outcome):
    """Answers an enqueue."""

    __slots__ = ("_id", "_link")

    def __init__(self, link: LinkPort, id: int) -> None:
        self.is_over = False
        self._link = link
        self._id = id

    def set_result(self, value: Any, /) -> None:
        self._link.answer(self._id, bytes(value[0]))

    def set_exception(self, error: BaseException, /) -> None:
        fail(self._link, self._id, error)


class _FullReceipt(_Receipt):
    """Answers an enqueue with options."""

    __slots__ = ()

    def set_result(self, value: Any, /) -> None:
        self._link.answer(self._id, _written(value))


def _written(receipt: Receipt) -> Any:
    """A receipt as it is answered: nearly always an id."""
    id, is_duplicate, replaced = receipt
    if not is_duplicate and replaced is None:
        return bytes(id)
    return bytes(id), is_duplicate, None if replaced is None else bytes(replaced)


class _Receipts(_Receipt):
    """Answers an enqueue of many."""

    __slots__ = ()

    def set_result(self, value: Any, /) -> None:
        self._link.answer(self._id, b"".join([receipt[0] for receipt in value]))


class _FullReceipts(_Receipt):
    """Answers an enqueue of many with options."""

    __slots__ = ()

    def set_result(self, value: Any, /) -> None:
        _answer_receipts(self._link, self._id, value)


def _answer_receipts(link: LinkPort, id: int, receipts: Sequence[Receipt]) -> None:
    written = [_written(one) for one in receipts]
    is_new = tuple not in map(type, written)
    link.answer_sized(id, b"".join(written) if is_new else written, 40 * len(written))


class _Done(_Receipt):
    """Answers what has no value."""

    __slots__ = ()

    def set_result(self, value: Any, /) -> None:
        self._link.answer(self._id, None)


def _enqueue(link: LinkPort, entry: requests.Enqueue) -> None:
    queue = queue_of(link, entry.handle)
    payload = _value(link, entry.kind, entry.payload, "payload")
    if payload is None or not link.serving.direct.enqueue(queue, payload, _Receipt(link, entry.id)):
        link.spawn(entry.id, _enqueue_slowly(link, queue, entry))


async def _enqueue_slowly(link: LinkPort, queue: EngineQueue, entry: requests.Enqueue) -> None:
    bytes_max = link.serving.hub.limits.value_bytes_max
    payload = await _checked(link, entry.kind, entry.payload, bytes_max, "payload")
    receipt = await queue.enqueue(payload)
    link.answer(entry.id, bytes(receipt.id))


def _small_options(link: LinkPort, packed: bytes) -> dict[str, Any]:
    return task_options(MSGPACK_FORM, link.serving.hub.limits, requests.read_options(packed))


async def _large_options(link: LinkPort, packed: bytes) -> dict[str, Any]:
    """As the document of a call: its parts are counted and read in turns."""
    hub = link.serving.hub
    given = await document(MSGPACK_FORM, packed, hub.view.turns())
    return task_options(MSGPACK_FORM, hub.limits, requests.options_of(given))


def _enqueue_with(link: LinkPort, entry: requests.EnqueueWith) -> None:
    queue = queue_of(link, entry.handle)
    limits, packed, n = link.serving.hub.limits, entry.options, len(entry.options)
    link.cost += _OPTIONS_COST * n
    options: dict[str, Any] | None = None
    if n <= _SMALL:
        options = _small_options(link, packed)
        payload = _value(link, entry.kind, entry.payload, "payload")
        if payload is not None:
            task, receipt = NewTask(payload, **options), _FullReceipt(link, entry.id)
            with suppress(UsageError):  # raised below, as of many
                if link.serving.direct.enqueue_with(queue, task, receipt):
                    return
        if n > _HELD:
            options = None
    elif n > (most := _OPTIONS_BYTES_MAX + limits.headers_bytes_max):
        text = f"the options have {n} bytes, the limit is {most}"
        raise PayloadTooLargeError(text, size_bytes=n, limit_bytes=most)
    link.spawn(entry.id, _enqueue_with_slowly(link, queue, entry, options))


async def _enqueue_with_slowly(
    link: LinkPort,
    queue: EngineQueue,
    entry: requests.EnqueueWith,
    options: dict[str, Any] | None,
) -> None:
    if options is None:
        async with link.calls_at_work:
            if link.transport is None:
                return
            link.check_time(entry.deadline)
            options = await _large_options(link, entry.options)
            await _enqueue_with_slowly(link, queue, entry, options)
        return
    bytes_max = link.serving.hub.limits.value_bytes_max
    payload = await _checked(link, entry.kind, entry.payload, bytes_max, "payload")
    (receipt,) = await queue.enqueue_many([NewTask(payload, **options)])
    link.answer(entry.id, _written(receipt))


def _enqueue_many(link: LinkPort, entry: requests.EnqueueMany) -> None:
    at_most(entry.payloads, "payloads", link.serving.hub.settings.batch_max)
    queue = queue_of(link, entry.handle)
    kind = entry.kind
    payloads: Sequence[Any] = entry.payloads
    link.cost += _TASK_COST * len(payloads)
    if kind:
        payloads = [_value(link, kind, one, "payload") for one in payloads]
    if None in payloads or not link.serving.direct.enqueue_many(
        queue, payloads, _Receipts(link, entry.id)
    ):
        link.spawn(entry.id, _enqueue_many_slowly(link, queue, entry))


async def _enqueue_many_slowly(
    link: LinkPort, queue: EngineQueue, entry: requests.EnqueueMany
) -> None:
    kind, bytes_max = entry.kind, link.serving.hub.limits.value_bytes_max
    async with link.slow_enqueues:
        if link.transport is None:
            return
        link.check_time(entry.deadline)
        tasks = [
            NewTask(await _checked(link, kind, one, bytes_max, "payload") if kind else one)
            for one in entry.payloads
        ]
        receipts = await queue.enqueue_many(tasks)
    link.answer(entry.id, b"".join([receipt.id for receipt in receipts]))


def _enqueue_many_with(link: LinkPort, entry: requests.EnqueueManyWith) -> None:
    given = entry.tasks
    at_most(given, "tasks", link.serving.hub.settings.batch_max)
    queue = queue_of(link, entry.handle)
    n = sum([len(options) for _, _, options in given if options is not None])
    if n > OPTIONS_BYTES_MAX:
        text = f"the options have {n} bytes, the limit is {OPTIONS_BYTES_MAX}: send fewer tasks"
        raise PayloadTooLargeError(text, size_bytes=n, limit_bytes=OPTIONS_BYTES_MAX)
    link.cost += _OPTIONS_TASK_COST * len(given) + _OPTIONS_COST * n
    tasks: list[NewTask] = []
    n_checked = sum([len(data) for kind, data, _ in given if kind == MSGPACK])
    if n <= _SMALL and n_checked <= _DIRECT_BYTES_MAX and len(given) <= _DIRECT_TASKS_MAX:
        try:
            for kind, data, packed in given:
                payload = _value(link, kind, data, "payload")
                if payload is None:
                    break
                options = {} if packed is None else _small_options(link, packed)
                tasks.append(NewTask(payload, **options))
        except UsageError as error:
            error.at(len(tasks))
            raise
        if len(tasks) == len(given):
            receipts = _FullReceipts(link, entry.id)
            with suppress(UsageError):  # raised below, with the place of the task
                if link.serving.direct.enqueue_tasks(queue, tasks, receipts):
                    return
        if link.slow_enqueues.locked():  # those that stand in line hold bytes, not objects
            tasks = []
    link.spawn(entry.id, _enqueue_many_with_slowly(link, queue, entry, tasks))


async def _enqueue_many_with_slowly(
    link: LinkPort, queue: EngineQueue, entry: requests.EnqueueManyWith, tasks: list[NewTask]
) -> None:
    hub = link.serving.hub
    bytes_max = hub.limits.value_bytes_max
    async with link.slow_enqueues:
        if link.transport is None:
            return
        link.check_time(entry.deadline)
        turns = hub.view.turns()
        try:
            for kind, data, packed in entry.tasks[len(tasks) :]:
                payload = await _checked(link, kind, data, bytes_max, "payload")
                options: dict[str, Any] = {}
                if packed is not None:
                    if len(packed) <= _SMALL:
                        options = _small_options(link, packed)
                    else:
                        options = await _large_options(link, packed)
                tasks.append(NewTask(payload, **options))
                await turns.give()
        except UsageError as error:
            error.at(len(tasks))
            raise
        receipts = await queue.enqueue_many(tasks)
    _answer_receipts(link, entry.id, receipts)


# -- the end of leases ---------------------------------------------------------------------


def _complete(link: LinkPort, entry: requests.Complete) -> None:
    kind, result = entry.kind, None
    is_small = True
    if kind is not None:
        result = _value(link, kind, entry.result or b"", "result")
        is_small = result is not None
    if not is_small or not link.serving.direct.complete(
        entry.task_id, entry.epoch, entry.token, result, entry.keep, _Done(link, entry.id)
    ):
        link.spawn(entry.id, _complete_slowly(link, entry))


async def _complete_slowly(link: LinkPort, entry: requests.Complete) -> None:
    hub = link.serving.hub
    result = None
    if entry.kind is not None:
        bytes_max = hub.limits.result_bytes_max
        result = await _checked(link, entry.kind, entry.result or b"", bytes_max, "result")
    proof = _proof(entry.task_id, entry.epoch, entry.token)
    await hub.view.complete_proved(proof, result, keep=entry.keep)
    link.answer(entry.id, None)


def _proof(task_id: bytes, epoch: int, token: bytes) -> LeaseProof:
    return LeaseProof(as_task_id(task_id), epoch, token)


class _AllDone(_Receipt):
    """Answers a complete of many that all were live."""

    __slots__ = ()

    def set_result(self, value: Any, /) -> None:
        self._link.answer(self._id, [])


def _complete_many(link: LinkPort, entry: requests.CompleteMany) -> None:
    if 0 < len(entry.leases) <= _DIRECT_MAX:
        ends = []
        for task_id, epoch, token, kind, data in entry.leases:
            result = None
            if kind is not None:
                result = _value(link, kind, data or b"", "result")
                if result is None:
                    break
            ends.append((task_id, epoch, token, result))
        else:
            link.cost += _TASK_COST * len(ends)
            if link.serving.direct.complete_many(ends, _AllDone(link, entry.id)):
                return
    link.spawn(entry.id, _complete_all(link, entry))


async def _complete_all(link: LinkPort, entry: requests.CompleteMany) -> None:
    hub = link.serving.hub
    at_most(entry.leases, "leases", hub.settings.batch_max)
    turns = hub.view.turns()
    pairs = []
    for task_id, epoch, token, kind, data in entry.leases:
        result = None
        if kind is not None:
            result = _value(link, kind, data or b"", "result")
            if result is None:
                bytes_max = hub.limits.result_bytes_max
                result = await _checked(link, kind, data or b"", bytes_max, "result")
        pairs.append((_proof(task_id, epoch, token), result))
        await turns.give()
    outcomes = await hub.view.complete_many_proved(pairs, None)
    lost = [(n, str(error)) for n, error in enumerate(outcomes) if error is not None]
    link.answer_sized(entry.id, lost, 64 * len(lost))


_VERBS: Final = ("nack", "release", "bury", "cancel")


def _end(link: LinkPort, entry: requests.End) -> None:
    if entry.verb not in _VERBS:
        raise UsageError(f"verb {entry.verb[:20]!r} is not one of {', '.join(_VERBS)}")
    link.spawn(entry.id, _end_lease(link, entry))


async def _end_lease(link: LinkPort, entry: requests.End) -> None:
    proof = _proof(entry.task_id, entry.epoch, entry.token)
    lease = await link.serving.hub.view.proved_lease(proof)
    if entry.verb == "nack":
        await lease.nack(delay=entry.delay, reason=entry.reason)
    elif entry.verb == "release":
        await lease.release(delay=entry.delay)
    elif entry.verb == "bury":
        await lease.bury(entry.reason)
    else:
        await lease.cancel()
    link.answer(entry.id, None)


def _heartbeat(link: LinkPort, entry: requests.Heartbeat) -> None:
    if entry.seconds is not None:
        duration_s(entry.seconds, "seconds")
    if len(entry.leases) <= _DIRECT_MAX:
        direct = link.serving.direct
        with suppress(NotLeaderError):  # of one shard: the others' leases are extended below
            deadlines = [direct.heartbeat(_proof(*one), entry.seconds) for one in entry.leases]
            if None not in deadlines:
                link.answer(entry.id, deadlines)
                return
    link.spawn(entry.id, _heartbeat_all(link, entry))


async def _heartbeat_all(link: LinkPort, entry: requests.Heartbeat) -> None:
    hub, direct = link.serving.hub, link.serving.direct
    at_most(entry.leases, "leases", hub.settings.batch_max)
    turns = hub.view.turns()
    deadlines: list[int | str] = []
    unknown: NotLeaderError | None = None
    for task_id, epoch, token in entry.leases:
        await turns.give()
        direct.check()
        proof = _proof(task_id, epoch, token)
        try:
            deadline_us = direct.heartbeat(proof, entry.seconds)
            if deadline_us is None:
                await hub.view.proved_lease(proof)  # raises once its end is committed
                deadline_us = direct.heartbeat(proof, entry.seconds)
        except LeaseLostError as error:
            deadlines.append(str(error))
            continue
        except NotLeaderError as error:
            unknown = error
            continue
        except StoragePoisonedError as error:
            unknown = NotLeaderError(str(error))  # as clients take it that know of leaders alone
            continue
        deadlines.append("the lease has ended" if deadline_us is None else deadline_us)
    if unknown is not None:  # who asks over HTTP is told which
        raise unknown
    link.answer_sized(entry.id, deadlines, 32 * len(deadlines))


# -- calls and cancel ----------------------------------------------------------------------


def _call(link: LinkPort, entry: requests.Call) -> None:
    link.calls[entry.id] = link.spawn(entry.id, calls.answer_call(link, entry))


def _cancel(link: LinkPort, entry: requests.Cancel) -> None:
    claim = link.claims.get(entry.id)
    if claim is not None:
        claim.take_back()
        return
    give_up = link.calls.pop(entry.id, None)  # its work sees so that nobody wants it
    if give_up is not None:
        give_up()
        return
    hub = link.serving.hub  # answered already, if it was a claim
    hub.view.give_back(hub.claims.take_back(link.claim_id(entry.id), link.access.owner))


HANDLERS: Final[Mapping[type, Callable[[LinkPort, Any], None]]] = {
    requests.Queue: name_queue,
    requests.Enqueue: _enqueue,
    requests.EnqueueMany: _enqueue_many,
    requests.Claim: claim,
    requests.Complete: _complete,
    requests.CompleteMany: _complete_many,
    requests.End: _end,
    requests.Heartbeat: _heartbeat,
    requests.Call: _call,
    requests.Cancel: _cancel,
    requests.EnqueueWith: _enqueue_with,
    requests.EnqueueManyWith: _enqueue_many_with,
}
