"""Tasks of loads that the counters do not hold yet: see ``records/ingest.py``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..records.frame import attempt
from ..records.ingest import LoadedRows, decode_uncounted
from ..records.keyspace import UNCOUNTED, UNCOUNTED_END
from ..records.rows import Counters
from ..store.port import StoreView, pages

__all__ = ["take_uncounted", "uncounted_rows", "without_uncounted"]

Recount = tuple[bytes, bytes, Counters]


def uncounted_rows(view: StoreView) -> Iterator[LoadedRows]:
    """Uncounted rows of all loads; nearly always none. ``verify`` reports a damaged one."""
    for rows in pages(view, UNCOUNTED, UNCOUNTED_END):
        for _, raw in rows:
            load = attempt(decode_uncounted, raw)
            if load is not None:
                yield from load.rows


def without_uncounted(
    view: StoreView, recount: Iterable[Recount]
) -> dict[tuple[bytes, bytes], Counters]:
    """Counters by (queue, tenant) as the rows should have them, from a recount of the shard."""
    wanted = {(queue, tenant): counts for queue, tenant, counts in recount}
    take_uncounted(view, wanted)
    return wanted


def take_uncounted(view: StoreView, wanted: dict[tuple[bytes, bytes], Counters]) -> None:
    """``without_uncounted`` of a recount by (queue, tenant), which it changes."""
    for one in uncounted_rows(view):
        name = (one.queue, one.tenant)
        n = wanted.get(name, Counters())
        wanted[name] = n._replace(ready=n.ready - one.ready, delayed=n.delayed - one.delayed)
        if not any(wanted[name]):
            del wanted[name]
