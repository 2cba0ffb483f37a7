"""Records to be appended: checked and framed.

What a reader would refuse is refused here: nothing that was acknowledged is ever found unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from ...engine.records.compression import Compressor
from ...errors import UsageError
from .log_format import (
    FRAME_BYTES_MAX,
    RECORD_BYTES_MAX,
    encode_frame,
    encode_meta,
    too_large,
)

__all__ = ["Framer", "expiry_us"]


class Framer:
    """Frames for one journal. ``compressor``: None, or what payloads are compressed with."""

    def __init__(self, compressor: Compressor | None = None) -> None:
        self._compressor = compressor
        self.is_plain = compressor is None  # payloads stay as they are

    def frame(
        self,
        first: int,
        time_us: int,
        payloads: Sequence[bytes],
        *,
        headers: Sequence[Mapping[str, str] | None] = (),
        times_us: Sequence[int] = (),
        expire_us: Sequence[int] = (),
    ) -> bytes:
        """One frame; see ``LogWriter.append``.

        Args:
            first: number of the first record.
            time_us: Unix microseconds.
            payloads: at least one.
            headers: empty, or one per payload.
            times_us: empty, or one per payload, in Unix microseconds.
            expire_us: empty, or one per payload; 0: never.

        Raises:
            PayloadTooLargeError, UsageError: they are none.
        """
        if not payloads:
            raise UsageError("no records: a batch has at least one")
        metas: Sequence[bytes] = ()
        if headers or times_us or expire_us:
            metas = _metas(len(payloads), headers, times_us, expire_us)
        if self._compressor is None:
            return encode_frame(first, time_us, payloads, metas=metas)
        stored, raws = _packed(self._compressor, payloads)
        code = self._compressor.code << 1 if raws else 0
        return encode_frame(first, time_us, stored, metas=metas, raws=raws, compression=code)


def _packed(
    compressor: Compressor, payloads: Sequence[bytes]
) -> tuple[Sequence[bytes], Sequence[int]]:
    """Payloads as they are stored, and their sizes; no sizes: none of them gains by it.

    What a batch may hold does not depend on how well it can be compressed.
    """
    for payload in payloads:
        if not isinstance(payload, bytes | bytearray):
            raise UsageError(f"payloads are bytes, not {type(payload).__name__}")
    raws = [len(payload) for payload in payloads]
    limit = FRAME_BYTES_MAX if len(raws) > 1 else RECORD_BYTES_MAX
    if sum(raws) > limit:
        raise too_large(len(raws), sum(raws), limit)
    packed = [compressor.pack(payload) for payload in payloads]
    stored = [data for _, data in packed]
    return (stored, raws) if any(code for code, _ in packed) else (stored, ())


def _metas(
    count: int,
    headers: Sequence[Mapping[str, str] | None],
    times_us: Sequence[int],
    expire_us: Sequence[int],
) -> Sequence[bytes]:
    for name, given in (("headers", headers), ("times_us", times_us), ("ttls", expire_us)):
        if given and len(given) != count:
            raise UsageError(f"{len(given)} {name} for {count} payloads: give one for each, or ()")
    none = [None] * count
    return [
        encode_meta(h, t or 0, x or 0)
        for h, t, x in zip(headers or none, times_us or none, expire_us or none, strict=True)
    ]


def expiry_us(now_us: int, ttls: Sequence[float | timedelta | None]) -> Sequence[int]:
    """When records with such TTLs expire; 0: never.

    Raises:
        UsageError: one of them is no TTL.
    """
    return [0 if ttl is None else now_us + _us_of(ttl) for ttl in ttls]


def _us_of(ttl: float | timedelta) -> int:
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if not isinstance(seconds, int | float) or not 0 < seconds < 1e12:
        raise UsageError(f"a TTL of {ttl!r} is none: give seconds above 0")
    return int(seconds * 1e6)
