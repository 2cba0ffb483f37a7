"""Limits of one queue in one worker process: runs at once, starts in a period, runs of a tenant.

Nothing here waits: the claimer asks how many runs may start now, and when more may start.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from typing import Final

from ....errors import UsageError

__all__ = ["CLAIM_MAX", "Gate", "Rate"]

CLAIM_MAX: Final = 256  # tasks a claim takes; more would only wait in this process
STARTS_MAX: Final = 100_000  # starts that a rate remembers
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
                f"expected a rate such as '100/m' or '3/10s' (1 to 100,000 starts; s, m, h or d, "
                f"with a number before it if needed), got {text!r}"
            )
        self.text = text
        self.n = count
        self.period_s = length * _PERIODS_S[found[3]]
        self._starts: deque[float] = deque()

    def fresh(self) -> Rate:
        """Return the same rate with no starts counted."""
        return Rate(self.text)

    def free(self, now_mono: float) -> int:
        """Return how many runs may start now."""
        starts = self._starts
        while starts and starts[0] <= now_mono - self.period_s:
            starts.popleft()
        return self.n - len(starts)

    def start(self, now_mono: float) -> None:
        """Count a start."""
        self._starts.append(now_mono)

    def next_at(self) -> float:
        """Return when the next run may start; call it only if none may start now."""
        return self._starts[0] + self.period_s


class Gate:
    """The limits of one queue, and the runs counted against them.

    Args:
        concurrency: runs at once.
        rate: starts in a period; None for no limit.
        per_tenant: runs at once of one tenant; None for no limit.
    """

    def __init__(self, concurrency: int, rate: Rate | None, per_tenant: int | None) -> None:
        self._concurrency = concurrency
        self._rate = rate
        self._per_tenant = per_tenant
        self._running = 0
        self._tenants: Counter[str] = Counter()

    def free(self, now_mono: float) -> int:
        """Return how many tasks may be claimed now."""
        free = min(self._concurrency - self._running, CLAIM_MAX)
        if self._rate is not None:
            free = min(free, self._rate.free(now_mono))
        # One after another: a claim of several may take them all from one tenant.
        return min(free, 1) if self._per_tenant is not None else free

    def next_at(self, now_mono: float) -> float:
        """Return when time alone lets a run start; infinity if another must end first."""
        if self._rate is None or self._concurrency <= self._running:
            return float("inf")
        return self._rate.next_at() if self._rate.free(now_mono) <= 0 else now_mono

    @property
    def full_tenants(self) -> frozenset[str]:
        """Tenants whose runs are at their limit."""
        most = self._per_tenant
        if most is None:
            return frozenset()
        return frozenset(tenant for tenant, n in self._tenants.items() if n >= most)

    def enter(self, tenant: str, now_mono: float) -> None:
        """Count a run that starts."""
        self._running += 1
        self._tenants[tenant] += 1
        if self._rate is not None:
            self._rate.start(now_mono)

    def leave(self, tenant: str) -> None:
        """Count a run that has ended."""
        self._running -= 1
        self._tenants[tenant] -= 1
        if self._tenants[tenant] <= 0:
            del self._tenants[tenant]
