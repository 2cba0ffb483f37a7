"""Numbers and bounds of the link, and how frames are put together: docs/link.md, for both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final

from msgspec.msgpack import Encoder

__all__ = [
    "ENTRIES_MAX",
    "FIRST_BYTE",
    "FRAME_BYTES_MAX",
    "HANDLES_MAX",
    "HEAD_BYTES",
    "HELLO_BYTES_MAX",
    "NONCE_BYTES",
    "OWN_FRAME_BYTES",
    "PART_BYTES",
    "VERSION",
    "FrameReader",
    "FrameSizeError",
    "Op",
    "Status",
    "claim_id_of",
    "entry_count",
    "frame_of",
    "frames_of",
    "hello_frame",
]

VERSION: Final = 1
FIRST_BYTE: Final = 0
HEAD_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 8 << 20
ENTRIES_MAX: Final = 4096
HANDLES_MAX: Final = 1024
HELLO_BYTES_MAX: Final = 4 << 10
NONCE_BYTES: Final = 8
OWN_FRAME_BYTES: Final = 256 << 10  # an entry of more has a frame of its own
PART_BYTES: Final = 1 << 20  # of the answer to a call, in one frame

_encode = Encoder().encode


class Op(IntEnum):
    """Operations. Never renumber."""

    QUEUE = 0
    ENQUEUE = 1
    ENQUEUE_MANY = 2
    CLAIM = 3
    COMPLETE = 4
    COMPLETE_MANY = 5
    END = 6
    HEARTBEAT = 7
    CALL = 8
    CANCEL = 9
    ENQUEUE_WITH_OPTIONS = 10
    ENQUEUE_MANY_WITH_OPTIONS = 11


class Status(IntEnum):
    """The kind of an answer. Never renumber."""

    DONE = 0
    PART = 1
    PROBLEM = 2
    GOODBYE = 3


class FrameSizeError(Exception):
    """A frame is empty, too long, or has too many entries: the connection ends."""


class FrameReader:
    """Cuts what a connection receives into the bodies of frames."""

    __slots__ = ("_buffer", "bytes_max")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max  # of a frame's body
        self._buffer = bytearray()

    @property
    def size(self) -> int:
        """Bytes that are kept: part of a frame, or frames that were not taken."""
        return len(self._buffer)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not self._buffer

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes; the bodies of the frames that they complete, to be taken one by one.

        What is not taken is kept for the next call.

        Raises:
            FrameSizeError: when a frame is met that is empty or longer than ``bytes_max``.
        """
        buffer = self._buffer
        if not buffer and len(data) >= HEAD_BYTES:  # nearly always one whole frame
            size = int.from_bytes(data[:HEAD_BYTES], "big")
            if size + HEAD_BYTES == len(data) and 0 < size <= self.bytes_max:
                yield data[HEAD_BYTES:]
                return
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= HEAD_BYTES:
                size = int.from_bytes(buffer[at : at + HEAD_BYTES], "big")
                if not 0 < size <= self.bytes_max:
                    raise FrameSizeError(f"a frame of {size} bytes: 1 to {self.bytes_max} are")
                end = at + HEAD_BYTES + size
                if len(buffer) < end:
                    break
                body = bytes(memoryview(buffer)[at + HEAD_BYTES : end])
                at = end
                yield body
        finally:
            del buffer[:at]


def entry_count(body: bytes) -> int:
    """The number of entries that a frame's body announces.

    Raises:
        FrameSizeError: it is no array, or has more than ``ENTRIES_MAX``.
    """
    first = body[0]
    if 0x90 <= first <= 0x9F:
        return first & 15
    count = -1
    if first == 0xDC and len(body) >= 3:
        count = int.from_bytes(body[1:3], "big")
    elif first == 0xDD and len(body) >= 5:
        count = int.from_bytes(body[1:5], "big")
    if not 0 <= count <= ENTRIES_MAX:
        raise FrameSizeError(f"a frame is an array of at most {ENTRIES_MAX} entries")
    return count


def frame_of(body: bytes) -> bytes:
    """A body behind its length."""
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def frames_of(entries: Sequence[Any]) -> bytes:
    """Frames of these entries: one, unless that would be too long."""
    if len(entries) <= ENTRIES_MAX:
        body: bytes = _encode(entries)
        if len(body) <= PART_BYTES or len(entries) == 1:
            return len(body).to_bytes(HEAD_BYTES, "big") + body
    half = len(entries) // 2
    return frames_of(entries[:half]) + frames_of(entries[half:])


def hello_frame(token: str | None, nonce: bytes) -> bytes:
    """The first frame of a client."""
    return frame_of(bytes((VERSION,)) + _encode((token, nonce, "lodeq")))


def claim_id_of(nonce: bytes, request_id: int) -> bytes:
    """The id by which a claim can be taken back from elsewhere."""
    return nonce + request_id.to_bytes(8, "big")
