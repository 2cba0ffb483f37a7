"""Claim ids: drawn by the client for each claim, so that it can take the claim back.

A client that gives up while the answer to its claim is on its way cannot know what was granted. It
names the claim in another request: the leases are released at once, and if the claim arrives later
(requests overtake each other) it gets none.

Nothing here keeps a lease alive: only id and epoch are kept, of at most ``GRANTED_MAX`` leases and
``CANCELLED_MAX`` claims; the oldest are forgotten first. A lease whose claim is forgotten expires
at its deadline.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...client.calls import CLAIM_ID_BYTES
from ...errors import UsageError
from ...repository.state.engine_state import EngineState
from ...repository.tasks.lease import Lease

__all__ = ["CANCELLED_MAX", "GRANTED_MAX", "Claim", "ClaimRegister"]

GRANTED_MAX: Final = 16_384
CANCELLED_MAX: Final = 16_384


class Claim:
    """One claim in progress. ``stop`` ends its wait."""

    __slots__ = ("claim_id", "is_cancelled", "stop")

    def __init__(self, claim_id: bytes | None) -> None:
        self.claim_id = claim_id
        self.is_cancelled = False
        self.stop: Callable[[], object] | None = None


class ClaimRegister:
    """The claims of one server that carry an id."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._in_progress: dict[bytes, Claim] = {}
        self._granted: OrderedDict[bytes, tuple[tuple[bytes, int], ...]] = OrderedDict()
        self._granted_count = 0
        self._cancelled: OrderedDict[bytes, None] = OrderedDict()

    def begin(self, claim_id: bytes | None) -> Claim:
        """Register a claim. None: it has no id, and cannot be cancelled.

        Raises:
            UsageError: the id is not 16 bytes, or was used before. Nothing was granted.
        """
        claim = Claim(claim_id)
        if claim_id is None:
            return claim
        if len(claim_id) != CLAIM_ID_BYTES:
            raise UsageError(f"claim_id must be {CLAIM_ID_BYTES} bytes, not {len(claim_id)}")
        if claim_id in self._in_progress or claim_id in self._granted:
            raise UsageError("this claim_id was used before: draw another one for each claim")
        claim.is_cancelled = claim_id in self._cancelled
        self._in_progress[claim_id] = claim
        return claim

    def end(self, claim: Claim, leases: Sequence[Lease]) -> bool:
        """Register what was granted. False: the claim is cancelled, release the leases."""
        claim.stop = None
        if claim.claim_id is None:
            return True
        del self._in_progress[claim.claim_id]
        if claim.is_cancelled:
            return False
        if leases:
            self._granted[claim.claim_id] = tuple((one.task_id, one.epoch) for one in leases)
            self._granted_count += len(leases)
            while self._granted_count > GRANTED_MAX and len(self._granted) > 1:
                self._granted_count -= len(self._granted.popitem(last=False)[1])
        return True

    def cancel(self, claim_id: bytes) -> list[Lease]:
        """Refuse a claim anything more, and return its live leases. May be repeated."""
        self._cancelled[claim_id] = None
        self._cancelled.move_to_end(claim_id)
        if len(self._cancelled) > CANCELLED_MAX:
            self._cancelled.popitem(last=False)
        claim = self._in_progress.get(claim_id)
        if claim is not None:
            claim.is_cancelled = True
            if claim.stop is not None:
                claim.stop()
            return []
        granted = self._granted.pop(claim_id, ())
        self._granted_count -= len(granted)
        leases: Mapping[bytes, Any] = self._state.leases
        found = ((leases.get(task_id), epoch) for task_id, epoch in granted)
        return [lease for lease, epoch in found if lease is not None and lease.epoch == epoch]
