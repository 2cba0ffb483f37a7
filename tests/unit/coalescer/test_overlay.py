"""The overlay against a model: store plus pending groups read like one dictionary."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.coalescer.group import Group
from lodeq.coalescer.overlay import Overlay
from lodeq.engine.store.memory import MemoryStore
from lodeq.engine.store.port import Op, Rows

keys = st.integers(0, 15).map(lambda n: b"k%02d" % n)
ops = st.lists(st.tuples(keys, st.one_of(st.none(), st.binary(max_size=2))), max_size=8)
LOW, HIGH = b"k", b"l"


class Model:
    """Groups waiting on a store, and the dictionary they add up to."""

    def __init__(self, applied: list[Op], pending: list[list[Op]]) -> None:
        self.store = MemoryStore()
        self.store.write(applied)
        self.groups: deque[Group] = deque()
        self.rows: dict[bytes, bytes] = {}
        self.overlay = Overlay(self.store, lambda: self.groups)
        self._note(applied)
        for number, batch in enumerate(pending):
            group = Group(number)
            group.ops += batch
            self.groups.append(group)
            self._note(batch)

    def _note(self, batch: list[Op]) -> None:
        for key, value in batch:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def apply_one(self) -> None:
        self.store.write(self.groups.popleft().ops)

    def scan_all(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        """Page by page, as a caller would."""
        found: Rows = []
        at: bytes | None = lower
        while at is not None:
            rows, after = self.overlay.scan(at, upper, limit)
            assert len(rows) <= limit
            assert rows == sorted(rows)
            assert after is None or at < after
            found += rows
            at = after
        return found

    def between(self, lower: bytes, upper: bytes) -> Rows:
        return sorted((k, v) for k, v in self.rows.items() if lower <= k < upper)


models = st.builds(Model, ops, st.lists(ops, max_size=4))


@given(models, st.lists(keys, max_size=6))
def test_gets_see_what_is_queued(model: Model, wanted: list[bytes]) -> None:
    expected = [model.rows.get(key) for key in wanted]
    assert [model.overlay.get(key) for key in wanted] == expected
    assert model.overlay.multi_get(wanted) == expected


@given(models, keys, keys, st.integers(1, 5))
def test_pages_of_a_scan_add_up(model: Model, one: bytes, other: bytes, limit: int) -> None:
    lower, upper = min(one, other), max(one, other)
    assert model.scan_all(lower, upper, limit) == model.between(lower, upper)
    assert model.scan_all(LOW, HIGH, limit) == model.between(LOW, HIGH)


@given(models, st.integers(1, 4))
def test_applying_a_group_changes_nothing_that_is_read(model: Model, limit: int) -> None:
    while model.groups:
        model.apply_one()
        assert model.scan_all(LOW, HIGH, limit) == model.between(LOW, HIGH)
        assert model.overlay.multi_get([b"k00", b"k07"]) == [
            model.rows.get(b"k00"),
            model.rows.get(b"k07"),
        ]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_a_page_whose_rows_are_all_deleted_is_not_the_end(limit: int) -> None:
    rows = [(b"k%02d" % n, b"v") for n in range(6)]
    model = Model(rows, [[(key, None) for key, _ in rows[:5]]])
    assert model.scan_all(LOW, HIGH, limit) == rows[5:]


@given(models, keys, keys, st.integers(1, 5))
def test_pages_hide_what_is_empty(model: Model, one: bytes, other: bytes, limit: int) -> None:
    pages = list(model.overlay.pages(one, other, limit))
    assert all(pages)
    rows = [row for page in pages for row in page]
    assert rows == sorted(row for row in model.rows.items() if one <= row[0] < other)
    assert model.overlay.first(one, other) == (rows[0] if rows else None)


def test_a_group_that_nobody_reads_is_never_indexed() -> None:
    model = Model([], [[(b"k00", b"v")]])
    group = model.groups[0]
    model.apply_one()
    assert model.overlay.get(b"k00") == b"v"
    assert group.indexed == 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("open"), ops),
        st.tuples(st.just("add"), ops),
        st.tuples(st.just("insert"), ops),
        st.sampled_from([("apply", []), ("drop", []), ("forget", []), ("read", [])]),
    ),
    max_size=30,
)


@given(steps, st.integers(0, 3))
def test_reads_follow_whatever_happens_to_the_line(
    taken: list[tuple[str, list[Op]]], kept: int
) -> None:
    """Groups come, grow, are applied, dropped from the end, or put in front, read or not."""
    store, groups = MemoryStore(), deque[Group]()
    overlay = Overlay(store, lambda: groups)
    for number, (step, batch) in enumerate(taken):
        if step == "open":
            groups.append(Group(number))
        if step in ("open", "add") and groups:
            groups[-1].ops += batch
        elif step == "insert":
            groups.insert(min(kept, len(groups)), Group(number))
            groups[min(kept, len(groups) - 1)].ops[:0] = batch
        elif step == "apply" and groups:
            store.write(groups.popleft().ops)
        elif step == "drop":
            while len(groups) > kept:
                groups.pop()
        elif step == "forget":
            overlay.forget()
        if step not in ("read", "apply", "insert"):
            continue  # several changes between two reads
        expected: dict[bytes, bytes | None] = {}
        for group in groups:
            expected.update(group.ops)
        for key in (b"k%02d" % n for n in range(16)):
            assert overlay.get(key) == expected.get(key, store.get(key))


def test_nothing_is_kept_of_a_line_that_is_empty() -> None:
    model = Model([], [[(b"k00", b"v")]])
    assert model.overlay.get(b"k00") == b"v"
    model.apply_one()
    model.overlay.forget()
    assert not model.overlay._map


def test_operations_queued_after_a_read_are_seen_too() -> None:
    model = Model([], [[(b"k00", b"1")]])
    assert model.overlay.get(b"k00") == b"1"
    model.groups[0].ops.append((b"k00", b"2"))
    assert model.overlay.get(b"k00") == b"2"
    assert model.overlay.multi_get([]) == []


@given(models, keys, keys)
def test_no_key_is_above_the_last(model: Model, one: bytes, other: bytes) -> None:
    lower, upper = min(one, other), max(one, other)
    last = model.overlay.last_key(lower, upper)
    assert last is None or lower <= last < upper
    assert all(last is not None and key <= last for key, _ in model.between(lower, upper))
