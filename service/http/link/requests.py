"""Requests of the link as they are decoded: one class for each operation (docs/link.md).

The decoder checks every element's type, makes no object that is not asked for, and passes over
elements behind the last one that it knows.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgpack import ExtType
from msgspec import UNSET, Meta, Struct

from ....client.documents.wire import MSGPACK_FORM
from ....client.transport.layout import HANDLES_MAX, NONCE_BYTES, Op, entry_count
from ....repository.model.arguments import LIMIT_MAX
from ..document_reader import read
from ..schemas import TaskOptions

__all__ = [
    "Call",
    "Cancel",
    "Claim",
    "Complete",
    "CompleteMany",
    "End",
    "Enqueue",
    "EnqueueMany",
    "EnqueueManyWith",
    "EnqueueWith",
    "Heartbeat",
    "Hello",
    "MalformedError",
    "Queue",
    "Request",
    "options_of",
    "read_entry",
    "read_frame",
    "read_hello",
    "read_options",
]

ITEMS_MAX: Final = 4096  # of one request
Id = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Handle = Annotated[int, Meta(ge=0, le=HANDLES_MAX - 1)]
Kind = Annotated[int, Meta(ge=0, le=2)]
TaskIdBytes = Annotated[bytes, Meta(min_length=16, max_length=16)]
Seconds = Annotated[float, Meta(ge=0)]
# ``deadline`` of a request: as it is read, seconds from its arrival; once it is begun, a time of
# the loop's clock. Behind the elements that every client sends.
Proof = tuple[TaskIdBytes, int, bytes]
Result = tuple[TaskIdBytes, int, bytes, Kind | None, bytes | None]


class MalformedError(Exception):
    """A frame is not what docs/link.md describes: the connection ends."""


class Queue(Struct, array_like=True, tag=Op.QUEUE.value):
    """Gives a queue a number."""

    handle: Handle
    document: bytes


class Enqueue(Struct, array_like=True, tag=Op.ENQUEUE.value, gc=False):
    """One task without options."""

    id: Id
    handle: Handle
    kind: Kind
    payload: bytes
    deadline: Seconds | None = None


class EnqueueMany(Struct, array_like=True, tag=Op.ENQUEUE_MANY.value):
    """Many tasks without options."""

    id: Id
    handle: Handle
    kind: Kind
    payloads: Annotated[list[bytes], Meta(min_length=1, max_length=ITEMS_MAX)]
    deadline: Seconds | None = None


class Claim(Struct, array_like=True, tag=Op.CLAIM.value, gc=False):
    """Leases of one queue."""

    id: Id
    handle: Handle
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)]
    lease: float | None
    wait: Seconds
    worker: str
    deadline: Seconds | None = None


class Complete(Struct, array_like=True, tag=Op.COMPLETE.value, gc=False):
    """The end of one task, with its result."""

    id: Id
    task_id: TaskIdBytes
    epoch: int
    token: bytes
    kind: Kind | None
    result: bytes | None
    keep: bool
    deadline: Seconds | None = None


class CompleteMany(Struct, array_like=True, tag=Op.COMPLETE_MANY.value):
    """The ends of many tasks, with their results."""

    id: Id
    leases: Annotated[list[Result], Meta(max_length=ITEMS_MAX)]
    deadline: Seconds | None = None


class End(Struct, array_like=True, tag=Op.END.value, gc=False):
    """The end of a lease whose task is not completed."""

    id: Id
    task_id: TaskIdBytes
    epoch: int
    token: bytes
    verb: str
    delay: Seconds | None
    reason: str
    deadline: Seconds | None = None


class Heartbeat(Struct, array_like=True, tag=Op.HEARTBEAT.value):
    """Leases that are to last longer."""

    id: Id
    leases: Annotated[list[Proof], Meta(max_length=ITEMS_MAX)]
    seconds: Seconds | None
    deadline: Seconds | None = None


class Call(Struct, array_like=True, tag=Op.CALL.value):
    """Any request of HTTP."""

    id: Id
    method: str
    path: str
    query: Annotated[dict[str, str], Meta(max_length=64)]
    document: bytes | None
    deadline: Seconds | None


class Cancel(Struct, array_like=True, tag=Op.CANCEL.value, gc=False):
    """The id of a request whose answer nobody wants."""

    id: Id


class EnqueueWith(Struct, array_like=True, tag=Op.ENQUEUE_WITH_OPTIONS.value, gc=False):
    """One task; ``options`` is a document."""

    id: Id
    handle: Handle
    kind: Kind
    payload: bytes
    options: bytes
    deadline: Seconds | None = None


class EnqueueManyWith(Struct, array_like=True, tag=Op.ENQUEUE_MANY_WITH_OPTIONS.value):
    """Many tasks, each with its options or None."""

    id: Id
    handle: Handle
    tasks: Annotated[
        list[tuple[Kind, bytes, bytes | None]], Meta(min_length=1, max_length=ITEMS_MAX)
    ]
    deadline: Seconds | None = None


Request = (
    Queue
    | Enqueue
    | EnqueueMany
    | Claim
    | Complete
    | CompleteMany
    | End
    | Heartbeat
    | Call
    | Cancel
    | EnqueueWith
    | EnqueueManyWith
)


class Hello(Struct, array_like=True):
    """The first words of a client, behind the version."""

    token: str | None
    nonce: Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    agent: str = ""


_LARGE: Final = 256 << 10  # bytes of a frame whose entries are decoded one by one
_RAW: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_REQUEST: Final = msgspec.msgpack.Decoder(Request)
_REQUESTS: Final = msgspec.msgpack.Decoder(list[Request])
_HELLO: Final = msgspec.msgpack.Decoder(Hello)
_OPTIONS: Final = msgspec.msgpack.Decoder(
    TaskOptions, ext_hook=lambda code, data: ExtType(code, bytes(data))
)
_SAME_READ: Final = (UNSET.__class__, ExtType)  # of headers
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_frame(body: bytes) -> list[Any]:
    """The requests of a frame; if it is large, as what ``read_entry`` takes.

    Raises:
        MalformedError: it is none of requests.
        FrameSizeError: it has too many.
    """
    entry_count(body)
    try:
        return _REQUESTS.decode(body) if len(body) < _LARGE else _RAW.decode(body)
    except _ERRORS as exc:
        raise MalformedError(f"no frame of requests: {exc}") from exc


def read_entry(raw: msgspec.Raw) -> Any:
    """One request of a large frame.

    Raises:
        MalformedError: it is none.
    """
    try:
        return _REQUEST.decode(raw)
    except _ERRORS as exc:
        raise MalformedError(f"no request: {exc}") from exc


def read_hello(body: bytes) -> tuple[int, Hello]:
    """The version and the hello of a first frame.

    Raises:
        MalformedError: it is none.
    """
    try:
        return body[0], _HELLO.decode(body[1:])
    except _ERRORS as exc:
        raise MalformedError(f"no hello: {exc}") from exc


def read_options(packed: bytes) -> TaskOptions:
    """The options of one task.

    Raises:
        UsageError: they are none, as ``options_of``.
    """
    try:
        found: TaskOptions = _OPTIONS.decode(packed)
    except _ERRORS:  # what is read more liberally, or is wrong
        return options_of(MSGPACK_FORM.loads(packed))
    if found.run_at is not None or found.headers.__class__ not in _SAME_READ:
        return options_of(MSGPACK_FORM.loads(packed))
    return found


def options_of(document: Any) -> TaskOptions:
    """The options in a document, as a call of ``POST /tasks`` reads them.

    Raises:
        UsageError: one is missing, unknown, or not what it must be.
    """
    return read(MSGPACK_FORM, document, TaskOptions)
