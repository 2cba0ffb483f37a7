"""The rules that tie a shard's rows together, and a check of them that writes nothing.

Every family can be rebuilt in the mind from the others; these are the rules:

- A task (``t/``) has exactly one *place*: a ready, delayed or dead row, or a lease. A row of any
  of these without a task, or a second one for the same task, is wrong; of two the newest counts.
- A final result (completed, expired, cancelled) means that there is no task any more; that of a
  dead letter, that the task is dead.
- ``s/`` exists exactly if the task's key is not its first one, and names that key; the row's or
  lease's *moved* flag says the same (``complete`` trusts it). A lease keeps the ``s/`` row of the
  key it was claimed from.
- A task that is not dead holds its ghost; a ghost whose task is gone has an expiry of its own.
- Whatever is to be forgotten has an ``e/`` entry at or before its time. Not so the ghost of a task
  that lives: its entry may have fired already, and the task's end takes the ghost along.
- A task whose payload lies in a body file has a ``b/`` row, and that a twin ``o/`` (body_rows.py).
- The counter rows, and what a load has brought that is not yet in them, are what a recount gives.

``repair`` makes them true again and uses the same code to tell. Neither holds the whole shard in
memory: ids are random in their last bytes, so both go over the index once for each *part* of the
ids, about a hundred thousand at a time, and join a part with its tasks by multi-get.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import CorruptionError
from . import keyspace as ks
from .body_rows import strange_bodies
from .health import Census
from .ids import shard_of
from .records.frame import attempt
from .records.lease import MOVED_FLAG, LeaseRecord, decode_lease
from .records.result import ResultRecord, Status, decode_result
from .records.rows import (
    MOVED_ROW,
    OLD_FORM,
    Counters,
    Ghost,
    IndexRow,
    Moved,
    decode_body,
    decode_counters,
    decode_expiry,
    decode_ghost,
    decode_index_row,
    decode_moved,
    decode_old_ghosts,
)
from .records.task import BODY_FLAG, NO_GHOST, TaskRecord, decode_task
from .store import Rows, StoreView, pages
from .uncounted import without_uncounted

__all__ = [
    "Finding", "Known", "Part", "Place", "bucket_of", "first_key", "parts_for",
    "result_due_ms", "verify", "verify_slices",
]  # fmt: skip

_PART_ROWS = 100_000
_FINDINGS_MAX = 10_000
_WHEN_MAX_MS = (1 << 62) // 1000 * 1000  # a bucket must fit eight bytes, whatever was asked for


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule. ``kind`` is a short fixed word, ``detail`` is for people."""

    shard: int
    kind: str
    detail: str
    task_id: bytes | None = None


class Place(NamedTuple):
    """Where a task is. Ordered: the greatest is the newest; ``rank`` breaks ties by lifecycle."""

    at_us: int
    rank: int
    key: bytes


class Known(NamedTuple):
    """All that the shard knows of one task. ``place`` and ``row``: its newest index row."""

    task_id: bytes
    task: TaskRecord
    record_bytes: int
    place: Place | None
    row: IndexRow | None
    lease: LeaseRecord | None
    moved: Moved | None
    result: ResultRecord | None
    ghost: Ghost | None

    @property
    def is_finished(self) -> bool:
        """A final result: the task is over, whatever else is left of it."""
        return self.result is not None and self.result.status != Status.DEAD

    @property
    def is_dead(self) -> bool:
        """A dead letter, going by its newest index row."""
        return self.place is not None and self.place.rank == 3

    @property
    def is_misplaced(self) -> bool:
        """The index row lies under another queue or tenant."""
        prefix = ks.bucket_prefix(self.task.queue, self.task.tenant)
        return self.place is not None and not self.place.key.startswith(prefix)

    @property
    def lease_place(self) -> Place | None:
        """The lease, comparable with ``place``."""
        if self.lease is None:
            return None
        return Place(self.lease.leased_us, 2, ks.LEASE + self.task_id)


def first_key(task_id: bytes, task: TaskRecord) -> bytes:
    """The index key a task was enqueued under."""
    prefix = ks.bucket_prefix(task.queue, task.tenant)
    if task.first_kind == ks.DELAYED[0]:
        return ks.delayed_key(prefix, task.due_ms, task.seq, task_id)
    return ks.ready_key(prefix, task.priority, task.seq, task_id)


def bucket_of(when_ms: int) -> int:
    """The expiry bucket of a moment: whole seconds, rounded up."""
    return -(-min(when_ms, _WHEN_MAX_MS) // 1000) * 1000


def result_due_ms(result: ResultRecord) -> int:
    """When a result is forgotten; 0 for one that is kept."""
    return result.finished_us // 1000 + result.retention_ms if result.retention_ms else 0


class Part:
    """One part of the ids, out of ``parts``: their index rows in memory."""

    __slots__ = ("_part", "_parts", "places")

    def __init__(self, part: int, parts: int) -> None:
        self._part = part
        self._parts = parts
        self.places: dict[bytes, Place] = {}

    def holds(self, key: bytes) -> bool:
        """Whether an id (or hash) belongs to this part."""
        return (int.from_bytes(key[-2:], "big") * self._parts) >> 16 == self._part

    def add_index(self, rows: Rows) -> list[tuple[bytes, bytes]]:
        """Take in index rows; returns (id, key) of those that are not the newest of their task."""
        losers: list[tuple[bytes, bytes]] = []
        for key, _ in rows:
            at = attempt(ks.decode_index_key, key)
            if at is None or not self.holds(at.task_id):
                continue
            place = _index_place(key, at)
            known = self.places.get(at.task_id)
            if known is None:
                self.places[at.task_id] = place
                continue
            self.places[at.task_id] = max(known, place)
            losers.append((at.task_id, min(known, place).key))
        return losers

    def join(self, view: StoreView, rows: Rows) -> list[Known]:
        """What is known of each task of this part in ``rows`` of ``t/``; takes their places."""
        tasks: list[tuple[bytes, TaskRecord, int]] = []
        for key, raw in rows:
            task = attempt(decode_task, raw) if self.holds(key) else None
            if task is not None:
                tasks.append((key[2:], task, len(raw)))
        places = [self.places.pop(task_id, None) for task_id, _, _ in tasks]
        ids = [task_id for task_id, _, _ in tasks]
        index = view.multi_get([place.key if place else b"" for place in places])
        leases = view.multi_get([ks.LEASE + task_id for task_id in ids])
        moved = view.multi_get([ks.MOVED + task_id for task_id in ids])
        results = view.multi_get([ks.RESULT + task_id for task_id in ids])
        ghosts = view.multi_get([ks.GHOST + task.ghost for _, task, _ in tasks])
        return [
            Known(
                task_id,
                task,
                size,
                places[i],
                attempt(decode_index_row, index[i]) if places[i] else None,
                attempt(decode_lease, leases[i]),
                attempt(decode_moved, moved[i]),
                attempt(decode_result, results[i]),
                attempt(decode_ghost, ghosts[i]),
            )
            for i, (task_id, task, size) in enumerate(tasks)
        ]


def _index_place(key: bytes, at: ks.IndexKey) -> Place:
    if at.kind == ks.DEAD:
        return Place(at.at * 1000, 3, key)
    return Place(at.seq, 1 if at.kind == ks.READY else 0, key)


def parts_for(rows: int) -> int:
    """How many parts keep each within memory."""
    return min(1 + rows // _PART_ROWS, 1 << 16)


class _Verifier:
    """One run over one view."""

    def __init__(self, view: StoreView, shard: int, shards: int) -> None:
        self._view = view
        self._shard = shard
        self._shards = shards
        self._census = Census()
        self.findings: list[Finding] = []

    def _report(self, kind: str, detail: str, task_id: bytes | None = None) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(Finding(self._shard, kind, detail, task_id))
        elif len(self.findings) == _FINDINGS_MAX:
            self.findings.append(
                Finding(self._shard, "truncated", f"more than {_FINDINGS_MAX} findings")
            )

    def run(self) -> Generator[None, None, None]:
        """Every check; reads that fail end it with a finding."""
        try:
            yield from self._rows()
            yield from self._counters()
            for part in range(parts := parts_for(self._census.index_rows)):
                yield from self._tasks(Part(part, parts))
            yield from self._orphans(ks.LEASE, ks.LEASE_END, "lease")
            yield from self._orphans(ks.MOVED, ks.MOVED_END, "moved row")
            yield from self._ghosts()
            for found in strange_bodies(self._view):
                for what, task_id in found:
                    self._report("body", what, task_id)
                yield
            for part in range(parts := parts_for(self._census.expiry_entries)):
                yield from self._expiry(Part(part, parts))
        except CorruptionError as exc:
            self._report("unreadable", f"reading stopped: {exc}; restore a checkpoint")

    def _rows(self) -> Generator[None, None, None]:
        """Everything decodes, and belongs to this shard."""
        for rows in pages(self._view, b"", b"\xff"):
            for key, value in rows:
                try:
                    named = self._census.add(key, value)
                except CorruptionError as exc:
                    self._report("damaged", f"{key!r}: {exc}")
                    continue
                for task_id in named:
                    if (shard := shard_of(task_id, self._shards)) != self._shard:
                        self._report("wrong_shard", f"{key[:2]!r} row of shard {shard}", task_id)
            yield

    def _counters(self) -> Generator[None, None, None]:
        recount = without_uncounted(self._view, self._census.counters())
        for rows in pages(self._view, ks.COUNTERS, ks.COUNTERS_END):
            for key, raw in rows:
                said = attempt(decode_counters, raw)
                name = attempt(ks.decode_counters_key, key)
                if said is None or name is None:
                    continue
                found = recount.pop(name, Counters())
                if said != found or not any(said):
                    self._report("counters", f"{name!r}: the row says {said}, there are {found}")
            yield
        for name, found in recount.items():
            self._report("counters", f"{name!r}: no row, there are {found}")

    def _tasks(self, part: Part) -> Generator[None, None, None]:
        for rows in pages(self._view, ks.INDEX, ks.INDEX_END):
            for task_id, key in part.add_index(rows):
                self._report("double_place", f"an older index row is left: {key!r}", task_id)
            yield
        for rows in pages(self._view, ks.TASK, ks.TASK_END):
            for known in part.join(self._view, rows):
                self._task(known)
            yield
        for task_id, place in part.places.items():
            self._report("orphan_index", f"index row without a task: {place.key!r}", task_id)

    def _task(self, k: Known) -> None:
        if k.is_finished:
            self._report("finished", "has a final result and is still there", k.task_id)
        elif k.result is not None and not k.is_dead:
            self._report("revived", "has the result of a dead letter and is none", k.task_id)
        if k.is_misplaced:
            self._report("misplaced", "its index row lies under another queue", k.task_id)
        if k.place is None and k.lease is None:
            self._report("no_place", "not ready, delayed, dead or leased", k.task_id)
        elif k.place is not None and k.lease is not None:
            self._report("double_place", f"leased and at {k.place.key!r}", k.task_id)
        elif k.lease is not None:
            if bool(k.lease.flags & MOVED_FLAG) != (k.moved is not None):
                self._report("moved", "the lease and the s/ row disagree", k.task_id)
        elif k.place is not None and k.row is not None:
            wanted = k.place.key if k.place.key != first_key(k.task_id, k.task) else None
            if wanted != (k.moved.key if k.moved else None):
                self._report("moved", f"the s/ row does not say {wanted!r}", k.task_id)
            if bool(k.row.flags & MOVED_ROW) != (wanted is not None):
                self._report("moved", "the row's moved flag is wrong", k.task_id)
        if k.task.ghost != NO_GHOST and k.ghost is None and not k.is_dead:
            self._report("ghost", "does not hold its dedup key", k.task_id)
        if k.task.flags & BODY_FLAG:
            raw = self._view.get(ks.BODY + k.task_id)
            row = attempt(decode_body, raw)
            if raw is None:
                self._report("body", "no row says where its payload lies", k.task_id)
            elif row is not None and row.record_id != k.task.payload:
                self._report("body", "its row leads to another's payload", k.task_id)

    def _orphans(self, lower: bytes, upper: bytes, what: str) -> Generator[None, None, None]:
        for rows in pages(self._view, lower, upper):
            tasks = self._view.multi_get([ks.TASK + key[2:] for key, _ in rows])
            for (key, _), task in zip(rows, tasks, strict=True):
                if task is None:
                    self._report(f"orphan_{what.split()[0]}", f"{what} without a task", key[2:])
            yield

    def _ghosts(self) -> Generator[None, None, None]:
        old = 0
        for rows in pages(self._view, ks.GHOST, ks.GHOST_END):
            ghosts = [g for _, raw in rows if (g := attempt(decode_ghost, raw)) is not None]
            old += sum(ghost.form == OLD_FORM for ghost in ghosts)
            tasks = self._view.multi_get([ks.TASK + ghost.task_id for ghost in ghosts])
            for ghost, task in zip(ghosts, tasks, strict=True):
                if task is None and ghost.expires_ms == 0:
                    self._report("ghost", "dedup key of a task that is gone", ghost.task_id)
            yield
        raw = self._view.get(ks.OLD_GHOSTS)
        said = 0 if raw is None else attempt(decode_old_ghosts, raw)
        is_upgraded = self._view.get(ks.SECRET) is not None  # before that nobody counts them
        if is_upgraded and said is not None and said != old:
            self._report("counters", f"the row says {said} dedup keys of format 1, there are {old}")

    def _expiry(self, part: Part) -> Generator[None, None, None]:
        filed: dict[bytes, int] = {}
        for rows in pages(self._view, ks.EXPIRY, ks.EXPIRY_END):
            for key, raw in rows:
                for kind, named in attempt(decode_expiry, raw) or ():
                    if kind == ord("c"):  # a result as well, one that needs no second look
                        kind = ord("r")
                    if kind not in b"bB" and part.holds(named):
                        # Keys ascend, so the first bucket is the earliest.
                        filed.setdefault(bytes((kind,)) + named, int.from_bytes(key[2:10], "big"))
            yield
        for rows in pages(self._view, ks.RESULT, ks.RESULT_END):
            for key, raw in rows:
                result = attempt(decode_result, raw) if part.holds(key) else None
                if result is not None:
                    self._filed(filed, b"r" + key[2:], result_due_ms(result), key[2:])
            yield
        for rows in pages(self._view, ks.GHOST, ks.GHOST_END):
            for key, raw in rows:
                ghost = attempt(decode_ghost, raw) if part.holds(key) else None
                if ghost is not None:
                    self._filed(filed, b"g" + key[2:], ghost.expires_ms, ghost.task_id)
            yield
        for rows in pages(self._view, ks.INDEX, ks.INDEX_END):
            for key, raw in rows:
                at, row = attempt(ks.decode_index_key, key), attempt(decode_index_row, raw)
                if at and row and part.holds(at.task_id):
                    what = b"x" if at.kind == ks.DEAD else b"t"
                    self._filed(filed, what + at.task_id, row.expires_ms, at.task_id)
            yield

    def _filed(self, filed: dict[bytes, int], entry: bytes, due_ms: int, task_id: bytes) -> None:
        never = 1 << 64  # above every bucket
        if due_ms <= 0 or filed.get(entry, never) <= bucket_of(due_ms):
            return
        if entry[:1] == b"g" and self._view.get(ks.TASK + task_id) is not None:
            return
        self._report("expiry", f"no {chr(entry[0])!r} entry at or before {due_ms} ms", task_id)


def verify_slices(view: StoreView, shard: int, shards: int) -> Generator[None, None, list[Finding]]:
    """Check a shard; yields after at most 512 rows each, returns what it found.

    ``view`` must not change meanwhile: pass a snapshot. At most 10,000 findings are kept.
    """
    verifier = _Verifier(view, shard, shards)
    yield from verifier.run()
    return verifier.findings


def verify(view: StoreView, shard: int, shards: int) -> list[Finding]:
    """``verify_slices`` in one go."""
    slices = verify_slices(view, shard, shards)
    try:
        while True:
            next(slices)
    except StopIteration as end:
        return list(end.value)
