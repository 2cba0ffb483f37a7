"""The parts of the blocking client that its async twin has to do in another way.

Taking back claims whose answers nobody reads, giving leases back, and work that blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ...engine.runtime.clock import SystemClock
from ...engine.runtime.ids import SystemRng
from ...errors import ClosedError, LodeqError, UnreachableError
from .. import calls
from ..calls import CLOSED, Call, QueueTemplate, Session
from ..transport.forks import watch_forks

if TYPE_CHECKING:
    from ..documents.records import Granted
    from .cluster.fast_calls import SyncClusterFastCalls
    from .fast_calls import SyncFastCalls

__all__ = ["PendingClaims", "Releasable", "give_back", "in_thread"]

GIVE_BACK_S: Final = 5.0  # how long whoever leaves may wait for its releases to arrive
_RELEASES_MAX: Final = 8  # at once
T = TypeVar("T")


class PendingClaims:
    """Claims whose answers a thread awaits. Each is answered or taken back, never both."""

    def __init__(self, send: Callable[[Call], Any], session: Session) -> None:
        self._send = send
        self._session = session
        self._rng = SystemRng()
        self._lock = Lock()
        self._ids: set[bytes] = set()
        self.is_closing = False  # or closed
        watch_forks(self)

    def forked(self) -> None:
        """In a forked child: the claims under way are the parent's, and stay so."""
        self._lock = Lock()
        self._ids = set()

    def draw_id(self) -> bytes:
        """A new id for one claim."""
        return self._rng.bytes(calls.CLAIM_ID_BYTES)

    def send(self, call: Call, claim_id: bytes) -> Any:
        """Send a claim and return the document of its answer.

        Raises:
            ClosedError: the client is closing. The server has its leases back, or gets them back
                at the end of their length.
        """
        with self._lock:
            if self.is_closing:
                raise ClosedError(CLOSED)
            self._ids.add(claim_id)
        try:
            doc = self._send(call)
        except LodeqError as error:
            if isinstance(error, UnreachableError):
                self._cancel(claim_id)
            raise
        except BaseException:  # an interrupt
            self._cancel(claim_id)
            raise
        finally:
            with self._lock:
                is_taken_back = claim_id not in self._ids
                self._ids.discard(claim_id)
        if is_taken_back:  # while the answer was on its way: the leases are the server's again
            raise ClosedError(CLOSED)
        return doc

    def send_fast(
        self,
        fast: SyncFastCalls | SyncClusterFastCalls,
        template: QueueTemplate,
        limit: int,
        lease_s: float,
        wait_s: float,
        worker: str,
    ) -> list[Granted] | None:
        """Send a claim the short way; see ``SyncFastCalls.claim`` and ``send``.

        Args:
            fast: the short way.
            template: the queue.
            limit: 1 to 4,096.
            lease_s: seconds.
            wait_s: seconds that this poll may wait.
            worker: at most 256 bytes, checked.
        """
        ids: list[bytes] = []  # in a cluster one for each node that is asked

        def begun(id: bytes) -> None:
            with self._lock:
                if self.is_closing:  # it would be taken back by nobody
                    raise ClosedError(CLOSED)
                self._ids.add(id)
            ids.append(id)

        if self.is_closing:
            raise ClosedError(CLOSED)
        try:
            found = fast.claim(template, limit, lease_s, wait_s, worker, begun)
        except LodeqError as error:
            if isinstance(error, UnreachableError):
                self._cancel_all(ids)
            raise
        except BaseException:  # an interrupt
            self._cancel_all(ids)
            raise
        finally:
            with self._lock:
                is_taken_back = not self._ids.issuperset(ids)
                self._ids.difference_update(ids)
        if is_taken_back:  # while the answer was on its way: the leases are the server's again
            raise ClosedError(CLOSED)
        return found

    def close(self) -> None:
        """Refuse further claims and take back those that are not answered yet."""
        with self._lock:
            self.is_closing = True
            claim_ids: set[bytes] = set()
            if self._session.takes_claim_ids:
                claim_ids, self._ids = self._ids, claim_ids
        self._cancel_all(claim_ids)

    def _cancel_all(self, claim_ids: Iterable[bytes]) -> None:
        for claim_id in claim_ids:
            if not self._cancel(claim_id):
                return  # a server that hangs is waited for once

    def _cancel(self, claim_id: bytes) -> bool:
        """Take one back if the server can; its leases end with their length otherwise."""
        if not self._session.takes_claim_ids:
            return False
        try:
            self._send(calls.cancel_claim(claim_id))
        except LodeqError:
            return False
        return True


class Releasable(Protocol):
    """A lease, as far as ``give_back`` needs it."""

    @property
    def is_live(self) -> bool:
        """Whether it has neither been ended here nor been found lost."""

    def end(self) -> None:
        """Mark it as over, as far as this process knows."""

    def release(self) -> None:
        """Put the task back into its queue."""


def give_back(leases: Iterable[Releasable]) -> None:
    """Release leases that nobody will work on. A lease whose release fails, or is late, runs out.

    Several are released at once, by threads that are waited for only so long: one that a silent
    server has must neither keep the others nor hold up whoever leaves.
    """
    live = [lease for lease in leases if lease.is_live]
    left = deque(live)

    def release_some() -> None:
        while left:
            try:
                lease = left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                lease.release()
            except LodeqError:
                lease.end()

    if len(live) < 2:
        release_some()
        return
    until = SystemClock.mono() + GIVE_BACK_S
    threads = [Thread(target=release_some, daemon=True) for _ in live[:_RELEASES_MAX]]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # no more threads, or the interpreter is on its way out
        release_some()
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, until - SystemClock.mono()))
    left.clear()
    for lease in live:
        lease.end()


def in_thread(function: Callable[[], T]) -> T:
    """Run a function that blocks: here, any thread may."""
    return function()
