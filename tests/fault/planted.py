"""Bugs that the fault tests must find. Applied to the child's copy of the classes, never kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lodeq.coalescer.commit_loop import Coalescer
from lodeq.coalescer.fsync import Syncer
from lodeq.coalescer.shard_status import SERVING
from lodeq.engine.recovery.watermark import Watermark
from lodeq.engine.store.rocks import RocksStore
from lodeq.errors import CommitUnknownError, LodeqError, StorageError


def swallow_write_errors() -> None:
    """A write that failed is taken for one that did not."""
    write = RocksStore.write

    def deaf(store: RocksStore, ops: Any) -> None:
        try:
            write(store, ops)
        except CommitUnknownError:
            pass

    RocksStore.write = deaf  # type: ignore[method-assign]


def retry_failed_syncs() -> None:
    """A failed sync is called again, as many databases once did.

    By the file: RocksDB itself answers every later call with the error of the first.
    """
    sync = RocksStore._sync

    def stubborn(store: RocksStore) -> None:
        try:
            sync(store)
        except LodeqError:
            for log in Path(store.path).glob("*.log"):
                with log.open("rb") as file:
                    os.fsync(file.fileno())

    RocksStore._sync = stubborn  # type: ignore[method-assign]


def swallow_sync_errors() -> None:
    """A failed sync is taken for one that did not fail: acknowledged, and not on disk."""
    done = Syncer._done

    def deaf(syncer: Syncer, error: Any, *rest: Any) -> None:
        done(syncer, None, *rest)

    Syncer._done = deaf  # type: ignore[method-assign]


def forget_the_failure() -> None:
    """The shard goes on after a failed commit."""
    fail = Coalescer.fail

    def forgetful(coalescer: Coalescer, *rest: Any) -> None:
        fail(coalescer, *rest)
        coalescer.status, coalescer.status_error = SERVING, None

    Coalescer.fail = forgetful  # type: ignore[method-assign]


def leak_bare_errors() -> None:
    """Errors of the disk reach callers as what the library raised."""
    write = RocksStore.write

    def bare(store: RocksStore, ops: Any) -> None:
        try:
            write(store, ops)
        except CommitUnknownError as error:
            store._db.close()
            raise error.__cause__ or error from None

    def fail_waiters(groups: Any, kind: Any, text: str, cause: Any = None) -> None:
        for group in groups:
            for future, _ in (*group.waiters, *group.durable_waiters):
                if not future.done():
                    future.set_exception(OSError(text))

    RocksStore.write = bare  # type: ignore[method-assign]
    from lodeq.coalescer import commit_loop

    commit_loop.fail_waiters = fail_waiters


def drop_refused_groups() -> None:
    """A group the full disk refused is forgotten, its callers told that all is well."""
    stall = Coalescer._stall

    def careless(coalescer: Coalescer, error: LodeqError) -> None:
        group = coalescer._pending.popleft()
        coalescer.applied_number = group.number
        coalescer._finish(group)
        stall(coalescer, error)

    Coalescer._stall = careless  # type: ignore[method-assign]


def ignore_the_watermark() -> None:
    """An error of the watermark passes by unheard, and it is written again."""
    write = Watermark.write

    def deaf(mark: Watermark, incarnation: int, commit_seq: int) -> None:
        try:
            write(mark, incarnation, commit_seq)
        except StorageError:
            mark._is_failed = False

    Watermark.write = deaf  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        swallow_write_errors,
        retry_failed_syncs,
        swallow_sync_errors,
        forget_the_failure,
        leak_bare_errors,
        drop_refused_groups,
        ignore_the_watermark,
    )
}
