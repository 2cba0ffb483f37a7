"""Stretches of a lifecycle journal: the same rows, however it is cut and whenever it is read."""

import asyncio
import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support_spark import make_store, told

import lodeq
from lodeq.engine.records.events import Run, encode_event_row, encode_run
from lodeq.errors import SegmentCorruptError, StorePathError, UsageError
from lodeq.pipeline.datasource import points
from lodeq.pipeline.datasource.points import (
    Point,
    Stretch,
    end_of,
    find_journal,
    hint_at,
    last_point,
    records,
    scan,
)
from lodeq.segments.journal.layout import list_files
from lodeq.segments.journal.recovery import read_position
from lodeq.segments.journal.view import FolderView
from lodeq.testing import ManualClock


def rows_of(stretch: Stretch) -> list:
    reader = lodeq.lifecycle.Reader(stretch.start.seen)
    return [said for record in records(stretch) for said in reader.read(record)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_store(tmp_path_factory.mktemp("points") / "store")
    return make_store(path, 10, finish=5)  # another incarnation: marks between events


@pytest.mark.parametrize("every", [1, 7, 1000])
def test_parts_are_the_whole(store: Path, every: int) -> None:
    root = find_journal(store)
    view = FolderView(root)
    cuts = [Point(1), *(point for point, _ in scan(Stretch(root, Point(1), 0), view, every=every))]
    parts = [
        rows_of(Stretch(root, start, end.next, hint=hint_at(view, start.next)))
        for start, end in itertools.pairwise(cuts)
    ]
    assert list(itertools.chain(*parts)) == told(store)
    assert len(parts) == 1 or max(map(len, parts[1:])) < len(told(store))


def test_an_offset_survives_its_text(store: Path) -> None:
    root = find_journal(store)
    *_, (end, rows) = scan(Stretch(root, Point(1), 0), FolderView(root))
    assert rows == len(told(store))
    assert len(end.seen) == 2
    assert Point.from_json(end.to_json()) == end
    assert list(scan(Stretch(root, end, 0), FolderView(root))) == [(end, 0)]


@pytest.mark.parametrize(
    "raw", [{}, {"next": "x", "seen": {}}, {"next": 1, "seen": {"0": "1"}}, []]
)
def test_the_offset_of_another_source_is_refused(raw: dict) -> None:
    with pytest.raises(UsageError, match="checkpointLocation"):
        Point.from_json(raw)


def test_a_limit_is_kept_but_for_a_record_that_is_larger(store: Path) -> None:
    root, view = find_journal(store), FolderView(find_journal(store))
    sizes = {}
    for most in (1, 5, 40, 10_000):
        at, counted = Point(1), []
        while True:
            *_, (end, rows) = scan(Stretch(root, at, 0), view, most=most)
            if end.next == at.next:
                break
            at = end
            counted.append(rows)
        sizes[most] = counted
        assert sum(counted) == len(told(store))
    assert max(sizes[1]) == 30  # tasks of one enqueue_many are one record
    assert max(sizes[40]) <= 40
    assert len(sizes[10_000]) == 1


def test_a_stretch_stops_where_it_is_told(store: Path) -> None:
    root, view = find_journal(store), FolderView(find_journal(store))
    *_, (end, _) = scan(Stretch(root, Point(1), 0), view)
    *_, (point, rows) = scan(Stretch(root, Point(1), 0), view, stop=5)
    assert point.next == 5
    assert 0 < rows < len(told(store))
    assert last_point(root, view) == end


def test_a_commit_that_is_told_twice_is_told_once(tmp_path: Path) -> None:
    """As a crash between the journal's sync and the deletion of the row leaves it."""
    rows = []
    for n in (1, 2, 3):
        run = Run(1, 5, 0, n, b"q", b"", b"", (bytes([n] * 16),))
        rows.append(encode_event_row(0, 1 << 40 | n, [encode_run(run)]))

    async def write() -> None:
        async with lodeq.journal.open(tmp_path / "journals/tasks") as journal:
            await journal.append_many([rows[0], rows[1], rows[1], rows[0], rows[2]])

    asyncio.run(write())
    root = find_journal(tmp_path)
    cuts = [p for p, _ in scan(Stretch(root, Point(1), 0), FolderView(root), every=1)]
    pairs = itertools.pairwise([Point(1), *cuts])
    parts = [rows_of(Stretch(root, start, end.next)) for start, end in pairs]
    assert [[event.number for event in part] for part in parts] == [[1], [2], [3]]


def test_what_may_come_back_under_another_number_waits(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = find_journal(store)
    *_, (end, _) = scan(Stretch(root, Point(1), 0), FolderView(root))
    note = read_position(root)
    assert note is not None
    assert note.durable == end.next - 1  # a closed journal's note is exact
    monkeypatch.setattr(points, "read_position", lambda root: note._replace(durable=4))
    last = list(records(Stretch(root, Point(1), 0), clock=_at(end, root, 3600.0)))
    assert last[-1].sequence == end.next - 1
    early = list(records(Stretch(root, Point(1), 0), clock=_at(end, root, -3600.0)))
    assert [record.sequence for record in early] == [1, 2, 3, 4]


def _at(end: Point, root: str, later_s: float) -> ManualClock:
    record = list(records(Stretch(root, Point(1), end.next)))[-1]
    return ManualClock(datetime.fromtimestamp(record.time_us / 1e6 + later_s, UTC))


def test_damage_is_told_or_passed_over(tmp_path: Path) -> None:
    store = make_store(make_store(tmp_path / "store"), 10, finish=5)
    root = find_journal(store)
    whole = told(store)
    flip(root, 200)  # in the first of several frames
    with pytest.raises(SegmentCorruptError, match="failOnDataLoss=false"):
        rows_of(Stretch(root, Point(1), 0))
    rest = rows_of(Stretch(root, Point(1), 0, fail_on_loss=False))
    assert rest == whole[-len(rest) :]
    assert 0 < len(rest) < len(whole)


def test_damage_at_the_end_is_told(tmp_path: Path) -> None:
    root = find_journal(make_store(tmp_path / "store"))
    end = end_of(FolderView(root))
    flip(root, -50)
    with pytest.raises(SegmentCorruptError, match="failOnDataLoss=false"):
        rows_of(Stretch(root, Point(1), 0))
    with pytest.raises(SegmentCorruptError, match="failOnDataLoss=false"):
        rows_of(Stretch(root, Point(1), end))


def flip(root: str, at: int) -> None:
    """A bit of the newest file."""
    path = Path(list_files(root)[-1].path)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_the_journal_is_found(tmp_path: Path) -> None:
    with pytest.raises(StorePathError, match="no lifecycle journal"):
        find_journal(tmp_path)
    for name in ("one", "two"):
        (tmp_path / "journals" / name).mkdir(parents=True)
    with pytest.raises(UsageError, match="one, two: give the option 'journal'"):
        find_journal(tmp_path)
    assert find_journal(tmp_path, "two") == str(tmp_path / "journals" / "two")
    for name in ("three", "../one"):
        with pytest.raises(StorePathError, match="no journal"):
            find_journal(tmp_path, name)
