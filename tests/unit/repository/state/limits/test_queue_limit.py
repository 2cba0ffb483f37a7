"""A window of starts, held against a plain list of all of them."""

from hypothesis import example, given
from hypothesis import strategies as st

from lodeq.repository.state.limits.queue_limit import Window

steps = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(0, 25)),
        st.tuples(st.just("start"), st.integers(1, 4)),
        st.tuples(st.just("change"), st.integers(1, 6)),
    ),
    max_size=60,
)


@given(n=st.integers(1, 6), period=st.integers(1, 20), steps=steps)
def test_no_window_has_more_starts_than_it_may_and_it_opens_when_it_says(n, period, steps):
    window, now, starts = Window(n, period), 0, []
    for what, value in steps:
        if what == "pass":
            now += value
        elif what == "change":
            n = value
            window.change(n, period)
        recent = [at for at in starts if at > now - period]
        assert window.free(now) == n - len(recent)
        if what == "start":
            more = max(0, min(value, n - len(recent)))
            if more:
                window.start(now, more)
                starts += [now] * more
        if window.free(now) <= 0:
            opens = window.opens_us()
            assert window.free(opens - 1) <= 0 < window.free(opens)
            window.recall([(at, 1) for at in starts if at > now - period])  # as it was


@given(
    n=st.integers(1, 6),
    period=st.integers(1, 20),
    known=st.lists(st.integers(0, 40), max_size=6),
)
@example(n=1, period=1, known=[40, 40])
@example(n=2, period=20, known=[40, 40, 30])
def test_a_window_that_is_filled_knows_the_starts_that_somebody_remembers(n, period, known):
    window = Window(n, period)
    window.fill(40, n)
    for at in known:
        window.know(at, 40)
    recent = sorted(at for at in known if at + period > 40)
    expected = [*recent, *[40] * (n - len(recent))]
    for now in range(40, 62):
        assert window.free(now) == n - sum(at + period > now for at in expected)


def test_a_start_that_is_remembered_late_is_over_as_well():
    """The filled part may be over by then: a leader may read many leases before this one."""
    window = Window(2, 10)
    window.fill(40, 2)
    assert window.free(50) == 2
    window.know(35, 40)
    assert window.free(50) == 2


def test_of_several_parts_of_the_past_each_is_known_by_its_own_moment():
    window = Window(6, 10)
    window.start(39, 2)
    window.fill(40, 2)
    window.fill(41, 2)
    assert window.free(41) == 0
    window.know(33, 40)
    assert [window.free(now) for now in (42, 43, 49, 50, 51)] == [0, 1, 3, 4, 6]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3)), max_size=40), st.integers(1, 8))
def test_what_a_close_leaves_is_never_earlier_than_it_was(starts, most):
    window = Window(1000, 100)
    for at, count in sorted(starts):
        window.start(at, count)
    left = window.known(50, most)
    assert len(left) <= most
    recalled = Window(1000, 100)
    recalled.recall(left)
    assert recalled.free(50) == 1000 - sum(count for _, count in starts)
    for now in range(50, 160):
        assert recalled.free(now) <= window.free(now)
