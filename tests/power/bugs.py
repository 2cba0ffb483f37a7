"""Bugs, planted in the process that is recorded: each must be seen in its images.

None of this is in the package; a bug is a patch of a live class or module in a forked child.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from lodeq.coalescer.body_sync_barrier import BodySyncBarrier
from lodeq.coalescer.commit_loop import Coalescer
from lodeq.coalescer.fsync import Syncer
from lodeq.engine.recovery.watermark import Watermark
from lodeq.engine.store.rocks import RocksStore


def sync_does_nothing() -> None:
    """The disk is never told: acknowledgements rest on nothing, and so do the watermarks."""
    RocksStore._sync = lambda store: None  # type: ignore[method-assign, assignment]


def sync_does_nothing_unseen() -> None:
    """The same, and no watermark tells of it."""
    sync_does_nothing()
    write = Watermark.write

    def only_open(mark: Watermark, incarnation: int, commit_seq: int) -> None:
        if commit_seq & (1 << 40) - 1 == 0:
            write(mark, incarnation, commit_seq)

    Watermark.write = only_open  # type: ignore[method-assign]


def ack_before_sync() -> None:
    """Fsync mode answers as nosync mode does."""
    init = Coalescer.__init__

    def hasty(coalescer: Coalescer, *args: Any, is_fsync: bool, **named: Any) -> None:
        init(coalescer, *args, is_fsync=False, **named)

    Coalescer.__init__ = hasty  # type: ignore[method-assign, assignment]


def watermark_before_sync() -> None:
    """The watermark promises what the sync that follows may never do."""
    kick = Syncer.kick

    def boasting(syncer: Syncer) -> None:
        if not syncer._is_running and not syncer._is_publishing:
            syncer._write_watermark(syncer._applied)
            syncer._published = syncer._applied
        kick(syncer)

    Syncer.kick = boasting  # type: ignore[method-assign]


def names_are_not_synced() -> None:
    """No folder of the store's own is ever fsynced."""
    for name, module in list(sys.modules.items()):
        if name.startswith("lodeq.engine") and hasattr(module, "fsync_dir"):
            module.fsync_dir = lambda path: None  # type: ignore[attr-defined]


def batches_in_two() -> None:
    """What should be one write is two."""
    write = RocksStore.write

    def halves(store: RocksStore, ops: Iterable[Any]) -> None:
        whole = list(ops)
        write(store, whole[: len(whole) // 2])
        write(store, whole[len(whole) // 2 :])

    RocksStore.write = halves  # type: ignore[method-assign]


def bodies_are_not_synced_first() -> None:
    """A batch is written before the payloads it refers to are durable."""
    BodySyncBarrier.admits = lambda barrier, groups: True  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    make.__name__: make
    for make in (
        sync_does_nothing,
        sync_does_nothing_unseen,
        ack_before_sync,
        watermark_before_sync,
        names_are_not_synced,
        batches_in_two,
        bodies_are_not_synced_first,
    )
}
