"""What is appended, checked and framed.

What a reader would refuse is refused here: nothing that was acknowledged is ever found unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from ...errors import UsageError
from ..formats.journal import encode_frame, encode_meta

__all__ = ["Framer", "expiry_us"]


class Framer:
    """Frames for one journal."""

    def frame(
        self, first: int, time_us: int, payloads: Sequence[bytes], *,
        headers: Sequence[Mapping[str, str] | None] = (), times_us: Sequence[int] = (),
        expire_us: Sequence[int] = (),
    ) -> bytes:  # fmt: skip
        """One frame; see ``LogWriter.append``.

        Raises:
            PayloadTooLargeError, UsageError: they are none.
        """
        if not payloads:
            raise UsageError("no records: a batch has at least one")
        metas: Sequence[bytes] = ()
        if headers or times_us or expire_us:
            metas = _metas(len(payloads), headers, times_us, expire_us)
        return encode_frame(first, time_us, payloads, metas=metas)


def _metas(
    count: int, headers: Sequence[Mapping[str, str] | None], times_us: Sequence[int],
    expire_us: Sequence[int],
) -> Sequence[bytes]:  # fmt: skip
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
