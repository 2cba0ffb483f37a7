"""Rows of tasks say which payloads lie outside: in a plain store they do, in a replica none does.

A replica's rows come from its log, and where payloads lie is each replica's own matter.
"""

from __future__ import annotations

from ...engine.records.frame import attempt
from ...engine.records.keyspace import BODY, BODY_END, LEASE, MOVED, TASK
from ...engine.records.lease import BODY_LEASE, decode_lease, encode_lease
from ...engine.records.rows import BODY_ROW, decode_index_row, decode_moved, encode_index_row
from ...engine.records.task import decode_task
from ...engine.store.port import Op, Store, pages, write_patiently
from ..state.rows.task_location import first_key

__all__ = ["flag_bodies"]


def flag_bodies(store: Store, *, is_flagged: bool) -> None:
    """Set or clear the flag of every task whose payload lies outside. Blocks.

    A plain store without it would leave body rows behind when these tasks end, and the space of
    the payloads.
    """
    for rows in pages(store, BODY, BODY_END):
        ops = [op for key, _ in rows for op in _changed(store, key[len(BODY) :], is_flagged)]
        if ops:
            write_patiently(store, ops)


def _changed(store: Store, task_id: bytes, is_flagged: bool) -> list[Op]:
    """Rows of one task as they are to be. One that is damaged is left to ``verify``."""
    lease_key = LEASE + task_id
    lease = attempt(decode_lease, store.get(lease_key))
    if lease is not None:
        flags = _with(lease.flags, BODY_LEASE, is_set=is_flagged)
        return [(lease_key, encode_lease(lease._replace(flags=flags)))]
    moved, task = (
        attempt(decode_moved, store.get(MOVED + task_id)),
        attempt(decode_task, store.get(TASK + task_id)),
    )
    if moved is not None:
        key = moved.key
    elif task is not None:
        key = first_key(task_id, task)
    else:
        return []
    row = attempt(decode_index_row, store.get(key))
    if row is None:
        return []
    flags = _with(row.flags, BODY_ROW, is_set=is_flagged)
    return [(key, encode_index_row(row._replace(flags=flags)))]


def _with(flags: int, flag: int, *, is_set: bool) -> int:
    return flags | flag if is_set else flags & ~flag
