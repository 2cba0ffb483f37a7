"""Body barrier: in fsync mode payloads are durable before the group that refers to them is written.

A group may refer to payloads in body files. Once it is written, the kernel may put it on the disk
at any moment; a power cut between that and the sync of the files would leave a batch whose payload
is missing. So such a group waits, and all groups behind it, while the files are synced in the
shard's thread. In nosync mode nothing waits: there a power cut may lose the payload alone, as it
may lose the whole batch, and a read of that task says so. Of a replica the log does not bring again
what a batch says is there: it waits in both modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..engine.runtime.event_loop import Spawner
from ..engine.store.port import Store
from .group import Group

__all__ = ["BodySyncBarrier", "GroupWriter"]


class GroupWriter(Protocol):
    """A commit loop as this barrier sees it."""

    store: Store

    @property
    def failure(self) -> BaseException | None:
        """Why nothing is written any more, or None."""

    def fail(self, error: BaseException) -> None:
        """Write nothing more: the payloads may not be on the disk."""

    def go_on(self) -> None:
        """Write what is queued."""


class BodySyncBarrier:
    """Holds back the groups of one shard whose payloads are not durable yet."""

    __slots__ = ("_coalescer", "_is_running", "_spawner", "_sync", "_synced")

    def __init__(self, coalescer: GroupWriter, spawner: Spawner, sync: Callable[[], None]) -> None:
        """Make a barrier.

        Args:
            coalescer: the commit loop that asks it.
            spawner: the event loop.
            sync: makes everything durable that was written to body files before the call; runs in
                the shard's thread.
        """
        self._coalescer = coalescer
        self._spawner = spawner
        self._sync = sync
        self._synced = 0  # groups up to this one may be written
        self._is_running = False

    def admits(self, groups: Sequence[Group]) -> bool:
        """Whether the first of these may be written; if not, the loop goes on once it may.

        Payloads are written before their group is sealed, and groups are sealed one after another:
        so one sync covers all that are sealed when it starts.
        """
        if groups[0].number <= self._synced:
            return True
        if not self._is_running:
            self._is_running = True
            target = max(group.number for group in groups if group.sealed)

            def done(error: BaseException | None) -> None:
                self._spawner.call_soon_threadsafe(self._over, error, target)

            self._coalescer.store.run(self._sync, done)
        return False

    def _over(self, error: BaseException | None, target: int) -> None:
        self._is_running = False
        if self._coalescer.failure is not None:
            return
        if error is not None:
            self._coalescer.fail(error)
            return
        self._synced = target
        self._coalescer.go_on()
