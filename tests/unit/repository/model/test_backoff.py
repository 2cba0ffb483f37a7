"""Backoff: the curves, the caps, and jitter that is random."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.engine.records.policy import BackoffKind, Policy
from lodeq.engine.runtime.ids import IdSource, SeededRng
from lodeq.repository.model.backoff import delay_ms_of

KINDS = list(BackoffKind)
JITTERS = [BackoffKind.EQUAL_JITTER, BackoffKind.FULL_JITTER]


def policy(
    kind: BackoffKind, *, factor: float = 2.0, base: int = 1000, cap: int = 60_000
) -> Policy:
    return Policy(5, kind, factor, base, cap, 0, 0)


def ids(seed: int = 1) -> IdSource:
    return IdSource(SeededRng(seed))


@pytest.mark.parametrize(
    ("kind", "delays"),
    [
        (BackoffKind.FIXED, [1000, 1000, 1000, 1000, 1000, 1000, 1000]),
        (BackoffKind.LINEAR, [1000, 2000, 3000, 4000, 5000, 6000, 7000]),
        (BackoffKind.EXPONENTIAL, [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000]),
    ],
)
def test_the_curves(kind: BackoffKind, delays: list[int]) -> None:
    assert [delay_ms_of(policy(kind), n, ids()) for n in range(1, 8)] == delays


def test_a_slow_curve_reaches_its_cap_too() -> None:
    slow = policy(BackoffKind.EXPONENTIAL, factor=1.05)
    assert delay_ms_of(slow, 60, ids()) == round(1000 * 1.05**59)
    assert [delay_ms_of(slow, n, ids()) for n in (100, 65_535)] == [60_000, 60_000]


@given(
    st.sampled_from(KINDS),
    st.integers(1, 65_535),
    st.floats(0, 1e6),
    st.integers(0, 4_000_000_000),
    st.integers(0, 4_000_000_000),
)
def test_no_delay_is_negative_or_over_the_cap(
    kind: BackoffKind, attempt: int, factor: float, base: int, cap: int
) -> None:
    delay = delay_ms_of(policy(kind, factor=factor, base=base, cap=cap), attempt, ids())
    assert 0 <= delay <= cap


@pytest.mark.parametrize("kind", KINDS)
def test_no_base_no_delay(kind: BackoffKind) -> None:
    assert delay_ms_of(policy(kind, base=0), 65_535, ids()) == 0


@pytest.mark.parametrize("kind", JITTERS)
def test_jitter_is_random(kind: BackoffKind) -> None:
    source = ids()
    delays = [delay_ms_of(policy(kind), 4, source) for _ in range(500)]
    low = 4000 if kind == BackoffKind.EQUAL_JITTER else 0
    assert len(set(delays)) > 400
    assert low <= min(delays) < low + 400
    assert 7600 < max(delays) <= 8000
    assert abs(sum(delays) / 500 - (low + 8000) / 2) < 400


@pytest.mark.parametrize("kind", JITTERS)
def test_jitter_follows_the_seed(kind: BackoffKind) -> None:
    one, same, other = ([delay_ms_of(policy(kind), 4, ids(seed))] for seed in (1, 1, 2))
    assert one == same != other
