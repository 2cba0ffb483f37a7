"""Rows of a range, page by page. Not in ``overlay``, which is compiled: no generator is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..engine.store.port import Rows

__all__ = ["paged"]


def paged(
    scan: Callable[[bytes, bytes, int], tuple[Rows, bytes | None]],
    lower: bytes,
    upper: bytes,
    limit: int,
) -> Iterator[Rows]:
    """All rows of a range, each page read when it is asked for; no page is empty.

    Args:
        scan: ``Overlay.scan``, or another that returns rows and where to go on.
        lower: the first key.
        upper: the end of the keys, excluded.
        limit: rows in a page at most.
    """
    at: bytes | None = lower
    while at is not None:
        rows, at = scan(at, upper, limit)
        if rows:
            yield rows
