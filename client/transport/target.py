"""Where a link leads, the errors of one that is lost, and what a second try may say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from types import TracebackType
from typing import Final, NamedTuple, Self

from ...errors import (
    BusyError,
    ClosedError,
    CommitUnknownError,
    LodeqError,
    NotLeaderError,
    StorageError,
    UnreachableError,
)
from ..calls import Call

__all__ = ["SILENCE_S", "TRIES", "Doubt", "FramedTarget", "GivenUp"]

TRIES: Final = 8  # with a server that closes before anything is begun
SILENCE_S: Final = 1.0  # in which a server that has been asked something sends nothing
# Whether a server that has sent nothing for that long is to be given up: another has its place.
GivenUp = Callable[[], Awaitable[bool]]
# An ``UnreachableError`` is a ``BusyError``.
_NOT_WRITTEN: Final = BusyError, ClosedError, NotLeaderError, StorageError


class Doubt:
    """Around the tries of one call: one whose answer was lost may have been done.

    Where a later try finds nobody, or is not taken, what is raised is that it is unknown, not that
    nothing was done.

    Attributes:
        unknown: of the first try whose answer was lost.
    """

    __slots__ = ("unknown",)

    def __init__(self) -> None:
        self.unknown: CommitUnknownError | None = None

    def of(self, error: LodeqError) -> None:
        """The answer of a try was lost; of one that only reads nothing is unknown."""
        if self.unknown is None and isinstance(error, CommitUnknownError):
            self.unknown = error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, CommitUnknownError):
            return
        if self.unknown is not None and isinstance(error, _NOT_WRITTEN):
            self.unknown.receipts = error.receipts or self.unknown.receipts
            raise self.unknown from error


class FramedTarget(NamedTuple):
    """The address of a server.

    Attributes:
        url: as the user gave it, for errors.
        address: a socket's path, or host and port.
        token: the server's, if it has one.
        timeout_s: seconds until a server that does not answer is given up.
        connect_s: seconds until it is where it does not even say hello, if that is sooner.
    """

    url: str
    address: str | tuple[str, int]
    token: str | None
    timeout_s: float
    connect_s: float = inf

    @property
    def hello_s(self) -> float:
        """Seconds until a connection is there, hello and welcome included."""
        return min(self.timeout_s, self.connect_s)

    def __repr__(self) -> str:
        return f"<FramedTarget {self.url}>"  # not the token

    def unreached(self, exc: Exception) -> UnreachableError:
        """The error where no connection could be made."""
        text = f"{self.url}: {type(exc).__name__} {exc}".rstrip()
        return UnreachableError(f"{text}; is the server running?")

    def closing(self) -> UnreachableError:
        """The error where the server has closed ``TRIES`` times, with nothing begun."""
        return UnreachableError(f"{self.url}: the server keeps closing the connection")

    def lost(self, call: Call, exc: Exception) -> LodeqError:
        """The error where a request was sent and its answer will not come."""
        text = f"{self.url}: {exc}".rstrip(": ")
        if not call.is_write:
            return UnreachableError(f"{text}; is the server running?")
        return CommitUnknownError(f"{text}: {call.lost_text}")
