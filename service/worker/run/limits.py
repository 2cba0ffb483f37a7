"""How much of a queue may run here at once, and how much may start in a while.

All of it is per queue and per worker process. Nothing here waits: the claimer asks for room, and
when there may be more.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from typing import Final

from ....errors import UsageError

__all__ = ["CLAIM_MAX", "Gate", "Rate"]

CLAIM_MAX: Final = 256  # tasks a claim takes: more would only wait here
STARTS_MAX: Final = 100_000  # a rate remembers that many starts
_PERIODS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE: Final = re.compile(r"(\d{1,6})\s*/\s*(\d{0,5})\s*([smhd])")


class Rate:
    """At most ``n`` starts in any window of ``period_s``: exact, not on average.

    A token bucket would let twice as many through around the moment when it is full.
    """

    def __init__(self, text: str) -> None:
        found = _RATE.fullmatch(text) if isinstance(text, str) else None
        count = int(found[1]) if found else 0
        length = int(found[2] or 1) if found else 0
        if found is None or not 1 <= count <= STARTS_MAX or not length:
            raise UsageError(
                f"rate {text!r} is not like '100/m': a number from 1 to 100,000, then s, m, h or "
                "d, perhaps with a number before it ('3/10s')"
            )
        self.text = text
        self.n = count
        self.period_s = length * _PERIODS_S[found[3]]
        self._starts: deque[float] = deque()

    def fresh(self) -> Rate:
        """The same rate, with nothing started."""
        return Rate(self.text)

    def room(self, now_mono: float) -> int:
        """How many may start now."""
        starts = self._starts
        while starts and starts[0] <= now_mono - self.period_s:
            starts.popleft()
        return self.n - len(starts)

    def start(self, now_mono: float) -> None:
        """One starts."""
        self._starts.append(now_mono)

    def next_at(self) -> float:
        """When there is room again; only asked where there is none."""
        return self._starts[0] + self.period_s


class Gate:
    """The limits of one queue, and what runs under them."""

    def __init__(self, concurrency: int, rate: Rate | None, per_tenant: int | None) -> None:
        self._concurrency = concurrency
        self._rate = rate
        self._per_tenant = per_tenant
        self._running = 0
        self._tenants: Counter[str] = Counter()

    def room(self, now_mono: float) -> int:
        """How many may be claimed now."""
        room = min(self._concurrency - self._running, CLAIM_MAX)
        if self._rate is not None:
            room = min(room, self._rate.room(now_mono))
        # One after another: a claim of several may take them all from one tenant.
        return min(room, 1) if self._per_tenant is not None else room

    def next_at(self, now_mono: float) -> float:
        """When time alone makes room; infinity if only the end of a run does."""
        if self._rate is None or self._concurrency <= self._running:
            return float("inf")
        return self._rate.next_at() if self._rate.room(now_mono) <= 0 else now_mono

    @property
    def full_tenants(self) -> frozenset[str]:
        """Tenants at their limit."""
        most = self._per_tenant
        if most is None:
            return frozenset()
        return frozenset(tenant for tenant, n in self._tenants.items() if n >= most)

    def enter(self, tenant: str, now_mono: float) -> None:
        """A task starts."""
        self._running += 1
        self._tenants[tenant] += 1
        if self._rate is not None:
            self._rate.start(now_mono)

    def leave(self, tenant: str) -> None:
        """A task has ended."""
        self._running -= 1
        self._tenants[tenant] -= 1
        if self._tenants[tenant] <= 0:
            del self._tenants[tenant]
