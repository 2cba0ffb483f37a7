"""Make a shard's rows agree again after a hole; ``verify`` states the rules.

Batches are atomic, so a hole leaves whole batches missing: a claim without its enqueue, a nack
without its claim. What follows from that can always be settled from the rows that are left, and
is settled in favour of running a task once more rather than never.

Two properties carry the safety:

- **It converges.** Every operation moves one row to where the rules want it, all of one task's
  in one batch, and nothing is deleted before what replaces it is decided from rows that stay. So
  any subset of the batches that a second power cut leaves is repaired the same way again.
- **It is not over until it is durable.** Nothing here touches the ring or ``m/open``. The caller
  syncs, and only then starts a new incarnation, with which the hole is out of the ring's sight;
  a crash before that finds the same hole. (A salvage repairs shards without one, too: the caller
  takes their ``m/open`` away first, so that such a crash is refused until the salvage is repeated.)

Order: damaged rows (if allowed), tasks with their places, rows without a task, ghosts, expiry,
counters; each stage reads what the one before has written. Memory is bounded as in ``verify``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...errors import RecordCorruptError
from ..records.frame import attempt
from ..records.keyspace import (
    ATTEMPTS,
    ATTEMPTS_END,
    BODY,
    COUNTERS,
    COUNTERS_END,
    DEAD,
    DELAYED,
    EXPIRY,
    EXPIRY_END,
    FAMILY,
    GHOST,
    GHOST_END,
    INDEX,
    INDEX_END,
    LEASE,
    LEASE_END,
    MOVED,
    MOVED_END,
    OLD_GHOSTS,
    RESULT,
    RESULT_END,
    ROW_ID,
    TASK,
    TASK_END,
    UNCOUNTED,
    UNCOUNTED_END,
    counters_key,
    dead_key,
    decode_index_key,
    expiry_key,
    ready_key,
    shard_queue_prefix,
)
from ..records.lease import DEAD_LEASE, MOVED_FLAG, LeaseRecord, decode_lease, encode_lease
from ..records.policy import decode_policy
from ..records.result import Status, decode_result, result_due_ms
from ..records.rows import (
    BODY_ROW,
    MOVED_ROW,
    OLD_FORM,
    Ghost,
    IndexRow,
    Moved,
    decode_body,
    decode_ghost,
    decode_index_row,
    encode_counters,
    encode_expiry,
    encode_ghost,
    encode_index_row,
    encode_moved,
    encode_old_ghosts,
)
from ..records.task import BODY_FLAG, NO_GHOST, encode_task
from ..records.workflow import JOIN, JOIN_END, MEMBER_ROW, OVER, decode_join
from ..store.port import Store, pages, write_patiently
from .health import Census
from .row_checks.body_rows import BodyFolder, find_bodies, mend_bodies
from .row_checks.first_keys import first_key
from .row_checks.flow_repair import mend_joins
from .verify import Known, Part, bucket_of, leads_to_attempts, parts_for

__all__ = ["RepairReport", "repair"]

_LOST_IDS_MAX = 32
_OPS_MAX = 4096  # a batch; far below what a memtable takes
# What a task row says when nothing else is known of it any more.
_REASON = b"repaired"


@dataclass(slots=True)
class RepairReport:
    """Counts of what a repair has changed."""

    requeued: int = 0  # tasks without a place
    finished: int = 0  # tasks with a final result, removed
    doubles: int = 0  # older places of a task, removed
    orphans: int = 0  # index, lease and moved rows without a task, removed
    ghosts: int = 0  # ghosts removed or made again
    damaged: int = 0  # rows that could not be decoded, removed
    bodies_found: int = 0  # tasks whose payload a scan of the body files has found again
    bodies_lost: int = 0  # … has not found
    lost: int = 0  # tasks that an index or lease row names, and that have no record any more
    lost_ids: list[bytes] = field(default_factory=list)  # of the first of them

    @property
    def is_clean(self) -> bool:
        """Nothing had to be decided (expiry and counter rows are always rebuilt)."""
        return self == RepairReport()

    def describe(self) -> str:
        """One line for the operator."""
        bodies = ""
        if self.bodies_found or self.bodies_lost:
            bodies = f", of lost payloads {self.bodies_found} found again, {self.bodies_lost} not"
        return (
            f"{self.requeued} tasks requeued, {self.finished} finished tasks and {self.orphans} "
            f"rows without a task removed, {self.doubles} second places removed, {self.ghosts} "
            f"dedup keys settled, {self.damaged} damaged rows dropped{bodies}"
            f"{self._describe_lost()}"
        )

    def _describe_lost(self) -> str:
        if not self.lost:
            return ""
        more = ", …" if self.lost > len(self.lost_ids) else ""
        names = ", ".join(task_id.hex() for task_id in self.lost_ids)
        return f"; {self.lost} tasks are lost: {names}{more}"


def repair(
    store: Store,
    *,
    now_ms: int,
    next_commit_seq: int,
    drop_damaged: bool = False,
    bodies: BodyFolder | None = None,
) -> RepairReport:
    """Repair a shard that nobody else uses. Blocks; does not sync: the caller must.

    Args:
        store: the shard, open for writing.
        now_ms: wall time; decides what is overdue.
        next_commit_seq: the first free number of the damaged incarnation, for the expiry rows.
        drop_damaged: remove rows that do not decode, instead of raising.
        bodies: where to look for payloads that no row leads to; None: they are lost.

    Raises:
        RecordCorruptError: a row does not decode. Only after ``drop_damaged=False``.
    """
    run = _Repair(store, now_ms)
    index_rows = run.sweep_damaged(drop_damaged)
    if bodies is not None:
        run.find_bodies(bodies)
    for part in range(parts := parts_for(index_rows)):
        run.settle_tasks(Part(part, parts))
    run.drop_orphans(LEASE, LEASE_END)
    run.drop_orphans(MOVED, MOVED_END)
    run.drop_attempts()
    run.settle_ghosts()
    run.settle_bodies()
    run.settle_joins()
    run.rebuild_expiry(next_commit_seq)
    run.rebuild_counters()
    return run.report


class _Repair:
    """One run. ``_ops`` holds the batch in the making; the last operation on a key counts."""

    def __init__(self, store: Store, now_ms: int) -> None:
        self._store = store
        self._now_ms = now_ms
        self._ops: dict[bytes, bytes | None] = {}
        self.report = RepairReport()

    def _flush(self, at_least: int = 1) -> None:
        """Write the batch if it has that many operations. Called between tasks only."""
        if len(self._ops) < at_least:
            return
        write_patiently(self._store, self._ops.items())
        self._ops.clear()

    def _delete(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._ops[key] = None

    def sweep_damaged(self, drop: bool) -> int:
        """Every row must decode. Returns the number of index rows."""
        census = Census()
        for rows in pages(self._store, b"", b"\xff"):
            for key, value in rows:
                try:
                    census.add(key, value)
                except RecordCorruptError as exc:
                    if not drop:
                        raise RecordCorruptError(f"{key!r}: {exc}") from exc
                    self._ops[key] = None
                    self.report.damaged += 1
            self._flush(_OPS_MAX)
        self._flush()
        return census.index_rows

    def settle_tasks(self, part: Part) -> None:
        """One place for every task of this part; its moved row and ghost with it."""
        for rows in pages(self._store, INDEX, INDEX_END):
            losers = part.add_index(rows)
            self.report.doubles += len(losers)
            self._delete(key for _, key in losers)
            self._flush(_OPS_MAX)
        self._flush()
        for rows in pages(self._store, TASK, TASK_END):
            for known in part.join(self._store, rows):
                self._settle(known)
                self._flush(_OPS_MAX)
        self.report.orphans += len(part.places)
        self._lose(list(part.places))
        self._delete(place.key for place in part.places.values())
        self._flush()

    def _lose(self, task_ids: list[bytes]) -> None:
        """Tasks without a record: lost, unless a result says that they are over."""
        results = self._store.multi_get([RESULT + task_id for task_id in task_ids])
        for task_id, raw in zip(task_ids, results, strict=True):
            result = attempt(decode_result, raw)
            if result is not None and result.status != Status.DEAD:
                continue
            self.report.lost += 1
            if len(self.report.lost_ids) < _LOST_IDS_MAX:
                self.report.lost_ids.append(task_id)

    def _settle(self, k: Known) -> None:
        lease_key, moved_key = LEASE + k.task_id, MOVED + k.task_id
        if k.is_finished:
            self._delete([TASK + k.task_id, lease_key, moved_key])
            if k.place is not None:
                self._ops[k.place.key] = None
            self.report.finished += 1
            return
        place, lease = k.place, k.lease_place
        if place is not None and k.is_misplaced:
            self._ops[place.key] = None
            self.report.doubles += 1
            place = None
        if place is not None and lease is not None:
            self.report.doubles += 1
            if max(place, lease) is lease:
                self._ops[place.key] = None
            else:
                self._ops[lease_key] = None
                lease = None
        if lease is not None and k.lease is not None:
            self._settle_lease(k, k.lease)
        elif place is not None and k.row is not None:
            self._settle_row(k, place.key, k.row)
        elif self._requeue(k):
            return
        if lease is not None and k.lease is not None:
            is_dead = k.lease.flags & DEAD_LEASE != 0
        else:
            is_dead = place is not None and place.rank == 3
        if not is_dead:
            self._hold_ghost(k)
            if k.result is not None:  # of a death before the redrive that was lost
                self._ops[RESULT + k.task_id] = None

    def _requeue(self, k: Known) -> bool:
        """A task without a place: where it was last known to be dead or to wait for its time.

        Else back to its first key, or ready if that fell due. Returns whether it is dead.
        """
        task, key = k.task, first_key(k.task_id, k.task)
        prefix = shard_queue_prefix(task.queue, task.tenant)
        if task.due_ms and task.due_ms <= self._now_ms:
            key = ready_key(prefix, task.priority, task.seq, k.task_id)
        attempts = k.moved.attempts if k.moved else 0
        expires_ms, reason = task.expires_ms, _REASON
        moved = attempt(decode_index_key, k.moved.key) if k.moved else None
        is_dead = False
        if k.moved is not None and moved is not None and k.moved.key.startswith(prefix):
            is_dead = moved.kind == DEAD
            if is_dead or (moved.kind == DELAYED and moved.at > self._now_ms):
                key = k.moved.key
        if is_dead and moved is not None:
            expires_ms = moved.at + decode_policy(task.policy).dead_retention_ms
            if k.result is not None:  # of that death: a redrive takes it away
                reason = k.result.value
        flags, size = task.flags >> 4 & MEMBER_ROW, k.record_bytes
        if task.flags & BODY_FLAG:
            body = attempt(decode_body, self._store.get(BODY + k.task_id))
            flags, size = flags | BODY_ROW, size + (body.size if body is not None else 0)
        row = IndexRow(flags, task.priority, attempts, size, expires_ms, reason)
        self._ops[key] = encode_index_row(row)
        self._settle_row(k, key, row)
        self.report.requeued += 1
        return is_dead

    def _settle_row(self, k: Known, key: bytes, row: IndexRow) -> None:
        """The moved row, and the flag that says it is there, of a task at an index key."""
        is_moved = self._settle_moved(k, key, row.attempts)
        if bool(row.flags & MOVED_ROW) != is_moved:
            self._ops[key] = encode_index_row(row._replace(flags=row.flags ^ MOVED_ROW))

    def _settle_lease(self, k: Known, lease: LeaseRecord) -> None:
        """The same for a leased task: its ``s/`` row names the key it was claimed from."""
        prefix = shard_queue_prefix(k.task.queue, k.task.tenant)
        key = ready_key(prefix, lease.priority, lease.seq, k.task_id)
        if lease.flags & DEAD_LEASE:
            key = dead_key(prefix, lease.seq // 1000, k.task_id)
        is_moved = self._settle_moved(k, key, lease.attempts)
        if bool(lease.flags & MOVED_FLAG) != is_moved:
            flipped = lease._replace(flags=lease.flags ^ MOVED_FLAG)
            self._ops[LEASE + k.task_id] = encode_lease(flipped)

    def _settle_moved(self, k: Known, key: bytes, attempts: int) -> bool:
        """Whether an ``s/`` row belongs to the task at ``key``; makes it so."""
        is_moved = key != first_key(k.task_id, k.task)
        if is_moved and (k.moved is None or k.moved.key != key):
            self._ops[MOVED + k.task_id] = encode_moved(Moved(attempts, key))
        elif not is_moved and k.moved is not None:
            self._ops[MOVED + k.task_id] = None
        return is_moved

    def _hold_ghost(self, k: Known) -> None:
        """A live task holds its dedup key, unless another has a right to it."""
        if k.task.ghost == NO_GHOST:
            return
        key = GHOST + k.task.ghost
        ghost = k.ghost
        if ghost is not None and ghost.task_id == k.task_id:
            return
        is_taken = ghost is not None and not self._is_stale(ghost, self._is_live(ghost.task_id))
        if is_taken or key in self._ops:
            self._forget_ghost(k)
            return
        row = Ghost(k.task_id, k.task.ghost_expires_ms, k.task.ghost_form)
        self._ops[key] = encode_ghost(row)
        self.report.ghosts += 1

    def _forget_ghost(self, k: Known) -> None:
        """The key is another's: the end of this task must not take it along."""
        task = k.task._replace(ghost=NO_GHOST, ghost_expires_ms=0)
        self._ops[TASK + k.task_id] = encode_task(task)
        lease_key = LEASE + k.task_id
        queued = self._ops.get(lease_key, b"")  # None: this repair ends the lease
        if k.lease is not None and queued is not None:
            lease = decode_lease(queued) if queued else k.lease
            self._ops[lease_key] = encode_lease(lease._replace(ghost=NO_GHOST, ghost_expires_ms=0))
        self.report.ghosts += 1

    def _is_live(self, task_id: bytes) -> bool:
        """Whether the task stays: it is there, and this repair will not find it finished."""
        result = attempt(decode_result, self._store.get(RESULT + task_id))
        is_over = result is not None and result.status != Status.DEAD
        return not is_over and self._store.get(TASK + task_id) is not None

    def _is_stale(self, ghost: Ghost, is_live: bool) -> bool:
        return not is_live and ghost.expires_ms <= self._now_ms

    def drop_orphans(self, lower: bytes, upper: bytes) -> None:
        """Lease or moved rows without a task."""
        for rows in pages(self._store, lower, upper):
            tasks = self._store.multi_get([TASK + key[ROW_ID] for key, _ in rows])
            orphans = [key for (key, _), task in zip(rows, tasks, strict=True) if task is None]
            if lower == LEASE:
                self._lose([key[ROW_ID] for key in orphans])
            self.report.orphans += len(orphans)
            self._delete(orphans)
            self._flush(_OPS_MAX)
        self._flush()

    def drop_attempts(self) -> None:
        """Attempts that neither the task's moved row nor its result leads to.

        Whatever ends the task, or forgets its result, would leave them behind.
        """
        for rows in pages(self._store, ATTEMPTS, ATTEMPTS_END):
            moved = self._store.multi_get([MOVED + key[ROW_ID] for key, _ in rows])
            results = self._store.multi_get([RESULT + key[ROW_ID] for key, _ in rows])
            orphans = [
                key
                for (key, _), moved_row, result in zip(rows, moved, results, strict=True)
                if moved_row is None and not leads_to_attempts(result)
            ]
            self.report.orphans += len(orphans)
            self._delete(orphans)
            self._flush(_OPS_MAX)
        self._flush()

    def find_bodies(self, folder: BodyFolder) -> None:
        """Rows for payloads that none leads to."""
        for ops, found, lost in find_bodies(self._store, folder):
            self.report.bodies_found += found
            self.report.bodies_lost += lost
            self._ops.update(ops)
            self._flush(_OPS_MAX)
        self._flush()

    def settle_bodies(self) -> None:
        """Rows of payloads without a task, or without each other."""
        for ops in mend_bodies(self._store):
            self.report.orphans += len(ops)
            self._ops.update(ops)
            self._flush(_OPS_MAX)
        self._flush()

    def settle_joins(self) -> None:
        """Workflows count what there is of their parts."""
        for ops in mend_joins(self._store):
            self._ops.update(ops)
            self._flush()  # the next join may have the same members

    def settle_ghosts(self) -> None:
        """Ghosts of tasks that are gone, unless their window is still open; counts old ones."""
        old = 0
        for rows in pages(self._store, GHOST, GHOST_END):
            ghosts = [decode_ghost(raw) for _, raw in rows]
            tasks = self._store.multi_get([TASK + ghost.task_id for ghost in ghosts])
            for (key, _), ghost, task in zip(rows, ghosts, tasks, strict=True):
                if self._is_stale(ghost, task is not None):
                    self._ops[key] = None
                    self.report.ghosts += 1
                else:
                    old += ghost.form == OLD_FORM
            self._flush(_OPS_MAX)
        if old or self._store.get(OLD_GHOSTS) is not None:
            self._ops[OLD_GHOSTS] = encode_old_ghosts(old) if old else None
        self._flush()

    def rebuild_expiry(self, commit_seq: int) -> None:
        """Every ``e/`` row anew. Within a bucket they keep the order of finishing per slice."""
        for rows in pages(self._store, EXPIRY, EXPIRY_END):
            self._delete(key for key, _ in rows)
            self._flush(_OPS_MAX)
        self._flush()
        for lower, upper in (
            (RESULT, RESULT_END),
            (GHOST, GHOST_END),
            (LEASE, LEASE_END),
            (INDEX, INDEX_END),
        ):
            for rows in pages(self._store, lower, upper):
                buckets: dict[int, list[tuple[int, bytes]]] = {}
                for key, raw in rows:
                    due_ms, order, entry = _entry(key, raw)
                    if due_ms > 0:
                        buckets.setdefault(bucket_of(due_ms), []).append((order, entry))
                for bucket, entries in buckets.items():
                    row = encode_expiry(entry for _, entry in sorted(entries))
                    self._ops[expiry_key(bucket, commit_seq)] = row
                    commit_seq += 1
                self._flush(_OPS_MAX)
        for rows in pages(self._store, JOIN, JOIN_END):
            over = [(key[len(JOIN) :], attempt(decode_join, raw)) for key, raw in rows]
            ids = [join for join, record in over if record is not None and record.state == OVER]
            if ids:  # each is looked at again: it says itself when its time is over
                due = bucket_of(self._now_ms)
                self._ops[expiry_key(due, commit_seq)] = encode_expiry(b"w" + one for one in ids)
                commit_seq += 1
            self._flush(_OPS_MAX)
        self._flush()

    def rebuild_counters(self) -> None:
        """Recount what is there now; rows that would be all zero go."""
        census = Census()
        for lower, upper in ((INDEX, INDEX_END), (LEASE, LEASE_END), (RESULT, RESULT_END)):
            for rows in pages(self._store, lower, upper):
                for key, value in rows:
                    census.add(key, value)
        for lower, upper in ((COUNTERS, COUNTERS_END), (UNCOUNTED, UNCOUNTED_END)):
            for rows in pages(self._store, lower, upper):
                self._delete(key for key, _ in rows)
                self._flush(_OPS_MAX)
        for queue, tenant, counters in census.counters():
            self._ops[counters_key(queue, tenant)] = encode_counters(*counters)
            self._flush(_OPS_MAX)
        self._flush()


def _entry(key: bytes, raw: bytes) -> tuple[int, int, bytes]:
    """(when it is forgotten or 0, order among its bucket, entry) of a row that may expire."""
    family = key[FAMILY]
    if family == RESULT:
        result = decode_result(raw)
        return result_due_ms(result), result.finished_us, b"r" + key[ROW_ID]
    if family == GHOST:
        return decode_ghost(raw).expires_ms, 0, b"g" + key[ROW_ID]
    if family == LEASE:
        lease = decode_lease(raw)
        if lease.flags & DEAD_LEASE:
            return decode_index_row(lease.dead_row).expires_ms, 0, b"x" + key[ROW_ID]
        return lease.expires_ms, 0, b"t" + key[ROW_ID]
    at = decode_index_key(key)
    kind = b"x" if at.kind == DEAD else b"t"
    return decode_index_row(raw).expires_ms, 0, kind + at.task_id
