"""The calls a queue lives by, the short way: compact entries of the link in place of documents.

Each returns None, with nothing sent, where the call is not of the common form or no link is open;
the caller then goes the general way, which opens one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from ..errors import BusyError, UsageError
from ..repository.model.arguments import is_plain
from ..repository.model.codec import encode_value
from ..repository.model.values import NewTask, Receipt
from .calls import (
    CHUNK_BYTES_MAX,
    Call,
    PackedTask,
    QueueTemplate,
    Session,
    packed_options,
    packed_tasks,
)
from .documents.records import Granted, encode_payload
from .transport.entries import (
    AnswerLostError,
    NotBegunError,
    granted_of,
    moment_of,
    read_answer,
    receipt_in,
    receipts_in,
    task_id_of,
    task_ids_of,
)
from .transport.framed_link import FramedLink
from .transport.layout import Op
from .transport.shared_link import SharedLink
from .transport.target import Doubt

__all__ = ["FastCalls"]

_ENQUEUE: Final = Call("POST", "/tasks", is_write=True)
_CLAIM: Final = Call("POST", "/leases/claim")
_COMPLETE: Final = Call("POST", "/leases/complete", is_write=True)
_VALUE_BYTES_MAX: Final = 1 << 20
_ENQUEUE_OP, _ENQUEUE_MANY_OP, _CLAIM_OP = int(Op.ENQUEUE), int(Op.ENQUEUE_MANY), int(Op.CLAIM)
_COMPLETE_OP, _COMPLETE_MANY_OP = int(Op.COMPLETE), int(Op.COMPLETE_MANY)
_HEARTBEAT_OP: Final = int(Op.HEARTBEAT)
_ENQUEUE_WITH_OP: Final = int(Op.ENQUEUE_WITH_OPTIONS)
_ENQUEUE_MANY_WITH_OP: Final = int(Op.ENQUEUE_MANY_WITH_OPTIONS)
_receipt: Final = tuple.__new__


def _all_granted(entries: Sequence[Any], queue: str) -> list[Granted]:
    return [granted_of(one, queue) for one in entries]


def _all_deadlines(entries: Sequence[Any]) -> list[datetime | str]:
    return [one if isinstance(one, str) else moment_of(one) for one in entries]


class FastCalls:
    """The short way over one client's link."""

    def __init__(self, link: FramedLink | SharedLink, session: Session) -> None:
        self._link = link
        self._session = session
        self._limits = session.limits
        # The deadline of each request: the server begins nothing that this client has given up.
        self._timeout_s = link.target.timeout_s

    async def enqueue(self, template: QueueTemplate, payload: Any) -> Receipt | None:
        """``Queue.enqueue`` without options."""
        if type(payload) is bytes and len(payload) <= self._limits.value_bytes_max:
            kind, data = 0, payload
        else:
            kind, data = encode_payload(payload, template.codec, self._session)
        if template.is_all or len(data) > _VALUE_BYTES_MAX:
            return None
        connection = self._link.taken(_ENQUEUE_OP)
        if connection is None:
            return None
        try:
            answer = await connection.ask(_ENQUEUE_OP, template, (kind, data, self._timeout_s))
            task_id = read_answer(task_id_of, answer)
        except NotBegunError:
            return None
        except AnswerLostError as exc:
            raise self._link.target.lost(_ENQUEUE, exc) from exc
        receipt: Receipt = _receipt(Receipt, (task_id, False, None))
        return receipt

    async def enqueue_with(self, template: QueueTemplate, task: NewTask) -> Receipt | None:
        """``Queue.enqueue`` with options, but ``after``, ``on_failure`` and ``durable``."""
        connection = self._link.taken(_ENQUEUE_WITH_OP)
        if connection is None or template.is_all:
            return None
        try:
            kind, data = encode_payload(task.payload, template.codec, self._session)
            options = packed_options(self._session, template, task)
        except UsageError as error:
            error.at(0)  # as of many
            raise
        if options is None or len(data) > _VALUE_BYTES_MAX:
            return None
        try:
            members = kind, data, options, self._timeout_s
            answer = await connection.ask(_ENQUEUE_WITH_OP, template, members)
            return read_answer(receipt_in, answer)
        except NotBegunError:
            return None
        except AnswerLostError as exc:
            raise self._link.target.lost(_ENQUEUE, exc) from exc

    async def enqueue_many(
        self, template: QueueTemplate, tasks: Sequence[NewTask]
    ) -> list[Receipt] | None:
        """``Queue.enqueue_many`` of tasks that name no queue and wait for no others."""
        if template.is_all or not 0 < len(tasks) <= self._session.batch_max:
            return None
        session, codec = self._session, template.codec
        payloads: list[bytes] = []
        size, first = 0, -1
        for task in tasks:
            if not isinstance(task, NewTask) or not is_plain(task):
                return await self._enqueue_many_with(template, tasks)
            try:
                kind, data = encode_payload(task[0], codec, session)
            except UsageError as error:
                error.at(len(payloads))
                raise
            size += len(data)
            if kind != first:
                if payloads:
                    return await self._enqueue_many_with(template, tasks)
                first = kind
            payloads.append(data)
        if size > CHUNK_BYTES_MAX:
            return None
        connection = self._link.taken(_ENQUEUE_MANY_OP)
        if connection is None:
            return None
        try:
            members = first, payloads, self._timeout_s
            answer = await connection.ask(_ENQUEUE_MANY_OP, template, members)
            ids = read_answer(partial(task_ids_of, n=len(payloads)), answer)
        except NotBegunError:
            return None
        except AnswerLostError as exc:
            raise self._link.target.lost(_ENQUEUE, exc) from exc
        return [_receipt(Receipt, (one, False, None)) for one in ids]

    async def _enqueue_many_with(
        self, template: QueueTemplate, tasks: Sequence[NewTask]
    ) -> list[Receipt] | None:
        """The same with options, or payloads of several kinds."""
        if self._link.taken(_ENQUEUE_MANY_WITH_OP) is None:
            return None
        packed = packed_tasks(self._session, template, tasks)
        return None if packed is None else await self.enqueue_packed(template, packed)

    async def enqueue_packed(
        self, template: QueueTemplate, packed: Sequence[PackedTask]
    ) -> list[Receipt] | None:
        """The same of tasks that are checked."""
        connection = self._link.taken(_ENQUEUE_MANY_WITH_OP)
        if connection is None:
            return None
        try:
            members = packed, self._timeout_s
            answer = await connection.ask(_ENQUEUE_MANY_WITH_OP, template, members)
            return read_answer(partial(receipts_in, n=len(packed)), answer)
        except NotBegunError:
            return None
        except AnswerLostError as exc:
            raise self._link.target.lost(_ENQUEUE, exc) from exc

    async def claim(
        self,
        template: QueueTemplate,
        limit: int,
        lease_s: float,
        wait_s: float,
        worker: str,
        begun: Callable[[bytes], object],
    ) -> list[Granted] | None:
        """``Queue.claim``, one poll.

        Args:
            template: the queue.
            limit: 1 to 4,096.
            lease_s: seconds.
            wait_s: seconds that this poll may wait.
            worker: at most 256 bytes, checked.
            begun: called with the id by which it can be taken back, before it is sent.
        """
        connection = self._link.taken(_CLAIM_OP)
        if connection is None:
            return None
        members = limit, lease_s, wait_s, worker, wait_s + self._timeout_s
        try:
            answer = await connection.ask(_CLAIM_OP, template, members, wait_s, begun)
            return read_answer(partial(_all_granted, queue=template.name), answer)
        except NotBegunError:
            return None
        except BusyError as exc:
            if exc.not_begun:
                return None  # the general way has a line
            raise
        except AnswerLostError as exc:
            raise self._link.target.lost(_CLAIM, exc) from exc

    async def complete(self, lease: Granted, result: Any, keep: bool, doubt: Doubt) -> bool:
        """``Lease.complete`` without follow-ups. False: go the general way, within ``doubt``."""
        kind: int | None = None
        data: bytes | None = None
        if result is not None:
            codec = self._session.codecs.get(lease.queue)
            kind, data = encode_value(result, codec, self._limits.result_bytes_max, "result")
            if len(data) > _VALUE_BYTES_MAX:
                return False
        connection = self._link.taken(_COMPLETE_OP)
        if connection is None:
            return False
        proof = bytes(lease.task_id), lease.epoch, lease.token
        try:
            await connection.ask(_COMPLETE_OP, None, (*proof, kind, data, keep, self._timeout_s))
        except NotBegunError:
            return False
        except AnswerLostError as exc:
            lost = self._link.target.lost(_COMPLETE, exc)
            if keep and lease.policy.retention_ms > 0:
                doubt.of(lost)
                return False  # the same twice is the same as once
            raise lost from exc
        return True

    async def heartbeat_many(
        self, leases: Sequence[Granted], seconds: float | None
    ) -> list[datetime | str] | None:
        """``Engine.heartbeat_many``: a deadline for each, or how its lease was lost."""
        if len(leases) > self._session.batch_max:
            return None
        connection = self._link.taken(_HEARTBEAT_OP)
        if connection is None:
            return None
        proofs = [(bytes(one.task_id), one.epoch, one.token) for one in leases]
        try:
            members = proofs, seconds, self._timeout_s
            answer = await connection.ask(_HEARTBEAT_OP, None, members)
            return read_answer(_all_deadlines, answer)
        except (NotBegunError, AnswerLostError):  # the same twice is the same as once
            return None

    async def complete_many(
        self, pairs: Sequence[tuple[Granted, Any]], doubt: Doubt
    ) -> dict[int, str] | None:
        """``Engine.complete_many``: the details of leases that had ended, by position.

        None: go the general way, within ``doubt``.
        """
        if len(pairs) > self._session.batch_max:
            return None
        codecs, limit = self._session.codecs, self._limits.result_bytes_max
        entries: list[Any] = []
        size = 0
        is_kept = True
        for lease, result in pairs:
            kind: int | None = None
            data: bytes | None = None
            if result is not None:
                kind, data = encode_value(result, codecs.get(lease.queue), limit, "result")
                size += len(data)
            is_kept = is_kept and lease.policy.retention_ms > 0
            entries.append((bytes(lease.task_id), lease.epoch, lease.token, kind, data))
        if size > CHUNK_BYTES_MAX:
            return None
        connection = self._link.taken(_COMPLETE_MANY_OP)
        if connection is None:
            return None
        try:
            answer = await connection.ask(_COMPLETE_MANY_OP, None, (entries, self._timeout_s))
            lost: dict[int, str] = read_answer(dict, answer)
        except NotBegunError:
            return None
        except AnswerLostError as exc:
            error = self._link.target.lost(_COMPLETE, exc)
            if is_kept:
                doubt.of(error)
                return None
            raise error from exc
        return lost
