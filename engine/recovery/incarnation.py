"""The last step of an open: from which number on this process may commit.

An ordinary store begins an incarnation of its own, durable before anything is handed out, so epochs
and commit numbers grow even if a power cut takes everything written afterwards. The watermark
follows; a crash between the two leaves one of an earlier incarnation, which promises nothing. A new
store gets its watermarks first (of incarnation 0): a store that has begun and has none has lost it.

A *replica* begins none. Its incarnations are entries of the replicated log, the same on every
replica, and whoever gains leadership writes the next. It goes on where its rows end, and it is
never repaired: what a repair would guess, the other replicas know. Without its replicator it is
refused. One that is detached stops being a replica: ``m/applied`` goes in the batch that begins the
incarnation, so that the log cannot be continued on rows that have gone another way.

With a lifecycle journal an incarnation starts with a row for it, in the same batch: it says which
commit was found last, and which are missing. So whatever a power cut took back, the journal says.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from ...errors import RecoveryRefusedError, ReplicaStoreError
from ..files.paths import watermark_path
from ..records.events import encode_start_row
from ..records.keyspace import APPLIED, OPEN, events_key
from ..records.rows import encode_open, is_common_open
from ..store.port import Op, Store, write_patiently
from .decide import ADVICE, NUMBER_BITS, Candidate, RingCheck
from .dedup_secret import stamp_ops
from .watermark import Watermark

__all__ = [
    "Begun",
    "adopt",
    "begin",
    "check_copies",
    "check_replicas",
    "refuse_replica",
    "sync_all",
]


class _RowGetter(Protocol):
    """A store, or a reader of one."""

    def get(self, key: bytes, /) -> bytes | None:
        """The row at ``key``."""


class Begun(NamedTuple):
    """Commits go on at ``incarnation << 40 | last + 1``."""

    found: Candidate
    mark: Watermark
    incarnation: int
    last: int


def sync_all(stores: Sequence[Store]) -> None:
    """Sync all of them at once, each in its own thread; raises the first error."""
    answers: SimpleQueue[BaseException | None] = SimpleQueue()
    for store in stores:
        store.start_sync(answers.put)
    errors = [error for error in [answers.get() for _ in stores] if error is not None]
    if errors:
        raise errors[0]


def refuse_replica(root: str, store: _RowGetter) -> None:
    """Refuse to open, or to rewrite, a shard that holds entries of a replicated log.

    Raises:
        ReplicaStoreError: it does; nothing was changed.
    """
    if store.get(APPLIED) is not None:
        raise ReplicaStoreError(
            f"{root} is a replica of a replicated store: open it with its replicator, or make it a "
            "store of its own, which cannot go back to its log, with lodeq.detach(path)"
        )


def check_replicas(mended: Sequence[Candidate]) -> None:
    """A replica that would have to be mended is copied anew instead."""
    for found in mended:
        raise RecoveryRefusedError(
            f"shard {found.index}: {found.check.describe() or 'salvage was asked for'}; a replica "
            "is not repaired, it would differ from the others: restore a checkpoint of another "
            "replica",
            shard=found.index,
            missing=found.check.holes,
        )


def check_copies(candidates: Sequence[Candidate], *, is_salvage: bool) -> None:
    """Refuse a shard that is an older copy of itself, its watermark too; a salvage reports it.

    An open of the whole store gives all shards the same incarnation, and writes no watermark of it
    before every shard has it. So no shard is behind the watermark of another.

    Raises:
        RecoveryRefusedError: one is; nothing was changed.
    """
    reached, of = 0, 0
    for found in candidates:
        raw, mark = found.store.get(OPEN), found.mark
        if mark is None or raw is None or found.check.rolled_back or not is_common_open(raw):
            continue
        if mark.state.incarnation == found.check.stored > reached:
            reached, of = found.check.stored, found.index
    for found in candidates:
        newest = found.check.newest
        if found.stamp is None or newest >= reached:
            continue
        text = (
            f"shard {found.index} was last opened as incarnation {newest}, shard {of} as "
            f"{reached}: it is an older copy"
        )
        if not is_salvage:
            raise RecoveryRefusedError(
                f"{text}; put the right one back, with its watermark and body files; or {ADVICE}",
                shard=found.index,
            )
        found.reports.append(f"{text}: what it did since is lost, and may be done again")


def adopt(candidates: Sequence[Candidate], store_id: bytes) -> None:
    """Give shards of other replicas, copied here, the stamp and the watermark of this store.

    Durable. What a kill leaves half done the next open does once more, in whatever order.

    Args:
        candidates: the shards as they were accepted.
        store_id: 16 bytes.
    """
    for found in candidates:
        mark, stamp = found.mark, found.stamp
        if mark is not None and mark.state.store_id != store_id:
            mark.close()
            found.mark = Watermark.create(
                mark.path,
                shard=found.index,
                store_id=store_id,
                incarnation=mark.state.incarnation,
                commit_seq=mark.state.commit_seq,
            )
        if stamp is not None and stamp.store_id != store_id:
            found.stamp = stamp._replace(store_id=store_id)
            write_patiently(found.store, stamp_ops(found.stamp, b""))
            found.store.flush()
            sync_all([found.store])


def begin(
    root: str,
    candidates: Sequence[Candidate],
    store_id: bytes,
    *,
    is_replica: bool,
    has_journal: bool = False,
    is_whole: bool = False,
) -> list[Begun]:
    """Fix the incarnation of every shard, durable, then its watermark.

    Args:
        root: folder of the store.
        candidates: the shards as they were accepted, ascending.
        store_id: 16 bytes.
        is_replica: whether a replicated log gives the incarnation.
        has_journal: whether each shard writes a start row for the lifecycle journal.
        is_whole: whether these are all shards of the store: then all get the same incarnation,
            and ``check_copies`` knows an older copy of one by it.
    """
    marks: list[Watermark] = []
    for found in candidates:
        if found.mark is None:
            found.mark = Watermark.create(
                watermark_path(root, found.index),
                shard=found.index,
                store_id=store_id,
                incarnation=0,
                commit_seq=0,
            )
        marks.append(found.mark)
    numbers: list[tuple[int, int]] = []
    newest = max(found.check.newest for found in candidates) if is_whole else 0
    for found in candidates:
        check = found.check
        if not is_replica:
            following = max(newest, check.newest) + 1
            numbers.append((following, 0))
            opened = encode_open(following, is_common=is_whole)
            ops: list[Op] = [(OPEN, opened), (APPLIED, None)]
            if has_journal:
                ops.append(_start(found.index, check, following))
            write_patiently(found.store, ops)
        elif check.newest == 0:  # new: every replica starts in the same way
            numbers.append((1, 0))
            write_patiently(found.store, [(OPEN, encode_open(1))])
        else:
            numbers.append((check.stored, check.last))
    sync_all([found.store for found in candidates])
    begun = []
    for found, mark, (incarnation, last) in zip(candidates, marks, numbers, strict=True):
        mark.write(incarnation, incarnation << NUMBER_BITS | last)
        begun.append(Begun(found, mark, incarnation, last))
    return begun


def _start(shard: int, check: RingCheck, incarnation: int) -> Op:
    """The first row of an incarnation, for the journal."""
    commit_seq = incarnation << NUMBER_BITS
    last = check.stored << NUMBER_BITS | check.last
    missing = _ranges(sorted({*check.lost, *check.holes}))
    return events_key(commit_seq), encode_start_row(shard, commit_seq, last, missing)


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as (first, last) of what is consecutive."""
    out: list[tuple[int, int]] = []
    for number in numbers:
        if out and out[-1][1] + 1 == number:
            out[-1] = (out[-1][0], number)
        else:
            out.append((number, number))
    return out
