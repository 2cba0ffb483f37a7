"""``queue.leases()`` for threads: a heartbeat thread keeps alive what they hold."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from threading import Event, Thread
from types import TracebackType
from typing import Self

from ...errors import LeaseLostError, LodeqError, StorageError
from ..lease_facts import end_unanswered, may_be_live
from .lease import SyncRemoteLease
from .requests import SyncRemoteRequests
from .waits import give_back

__all__ = ["SyncRemoteLeaseStream"]


class SyncRemoteLeaseStream:
    """Leases one after another: ``for lease in queue.leases(): with lease: ...``.

    A thread with a connection of its own keeps them alive, whatever the handler does.
    Leaving the loop releases what was claimed ahead and not started. In a ``with`` block that
    waits for the end of the block, so that it can be iterated again.
    """

    def __init__(
        self,
        engine: SyncRemoteRequests,
        claim: Callable[[], list[SyncRemoteLease]],
        *,
        is_kept_alive: bool,
    ) -> None:
        self._engine = engine
        self._claim = claim
        self._is_kept_alive = is_kept_alive
        self._waiting: deque[SyncRemoteLease] = deque()
        self._held: list[SyncRemoteLease] = []
        self._over = Event()
        self._thread: Thread | None = None
        self._is_entered = False
        self._pid = os.getpid()

    def _let_go_in_child(self) -> None:
        """In a forked child: what is held is the parent's, which works on it."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._waiting = deque()
        self._held = []
        self._over = Event()
        self._thread = None

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_entered = False
        self._let_go_in_child()
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        give_back(self._waiting)
        self._waiting.clear()
        self._held.clear()

    def __iter__(self) -> Iterator[SyncRemoteLease]:
        if self._is_entered:
            yield from self._each()
        else:
            with self:
                yield from self._each()

    def _each(self) -> Iterator[SyncRemoteLease]:
        while True:
            self._let_go_in_child()
            while self._waiting:
                lease = self._waiting.popleft()
                if lease.is_live and not may_be_live(lease):  # it has waited for too long
                    try:
                        lease.heartbeat()
                    except LeaseLostError:
                        lease.end()
                    except LodeqError:  # one look is enough: the claim below says what is wrong
                        end_unanswered((lease, *self._waiting))
                    except BaseException:  # cancelled, or an interrupt: it goes back at the end
                        self._waiting.appendleft(lease)
                        raise
                if lease.is_live:  # else it is lost, or nobody says that it is not
                    yield lease
                    self._let_go_in_child()
            claimed = self._claim()
            self._waiting.extend(claimed)
            if self._is_kept_alive and claimed:
                self._held = [x for x in self._held if x.is_live] + claimed
                if self._thread is None:
                    self._thread = self._begun()

    def _begun(self) -> Thread:
        self._over.clear()
        thread = Thread(target=self._keep_alive, name="lodeq-heartbeat", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            raise StorageError(f"no thread for heartbeats: {exc}") from exc
        return thread

    def _keep_alive(self) -> None:
        """Extend all leases every third of the shortest length."""
        while True:
            held = [lease for lease in self._held if lease.is_live]
            length_s = min((lease.lease_s for lease in held), default=1.0)
            if self._over.wait(length_s / 3):
                return
            try:
                self._engine.heartbeat_many([lease for lease in self._held if lease.is_live])
            except LodeqError:
                pass  # the server may be back for the next one
