"""How long a nacked task waits. Used by ``lease_operations.nack``; ``Backoff`` has the kinds."""

from __future__ import annotations

from ...engine.records.policy import BackoffKind, Policy
from ...engine.runtime.ids import IdSource

__all__ = ["delay_ms_of"]


def delay_ms_of(policy: Policy, attempt: int, ids: IdSource) -> int:
    """Milliseconds after attempt ``attempt`` (1 is the first) has failed."""
    base, cap = policy.backoff_base_ms, policy.backoff_cap_ms
    kind = policy.backoff_kind
    if kind == BackoffKind.FIXED:
        return min(base, cap)
    if kind == BackoffKind.LINEAR:
        return min(base * attempt, cap)
    try:
        delay = min(base * policy.backoff_factor ** (attempt - 1), float(cap)) if base else 0.0
    except OverflowError:  # the cap was reached long before
        delay = float(cap)
    if kind == BackoffKind.EQUAL_JITTER:
        delay = delay / 2 + ids.uniform() * delay / 2
    elif kind == BackoffKind.FULL_JITTER:
        delay = ids.uniform() * delay
    return round(delay)
