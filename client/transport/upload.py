"""The body of one upload: the slices of a source, as a client sends them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from anyio.to_thread import run_sync

from ...repository.model.codec import SLICE_BYTES, too_large
from ...repository.model.payload_sources import blocking_slices_of, slices_of

__all__ = ["Upload"]


# A cancelled call does not wait for a source that gives nothing.
_in_thread: Final = partial(run_sync, abandon_on_cancel=True)


class Upload:
    """One try to send a payload. Iterate it once, in one of the two ways.

    Args:
        source: as ``Queue.enqueue_stream`` takes it.
        bytes_max: of the payload, that the server takes.
        moved: called for each part.

    Attributes:
        error: why it broke off: the source's own error, or that it is too large.
        is_whole: whether all of it was given out. Before that the server cannot have taken it.
    """

    def __init__(self, source: Any, bytes_max: int, moved: Callable[[], object]) -> None:
        self.error: Exception | None = None
        self.is_whole = False
        self._source = source
        self._bytes_max = bytes_max
        self._moved = moved
        self._size = 0

    async def slices(self) -> AsyncGenerator[bytes, None]:
        """The payload. A source that blocks is read in a thread."""
        try:
            async with aclosing(slices_of(self._source, _in_thread)) as chunks:
                async for chunk in chunks:
                    for part in self._parts(chunk):
                        yield part
        except Exception as exc:
            self.error = exc
            raise
        self.is_whole = True

    def blocking_slices(self) -> Iterator[bytes]:
        """The payload, for callers that may block."""
        try:
            for chunk in blocking_slices_of(self._source):
                yield from self._parts(chunk)
        except Exception as exc:
            self.error = exc
            raise
        self.is_whole = True

    def _parts(self, chunk: bytes) -> Iterator[bytes]:
        """A slice in parts, of which each is soon sent."""
        self._size += len(chunk)
        if self._size > self._bytes_max:
            raise too_large("payload", self._size, self._bytes_max)
        for at in range(0, len(chunk), SLICE_BYTES):
            self._moved()
            yield chunk[at : at + SLICE_BYTES]
