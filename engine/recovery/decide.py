"""Whether a shard that opened is all there, and the way around a log that does not open.

RocksDB replays what it finds. In ``tail`` mode it refuses a log damaged anywhere but at its end;
what it cannot see is a log that is missing, or a hole where one log was synced and an older one
was not. So every commit leaves its number in a ring of 65,536 rows, and open counts:

- Only the incarnation P of the stored ``m/open`` is looked at. What earlier ones wrote was in SST
  files, synced, before P began (RocksDB flushes what it replays).
- All of (P, 1) … (P, last) must be there, as far as the ring reaches back.
- The watermark names a last commit that is durable. A number missing at or below it is *lost*:
  that is damage, and open refuses. One missing above it is a *hole*: a power cut took writes that
  were never synced, and a repair makes the rest consistent.
- A watermark or a ring of an incarnation after P says that ``m/open`` itself, synced at each open,
  went back: lost too.

A log refused in ``tail`` mode is often harmless (zeroed blocks past the last sync are the usual
picture of a power cut), but only the count knows. So a copy, SST files hard-linked, is opened
up to the damage and counted; the original is not touched unless the copy is accepted.

``tail`` mode also opens with durable commits missing: a record whose *length* is damaged looks like
the end of its log, or manifest, and what lies behind, tables too, is deleted. So every file is
hard-linked away first, to ``shard0.before``, and put back unless the count accepts. Whoever is
killed in between leaves that folder, and the next open puts it back. So it loses its name, durably,
before anything is written to the shard.

A *salvage* goes further. Tables are read block by block first; ``CURRENT`` is made anew on a copy
where a manifest is left; and what cannot be opened, has damaged tables or has lost tables that lie
there is written anew from all that can be read (``salvage.py``). The count then says what is gone.

A swap is two renames, ordered so that a crash between them leaves a name that says how to go on::

    shard0.copy  →  shard0.accepted     the decision
    shard0       →  shard0.refused-P    now shard0 is missing: finish_swap takes .accepted
    shard0.accepted  →  shard0
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field

from ...errors import (
    CorruptionError,
    FormatTooNewError,
    FormatTooOldError,
    LockedError,
    OpenError,
    RecordCorruptError,
    RecoveryRefusedError,
    StorageError,
    StorageFullError,
)
from ..files.disk_errors import error_class, is_limit_text
from ..files.paths import (
    NOT_COPIED,
    Layout,
    accepted_path,
    before_path,
    clone_folder,
    copy_path,
    fresh_path,
    fsync_dir,
    fsync_file,
    refused_path,
    shard_path,
    watermark_path,
)
from ..records.keyspace import APPLIED, OPEN, RING, RING_END, RING_SLOTS, STAMP, ring_key
from ..records.rows import (
    Stamp,
    decode_open,
    decode_ring,
    decode_stamp,
    owner_of,
    ring_owner,
)
from ..store.port import StoreView
from ..store.rocks import RocksStore
from ..store.rocks_options import SharedMemory
from ..store.wal_inspection import ends_torn, log_owners, newest_commit, open_cut
from .salvage import broken_current, damaged_tables, rebuild
from .watermark import Watermark, WatermarkState

__all__ = [
    "ADVICE",
    "NUMBER_BITS",
    "Candidate",
    "RingCheck",
    "check_ring",
    "copy_shard",
    "describe_numbers",
    "drop_copy",
    "examine",
    "finish_swaps",
    "swap_in",
]

ADVICE = 'restore a checkpoint, or open with recovery="salvage" to go on with what is left'
NUMBER_BITS = 40  # commit_seq = incarnation << 40 | number
_NUMBER = (1 << NUMBER_BITS) - 1
_PAGE = 4096
_FSYNC = 1  # durability, as the stamp has it
_SHOWN_MAX = 8
_TYPED = (RecoveryRefusedError, RecordCorruptError)  # they say what to do, or it is added above
# What an open replaces or deletes, but never writes to.
_LINKS = (".sst", ".log", "MANIFEST-", "CURRENT", "IDENTITY", "OPTIONS-")


@dataclass(frozen=True, slots=True)
class RingCheck:
    """Result of counting the ring.

    ``stored`` is the incarnation in ``m/open``, ``newest`` the highest that anything mentions.
    ``lost`` and ``holes`` are commit_seqs, ascending; ``rolled_back`` says in words that the open
    row itself is older than it must be.
    """

    stored: int
    newest: int
    last: int
    seq: int
    lost: tuple[int, ...] = ()
    holes: tuple[int, ...] = ()
    rolled_back: str = ""
    owners: frozenset[int] = frozenset()  # whose commits of ``stored`` are there: ``ring_owner``

    @property
    def is_refused(self) -> bool:
        """Durable commits are missing."""
        return bool(self.lost or self.rolled_back)

    @property
    def is_whole(self) -> bool:
        """Nothing is missing that anybody can know of."""
        return not (self.lost or self.holes or self.rolled_back)

    @property
    def next_commit_seq(self) -> int:
        """The first number of the stored incarnation that no commit has had."""
        return (self.stored << NUMBER_BITS | self.last) + 1

    def describe(self) -> str:
        """The missing commits, in words."""
        parts = [self.rolled_back] if self.rolled_back else []
        if self.lost:
            parts.append(f"durable commits are missing: {describe_numbers(self.lost)}")
        if self.holes:
            parts.append(f"commits that were not yet durable: {describe_numbers(self.holes)}")
        return "; ".join(parts)


@dataclass(slots=True)
class Candidate:
    """A shard under examination: open, not yet begun. ``reports`` is for people."""

    index: int
    store: RocksStore
    root: str
    is_copy: bool = False
    stamp: Stamp | None = None
    mark: Watermark | None = None
    check: RingCheck = RingCheck(0, 0, 0, 0)
    reports: list[str] = field(default_factory=list)
    is_rebuilt: bool = False  # a new shard, of what could be read of the original
    open_row: bytes | None = None  # of the original, where this is a new shard
    torn_files: list[int] = field(default_factory=list)  # body files that a power cut took

    def abandon(self) -> None:
        """Close it; a copy that was not accepted goes."""
        self.store.close()
        if self.mark is not None:
            self.mark.close()
        if self.is_copy:
            drop_copy(self.root, self.index)


def examine(
    root: str,
    index: int,
    *,
    shared: SharedMemory,
    shards: int,
    is_salvage: bool,
    is_adopting: bool = False,
    store_id: bytes | None = None,
) -> Candidate:
    """Open one shard as it is, or a copy up to the damage, and judge it.

    A salvage goes on with whatever can be read, if need be in a new shard that takes the place of
    the original once it is accepted.

    Raises ``RecoveryRefusedError``, with everything closed and unchanged, if durable commits are
    missing and that is not to be salvaged, or if there is nothing to salvage.

    Args:
        root: folder of the store.
        index: index of the shard.
        shared: block cache and write buffers of all shards.
        shards: how many shards the store has.
        is_salvage: whether to go on although something is missing.
        is_adopting: whether it may be a copy of another replica's shard, with its watermark.
        store_id: the store's, if it is known for sure; a salvage leaves out what is of another one.
    """
    path = shard_path(root, index)
    broken = broken_current(path)
    if not is_salvage:
        if broken:
            raise RecoveryRefusedError(
                f"shard {index}: {os.path.join(path, broken)}: put the file back, {ADVICE}",
                shard=index,
            )
        return _examine(
            root, index, shared=shared, shards=shards, is_salvage=False, is_adopting=is_adopting
        )
    found: Candidate | None
    damaged = damaged_tables(path)
    if damaged:
        found, cause = None, f"damaged tables: {', '.join(sorted(damaged)[:_SHOWN_MAX])}"
    elif broken:
        found, cause = _with_current(root, index, broken, shared, shards)
    else:
        try:
            found = _examine(root, index, shared=shared, shards=shards, is_salvage=True)
            cause = ""
        except (LockedError, FormatTooNewError, FormatTooOldError, StorageFullError):
            raise
        except (CorruptionError, OpenError, StorageError) as exc:
            if is_limit_text(str(exc)):
                raise  # the shard may be whole
            found, cause = None, str(exc)
    if found is not None:
        return found
    built = rebuild(root, index, shards=shards, damaged=damaged, store_id=store_id)
    store = RocksStore.open(copy_path(root, index), shared=shared, shards=shards, create=False)
    found = Candidate(index, store, root, is_copy=True, is_rebuilt=True, open_row=built.open_row)
    found.reports += [f"shard {index}: {cause}", *built.reports]
    try:
        _look(found, is_salvage=True)
        _judge(found, is_salvage=True)
    except BaseException:
        found.abandon()
        raise
    return found


def _with_current(
    root: str, index: int, broken: str, shared: SharedMemory, shards: int
) -> tuple[Candidate | None, str]:
    """A copy whose ``CURRENT`` names the newest manifest, or None if that is not the way; why."""
    path = shard_path(root, index)
    names = [name for name in os.listdir(path) if name.startswith("MANIFEST-")]
    if not names:
        return None, f"{broken}, and there is no manifest"
    newest = max(names, key=lambda name: (len(name), name))
    copy = copy_shard(root, index)
    current = os.path.join(copy, "CURRENT")
    try:
        with open(current, "w", encoding="ascii") as file:
            file.write(f"{newest}\n")
        fsync_file(current)
        fsync_dir(copy)
        store = RocksStore.open(copy, shared=shared, shards=shards, create=False)
    except (CorruptionError, OpenError, StorageError) as exc:
        drop_copy(root, index)
        if is_limit_text(str(exc)):
            raise
        return None, f"{broken}; {newest} does not do ({exc})"
    found = Candidate(index, store, root, is_copy=True)
    found.reports.append(f"shard {index}: {broken}; made it anew, it names {newest}")
    try:
        _look(found, is_salvage=True)
        if found.check.is_refused and _tables(path) - store.live_tables():
            found.abandon()
            return None, f"{broken}; {newest} does not know all tables"
        _judge(found, is_salvage=True)
    except BaseException:
        found.abandon()
        raise
    return found, ""


def _tables(path: str) -> set[str]:
    return {name for name in os.listdir(path) if name.endswith(".sst")}


def _examine(
    root: str,
    index: int,
    *,
    shared: SharedMemory,
    shards: int,
    is_salvage: bool,
    is_adopting: bool = False,
) -> Candidate:
    """As RocksDB opens it, or a copy up to the damage of a log."""
    path = shard_path(root, index)
    foreign = _foreign_logs(root, index) if is_salvage else []
    has_log = any(
        name.endswith(".log") and os.path.getsize(os.path.join(path, name))
        for name in os.listdir(path)
    )
    os.rename(copy_shard(root, index, links=_LINKS), before_path(root, index))
    for name in foreign:
        os.unlink(os.path.join(path, name))
    try:
        store = RocksStore.open(path, shared=shared, shards=shards, create=False)
        found = Candidate(index, store, root)
    except CorruptionError as exc:
        _drop_before(root, index)
        found = Candidate(index, _open_copy(root, index, exc, shared, shards), root, is_copy=True)
        found.reports.append(f"shard {index}: the log is damaged ({exc})")
    except BaseException:
        _drop_before(root, index)
        raise
    try:
        _look(found, is_salvage, is_adopting=is_adopting)
        if is_salvage and found.check.is_refused:
            was = path if found.is_copy else before_path(root, index)
            if gone := _tables(was) - found.store.live_tables():
                raise CorruptionError(f"the manifest does not know {', '.join(sorted(gone)[:8])}")
        _judge(found, is_salvage)
        replayed = has_log and not found.is_copy and not foreign
        newest = newest_commit(before_path(root, index), found.check.stored) if replayed else 0
        if replayed and found.stamp is not None and found.stamp.durability == _FSYNC:
            _report_torn(found)
    except BaseException as exc:
        found.abandon()
        if not found.is_copy:
            _put_back(root, index)
        if is_salvage or not isinstance(exc, CorruptionError) or isinstance(exc, _TYPED):
            raise
        raise RecoveryRefusedError(
            f"shard {index}: what every open reads cannot be read ({exc}); {ADVICE}", shard=index
        ) from exc
    if not found.is_copy:
        try:
            _keep_before(found, newest & _NUMBER, foreign)
        except BaseException:
            found.abandon()
            raise
    return found


def _report_torn(found: Candidate) -> None:
    """Say that commits may be missing behind the last one, which no number tells."""
    if ends_torn(before_path(found.root, found.index)):
        found.reports.append(
            f"shard {found.index}: the log ends in the middle of a commit, behind commit "
            f"{found.check.last}: what followed was not durable at a power cut, or was cut off"
        )


def _foreign_logs(root: str, index: int) -> list[str]:
    """Logs in a shard's folder that only have commits of other shards or stores."""
    mark, path = Watermark.peek(watermark_path(root, index)), shard_path(root, index)
    if mark is None or not mark.incarnation:
        return []
    own = ring_owner(mark.store_id, index)
    logs = [name for name in os.listdir(path) if name.endswith(".log")]
    return [
        name
        for name in sorted(logs)
        if (owners := log_owners(os.path.join(path, name))) and own not in owners
    ]


def _keep_before(found: Candidate, newest: int, foreign: list[str]) -> None:
    """Keep what was there before the open if it has more than the shard has now; else drop it.

    Args:
        newest: the last commit of the log, as the log itself says; 0 if it was not replayed.
        foreign: logs that were left out.
    """
    root, index = found.root, found.index
    is_short = newest > found.check.last
    if is_short:
        found.reports.append(
            f"shard {index}: the log goes on to commit {newest}, what can be read of it ends "
            f"at {found.check.last}: the rest was not durable at a power cut, or is damaged"
        )
    if foreign:
        found.reports.append(
            f"shard {index}: left out, commits of another shard or store: {', '.join(foreign)}"
        )
    if found.check.is_refused or is_short or foreign:
        kept = refused_path(root, index, found.check.stored)
        os.rename(before_path(root, index), kept)
        fsync_dir(root)
        found.reports.append(f"shard {index}: the original is kept as {os.path.basename(kept)}")
    else:
        _drop_before(root, index)


def _drop_before(root: str, index: int) -> None:
    """The shard is what the open has made of it, or was left as it was."""
    os.rename(before_path(root, index), copy_path(root, index))
    fsync_dir(root)  # first: of a folder that comes back half removed a shard would be made
    drop_copy(root, index)


def _put_back(root: str, index: int) -> None:
    """The shard (closed) becomes what it was before it was opened. It may have no folder."""
    drop_copy(root, index)
    path = shard_path(root, index)
    if os.path.lexists(path):
        os.rename(path, copy_path(root, index))
    os.rename(before_path(root, index), path)
    fsync_dir(root)
    drop_copy(root, index)


def _open_copy(
    root: str, index: int, cause: CorruptionError, shared: SharedMemory, shards: int
) -> RocksStore:
    path = copy_shard(root, index)
    try:
        return open_cut(
            path,
            lambda: RocksStore.open(
                path, shared=shared, shards=shards, recovery_mode="point_in_time", create=False
            ),
        )
    except BaseException as exc:
        drop_copy(root, index)
        if not isinstance(exc, CorruptionError):
            raise
        raise RecoveryRefusedError(
            f"shard {index} cannot be opened, not even up to the damage ({exc}); {ADVICE}",
            shard=index,
        ) from cause


def _look(found: Candidate, is_salvage: bool, *, is_adopting: bool = False) -> None:
    """Stamp, watermark, ring."""
    path = shard_path(found.root, found.index)
    raw = found.store.get(STAMP)
    if raw is None:
        if not is_salvage and found.store.scan(b"", b"\xff", 1):
            raise RecoveryRefusedError(f"{path} has rows and no stamp: {ADVICE}", shard=found.index)
        found.check = check_ring(
            found.store,
            Watermark.peek(watermark_path(found.root, found.index)),
            open_row=found.open_row,
        )
        return
    try:
        found.stamp = decode_stamp(raw)
    except RecordCorruptError as exc:
        raise RecoveryRefusedError(
            f"{path} does not say which store it belongs to ({exc}): restore a checkpoint",
            shard=found.index,
        ) from exc
    found.mark = _open_mark(found, None if is_adopting else found.stamp.store_id, is_salvage)
    found.check = check_ring(
        found.store, found.mark.state if found.mark else None, open_row=found.open_row
    )
    foreign = found.check.owners - {ring_owner(found.stamp.store_id, found.index)}
    if foreign and found.store.get(APPLIED) is None:  # a replica has those of its leaders
        text = f"shard {found.index}: a log in {path} has commits of another shard or store"
        if not is_salvage:
            raise RecoveryRefusedError(
                f"{text}; put the right one back, {ADVICE}", shard=found.index
            )
        found.reports.append(text)


def _open_mark(found: Candidate, store_id: bytes | None, is_salvage: bool) -> Watermark | None:
    """The shard's watermark; None if it has to be made (never opened, or salvage).

    ``store_id``: of whose store it must be; None: of any.
    """
    path = watermark_path(found.root, found.index)
    try:
        mark = Watermark.open(path, shard=found.index, store_id=store_id)
    except RecoveryRefusedError as exc:
        if check_ring(found.store, None, open_row=found.open_row).newest == 0:
            return None  # a crash during creation: nothing was ever promised
        if not is_salvage:
            raise
        found.reports.append(f"shard {found.index}: made a new watermark ({exc})")
        return None
    if mark.state.damaged_slots:
        found.reports.append(
            f"shard {found.index}: one slot of the watermark was damaged; used the other"
        )
    return mark


def _judge(found: Candidate, is_salvage: bool) -> None:
    """Refuse what has lost durable commits, unless that is to be salvaged."""
    check = found.check
    if check.is_refused and not is_salvage:
        raise RecoveryRefusedError(
            f"shard {found.index}: {check.describe()}; {ADVICE}",
            shard=found.index,
            missing=check.lost,
        )
    if check.is_refused:
        found.reports.append(f"shard {found.index}: dropped, {check.describe()}")
    elif check.holes:
        found.reports.append(f"shard {found.index}: a power cut took {check.describe()}")


def check_ring(
    view: StoreView, mark: WatermarkState | None, *, open_row: bytes | None = None
) -> RingCheck:
    """Count the commits of the stored incarnation. ``mark`` None: nothing is promised.

    ``open_row`` counts in the place of one that the view has not.
    """
    raw = view.get(OPEN) or open_row
    rolled_back = ""
    try:
        stored = 0 if raw is None else decode_open(raw)
    except RecordCorruptError as exc:
        stored = 0 if mark is None else mark.incarnation
        rolled_back = f"the open row is damaged ({exc})"
    newest, last, seq, numbers, owners = _read_ring(view, stored)
    if newest > stored:
        rolled_back = f"the open row says incarnation {stored}, the ring has commits of {newest}"
    durable = 0
    if mark is not None:
        if mark.incarnation > stored:
            rolled_back = (
                f"the open row says incarnation {stored}, the watermark {mark.incarnation}"
            )
        elif mark.incarnation == stored:
            durable = mark.durable
        newest = max(newest, mark.incarnation)
    last = max(last, durable)
    base = stored << NUMBER_BITS
    missing = [n for n in range(max(1, last - RING_SLOTS + 1), last + 1) if n not in numbers]
    return RingCheck(
        stored,
        max(stored, newest),
        last,
        seq,
        tuple(base | n for n in missing if n <= durable),
        tuple(base | n for n in missing if n > durable),
        rolled_back,
        frozenset(owners - {0}),
    )


def _read_ring(view: StoreView, stored: int) -> tuple[int, int, int, set[int], set[int]]:
    """(newest incarnation, last number of ``stored``, highest seq, its numbers, whose they are)."""
    numbers: set[int] = set()
    owners: set[int] = set()
    newest = last = seq = 0
    lower = RING
    while True:
        rows = view.scan(lower, RING_END, _PAGE)
        for key, value in rows:
            try:
                commit_seq, row_seq = decode_ring(value)
            except RecordCorruptError:
                continue  # no proof of its commit: its number is missing, and judged as that
            if ring_key(commit_seq) != key:
                continue
            incarnation = commit_seq >> NUMBER_BITS
            if row_seq > seq:
                seq = row_seq
            if incarnation == stored:
                numbers.add(commit_seq & _NUMBER)
                owners.add(owner_of(value))
            elif incarnation > newest:
                newest = incarnation
        if len(rows) < _PAGE:
            break
        lower = rows[-1][0] + b"\0"
    if numbers:
        last = max(numbers)
    return newest, last, seq, numbers, owners


def describe_numbers(commit_seqs: tuple[int, ...]) -> str:
    """``incarnation 3, commits 5, 7-9 (4 in all)``, at most eight ranges."""
    if not commit_seqs:
        return "none"
    ranges: list[tuple[int, int]] = []
    for n in (seq & _NUMBER for seq in commit_seqs):
        if ranges and ranges[-1][1] + 1 == n:
            ranges[-1] = (ranges[-1][0], n)
        else:
            ranges.append((n, n))
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges[:8])
    more = ", …" if len(ranges) > 8 else ""
    incarnation = commit_seqs[0] >> NUMBER_BITS
    return f"incarnation {incarnation}, commits {shown}{more} ({len(commit_seqs)} in all)"


def copy_shard(root: str, shard: int, links: tuple[str, ...] = (".sst",)) -> str:
    """A durable copy of the shard's folder beside it; returns its path.

    Files that start or end with one of ``links`` are hard-linked.
    """
    source, target = shard_path(root, shard), copy_path(root, shard)
    drop_copy(root, shard)
    try:
        clone_folder(source, target, links=links, skip=NOT_COPIED)
    except OSError as exc:
        drop_copy(root, shard)
        text = f"{source} could not be copied for recovery: {exc.strerror}"
        raise error_class(exc)(text) from exc
    return target


def drop_copy(root: str, shard: int) -> None:
    """Remove a copy that was not accepted, and a new shard that was not finished."""
    shutil.rmtree(copy_path(root, shard), ignore_errors=True)
    shutil.rmtree(fresh_path(root, shard), ignore_errors=True)


def swap_in(root: str, shard: int, incarnation: int) -> str:
    """Put the accepted copy (closed) in the shard's place; returns where the original is kept."""
    kept = refused_path(root, shard, incarnation)
    try:
        os.rename(copy_path(root, shard), accepted_path(root, shard))
        fsync_dir(root)
        os.rename(shard_path(root, shard), kept)
        fsync_dir(root)
        os.rename(accepted_path(root, shard), shard_path(root, shard))
        fsync_dir(root)
    except OSError as exc:
        text = f"{exc.filename} could not be renamed: {exc.strerror}"
        raise error_class(exc)(text) from exc
    return kept


def finish_swaps(root: str, layout: Layout) -> list[str]:
    """Tidy up after a crash: finish the swaps that were decided, drop the copies that were not.

    A shard in the middle of an open becomes what it was before that.

    Returns a report for each swap that was finished.
    """
    reports: list[str] = []
    for shard in layout.before:
        _put_back(root, shard)
    for shard in layout.accepted:
        accepted = accepted_path(root, shard)
        if shard in layout.shards:  # before the first rename: the original is still in force
            shutil.rmtree(accepted, ignore_errors=True)
        else:
            os.rename(accepted, shard_path(root, shard))
            reports.append(
                f"shard {shard}: finished an interrupted recovery; the original is kept beside it "
                f"as shard{shard}.refused-*"
            )
    for shard in layout.copies:
        drop_copy(root, shard)
    if layout.accepted or layout.copies:
        fsync_dir(root)
    return reports
