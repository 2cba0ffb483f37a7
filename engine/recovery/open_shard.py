"""Open a store: every shard whole and counted, or nothing.

The order is what makes it safe, so it is kept in one place:

1. *Look.* Path, owner, mode and names, before anything is created; then the lock, and the formats
   of body files.
2. *Examine.* Open each shard (RocksDB replays its log into synced SST files), read its stamp, count
   its ring against its watermark. A log that does not open is tried on a copy. Whatever refuses,
   refuses here: no shard has been changed, whichever it was.
3. *Complete.* Shards missing from a store that has never been opened for writing are what a crash
   during creation leaves; they hold nothing and are made. In any other store a missing shard is
   lost data.
4. *Mend.* Accepted copies take their originals' place; holes are repaired and synced.
5. *Settle.* A store of an older format gets what it lacks and its new stamp, in one batch a shard,
   synced (``dedup_secret.py``).
6. *Begin.* ``m/open`` gets the next incarnation, synced, before anything is handed out: epochs and
   commit numbers grow even if a power cut takes everything written afterwards. Then the watermark
   follows. A crash between the two leaves a watermark of an earlier incarnation: it promises
   nothing about this one, and nothing was promised. A replica begins none (``incarnation.py``).

A process may have some of the shards only (``coalescer/hosting.py``). Then nothing of the others is
looked at, moved or made. Of a store that several processes share every shard has to be there. Of a
replica one that is not is begun anew, as its log does; and a copy of another replica's shard gets
the stamp of this store.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, cast

from ...errors import (
    CommitUnknownError,
    CorruptionError,
    RecordCorruptError,
    RecoveryRefusedError,
    ShardCountError,
    StorageError,
    StorageFullError,
    StorePathError,
    UsageError,
)
from ..bulk.inbox import pending
from ..files.atomic_swap import finish_move
from ..files.ballast import free_space_of, give_up, needed_bytes
from ..files.disk_errors import disk_error, is_full
from ..files.paths import (
    SHARDS_MAX,
    Layout,
    bodies_path,
    check_root,
    fsync_dir,
    has_remains,
    is_rocksdb,
    list_layout,
    lock_path,
    make_root,
    normal_path,
    refused_path,
    shard_path,
    watermark_path,
)
from ..files.store_lock import StoreLock
from ..records.keyspace import APPLIED, BODY_FILES, OPEN
from ..records.rows import Stamp, encode_open, first_file_of_life
from ..runtime.clock import Clock, SystemClock
from ..runtime.ids import Rng, SystemRng
from ..store.memory import MemoryStore
from ..store.port import Store, write_patiently
from ..store.rocks import RocksStore
from ..store.rocks_errors import is_damage
from ..store.rocks_options import SharedMemory
from .decide import (
    ADVICE,
    Candidate,
    check_ring,
    examine,
    finish_swaps,
    swap_in,
)
from .dedup_secret import (
    check_loads,
    common_secret,
    kept_secret,
    settle_formats,
    stamp_ops,
    stored_id,
    write_secrets,
)
from .evidence import list_evidence, prune
from .incarnation import adopt, begin, check_copies, check_replicas, refuse_replica, sync_all
from .repair import repair
from .row_checks.body_rows import BodyFolders, lost_rows, rows_of_file, wrong_files
from .salvage import count_tasks
from .watermark import Watermark

__all__ = [
    "OFFLINE_CACHE_BYTES",
    "SHARDS_DEFAULT",
    "Durability",
    "OpenShard",
    "OpenStore",
    "open_hosted",
    "open_memory",
    "open_store",
]

Durability = Literal["nosync", "fsync"]
Hosts = Callable[[int], bool]
SHARDS_DEFAULT = 1
OFFLINE_CACHE_BYTES = 64 << 20  # of who works on a closed store
_CACHE_BYTES_MAX = 1 << 48  # more than any machine has: a slip
_FILES_SHOWN = 8
_DURABILITIES: tuple[Durability, ...] = ("nosync", "fsync")  # by their number in the stamp


@dataclass(slots=True)
class OpenShard:
    """One open shard. Commits are numbered ``incarnation << 40 | n``, n from 1."""

    index: int
    store: Store
    watermark: Watermark | None
    incarnation: int
    seq: int
    path: str | None
    recoveries: list[str] = field(default_factory=list)
    last: int = 0  # commits of this incarnation that are there already: only on a replica

    def close(self) -> None:
        """Close its store. Idempotent. Blocks."""
        self.store.close()
        if self.watermark is not None:
            self.watermark.close()


@dataclass(slots=True)
class OpenStore:
    """An open store. ``recoveries``: what open had to mend, in words; empty after a plain crash."""

    path: str | None
    store_id: bytes
    shards: list[OpenShard]
    durability: Durability
    recoveries: list[str] = field(default_factory=list)
    lock: StoreLock | None = None
    is_sound: bool = True  # nothing is left for the next open to sync
    was_left: bool = True  # no owner has closed it since its leases were looked at
    ballast_bytes: int = 0  # what the next recovery may want; 0: no ballast is kept
    total: int = 0  # how many shards the store has, here or not; 0: those that are open
    memory: SharedMemory | None = None  # of all shards

    @property
    def shard_count(self) -> int:
        """How many shards the store has, here or not."""
        return self.total or len(self.shards)

    def close(self) -> None:
        """Close the shards, then release the lock. Idempotent. Blocks."""
        for shard in self.shards:
            shard.close()
        if self.lock is not None:  # leases of an owner that died wait for the next engine
            self.lock.release(is_sound=self.is_sound and not self.was_left)


def open_memory(
    *,
    shards: int | None,
    durability: str | None,
    rng: Rng,
    is_replica: bool = False,
    hosts: Hosts | None = None,
) -> OpenStore:
    """A store in memory: never durable, gone when closed.

    Args:
        shards: 1 to 4,096; None: 1.
        durability: ``nosync`` or ``fsync``; None: ``nosync``.
        rng: draws the store's id and secret.
        is_replica: whether the shards wait for a replicated log.
        hosts: which shards are to be opened; None: all.
    """
    _check_arguments(shards, durability, "strict", 0)
    count, store_id = shards or SHARDS_DEFAULT, rng.bytes(16)
    secret = b"" if is_replica else rng.secret()
    mode = cast(Durability, durability or _DURABILITIES[0])
    opened = []
    for index in filter(hosts or _every, range(count)):
        stamp = Stamp(index, count, _DURABILITIES.index(mode), store_id)
        opened.append(_in_memory(stamp, secret))
    return OpenStore(None, store_id, opened, mode, total=count)


def _in_memory(stamp: Stamp, secret: bytes) -> OpenShard:
    store = MemoryStore()
    store.write([*stamp_ops(stamp, secret), (OPEN, encode_open(1))])
    return OpenShard(stamp.shard, store, None, 1, 0, None)


def _every(shard: int) -> bool:
    return True


def open_store(
    path: str | os.PathLike[str],
    *,
    shards: int | None = None,
    durability: str | None = None,
    block_cache_bytes: int = OFFLINE_CACHE_BYTES,
    recovery: Literal["strict", "salvage"] = "strict",
    rng: Rng | None = None,
    clock: Clock | None = None,
    is_replica: bool = False,
    is_detached: bool = False,
    bodies: BodyFolders | None = None,
    has_journal: bool = False,
    hosts: Hosts | None = None,
) -> OpenStore:
    """Open the store at ``path``, or create it. Blocks; leaves nothing open on failure.

    Args:
        path: its folder; created (0700) if it does not exist.
        shards: 1 to 4096, or None for what the store is stamped with (a new one: 1).
        durability: ``nosync`` or ``fsync``, or None for what the store is stamped with. Another
            value holds for this open only.
        block_cache_bytes: one cache for all shards, memtables charged to it.
        recovery: ``salvage`` goes on where ``strict`` refuses, and reports what was dropped.
        rng: draws the id of a new store; the system's by default.
        clock: decides what is overdue in a repair; the system's by default.
        is_replica: its incarnations come from the replicated log; it is never repaired.
        is_detached: a replica becomes a store of its own; else it is refused without its log.
        bodies: knows the folders of body files; None: they are not looked at.
        has_journal: each incarnation leaves a row for the lifecycle journal.
        hosts: which shards this process is to have; None: all. Of a store that is no replica they
            are locked one by one, below a process that has the store (``store_lock.py``).

    Raises:
        OpenError: wrong path, locked, another shard count, a format that is not read, a replica
            without its log.
        RecoveryRefusedError: durable commits are missing; nothing was changed.
        StorageFullError: there is no space for the recovery, without the ballast either.
        StorageError: the disk failed.
    """
    _check_arguments(shards, durability, recovery, block_cache_bytes)
    root = normal_path(path)
    is_shared = hosts is not None and not is_replica
    if not is_shared:
        finish_move(root)
    if check_root(root):
        list_layout(root)  # before the lock file makes a store of somebody else's folder
    elif is_shared:
        raise _unmade(root)
    else:
        make_root(root)
    space = _Space(root, hosts)
    is_copy = not os.path.lexists(lock_path(root))  # or new: what it copies may have lived on
    try:
        lock = _lock(root, hosts if is_shared else None, space)
    except StorageFullError as exc:
        raise space.error(exc) from exc
    try:
        check_root(root)
        space.check()
        now_ms = (clock or SystemClock()).wall_us() // 1000
        begin_attempt = partial(
            _Opening,
            root,
            lock,
            SharedMemory(block_cache_bytes),
            is_salvage=recovery == "salvage",
            is_replica=is_replica,
            is_detached=is_detached,
            bodies=bodies,
            has_journal=has_journal,
            hosts=hosts,
        )
        opened = _open_in(space, begin_attempt, shards, durability, rng or SystemRng(), now_ms)
        opened.was_left |= is_copy
        return opened
    except OSError as exc:
        lock.abandon()
        raise disk_error(exc, root) from exc
    except BaseException:
        lock.abandon()
        raise


def _lock(root: str, hosts: Hosts | None, space: _Space) -> StoreLock:
    """Lock the store, or, of one that several processes share, these shards."""
    if hosts is None:
        return StoreLock.of_store(root, space.make)
    return StoreLock.of_shards(root, filter(hosts, list_layout(root).shards), space.make)


def _unmade(root: str) -> StorePathError:
    return StorePathError(
        f"{root} holds no store yet, or not all shards of it: open it once without hosting, which "
        "makes them, before processes share it"
    )


def open_hosted(
    opened: OpenStore, index: int, *, rng: Rng, clock: Clock | None = None
) -> OpenShard:
    """Open one more shard of an open replica. Blocks; leaves nothing open on failure.

    The shard's folder is taken as it is: a copy of another replica's, or one that this process had
    before. Without a folder an empty shard is begun.

    Args:
        opened: the store; it takes the shard in when it is served.
        index: of the shard.
        rng: draws what a new store wants.
        clock: decides what is overdue; the system's by default.

    Raises:
        OpenError: the folder is of another shard or store, or its format is not read.
        RecoveryRefusedError: it has lost commits; nothing was changed.
        StorageError: the disk failed.
    """
    stamp = Stamp(
        index, opened.shard_count, _DURABILITIES.index(opened.durability), opened.store_id
    )
    if opened.path is None or opened.lock is None or opened.memory is None:
        return _in_memory(stamp, b"")
    opening = _Opening(
        opened.path,
        opened.lock,
        opened.memory,
        is_salvage=False,
        is_replica=True,
        is_detached=False,
        bodies=None,
        has_journal=False,
        hosts=lambda shard: shard == index,
        store_id=opened.store_id,
    )
    now_ms = (clock or SystemClock()).wall_us() // 1000
    try:
        return opening.run(opened.shard_count, opened.durability, rng, now_ms).shards[0]
    except BaseException as exc:
        opening.abandon()
        _refuse_damage(exc)
        if isinstance(exc, OSError):
            raise StorageError(f"{exc.filename}: {exc.strerror}; look at the disk") from exc
        raise


def _open_in(
    space: _Space,
    begin_attempt: Callable[[], _Opening],
    shards: int | None,
    durability: str | None,
    rng: Rng,
    now_ms: int,
) -> OpenStore:
    """Run attempts until one succeeds, as long as the ballast gives space for another.

    Args:
        space: of the store's volume.
        begin_attempt: makes an attempt that has opened nothing yet.
        shards: 1 to 4096, or None for what the store is stamped with.
        durability: as ``open_store`` takes it.
        rng: draws the id of a new store.
        now_ms: wall time.
    """
    while True:
        opening = begin_attempt()
        try:
            opened = opening.run(shards, durability, rng, now_ms)
        except BaseException as exc:
            opening.abandon()
            _refuse_damage(exc)
            if not _is_full(exc):
                raise
            if not space.make():
                raise space.error(exc) from exc
        else:
            opened.recoveries += space.reports
            return opened


def _refuse_damage(exc: BaseException) -> None:
    """Raise the refusal that ``exc`` stands for, if it reports damage without advice."""
    if isinstance(exc, CommitUnknownError) and is_damage(exc):
        raise RecoveryRefusedError(
            f"a table is damaged, so RocksDB takes no writes ({exc}); {ADVICE}"
        ) from exc
    if type(exc) in (CorruptionError, RecordCorruptError):  # their subclasses say what to do
        raise RecoveryRefusedError(
            f"what every open reads cannot be read ({exc}); {ADVICE}"
        ) from exc


def _is_full(exc: BaseException) -> bool:
    return isinstance(exc, StorageFullError) or (isinstance(exc, OSError) and is_full(exc))


class _Space:
    """The space left on the volume of a store, and the ballast that may be given up for more."""

    def __init__(self, root: str, hosts: Hosts | None) -> None:
        self._root = root
        self._hosts = hosts
        self.reports: list[str] = []

    def check(self) -> None:
        """Give the ballast up if a recovery wants more than there is."""
        if free_space_of(self._root).free < self._needed():
            self.make()

    def make(self) -> int:
        """Give the ballast up; returns the bytes that gave."""
        free = free_space_of(self._root).free
        given = give_up(self._root)
        if given:
            self.reports.append(
                f"the disk was full ({free:,} bytes free): gave up {given:,} bytes of ballast to "
                "open the store; free some disk space, and it is made again"
            )
        return given

    def error(self, exc: BaseException) -> StorageFullError:
        """The error for when all of that was not enough."""
        return StorageFullError(
            f"{self._root} cannot be opened, its disk is full: about {self._needed():,} bytes are "
            f"needed, {free_space_of(self._root).free:,} are free ({exc}); free some disk space"
        )

    def _needed(self) -> int:
        return needed_bytes(self._root, list_layout(self._root).only(self._hosts).shards)


def _check_arguments(
    shards: int | None, durability: str | None, recovery: str, block_cache_bytes: int
) -> None:
    if shards is not None and (type(shards) is not int or not 1 <= shards <= SHARDS_MAX):
        raise UsageError(f"shards is a number from 1 to {SHARDS_MAX}, not {shards!r}")
    if durability is not None and durability not in _DURABILITIES:
        raise UsageError(f"durability is 'nosync' or 'fsync', not {durability!r}")
    if recovery not in ("strict", "salvage"):
        raise UsageError(f"recovery is 'strict' or 'salvage', not {recovery!r}")
    if type(block_cache_bytes) is not int or not 0 <= block_cache_bytes <= _CACHE_BYTES_MAX:
        raise UsageError(f"block_cache_bytes is a number of bytes, not {block_cache_bytes!r}")


class _Opening:
    """One attempt. ``abandon`` closes whatever it has opened so far; the lock stays."""

    def __init__(
        self,
        root: str,
        lock: StoreLock,
        shared: SharedMemory,
        *,
        is_salvage: bool,
        is_replica: bool,
        is_detached: bool,
        bodies: BodyFolders | None,
        has_journal: bool,
        hosts: Hosts | None = None,
        store_id: bytes | None = None,
    ) -> None:
        self._root = root
        self._hosts = hosts
        self._store_id = store_id  # of a store that is open already
        self._is_shared = hosts is not None and not is_replica
        self._is_adopting = hosts is not None and is_replica
        self._lock = lock
        self._shared = shared
        self._is_salvage = is_salvage
        self._is_replica = is_replica
        self._is_detached = is_detached
        self._bodies = bodies
        self._has_journal = has_journal
        self._count = 1
        self._secret = b""
        self._is_secret_new = False
        self._found: list[Candidate] = []
        self._reports: list[str] = []

    def abandon(self) -> None:
        """Close everything, drop copies."""
        for candidate in self._found:
            candidate.abandon()

    def run(self, shards: int | None, durability: str | None, rng: Rng, now_ms: int) -> OpenStore:
        """The steps of the module's essay.

        Args:
            shards: how many a new store gets, or what an old one must have; None: whatever is
                there, or 1.
            durability: the mode, ``nosync`` or ``fsync``; None: as the store was made.
            rng: draws a new store's id and secret.
            now_ms: Unix milliseconds, for the names of evidence.
        """
        layout = self._layout()
        evidence = list_evidence(self._root)
        if self._bodies is not None:
            for index in layout.bodies:
                self._bodies(bodies_path(self._root, index)).examine(was_left=self._lock.was_left)
        self._reports += finish_swaps(self._root, layout)
        stamp = self._examine_all(shards)
        if stamp is None:
            if self._is_shared:
                raise _unmade(self._root)
            mode = cast(Durability, durability or _DURABILITIES[0])
            count = shards or len(list_layout(self._root).watermarks) or SHARDS_DEFAULT
            known = self._store_id or self._known_id()
            stamp = Stamp(0, count, _DURABILITIES.index(mode), known or rng.bytes(16))
        self._count = stamp.shards
        if self._hosts is None and not (self._is_replica or self._is_detached):
            check_copies(self._found, is_salvage=self._is_salvage)
        if not self._is_replica:
            self._check_bodies()
        check_loads(self._found, pending(self._root), is_salvage=self._is_salvage)
        self._secret = common_secret(self._found, is_salvage=self._is_salvage)
        if not self._secret and self._is_salvage:
            self._secret = kept_secret(self._root, stamp.store_id)
        if not self._secret and not self._is_replica:
            self._secret, self._is_secret_new = rng.secret(), True
        self._complete(stamp)
        for candidate in self._found:
            self._take_copy(candidate)
        self._mend(now_ms)
        self._give_up_bodies()
        self._settle()
        if self._is_adopting:
            adopt(self._found, stamp.store_id)
        opened = self._begin(stamp)
        if self._hosts is None:
            write_secrets(self._root, stamp.store_id, [shard.store for shard in opened])
        prune(self._root, before=evidence, now_ms=now_ms, hosts=self._hosts)
        stamped = _DURABILITIES[stamp.durability]
        keeps_ballast = not self._is_shared or any(shard.index == 0 for shard in opened)
        reports = self._reports + [text for shard in opened for text in shard.recoveries]
        return OpenStore(
            self._root,
            stamp.store_id,
            opened,
            cast(Durability, durability or stamped),
            reports,
            self._lock,
            was_left=self._lock.was_left,
            ballast_bytes=2 * self._shared.write_buffer_bytes if keeps_ballast else 0,
            total=stamp.shards,
            memory=self._shared,
        )

    def _check_bodies(self) -> None:
        """Refuse body files that are not those the rows were written with; a salvage looks on.

        Those that a power cut may have taken are given up in ``_mend``.
        """
        for found in self._found:
            if self._bodies is None or self._is_salvage:
                return
            wrong = wrong_files(found.store, self._bodies(bodies_path(self._root, found.index)))
            check, mark = found.check, found.mark
            is_durable = mark is not None and mark.state.incarnation == check.stored
            durable = mark.state.durable if mark is not None and is_durable else 0
            first = first_file_of_life(found.store.get(BODY_FILES))
            found.torn_files = [n for n in wrong if n >= first and check.last > durable]
            lost = [text for n, text in wrong.items() if n not in found.torn_files]
            if lost:
                more = f" and {len(lost) - _FILES_SHOWN} more" if len(lost) > _FILES_SHOWN else ""
                raise RecoveryRefusedError(
                    f"shard {found.index}: {len(lost)} of its payload files: "
                    f"{', '.join(lost[:_FILES_SHOWN])}{more}; put the right ones back, {ADVICE}",
                    shard=found.index,
                )

    def _give_up_bodies(self) -> None:
        """Payloads that a power cut took, younger than the last sync, are known to be lost."""
        given = [found for found in self._found if found.torn_files]
        for found in given:
            count = 0
            folder = self._bodies(bodies_path(self._root, found.index)) if self._bodies else None
            for file in found.torn_files if folder is not None else ():
                for task_id, row in rows_of_file(found.store, file):
                    if folder is not None and not folder.whole([row])[0]:
                        write_patiently(found.store, lost_rows(task_id, row))
                        count += 1
            found.reports.append(
                f"shard {found.index}: a power cut took the payloads of {count} tasks, which were "
                "not yet durable: they become dead letters as they are claimed"
            )
        sync_all([found.store for found in given])

    def _layout(self) -> Layout:
        """List the files in the folder that are of shards this process has."""
        return list_layout(self._root).only(self._hosts)

    def _examine_all(self, requested: int | None) -> Stamp | None:
        """Open what is there; returns a stamp, or None if no shard has one yet."""
        layout = self._layout()
        self._count = requested or max(1, len(layout.shards))
        stamp: Stamp | None = None
        for index in layout.shards:
            path = shard_path(self._root, index)
            if not is_rocksdb(path) and not has_remains(path):
                continue
            found = examine(
                self._root,
                index,
                shared=self._shared,
                shards=self._count,
                is_salvage=self._is_salvage,
                is_adopting=self._is_adopting,
                store_id=None if self._is_replica else self._sure_id(),
            )
            self._found.append(found)  # from here on `abandon` closes it
            if not (self._is_replica or self._is_detached):
                refuse_replica(self._root, found.store)
            if found.stamp is None:
                continue
            if stamp is None:
                self._check_sure(found.stamp, index)
                stamp = found.stamp._replace(store_id=self._store_id or found.stamp.store_id)
            own = found.stamp
            if self._is_adopting and found.store.get(APPLIED) is not None:  # of another replica
                own = own._replace(durability=stamp.durability, store_id=stamp.store_id)
            _check_stamp(own, index, stamp)
            if requested is not None and requested != stamp.shards:
                raise ShardCountError(
                    f"{self._root} has {stamp.shards} shards, {requested} were asked for: open it "
                    f"with shards={stamp.shards} (or none given), or reshard it ('lodeq reshard')",
                    stored=stamp.shards,
                    requested=requested,
                )
        if stamp is not None:
            extra = [index for index in layout.shards if index >= stamp.shards]
            if extra:
                raise StorePathError(
                    f"{shard_path(self._root, extra[0])} does not belong to a store of "
                    f"{stamp.shards} shards: move it away if you know why it is there"
                )
        return stamp

    def _check_sure(self, stamp: Stamp, index: int) -> None:
        """A whole database of another store, in the place of ours: not even a salvage takes it."""
        sure = None if self._is_replica or self._is_detached else self._sure_id()
        if sure is not None and stamp.store_id != sure:
            raise RecoveryRefusedError(
                f"the folder shard{index} holds shard {stamp.shard} of store "
                f"{stamp.store_id.hex()}, and all else is of store {sure.hex()}: put the right "
                "folder back",
                shard=index,
            )

    def _sure_id(self) -> bytes | None:
        """The store's id, if more than one file says it, and fewer say another."""
        paths = [watermark_path(self._root, i) for i in list_layout(self._root).watermarks]
        said = Counter(
            mark.store_id for mark in map(Watermark.peek, paths) if mark and mark.incarnation
        )
        if (kept := stored_id(self._root)) is not None:
            said[kept] += 1
        for store_id, times in said.most_common(1):
            if times > max(1, said.total() - times):
                return store_id
        return None

    def _known_id(self) -> bytes | None:
        """The store's id, of which all shards have lost their stamps: as the watermarks say."""
        for index in list_layout(self._root).watermarks:
            mark = Watermark.peek(watermark_path(self._root, index))
            if mark is not None and mark.incarnation:
                return mark.store_id
        return None if self._is_replica else stored_id(self._root)

    def _open(self, path: str, *, create: bool = False) -> RocksStore:
        return RocksStore.open(path, shared=self._shared, shards=self._count, create=create)

    def _complete(self, stamp: Stamp) -> None:
        """Make or stamp the shards that a crash during creation left out."""
        by_index = {found.index: found for found in self._found}
        missing = [
            index
            for index in filter(self._hosts or _every, range(stamp.shards))
            if index not in by_index or by_index[index].stamp is None
        ]
        if not missing:
            return
        marks = [Watermark.peek(watermark_path(self._root, index)) for index in missing]
        is_used = any(mark is not None and mark.incarnation for mark in marks)
        if not self._is_replica:  # the last file that the first open writes
            is_used |= stored_id(self._root) is not None
        if not self._is_adopting:  # else its log begins a shard anew, whatever the others have
            is_used |= any(found.check.newest for found in self._found)
        if self._is_shared and not is_used:
            raise _unmade(self._root)
        if is_used and not self._is_salvage:
            raise RecoveryRefusedError(
                f"shard {missing[0]} of {stamp.shards} is missing in {self._root}: put it back, "
                f"{ADVICE}",
                shard=missing[0],
            )
        for index in missing:
            self._make(index, by_index.get(index), stamp, is_used=is_used)
        self._found.sort(key=lambda found: found.index)
        fsync_dir(self._root)

    def _make(self, index: int, found: Candidate | None, stamp: Stamp, *, is_used: bool) -> None:
        path = shard_path(self._root, index)
        mark = Watermark.peek(watermark_path(self._root, index))
        secret = self._secret
        if found is None:
            if is_used and os.path.isdir(path):  # no RocksDB of ours, but perhaps its remains
                os.rename(path, refused_path(self._root, index, 0))
            store = self._open(path, create=True)
            found = Candidate(index, store, self._root, check=check_ring(store, mark))
            self._found.append(found)
            if is_used:
                found.reports.append(
                    f"shard {index}: was missing, is empty now; its tasks are lost"
                )
        elif is_used:
            found.reports.append(f"shard {index}: had lost its stamp and got a new one")
            secret = b""  # of what has rows, ``_settle`` says what became of it
        found.stamp = stamp._replace(shard=index)
        write_patiently(found.store, stamp_ops(found.stamp, secret))
        # Into an SST file: whatever happens to a log, the shard can say what it is.
        found.store.flush()
        fsync_dir(path)

    def _take_copy(self, found: Candidate) -> None:
        """Put an accepted copy in the place of its original."""
        if not found.is_copy:
            return
        found.store.close()  # RocksDB remembers paths: it must not run under a moved folder
        kept = swap_in(self._root, found.index, found.check.stored)
        found.is_copy = False
        found.store = self._open(shard_path(self._root, found.index))
        found.reports.append(
            f"shard {found.index}: went on from the last commit before the damage; nothing known "
            f"to be durable is missing; the original is kept as {os.path.basename(kept)}"
            if not (found.check.is_refused or found.is_rebuilt)
            else f"shard {found.index}: the original is kept as {os.path.basename(kept)}"
        )

    def _mend(self, now_ms: int) -> None:
        """Repair what has holes (everything, in a salvage); durable on return."""
        mended = [found for found in self._found if self._is_salvage or not found.check.is_whole]
        if self._is_replica:
            check_replicas(mended)
        whole = [found.store for found in mended if found.check.is_whole]
        for store in whole:
            # Their ring has no hole that shows a repair left half-done; a missing open row does.
            write_patiently(store, [(OPEN, None)])
        sync_all(whole)
        find = self._bodies if self._is_salvage else None
        for found in mended:
            counted = count_tasks(found.store) if found.is_rebuilt else 0
            try:
                report = repair(
                    found.store,
                    now_ms=now_ms,
                    next_commit_seq=found.check.next_commit_seq,
                    drop_damaged=self._is_salvage,
                    bodies=find(bodies_path(self._root, found.index)) if find else None,
                )
            except RecordCorruptError as exc:
                raise RecoveryRefusedError(
                    f"shard {found.index}: a record is damaged ({exc}); {ADVICE}",
                    shard=found.index,
                ) from exc
            except CorruptionError as exc:
                raise RecoveryRefusedError(
                    f"shard {found.index}: it cannot be mended, a table is damaged ({exc}); "
                    f"{ADVICE}",
                    shard=found.index,
                ) from exc
            if not (report.is_clean and found.check.is_whole):
                found.reports.append(f"shard {found.index}: repaired, {report.describe()}")
            if counted > (left := count_tasks(found.store) if found.is_rebuilt else 0):
                found.reports.append(
                    f"shard {found.index}: its counters knew of {counted} tasks, {left} are left"
                )
        sync_all([found.store for found in mended])

    def _settle(self) -> None:
        """Everything is of this format; durable, in tables, before anything rests on it."""
        secret = b"" if self._is_replica else self._secret
        written = settle_formats(self._found, secret, is_new=self._is_secret_new)
        for store in written:
            store.flush()
        sync_all(written)

    def _begin(self, stamp: Stamp) -> list[OpenShard]:
        """From which number on each shard may commit."""
        return [
            OpenShard(
                found.index,
                found.store,
                mark,
                incarnation,
                found.check.seq,
                shard_path(self._root, found.index),
                found.reports,
                last,
            )
            for found, mark, incarnation, last in begin(
                self._root,
                self._found,
                stamp.store_id,
                is_replica=self._is_replica,
                has_journal=self._has_journal,
                is_whole=self._hosts is None and not self._is_replica,
            )
        ]


def _check_stamp(stamp: Stamp, index: int, first: Stamp) -> None:
    """All shards agree on the store, and each is where it belongs."""
    is_possible = index < stamp.shards <= SHARDS_MAX and stamp.durability < len(_DURABILITIES)
    if stamp.shard != index or stamp[1:4] != first[1:4] or not is_possible:
        raise RecoveryRefusedError(
            f"the folder shard{index} holds shard {stamp.shard} of {stamp.shards} of store "
            f"{stamp.store_id.hex()}, which is not shard {index} of {first.shards} of store "
            f"{first.store_id.hex()}: put the right folder back",
            shard=index,
        )
