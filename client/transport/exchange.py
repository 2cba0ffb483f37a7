"""One link without its connection, whoever reads and writes it: bytes out, bytes in.

Any number of requests are under way at once. Whoever puts one keeps its ``Slot``, in which the
answer arrives. A client that has no loop of its own to read for it (threads, trio) lets one of
those who wait read for all: see ``shared_link`` and ``blocking_link``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from msgspec import DecodeError
from msgspec.msgpack import Decoder

from ...engine.runtime.ids import SystemRng
from ..calls import QueueTemplate
from .entries import (
    MISREAD,
    AnswerLostError,
    NotBegunError,
    error_in,
    queue_document,
    read_welcome,
    turned_away,
)
from .layout import (
    HANDLES_MAX,
    NONCE_BYTES,
    FrameReader,
    FrameSizeError,
    Op,
    Status,
    claim_id_of,
    frames_of,
    hello_frame,
)

__all__ = ["FramedExchange", "Roles", "Slot"]

_decode = Decoder().decode


class Slot:
    """Where the answer to one request arrives."""

    __slots__ = ("error", "id", "is_done", "parts", "value")

    def __init__(self) -> None:
        self.id = 0
        self.is_done = False
        self.value: Any = None
        self.error: Exception | None = None
        self.parts: list[bytes] = []  # of its answer, so far

    def end(self, value: Any, error: Exception | None = None) -> None:
        """The answer, or why there is none."""
        self.is_done, self.value, self.error = True, value, error

    def result(self) -> Any:
        """The answer.

        Raises:
            NotBegunError, AnswerLostError: the connection was lost. LodeqError: the server's.
        """
        if self.error is not None:
            raise self.error
        return self.value


S = TypeVar("S", bound=Slot)


class FramedExchange(Generic[S]):
    """The state of one connection, as far as a client needs it: what both ends have said.

    Attributes:
        is_open: whether a request may be put.
        operations: those that the server takes; none before its welcome.
        pending: the requests that are not answered, by id.
        unsent: the requests that ``outgoing`` has not given out yet.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.operations: frozenset[int] = frozenset()
        self.pending: dict[int, S] = {}
        self.unsent: list[S] = []
        self._nonce = SystemRng().bytes(NONCE_BYTES)
        self._id = 0
        self._handles: dict[QueueTemplate, int] = {}
        self._reader = FrameReader()
        self._out: list[Any] = []

    # -- hello -----------------------------------------------------------------------------

    def hello(self, token: str | None) -> bytes:
        """The first bytes to send."""
        return hello_frame(token, self._nonce)

    def welcomed(self, data: bytes) -> bool:
        """Take bytes; whether the welcome is whole.

        Raises:
            NotSpokenError: the server speaks HTTP only. LodeqError: it refuses this client.
            AnswerLostError: it closed.
        """
        if not data:
            raise AnswerLostError("the server closed the connection")
        if (error := turned_away(data)) is not None:
            raise error
        for body in self._reader.feed(data):
            self.operations = frozenset(read_welcome(body))
            self.is_open = True
        return self.is_open

    # -- requests --------------------------------------------------------------------------

    def put(
        self,
        slot: S,
        operation: int,
        template: QueueTemplate | None,
        members: tuple[Any, ...],
        begun: Callable[[bytes], object] | None = None,
    ) -> None:
        """Put a request behind all others. ``outgoing`` has its bytes.

        Args:
            slot: gets the answer.
            operation: its number.
            template: the queue that it is about, whose handle goes before ``members``.
            members: what follows id and handle.
            begun: called with the id by which a claim can be taken back.

        Raises:
            NotBegunError: the connection takes no more.
        """
        if not self.is_open:
            raise NotBegunError
        self._id = id = self._id + 1
        if template is None:
            entry = (operation, id, *members)
        else:
            entry = (operation, id, self._handle(template), *members)
        if begun is not None:
            begun(claim_id_of(self._nonce, id))
        slot.id = id
        self.pending[id] = slot
        self.unsent.append(slot)
        self._out.append(entry)

    def _handle(self, template: QueueTemplate) -> int:
        """The number of a queue on this connection; it is sent first if it is new."""
        found = self._handles.get(template)
        if found is not None:
            return found
        if len(self._handles) >= HANDLES_MAX:
            self._handles.clear()  # numbers may be given anew
        number = self._handles[template] = len(self._handles)
        self._out.append((int(Op.QUEUE), number, queue_document(template)))
        return number

    def forget(self, slot: S) -> None:
        """Nobody waits for this answer any more: the server is told, and may end what waits."""
        if slot in self.unsent:
            self.unsent.remove(slot)  # nobody is there to write
        if self.pending.pop(slot.id, None) is not None and self.is_open:
            self._out.append((int(Op.CANCEL), slot.id))

    @property
    def has_unsent(self) -> bool:
        """Whether ``outgoing`` has anything to give."""
        return bool(self._out)

    def outgoing(self) -> bytes:
        """The bytes of all that was put, in one frame if they fit; none if there is nothing.

        Raises:
            AnswerLostError: a request cannot be written.
        """
        if not self._out:
            return b""
        out, self._out, self.unsent = self._out, [], []
        try:
            return frames_of(out)
        except (TypeError, ValueError, OverflowError) as exc:  # whoever waits must hear of it
            raise AnswerLostError(f"a request cannot be written: {exc}") from exc

    # -- answers ---------------------------------------------------------------------------

    def incoming(self, data: bytes) -> Iterator[S]:
        """Take bytes; the requests that they end, answered or not.

        Raises:
            AnswerLostError: the connection is of no more use; see ``lose``.
        """
        if not data:
            raise AnswerLostError("the server closed the connection")
        try:
            for body in self._reader.feed(data):
                for entry in _decode(body):
                    yield from self._take(*entry[:3])
        except (FrameSizeError, DecodeError, *MISREAD) as exc:
            raise AnswerLostError(f"the server answers with what is no frame: {exc}") from exc

    def _take(self, id: int, status: int, value: Any) -> Iterator[S]:
        if status == Status.GOODBYE:
            self.is_open = False
            for other in [one for one in self.pending if one > value]:
                slot = self.pending.pop(other)
                slot.end(None, NotBegunError())
                yield slot
            self.unsent = [one for one in self.unsent if not one.is_done]
        elif not id:
            raise AnswerLostError(str(error_in(value)))
        elif id in self.pending:
            slot = self.pending[id]
            if status == Status.PART:
                slot.parts.append(value)
                return
            if status == Status.DONE:
                slot.end(b"".join((*slot.parts, value)) if slot.parts else value)
            else:
                slot.end(None, error_in(value))
            del self.pending[id]
            yield slot

    def lose(self, text: str, kind: type[Exception] = AnswerLostError) -> list[S]:
        """The connection is lost: whoever waits hears so, each in an error of its own."""
        self.is_open = False
        pending, self.pending = self.pending, {}
        self._out, self.unsent = [], []
        for slot in pending.values():
            slot.end(None, kind(text))
        return list(pending.values())


class Roles(Generic[S]):
    """Which of those who share a connection does what for all of them.

    Args:
        exchange: of the connection.

    Attributes:
        reading, writing: whoever reads, and whoever writes; None: nobody does.
        asking: whoever asks whether the server is given up.
    """

    __slots__ = ("_exchange", "asking", "reading", "writing")

    def __init__(self, exchange: FramedExchange[S]) -> None:
        self._exchange = exchange
        self.reading: S | None = None
        self.writing: S | None = None
        self.asking: S | None = None

    def other_unsent(self, own: S | None) -> S | None:
        """One, but not ``own``, whose request is not sent yet and who could write."""
        for other in self._exchange.unsent:
            if other not in (own, self.reading, self.writing, self.asking):
                return other
        return None

    def successor(self) -> S | None:
        """Whom to wake, so that there is one who writes, or else reads; None: nobody need be."""
        writer = None if self.writing is not None else self.other_unsent(None)
        if writer is not None or self.reading is not None:
            return writer
        for slot in self._exchange.pending.values():
            if slot is not self.writing and slot is not self.asking:
                return slot
        return None
