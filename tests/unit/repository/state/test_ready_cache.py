"""The window against a model: memory plus disk is one sorted list, never losing or reordering."""

from bisect import insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.repository.state.caches.ready_cache import READY_ROWS, ReadyCache, Row

PREFIX = b"r"
CAP = 4
numbers = st.integers(0, 99)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), numbers),
        st.tuples(st.just("pop"), st.integers(1, 3)),
        st.tuples(st.just("release"), numbers),
        st.tuples(st.just("discard"), numbers),
        st.tuples(st.just("refill"), st.integers(1, 3)),
    ),
    max_size=60,
)


def row(number: int, record: bytes | None = None) -> Row:
    return (PREFIX + b"%02d" % number, b"id", 0, 0, 0, 10, record)


class Model:
    """Every ready row lies on disk, in order; the window holds a part of them."""

    def __init__(self, *, on_disk: list[int], cap: int = CAP) -> None:
        self.disk = sorted({row(n)[0] for n in on_disk})
        self.window = ReadyCache(is_complete=not on_disk, edge=PREFIX, cap=cap)
        self.taken: list[bytes] = []

    def put(self, number: int) -> None:
        new = row(number)
        if new[0] not in self.disk:
            insort(self.disk, new[0])
            self.taken = [key for key in self.taken if key != new[0]]
            in_memory = self.window.put(new)
            assert in_memory == (new in self.window.rows)

    def pop(self) -> bytes | None:
        if not self.window.rows:
            return None
        key = self.window.rows.popleft()[0]
        self.disk.remove(key)
        self.taken.append(key)
        return key

    def release(self, number: int) -> None:
        """A task that was taken comes back to its old place."""
        if self.taken:
            self.put(int(self.taken[number % len(self.taken)][1:]))

    def discard(self, number: int) -> None:
        key = row(number)[0]
        if key in self.disk:
            was_there = any(held[0] == key for held in self.window.rows)
            found = self.window.discard(key)
            assert (found is not None) == was_there
            self.disk.remove(key)

    def refill(self, limit: int) -> None:
        if self.window.rows or self.window.is_complete:
            return
        above = [key for key in self.disk if key > self.window.edge]
        page = above[:limit]
        edge = page[-1] if len(page) == limit else None
        self.window.refill([(key, b"id", 0, 0, 0, 10, None) for key in page], edge)

    def check(self) -> None:
        window = self.window
        held = [held[0] for held in window.rows]
        assert held == sorted(held)
        if window.is_complete:
            assert held == self.disk
        else:
            assert held == [key for key in self.disk if key <= window.edge]
        assert len(held) <= 2 * window.cap


@given(st.lists(numbers, max_size=12), steps)
def test_nothing_is_lost_or_reordered(on_disk: list[int], todo: list[tuple[str, int]]) -> None:
    model = Model(on_disk=on_disk)
    for what, number in todo:
        if what == "pop":
            for _ in range(number):
                model.pop()
        else:
            getattr(model, what)(number)
        model.check()
    drained = []
    while model.disk:
        model.refill(2)
        drained.append(model.pop())
        model.check()
    assert drained == sorted(key for key in drained if key is not None)


@given(st.lists(numbers, unique=True, max_size=40))
def test_what_comes_in_order_goes_in_order(arrivals: list[int]) -> None:
    model = Model(on_disk=[])
    for number in sorted(arrivals):
        model.put(number)
    out = []
    while model.disk:
        model.refill(3)
        out.append(model.pop())
    assert out == [row(number)[0] for number in sorted(arrivals)]


def test_a_full_window_leaves_the_rest_on_disk() -> None:
    window = ReadyCache(is_complete=True, edge=PREFIX, cap=2)
    assert [window.put(row(n)) for n in range(4)] == [True, True, False, False]
    assert not window.is_complete
    assert window.edge == row(1)[0]


def test_it_becomes_complete_again_by_a_refill_that_reaches_the_end() -> None:
    window = ReadyCache(is_complete=False, edge=PREFIX, cap=2)
    window.refill([row(1)], row(1)[0])
    assert not window.is_complete
    window.rows.popleft()
    window.refill([], None)
    assert window.is_complete
    assert window.put(row(5))


def test_releases_cut_an_overfull_window_back_and_say_what_went() -> None:
    window = ReadyCache(is_complete=True, edge=PREFIX, cap=2)
    window.put(row(50))
    window.put(row(60, b"held"))
    window.put(row(70, b"held"))  # past the cap: on disk only
    for number in (5, 4, 3):
        window.put(row(number))
    assert [held[0] for held in window.rows] == [row(3)[0], row(4)[0]]
    assert window.edge == row(4)[0]
    assert window.lost_bytes == 10, "one held record of ten bytes went"


def test_discarding_what_is_not_there_finds_nothing() -> None:
    window = ReadyCache(is_complete=True, edge=PREFIX)
    window.put(row(5))
    assert window.discard(row(4)[0]) is None
    assert window.discard(row(5)[0]) == row(5)
    assert not window.rows


@pytest.mark.parametrize("cap", [1, 2, READY_ROWS])
def test_the_window_is_bounded(cap: int) -> None:
    window = ReadyCache(is_complete=True, edge=PREFIX, cap=cap)
    for number in range(99, -1, -1):
        window.put(row(number))
    assert len(window.rows) <= 2 * cap
