"""Requests as they are written to a link, and answers as they are read from it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from msgspec import DecodeError
from msgspec.msgpack import Decoder

from ...engine.records.policy import decode_policy
from ...engine.runtime.task_id import TaskId, as_task_id
from ...errors import BusyError, ClosedError, LodeqError, UnreachableError, UsageError
from ...repository.model.codec import MSGPACK
from ...repository.model.faces import face_fields
from ...repository.model.values import Receipt
from ..calls import FORM, Call, QueueTemplate
from ..documents.problems import error_of
from ..documents.records import Granted
from ..documents.wire import Stored
from .layout import FRAME_BYTES_MAX, VERSION

__all__ = [
    "MISREAD",
    "AnswerLostError",
    "NotBegunError",
    "NotSpokenError",
    "SilentError",
    "TooLargeError",
    "call_members",
    "document_of",
    "error_in",
    "granted_of",
    "moment_of",
    "queue_document",
    "read_answer",
    "read_welcome",
    "receipt_in",
    "receipts_in",
    "task_id_of",
    "task_ids_of",
    "turned_away",
]

_ROOM: Final = 4 << 10  # bytes of a frame that are not the document
_decode = Decoder().decode
T = TypeVar("T")
MISREAD: Final = (  # what comes of reading as an answer what is none
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    struct.error,
    AttributeError,
    RecursionError,
)
_fromtimestamp = datetime.fromtimestamp


class NotSpokenError(Exception):
    """The server speaks HTTP only. Nothing was sent but a hello.

    Attributes:
        is_certain: it has said so. False: it closed without a word, as one that stops does, too.
    """

    def __init__(self, *, is_certain: bool = True) -> None:
        super().__init__()
        self.is_certain = is_certain


class NotBegunError(Exception):
    """The request was not begun: it may be sent again, whatever it is."""


class AnswerLostError(Exception):
    """The request was sent, and its answer will not come."""


class SilentError(AnswerLostError):
    """The same, of a server that is silent while others have its place: do not ask it again."""

    def __init__(
        self, text: str = "it has sent nothing for a while, and others have its place"
    ) -> None:
        super().__init__(text)


class TooLargeError(Exception):
    """The request fits no frame. It was not sent."""


def queue_document(template: QueueTemplate) -> bytes:
    """The document that gives a queue its handle."""
    return FORM.dumps(template.claim_doc | template.doc)


def document_of(call: Call) -> bytes | None:
    """The document of a call, as bytes.

    Raises:
        UsageError: an argument cannot be encoded.
        TooLargeError: it fits no frame.
    """
    if call.method != "POST":
        return None
    try:
        data = FORM.dumps({} if call.doc is None else call.doc)
    except (TypeError, ValueError, OverflowError) as exc:  # a lone surrogate, an object
        raise UsageError(f"{call.method} {call.path}: cannot be sent: {exc}") from exc
    if len(data) > FRAME_BYTES_MAX - _ROOM:
        raise TooLargeError
    return data


def call_members(call: Call, document: bytes | None, timeout_s: float) -> tuple[Any, ...]:
    """The members of a call's entry that come after its id, its deadline among them.

    Args:
        call: what is asked.
        document: from ``document_of``.
        timeout_s: seconds after which the client gives it up, and the server may too.
    """
    query = dict(call.query)
    for part in (call.path, *query, *query.values()):
        try:
            part.encode()
        except UnicodeEncodeError as exc:
            raise UsageError(f"{call.method} {call.path!r}: cannot be sent: {exc}") from exc
    return (call.method, call.path, query, document, timeout_s)


def error_in(problem: Any) -> LodeqError:
    """The error that a problem describes."""
    try:
        status = problem.get("status", 500) if isinstance(problem, dict) else 500
        error = error_of(problem, status)
    except MISREAD:
        error = error_of(repr(problem), 500)  # no problem document
    if isinstance(error, ClosedError):  # its store is closed, not this client
        return UnreachableError(f"the server is stopping, and has not done it: {error}")
    return error


def read_answer(read: Callable[[Any], T], value: Any) -> T:
    """The content of an answer.

    Raises:
        AnswerLostError: nothing that can be read.
    """
    try:
        return read(value)
    except (*MISREAD, LodeqError) as exc:
        raise AnswerLostError(f"the server's answer cannot be read: {exc!r}") from exc


def task_ids_of(ids: bytes, n: int) -> list[TaskId]:
    """The ids of ``n`` tasks, 16 bytes each."""
    if len(ids) != 16 * n:
        raise ValueError(f"{len(ids)} bytes are not the ids of {n} tasks")
    return [as_task_id(ids[at : at + 16]) for at in range(0, len(ids), 16)]


def task_id_of(id: bytes) -> TaskId:
    """The id of a task."""
    return task_ids_of(id, 1)[0]


def receipt_in(value: Any) -> Receipt:
    """The receipt of an enqueue with options: an id, or what else there is to say."""
    if type(value) is bytes:
        return Receipt(task_id_of(value))
    id, is_duplicate, replaced = value[:3]
    return Receipt(task_id_of(id), is_duplicate, None if replaced is None else task_id_of(replaced))


def receipts_in(value: Any, n: int) -> list[Receipt]:
    """The receipts of an enqueue of ``n`` tasks with options: ids, or what ``receipt_in`` reads."""
    if type(value) is bytes:
        return [Receipt(one) for one in task_ids_of(value, n)]
    if len(value) != n:
        raise ValueError(f"{len(value)} receipts are not those of {n} tasks")
    return [receipt_in(one) for one in value]


def moment_of(us: int) -> datetime:
    """A moment from microseconds since 1970."""
    return _fromtimestamp(us / 1e6, UTC)


def granted_of(entry: Sequence[Any], queue: str) -> Granted:
    """A lease as it was granted."""
    headers = entry[11]
    return Granted(
        as_task_id(entry[0]),
        entry[1],
        entry[2],
        queue,
        entry[12],
        entry[3],
        entry[4],
        decode_policy(entry[8]),
        _fromtimestamp(entry[5] / 1e6, UTC),
        _fromtimestamp(entry[6] / 1e6, UTC),
        entry[7],
        Stored(entry[9], entry[10]),
        None if headers is None else Stored(MSGPACK, headers),
        **(face_fields(entry[13]) if len(entry) > 13 and entry[13] else {}),  # older: none
        payload_bytes=entry[14] if len(entry) > 14 else len(entry[10]),
    )


def turned_away(data: bytes) -> BusyError | None:
    """The error of a server that answers the hello so because it has too many callers."""
    if not data.startswith(b"HTTP/1.1 503 "):
        return None
    return BusyError("the server has as many callers as it accepts: try again", not_begun=True)


def read_welcome(body: bytes) -> Iterable[int]:
    """The operations that the server takes.

    Raises:
        LodeqError: it refuses this client.
        NotSpokenError: it speaks another version.
    """
    try:
        is_welcome, value = _decode(body[1:])[:2]
    except (DecodeError, ValueError, TypeError) as exc:
        raise NotSpokenError from exc
    if not is_welcome:
        if body[0] == 0:  # knows no version that we know
            raise NotSpokenError
        raise error_in(value)
    if body[0] != VERSION:
        raise NotSpokenError
    found: Iterable[int] = value
    return found
