"""Payloads of a replica: each replica moves them out of the entries by itself.

An entry has whole records, so that it says the same on every replica. When it is committed, and
before it is written, payloads of at least ``body_bytes_min`` bytes go to this replica's body files,
and the rows that find them join the batch; when a task's record goes, so do they. How large a
payload must be is a matter of each replica, and so is where it lies: nothing of a body (its file,
its record's id, that there is one) is ever in an entry. Rows of tasks that came in by entries do
not say either that there is one (``BODY_ROW``): the record does.

Committed groups come in the order in which they are written. Some are rewritten before those in
front of them are written, so what those do to body rows is kept until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from ...coalescer.body_sync_barrier import BodySyncBarrier
from ...coalescer.group import Group
from ...coalescer.replicated import ReplicatedCoalescer
from ...engine.records.keyspace import BODY, BODY_END, FAMILY, ROW_ID, TASK
from ...engine.records.rows import BodyRow, encode_body
from ...engine.records.task import PAYLOAD_AT, has_body, payload_of, slim_record
from ...engine.runtime.ids import IdSource
from ...engine.store.port import Op, Store
from ...errors import CorruptionError, InvariantError
from ..state.bodies import Bodies
from ..state.engine_state import EngineState
from ..state.queue_state import Shard

__all__ = ["ReplicaBodies", "use_bodies"]

_UNREADABLE: Final = b""  # in place of a body row in a damaged block: it goes, its twin is left


class ReplicaBodies:
    """Moves the payloads of one shard's entries out: an ``EntryRewriter``.

    Args:
        bodies: the shard's body files.
        store: its store.
        ids: gives records of payloads their ids.
        least: least bytes of a payload that goes to a file, as it is stored.
        has_any: whether there may be a body row already.
    """

    def __init__(
        self, bodies: Bodies, store: Store, ids: IdSource, *, least: int, has_any: bool
    ) -> None:
        self._bodies = bodies
        self._store = store
        self._ids = ids
        self._least = least
        self._has_any = has_any
        # Body rows as groups that were rewritten and not written will leave them; None: gone.
        self._coming: dict[bytes, bytes | None] = {}
        self._groups: deque[list[tuple[bytes, bytes | None]]] = deque()  # what each of them does

    def check_proposal(self, ops: Sequence[Op]) -> None:
        """See ``EntryRewriter``."""
        if not self._has_any:
            return
        for key, value in ops:
            if key[FAMILY] == TASK and has_body(value):
                raise InvariantError(
                    f"task {key[ROW_ID].hex()}: a record without its payload is to enter the log"
                )

    def rewrite(self, group: Group) -> bool:
        """See ``EntryRewriter``."""
        done: list[tuple[bytes, bytes | None]] = []
        ops = group.ops
        if not self._has_any:  # nor does a small one matter
            least = self._least
            ops = [(key, value) for key, value in ops if value and len(value) > least]
        tasks = [op for op in ops if op[0][FAMILY] == TASK]
        large = [raw for _, raw in tasks if raw is not None and self._goes_out(raw)]
        is_changed = bool(large or (tasks and self._has_any))
        if is_changed:
            group.ops = self._rewritten(group, tasks, large, done)
        elif self._has_any and not tasks:
            # A local group.
            done = [(key, value) for key, value in group.ops if key[FAMILY] == BODY]
        self._coming.update(done)
        self._groups.append(done)
        return is_changed

    def written(self) -> None:
        """See ``EntryRewriter``."""
        for key, value in self._groups.popleft():
            if self._coming.get(key, _UNREADABLE) is value:  # no later group has changed it
                del self._coming[key]

    def _goes_out(self, raw: bytes) -> bool:
        return (
            len(raw) > max(self._least, PAYLOAD_AT)
            and not has_body(raw)  # of a log that had them
            and len(payload_of(raw)) >= self._least
        )

    def _rewritten(
        self,
        group: Group,
        tasks: Sequence[Op],
        large: Sequence[bytes],
        done: list[tuple[bytes, bytes | None]],
    ) -> list[Op]:
        """The operations with large payloads outside. Fills ``done`` with the body rows."""
        bodies = self._bodies
        rows = self._rows_of(list({key[ROW_ID] for key, _ in tasks}))
        records = [(self._ids.token(), payload_of(raw)) for raw in large]
        places = iter(bodies.files.append_all(records))
        ids = iter(records)
        self._has_any = self._has_any or bool(records)
        ops: list[Op] = []
        for op in group.ops:
            key, raw = op
            if key[FAMILY] != TASK or (raw is not None and has_body(raw)):
                ops.append(op)
                continue
            task_id = key[ROW_ID]
            old = rows.pop(task_id, None)
            if old is not None:  # it ends, or is put anew: its payload here is dead
                ops += bodies.drop_ops(task_id, old or None)
                done.append((BODY + task_id, None))
            if raw is None or not self._goes_out(raw):
                ops.append(op)
                continue
            at, (record_id, _) = next(places), next(ids)
            row = BodyRow(at.size, at.file, at.offset, record_id)
            ops.append((key, slim_record(raw, record_id)))
            ops += bodies.refer_ops(task_id, row)
            group.has_bodies = True
            rows[task_id] = encoded = encode_body(row)
            done.append((BODY + task_id, encoded))
        return ops

    def _rows_of(self, ids: list[bytes]) -> dict[bytes, bytes]:
        """Body rows of these tasks, of those that have one."""
        if not self._has_any:
            return {}
        keys = [BODY + task_id for task_id in ids]
        coming = self._coming
        try:
            stored = self._store.multi_get(keys)
        except CorruptionError:
            stored = [self._row(key) for key in keys]
        found = [coming.get(key, raw) for key, raw in zip(keys, stored, strict=True)]
        return {task_id: raw for task_id, raw in zip(ids, found, strict=True) if raw is not None}

    def _row(self, key: bytes) -> bytes | None:
        try:
            return self._store.get(key)
        except CorruptionError:
            return _UNREADABLE


def use_bodies(state: EngineState, shard: Shard, bodies: Bodies | None, least: int) -> None:
    """Give a shard its body files, before anything is written to it. ``None``: it has none.

    Args:
        state: the engine's state.
        shard: whose files they are.
        bodies: opened.
        least: least bytes of a payload that goes to one, as it is stored.
    """
    shard.bodies = bodies
    if bodies is None:
        return
    coalescer = shard.coalescer
    if isinstance(coalescer, ReplicatedCoalescer):
        bodies.is_replica = True
        has_any = shard.store.scan_last(BODY, BODY_END) is not None
        coalescer.rewriter = ReplicaBodies(
            bodies, shard.store, state.ids, least=least, has_any=has_any
        )
    if state.is_fsync or bodies.is_replica:
        coalescer.body_barrier = BodySyncBarrier(coalescer, state.spawner, bodies.files.sync)
