"""The rules that tie a shard's rows together, and a check of them that writes nothing.

Every family can be rebuilt in the mind from the others; these are the rules:

- A task (``t/``) has exactly one *place*: a ready, delayed or dead row, or a lease. A row of any
  of these without a task, or a second one for the same task, is wrong; of two the newest counts.
- A final result (completed, expired, cancelled) means that there is no task any more; that of a
  dead letter, that the task is dead, or leased as a dead letter.
- ``s/`` exists exactly if the task's key is not its first one, and names that key; the row's or
  lease's *moved* flag says the same (``complete`` trusts it). A lease keeps the ``s/`` row of the
  key it was claimed from.
- A task that is not dead holds its ghost; a ghost whose task is gone has an expiry of its own.
- Whatever is to be forgotten has an ``e/`` entry at or before its time. Not so the ghost of a task
  that lives: its entry may have fired already, and the task's end takes the ghost along.
- A task whose payload lies in a body file has a ``b/`` row, and that a twin ``o/`` (body_rows.py).
- Attempts (``a/``) belong to a task or to a result.
- Joins count their parts, and fire when these have ended (flow_rows.py).
- The counter rows, and what a load has brought that is not yet in them, are what a recount gives.

``repair`` makes them true again and uses the same code to find them broken. Neither holds the whole
shard in memory: ids are random in their last bytes, so both go over the index once for each *part*
of the ids, about a hundred thousand at a time, and read what else belongs to each task of a part.

``verify`` goes on behind what cannot be read (``walk``). Every such range is a finding, and no rule
is called broken for what may lie in one: a task whose place may is ``unknown``, and counters and
expiry entries are not checked against rows that are not all there.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from ...errors import CorruptionError
from ..records import keyspace as ks
from ..records.frame import attempt
from ..records.keyspace import DUE_AT, FLOWS, FLOWS_END, ID_AT, OUTBOX, OUTBOX_END, SEQ_AT
from ..records.lease import DEAD_LEASE, MOVED_FLAG, LeaseRecord, decode_lease
from ..records.queues.key_waits import KEY_WAIT_MS
from ..records.result import HAS_ATTEMPTS, ResultRecord, Status, decode_result, result_due_ms
from ..records.rows import (
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
from ..records.task import BODY_FLAG, NO_GHOST, TaskRecord, decode_task
from ..records.workflow import HELD_MS
from ..runtime.ids import shard_of
from ..store.port import Rows, StoreView
from ..store.walk import Walk
from ..values import Finding
from .health import Census
from .pending_counts import take_uncounted
from .row_checks.body_rows import strange_bodies
from .row_checks.first_keys import first_key
from .row_checks.flow_rows import strange_joins, waits_for_nothing

__all__ = [
    "Known",
    "Part",
    "RowPlace",
    "bucket_of",
    "leads_to_attempts",
    "parts_for",
    "verify",
    "verify_slices",
]

_PART_ROWS = 100_000
_COUNTERS = 1024  # of queues and tenants, between two turns of the loop
_FINDINGS_MAX = 10_000
_UNKNOWN_MAX = 1_000  # named: they must not crowd out what is known to be wrong
_FAMILIES = (
    (ks.BODY, ks.BODY_END), (ks.EXPIRY, ks.EXPIRY_END), (ks.GHOST, ks.GHOST_END),
    (ks.EVENTS, ks.EVENTS_END), (ks.LEASE, ks.LEASE_END), (b"m/", b"m0"),
    (ks.ATTEMPTS, ks.ATTEMPTS_END),
    (ks.BODY_AT, ks.BODY_AT_END), (ks.INDEX, ks.INDEX_END), (ks.RESULT, ks.RESULT_END),
    (ks.MOVED, ks.MOVED_END), (ks.TASK, ks.TASK_END), (ks.PROGRESS, ks.PROGRESS_END),
    (OUTBOX, OUTBOX_END), (FLOWS, FLOWS_END),
)  # fmt: skip
_HELD, _KEY_WAIT = HELD_MS.to_bytes(8, "big"), KEY_WAIT_MS.to_bytes(8, "big")
_SPREAD = slice(-2, None)  # the last bytes of an id or a hash
_WHEN_MAX_MS = (1 << 62) // 1000 * 1000  # a bucket must fit eight bytes, whatever was asked for


class RowPlace(NamedTuple):
    """Where a task is. Ordered: the greatest is the newest; ``rank`` breaks ties by lifecycle."""

    at_us: int
    rank: int
    key: bytes


class Known(NamedTuple):
    """All that the shard knows of one task. ``place`` and ``row``: its newest index row."""

    task_id: bytes
    task: TaskRecord
    record_bytes: int
    place: RowPlace | None
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
        """A dead letter, going by its newest index row or the lease it is under."""
        if self.lease is not None and self.lease.flags & DEAD_LEASE:
            return True
        return self.place is not None and self.place.rank == 3

    @property
    def is_misplaced(self) -> bool:
        """The index row lies under another queue or tenant."""
        prefix = ks.shard_queue_prefix(self.task.queue, self.task.tenant)
        return self.place is not None and not self.place.key.startswith(prefix)

    @property
    def lease_place(self) -> RowPlace | None:
        """The lease, comparable with ``place``."""
        if self.lease is None:
            return None
        return RowPlace(self.lease.leased_us, 2, ks.LEASE + self.task_id)


def bucket_of(when_ms: int) -> int:
    """The expiry bucket of a moment: whole seconds, rounded up."""
    return -(-min(when_ms, _WHEN_MAX_MS) // 1000) * 1000


def leads_to_attempts(result: bytes | None) -> bool:
    """Whether a result, as it is stored, takes the attempts of its task along when it goes."""
    record = attempt(decode_result, result)
    return record is not None and bool(record.flags & HAS_ATTEMPTS)


class Part:
    """One part of the ids, out of ``parts``: their index rows in memory."""

    __slots__ = ("_part", "_parts", "places")

    def __init__(self, part: int, parts: int) -> None:
        self._part = part
        self._parts = parts
        self.places: dict[bytes, RowPlace] = {}

    def holds(self, key: bytes) -> bool:
        """Whether an id (or hash) belongs to this part."""
        return (int.from_bytes(key[_SPREAD], "big") * self._parts) >> 16 == self._part

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
        """Facts of each task of this part in ``rows`` of ``t/``; takes their positions."""
        tasks: list[tuple[bytes, TaskRecord, int]] = []
        for key, raw in rows:
            task = attempt(decode_task, raw) if self.holds(key) else None
            if task is not None:
                tasks.append((key[ks.ROW_ID], task, len(raw)))
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


def _index_place(key: bytes, at: ks.IndexKey) -> RowPlace:
    if at.kind == ks.DEAD:
        return RowPlace(at.at * 1000, 3, key)
    return RowPlace(at.seq, 1 if at.kind == ks.READY else 0, key)


def parts_for(rows: int) -> int:
    """How many parts keep each within memory."""
    return min(1 + rows // _PART_ROWS, 1 << 16)


class _Verifier:
    """One run over one view."""

    def __init__(self, view: StoreView, shard: int, shards: int) -> None:
        self._view = view
        self._walk = Walk(view)
        self._shard = shard
        self._shards = shards
        self._census = Census()
        self._unknown = 0
        self._ranges_reported = 0
        self.findings: list[Finding] = []

    def _report(self, kind: str, detail: str, task_id: bytes | None = None) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(Finding(self._shard, kind, detail, task_id))
        elif len(self.findings) == _FINDINGS_MAX:
            self.findings.append(
                Finding(self._shard, "truncated", f"more than {_FINDINGS_MAX} findings")
            )

    def _report_unknown(self, what: str, task_id: bytes) -> None:
        self._unknown += 1
        if self._unknown <= _UNKNOWN_MAX:
            self._report("unknown", f"{what} may lie in what cannot be read", task_id)

    def run(self) -> Generator[None, None, None]:
        """Every check."""
        yield from self._rows()
        self._ranges()
        yield from self._counters()
        for part in range(parts := parts_for(self._census.index_rows)):
            yield from self._tasks(Part(part, parts))
        yield from self._orphans(ks.LEASE, ks.LEASE_END, "lease")
        yield from self._orphans(ks.MOVED, ks.MOVED_END, "moved row")
        yield from self._attempts()
        yield from self._ghosts()
        for found in strange_bodies(self._walk):
            for what, task_id in found:
                self._report("body", what, task_id)
            yield
        for found in strange_joins(self._walk):
            for what, task_id in found:
                self._report("workflow", what, task_id)
            yield
        for part in range(parts := parts_for(self._census.expiry_entries)):
            yield from self._expiry(Part(part, parts))
        self._ranges()
        walk = self._walk
        if walk.failed_reads and not walk.unreadable:
            self._report(
                "unreadable",
                f"{walk.failed_reads} reads of single rows failed, the last: {walk.last_error}; "
                "restore a checkpoint",
            )
        if self._unknown > _UNKNOWN_MAX:
            more = self._unknown - _UNKNOWN_MAX
            self._report("unknown", f"{more} more tasks may lie in what cannot be read")

    def _ranges(self) -> None:
        """Ranges that could not be read so far."""
        for one in self._walk.unreadable[self._ranges_reported :]:
            self._ranges_reported += 1
            families = [a.decode() for a, b in _FAMILIES if a < one.upper and one.lower < b]
            self._report(
                "unreadable",
                f"rows of {', '.join(families) or 'no family'} from {one.lower!r} up to "
                f"{one.upper!r}: {one.error}; restore a checkpoint",
            )

    def _rows(self) -> Generator[None, None, None]:
        """Everything decodes, and belongs to this shard."""
        for rows in self._walk.pages(b"", b"\xff"):
            for key, value in rows:
                self._row(key, value)
            yield

    def _row(self, key: bytes, value: bytes) -> None:
        try:
            named = self._census.add(key, value)
        except CorruptionError as exc:
            self._report("damaged", f"{key!r}: {exc}")
            return
        for task_id in named:
            if (shard := shard_of(task_id, self._shards)) != self._shard:
                self._report("wrong_shard", f"{key[ks.FAMILY]!r} row of shard {shard}", task_id)
        waits = key[ks.DELAYED_KIND] == ks.DELAYED and key[ks.FAMILY] == ks.INDEX
        waits = waits and _HELD <= key[DUE_AT:SEQ_AT] < _KEY_WAIT
        if waits:  # or a name stands there
            at = attempt(ks.decode_index_key, key)
            waits = at is not None and at.kind == ks.DELAYED
        if waits and (what := waits_for_nothing(self._walk, key[ID_AT:])) is not None:
            self._report("workflow", what, key[ID_AT:])

    def _counters(self) -> Generator[None, None, None]:
        counted = (
            (ks.INDEX, ks.INDEX_END),
            (ks.LEASE, ks.LEASE_END),
            (ks.RESULT, ks.RESULT_END),
            (ks.COUNTERS, ks.COUNTERS_END),
            (ks.UNCOUNTED, ks.UNCOUNTED_END),
        )
        if any(self._walk.has_lost(lower, upper) for lower, upper in counted):
            return
        recount: dict[tuple[bytes, bytes], Counters] = {}
        for n, (queue, tenant, counts) in enumerate(self._census.counters()):
            recount[queue, tenant] = counts
            if n % _COUNTERS == 0:
                yield
        take_uncounted(self._view, recount)
        for rows in self._walk.pages(ks.COUNTERS, ks.COUNTERS_END):
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
        newest: dict[bytes, bytes] = {}  # the values of the part's places
        for rows in self._walk.pages(ks.INDEX, ks.INDEX_END):
            for task_id, key in part.add_index(rows):
                self._report("double_place", f"an older index row is left: {key!r}", task_id)
            for key, raw in rows:
                place = part.places.get(key[ID_AT:])
                if place is not None and place.key == key:
                    newest[key[ID_AT:]] = raw
            yield
        for rows in self._walk.pages(ks.TASK, ks.TASK_END):
            for key, raw in rows:
                task = attempt(decode_task, raw) if part.holds(key) else None
                if task is not None:
                    place = part.places.pop(key[ks.ROW_ID], None)
                    self._task(
                        key[ks.ROW_ID],
                        task,
                        len(raw),
                        place,
                        newest.pop(key[ks.ROW_ID], None),
                    )
            yield
        for n, (task_id, place) in enumerate(part.places.items()):
            task_row, is_known = self._walk.read(ks.TASK + task_id)
            if not is_known:
                self._report_unknown("its record", task_id)
            elif task_row is None or attempt(decode_task, task_row) is None:
                self._report("orphan_index", f"index row without a task: {place.key!r}", task_id)
            if n % 64 == 63:
                yield

    def _task(
        self, task_id: bytes, task: TaskRecord, size: int, place: RowPlace | None, row: bytes | None
    ) -> None:
        """One task, with its newest index row as the walk has found it."""
        read = self._walk.read
        lease_row, knows_lease = read(ks.LEASE + task_id)
        moved_row, knows_moved = read(ks.MOVED + task_id)
        result_row, _ = read(ks.RESULT + task_id)
        ghost_row, knows_ghost = None, True
        if task.ghost != NO_GHOST:
            ghost_row, knows_ghost = read(ks.GHOST + task.ghost)
        lease, moved = attempt(decode_lease, lease_row), attempt(decode_moved, moved_row)
        knows_place = knows_lease
        if place is None and lease is None:
            key = moved.key if moved is not None else first_key(task_id, task)
            if knows_moved:
                row, knows_row = read(key)
            else:
                knows_row = not self._walk.has_lost(ks.INDEX, ks.INDEX_END)
            at = attempt(ks.decode_index_key, key) if row is not None else None
            place = _index_place(key, at) if at is not None else None
            knows_place = knows_lease and knows_row
        known = Known(
            task_id,
            task,
            size,
            place,
            attempt(decode_index_row, row),
            lease,
            moved,
            attempt(decode_result, result_row),
            attempt(decode_ghost, ghost_row),
        )
        if place is None and lease is None and not knows_place:
            self._report_unknown("its ready, delayed or dead row, or its lease,", task_id)
        else:
            self._place(known, knows_moved=knows_moved)
            if task.ghost != NO_GHOST and ghost_row is None and knows_ghost and not known.is_dead:
                self._report("ghost", "does not hold its dedup key", task_id)
        if known.is_finished:
            self._report("finished", "has a final result and is still there", task_id)
        if task.flags & BODY_FLAG:
            self._body(task_id, task)

    def _place(self, k: Known, *, knows_moved: bool) -> None:
        if k.result is not None and not k.is_finished and not k.is_dead:
            self._report("revived", "has the result of a dead letter and is none", k.task_id)
        if k.is_misplaced:
            self._report("misplaced", "its index row lies under another queue", k.task_id)
        if k.place is None and k.lease is None:
            self._report("no_place", "not ready, delayed, dead or leased", k.task_id)
        elif k.place is not None and k.lease is not None:
            self._report("double_place", f"leased and at {k.place.key!r}", k.task_id)
        elif not knows_moved:
            return
        elif k.lease is not None:
            if bool(k.lease.flags & MOVED_FLAG) != (k.moved is not None):
                self._report("moved", "the lease and the s/ row disagree", k.task_id)
        elif k.place is not None and k.row is not None:
            wanted = k.place.key if k.place.key != first_key(k.task_id, k.task) else None
            if wanted != (k.moved.key if k.moved else None):
                self._report("moved", f"the s/ row does not say {wanted!r}", k.task_id)
            if bool(k.row.flags & MOVED_ROW) != (wanted is not None):
                self._report("moved", "the row's moved flag is wrong", k.task_id)

    def _body(self, task_id: bytes, task: TaskRecord) -> None:
        raw, is_known = self._walk.read(ks.BODY + task_id)
        row = attempt(decode_body, raw)
        if raw is None and is_known:
            self._report("body", "no row says where its payload lies", task_id)
        elif row is not None and row.record_id != task.payload:
            self._report("body", "its row leads to another's payload", task_id)

    def _orphans(self, lower: bytes, upper: bytes, what: str) -> Generator[None, None, None]:
        for rows in self._walk.pages(lower, upper):
            for key, _ in rows:
                task, is_known = self._walk.read(ks.TASK + key[ks.ROW_ID])
                if task is None and is_known:
                    self._report(
                        f"orphan_{what.split()[0]}", f"{what} without a task", key[ks.ROW_ID]
                    )
                elif task is None and lower == ks.LEASE:
                    self._report_unknown("its record", key[ks.ROW_ID])
            yield

    def _attempts(self) -> Generator[None, None, None]:
        for rows in self._walk.pages(ks.ATTEMPTS, ks.ATTEMPTS_END):
            for key, _ in rows:
                moved, is_known = self._walk.read(ks.MOVED + key[ks.ROW_ID])
                if moved is None and is_known:
                    result, is_known = self._walk.read(ks.RESULT + key[ks.ROW_ID])
                    if is_known and not leads_to_attempts(result):
                        self._report("orphan_attempts", "attempts without a task", key[ks.ROW_ID])
            yield

    def _ghosts(self) -> Generator[None, None, None]:
        old = 0
        for rows in self._walk.pages(ks.GHOST, ks.GHOST_END):
            for _, raw in rows:
                ghost = attempt(decode_ghost, raw)
                if ghost is None:
                    continue
                old += ghost.form == OLD_FORM
                if ghost.expires_ms == 0:
                    task, is_known = self._walk.read(ks.TASK + ghost.task_id)
                    if task is None and is_known:
                        self._report("ghost", "dedup key of a task that is gone", ghost.task_id)
            yield
        if self._walk.has_lost(ks.GHOST, ks.GHOST_END):
            return
        count, is_known = self._walk.read(ks.OLD_GHOSTS)
        secret, _ = self._walk.read(ks.SECRET)  # before there is one nobody counts them
        said = 0 if count is None else attempt(decode_old_ghosts, count)
        if secret is not None and is_known and said is not None and said != old:
            self._report("counters", f"the row says {said} dedup keys of format 1, there are {old}")

    def _expiry(self, part: Part) -> Generator[None, None, None]:
        if self._walk.has_lost(ks.EXPIRY, ks.EXPIRY_END):
            return
        filed: dict[bytes, int] = {}
        for rows in self._walk.pages(ks.EXPIRY, ks.EXPIRY_END):
            for key, raw in rows:
                for kind, named in attempt(decode_expiry, raw) or ():
                    if kind in b"cvh":  # results as well
                        kind = ord("r")
                    if kind not in b"bB" and part.holds(named):
                        # Keys ascend, so the first bucket is the earliest.
                        filed.setdefault(
                            bytes((kind,)) + named, int.from_bytes(key[ks.EXPIRY_BUCKET], "big")
                        )
                yield  # a row may name thousands
            yield
        for rows in self._walk.pages(ks.RESULT, ks.RESULT_END):
            for key, raw in rows:
                result = attempt(decode_result, raw) if part.holds(key) else None
                if result is not None:
                    self._filed(
                        filed,
                        b"r" + key[ks.ROW_ID],
                        result_due_ms(result),
                        key[ks.ROW_ID],
                    )
            yield
        for rows in self._walk.pages(ks.GHOST, ks.GHOST_END):
            for key, raw in rows:
                ghost = attempt(decode_ghost, raw) if part.holds(key) else None
                if ghost is not None:
                    self._filed(filed, b"g" + key[ks.ROW_ID], ghost.expires_ms, ghost.task_id)
            yield
        for rows in self._walk.pages(ks.INDEX, ks.INDEX_END):
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
        if entry[:1] == b"g":
            task, is_known = self._walk.read(ks.TASK + task_id)
            if task is not None or not is_known:
                return
        self._report("expiry", f"no {chr(entry[0])!r} entry at or before {due_ms} ms", task_id)


def verify_slices(view: StoreView, shard: int, shards: int) -> Generator[None, None, list[Finding]]:
    """Check a shard; yields after a few dozen rows each, returns what it found.

    ``view`` must not change meanwhile: pass a snapshot, split where ``find_splits`` says. At most
    10,000 findings are kept.
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
