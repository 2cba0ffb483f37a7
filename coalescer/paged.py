"""A range of rows, page by page. Not in ``overlay``, which is compiled: no generator is."""

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
    """All rows of a range, each page as of when it is asked for; none of them is empty.

    Args:
        scan: an overlay's, or what tells in the same way where to go on.
        lower: where to begin.
        upper: where to end; excluded.
        limit: rows a page.
    """
    at: bytes | None = lower
    while at is not None:
        rows, at = scan(at, upper, limit)
        if rows:
            yield rows
