"""One shard, audited: every block read, every record checked, every rule of ``verify`` asked.

As ``verify``, and by the million: rows become arrays (an extra: NumPy), about 60 bytes of memory
each, and a rule is a comparison of arrays. Nothing is written.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from ...errors import RecordCorruptError, UsageError
from ..bulk.reader import ShardReader, open_shard
from ..records import keyspace as ks
from ..records.frame import attempt
from ..records.keyspace import ID_AT
from ..records.rows import Counters, decode_counters, decode_ghost
from ..records.workflow import flow_slot_id
from ..recovery.health import Census
from ..recovery.pending_counts import without_uncounted
from ..values import Finding
from .audit_marks import RowMark, mark_of

try:
    from ..bulk.arrow.closure import Closure
    from ..bulk.arrow.facts import Facts
except ImportError as exc:
    raise UsageError('an audit needs an extra: pip install "lodeq[spark]"') from exc

__all__ = ["FINDINGS_MAX", "ShardAudit", "audit_shard"]

FINDINGS_MAX: Final = 10_000  # of a shard; more are counted
_BEFORE_META: Final = b"m/"
_ROUTED: Final = frozenset((ks.TASK, ks.LEASE, ks.RESULT, ks.MOVED, ks.ATTEMPTS))


class ShardAudit(NamedTuple):
    """Report of an audit. ``kinds`` counts each kind, also beyond the findings listed.

    ``rows``: how many there are, by what they are. ``damaged`` and ``strays``: rows that do not
    decode, and those of another shard. ``oldest_lease_us``: when it was granted; 0: none is held.
    """

    shard: int
    shards: int
    store_id: bytes
    findings: tuple[Finding, ...]
    kinds: dict[str, int]
    rows: dict[str, int]
    counters: dict[tuple[bytes, bytes], Counters]
    damaged: tuple[RowMark, ...]
    strays: tuple[RowMark, ...]
    oldest_lease_us: int
    total_rows: int


class _Audit:
    def __init__(self, reader: ShardReader) -> None:
        self._reader = reader
        self._kinds: Counter[str] = Counter()
        self._seen: set[tuple[str, str, bytes | None]] = set()
        self._findings: list[Finding] = []
        self._damaged: list[RowMark] = []
        self._strays: set[bytes] = set()

    def report(self, kind: str, detail: str, about: bytes | None) -> None:
        """``about``: an id; of a damaged row, its key."""
        if (kind, detail, about) in self._seen:
            return
        self._kinds[kind] += 1
        if len(self._findings) >= FINDINGS_MAX:
            return
        self._seen.add((kind, detail, about))
        task_id = about
        if kind == "damaged":
            task_id = None
            if about is not None:
                self._damaged.append(self._mark(about))
        elif kind == "wrong_shard" and about is not None:
            self._strays.add(about)
        self._findings.append(Finding(self._reader.shard, kind, detail, task_id))

    def _mark(self, key: bytes) -> RowMark:
        return mark_of(key, self._reader.get(key))

    def run(self) -> ShardAudit:
        reader = self._reader
        facts = Facts(reader, self.report)
        closure = Closure(facts, reader.shard, reader.shards, self.report)
        closure.run()
        self._meta(facts)
        if facts.is_whole:
            self._counters(closure.counters)
        return ShardAudit(
            reader.shard,
            reader.shards,
            reader.store_id,
            tuple(self._findings),
            dict(self._kinds),
            closure.rows,
            closure.counters,
            tuple(self._damaged),
            tuple(self._find_strays()),
            closure.oldest_lease_us,
            facts.rows,
        )

    def _meta(self, facts: Facts) -> None:
        """Rows that speak of no task, and events: they decode."""
        census = Census()
        for lower, upper in (
            (ks.EVENTS, ks.EVENTS_END),
            (_BEFORE_META, b"m0"),
            (ks.PROGRESS, ks.PROGRESS_END),
        ):
            for rows in facts.batches(lower, upper):
                for key, value in rows:
                    try:
                        census.add(key, value)
                    except RecordCorruptError as exc:
                        self.report("damaged", f"{key!r}: {exc}", key)

    def _counters(self, found: dict[tuple[bytes, bytes], Counters]) -> None:
        recount = ((queue, tenant, counts) for (queue, tenant), counts in found.items())
        wanted = without_uncounted(self._reader, recount)
        for rows in self._reader.batches(ks.COUNTERS, ks.COUNTERS_END):
            for key, raw in rows:
                said = attempt(decode_counters, raw)
                if said is None:
                    continue  # reported as damaged
                name = ks.decode_counters_key(key)
                there = wanted.pop(name, Counters())
                if said != there or not any(said):
                    self.report(
                        "counters", f"{name!r}: the row says {said}, there are {there}", None
                    )
        for name, there in wanted.items():
            self.report("counters", f"{name!r}: no row, there are {there}", None)

    def _find_strays(self) -> list[RowMark]:
        """Keys of rows that belong to another shard: one more look, only if there are any."""
        if not self._strays:
            return []
        found = []
        for rows in self._reader.batches(b"", b"\xff"):
            for key, value in rows:
                task_id = _id_of(key, value)
                if task_id in self._strays:
                    found.append(mark_of(key, value))
        return found


def _id_of(key: bytes, value: bytes) -> bytes:
    if key[ks.FAMILY] in _ROUTED:
        return key[ks.ROW_ID]
    if key[ks.FAMILY] == ks.INDEX:
        return key[ID_AT:]
    if key[ks.FAMILY] in (ks.FLOWS, ks.OUTBOX):
        return _flow_id(key, value)
    if key[ks.FAMILY] == ks.GHOST:
        ghost = attempt(decode_ghost, value)
        return ghost.task_id if ghost is not None else b""
    return b""


def _flow_id(key: bytes, value: bytes) -> bytes:
    """The id that says where a row of a workflow belongs; none for a damaged one."""
    try:
        return flow_slot_id(key, value)
    except RecordCorruptError:
        return b""


def audit_shard(root: str, shard: int) -> ShardAudit:
    """Look at one shard of a snapshot, or of a store that does not change. Blocks.

    Raises:
        StorePathError, OpenError: it is not there, or cannot be opened.
        CorruptionError: it is damaged so that it cannot even be opened.
    """
    with open_shard(root, shard) as reader:
        return _Audit(reader).run()
