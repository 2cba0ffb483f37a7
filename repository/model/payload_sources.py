"""Sources of streamed payloads: a file or an iterable of bytes, read in slices.

The engine and its clients take the same ones. A source that blocks is read in a thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from ...errors import UsageError
from .codec import SLICE_BYTES

__all__ = ["PayloadSource", "blocking_slices_of", "is_read_again", "slices_of"]

_END: Final = object()
_InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes:
        """The next bytes; none at the end."""


PayloadSource: TypeAlias = AsyncIterable[bytes] | Iterable[bytes] | _Readable


def slices_of(source: Any, in_thread: _InThread) -> AsyncGenerator[bytes, None]:
    """The slices of a source. One that blocks is asked through ``in_thread``.

    Raises:
        UsageError: it is none, or, later, gives what is no bytes.
    """
    if isinstance(source, AsyncIterable):
        return _checked(source)
    ask, end = _asked(source)
    return _in_thread(in_thread, ask, end)


def blocking_slices_of(source: Any) -> Iterator[bytes]:
    """The slices of a source, for callers that may block.

    Raises:
        UsageError: as ``slices_of``; an async iterable needs an event loop.
    """
    if isinstance(source, AsyncIterable):
        raise UsageError(
            "enqueue_stream of a client that blocks takes a file or a plain iterable of bytes: "
            "an async one needs a client in its event loop"
        )
    ask, end = _asked(source)
    return (_bytes_of(chunk) for chunk in iter(_unstopped(ask), end))


def is_read_again(source: Any) -> bool:
    """Whether iterating it once more gives the same slices: it is a collection, no iterator."""
    if callable(getattr(source, "read", None)):
        return False
    return isinstance(source, Iterable) and iter(source) is not source


def _asked(source: Any) -> tuple[Callable[[], Any], object]:
    """A function that gives the next slice, and what it gives at the end."""
    if isinstance(source, bytes | bytearray | memoryview | str):
        raise UsageError("enqueue_stream takes a file or an iterable of bytes: enqueue takes bytes")
    if callable(getattr(source, "read", None)):
        return partial(source.read, SLICE_BYTES), b""
    if isinstance(source, Iterable):
        return partial(next, iter(source), _END), _END
    raise UsageError(
        f"enqueue_stream takes a file or an iterable of bytes, not {type(source).__name__}"
    )


def _unstopped(ask: Callable[[], Any]) -> Callable[[], Any]:
    def step() -> Any:
        try:
            return ask()
        except StopIteration as exc:  # no future can bear one: the call would never be over
            raise RuntimeError("the source of enqueue_stream raised StopIteration") from exc

    return step


async def _in_thread(
    in_thread: _InThread, ask: Callable[[], Any], end: object
) -> AsyncGenerator[bytes, None]:
    """Call ``ask`` in a thread until it gives ``end``. None is no end: it is refused later."""
    step = _unstopped(ask)
    while (chunk := await in_thread(step)) != end:
        yield _bytes_of(chunk)


async def _checked(source: AsyncIterable[Any]) -> AsyncGenerator[bytes, None]:
    async for chunk in source:
        yield _bytes_of(chunk)


def _bytes_of(chunk: Any) -> bytes:
    if type(chunk) is bytes:
        return chunk
    if isinstance(chunk, bytes | bytearray | memoryview):
        return bytes(chunk)
    raise UsageError(f"enqueue_stream takes slices of bytes, not {type(chunk).__name__}")
