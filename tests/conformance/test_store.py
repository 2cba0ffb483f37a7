"""One suite for every store: what it says holds for memory, for RocksDB and simulated alike."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodeq.engine.runtime.ids import seeded
from lodeq.engine.store.memory import MemoryStore
from lodeq.engine.store.rocks import SKIPS, RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.errors import ClosedError, LodeqError, NotLeaderError, UsageError
from lodeq.testing.simulation.disk import SimDisk, SimStore
from lodeq.testing.simulation.loop import SimLoop, SimTime

MIB = 1024 * 1024
TOP = b"\xff" * 9


def open_rocks(path):
    return RocksStore.open(path, shared=SharedMemory(8 * MIB), create=True)


def open_simulated():
    time = SimTime()
    store = SimStore(SimDisk(1, seeded("store")), 0, SimLoop(time, seeded("loop")))
    store.is_opening = False
    return store


@pytest.fixture(params=["memory", "rocks", "simulated"])
def store(request, tmp_path):
    if request.param == "rocks":
        opened = open_rocks(tmp_path / "db")
    else:
        opened = MemoryStore() if request.param == "memory" else open_simulated()
    yield opened
    opened.close()


@pytest.fixture
def wait_for(store):
    """Ask for work of the store's thread and return what its ``done`` was called with."""

    def wait(ask):
        calls = []
        ask(calls.append)
        store.close()  # joins the thread: whatever was asked for is finished
        return calls

    return wait


# --- get, put, delete ---------------------------------------------------------------------------


def test_a_put_can_be_read_at_once(store):
    store.write([(b"k", b"v")])
    assert store.get(b"k") == b"v"


def test_a_missing_key_is_none(store):
    assert store.get(b"k") is None
    assert store.scan_last(b"", TOP) is None


def test_a_delete_removes_and_may_find_nothing(store):
    store.write([(b"k", b"v")])
    store.write([(b"k", None), (b"never", None)])
    assert store.get(b"k") is None
    assert store.scan(b"", TOP, 10) == []


def test_a_put_overwrites(store):
    store.write([(b"k", b"1")])
    store.write([(b"k", b"2")])
    assert store.get(b"k") == b"2"
    assert store.scan(b"", TOP, 10) == [(b"k", b"2")]


def test_a_key_can_come_back(store):
    store.write([(b"k", b"1")])
    store.scan(b"", TOP, 10)
    store.write([(b"k", None)])
    store.write([(b"k", b"2")])
    assert store.scan(b"", TOP, 10) == [(b"k", b"2")]


@pytest.mark.parametrize("others", [0, 40], ids=["few rows", "many rows"])  # many are sorted
def test_the_last_operation_of_a_batch_wins(store, others):
    store.write(
        [
            *((b"b%d" % n, b"") for n in range(others)),
            (b"a", b"1"),
            (b"a", None),
            (b"b", None),
            (b"b", b"1"),
            (b"c", b"1"),
            (b"c", b"2"),
        ]
    )
    assert store.multi_get([b"a", b"b", b"c"]) == [None, b"1", b"2"]


def test_an_empty_value_is_not_a_missing_one(store):
    store.write([(b"k", b"")])
    assert store.get(b"k") == b""
    assert store.scan(b"", TOP, 10) == [(b"k", b"")]


def test_an_empty_batch_is_nothing(store):
    store.write([])
    assert store.scan(b"", TOP, 10) == []


def test_operations_may_come_from_a_generator(store):
    store.write((bytes([n]), b"v") for n in range(5))
    assert len(store.scan(b"", TOP, 10)) == 5


@pytest.mark.parametrize("bad", [("text", b"v"), (b"k", "text"), (None, b"v"), (b"k", 1), (b"k",)])
def test_a_bad_operation_applies_nothing(store, bad):
    with pytest.raises(UsageError):
        store.write([(b"good", b"v"), bad])
    assert store.get(b"good") is None


def test_a_bad_key_to_read_is_refused(store):
    with pytest.raises(UsageError):
        store.get("text")
    with pytest.raises(UsageError):
        store.multi_get([b"k", "text"])


# --- multi_get ----------------------------------------------------------------------------------


def test_multi_get_keeps_the_order_and_repeats(store):
    store.write([(b"a", b"1"), (b"b", b"2")])
    assert store.multi_get([b"b", b"x", b"a", b"b"]) == [b"2", None, b"1", b"2"]


def test_multi_get_takes_any_sequence(store):
    store.write([(b"a", b"1")])
    assert store.multi_get((b"a", b"x")) == [b"1", None]
    assert store.multi_get([]) == []


# --- scans --------------------------------------------------------------------------------------


def test_a_scan_includes_lower_and_excludes_upper(store):
    store.write([(bytes([n]), b"") for n in range(10)])
    assert [key for key, _ in store.scan(b"\x03", b"\x06", 10)] == [b"\x03", b"\x04", b"\x05"]


def test_a_scan_stops_at_its_limit(store):
    store.write([(bytes([n]), b"") for n in range(10)])
    assert [key for key, _ in store.scan(b"", TOP, 2)] == [b"\x00", b"\x01"]
    assert len(store.scan(b"", TOP, 10)) == 10
    assert store.scan(b"", TOP, 0) == []


@pytest.mark.parametrize(("lower", "upper"), [(b"b", b"b"), (b"c", b"a"), (b"", b"")])
def test_an_empty_range_is_empty(store, lower, upper):
    store.write([(b"a", b""), (b"b", b""), (b"c", b"")])
    assert store.scan(lower, upper, 10) == []
    assert store.scan_last(lower, upper) is None


def test_adjacent_prefixes_do_not_mix(store):
    store.write([(b"s/1", b""), (b"t", b""), (b"t/", b""), (b"t/\xff\xff", b""), (b"t0", b"")])
    assert [key for key, _ in store.scan(b"t/", b"t0", 10)] == [b"t/", b"t/\xff\xff"]


def test_keys_are_bytes_in_unsigned_order(store):
    keys = [b"", b"\x00", b"\x00\x00", b"\x00\xff", b"\x7f", b"\x80", b"\xff", b"\xff\x00"]
    store.write([(key, key) for key in reversed(keys)])
    assert store.scan(b"", TOP, 100) == [(key, key) for key in keys]
    assert store.scan_last(b"", TOP) == (b"\xff\x00", b"\xff\x00")


def test_scan_last_stays_in_its_range(store):
    store.write([(b"a", b"1"), (b"c", b"3"), (b"e", b"5")])
    assert store.scan_last(b"a", b"e") == (b"c", b"3")
    assert store.scan_last(b"c", b"c\x00") == (b"c", b"3")
    assert store.scan_last(b"d", b"e") is None
    store.write([(b"c", None)])
    assert store.scan_last(b"b", b"e") is None
    assert store.scan_last(b"a", b"e") == (b"a", b"1")


def test_scans_do_not_meet_many_deleted_rows(store):
    keys = [n.to_bytes(4, "big") for n in range(5000)]
    store.write([(key, b"v") for key in keys])
    assert len(store.scan(b"", TOP, 10_000)) == 5000
    store.write([(key, None) for key in keys if key != keys[2500]])
    assert store.scan(b"", TOP, 10) == [(keys[2500], b"v")]
    store.write([(key, b"w") for key in keys[:10]])
    assert [key for key, _ in store.scan(b"", TOP, 100)] == [*keys[:10], keys[2500]]


def in_parts(view, lower, upper, limit):
    """All rows of a range, part by part; every part gets on."""
    rows, at = [], lower
    while at is not None:
        part, following = view.scan_part(at, upper, limit)
        assert len(part) <= limit
        assert following is None or at < following
        assert following is None or following.endswith(b"\0") or not hasattr(view, "write")
        rows, at = rows + part, following
    return rows


def test_parts_are_together_what_a_scan_finds(store):
    keys = [b"k%04d" % n for n in range(1000)]
    store.write([(key, b"v") for key in keys])
    store.write([(key, None) for key in keys[10:-10]])
    for view in (store, store.snapshot(), store.snapshot([b"a", keys[500], keys[995]])):
        for limit in (1, 3, 10_000):
            assert in_parts(view, b"", TOP, limit) == store.scan(b"", TOP, 10_000)
        assert in_parts(view, keys[400], keys[992], 5) == [(keys[n], b"v") for n in (990, 991)]
        assert view.scan_part(b"z", TOP, 5) == ([], None)
        assert view.scan(b"", TOP, 15)[-1][0] == keys[-6]
        assert view.scan_last(b"", keys[600]) == (keys[9], b"v")


def test_the_last_rows_are_read_from_the_end(store):
    rows = [(b"k%04d" % n, b"v%d" % n) for n in range(3000)]
    store.write(rows)
    for lower, upper in ((b"", TOP), (rows[5][0], rows[50][0]), (rows[5][0] + b"0", b"k0049x")):
        whole = store.scan(lower, upper, 10_000)[::-1]
        for limit in (0, 1, 3, 40):
            assert store.scan_back(lower, upper, limit) == whole[:limit]
    assert store.scan_back(rows[5][0], rows[9][0], 100) == rows[5:9][::-1]
    assert store.scan_back(b"z", TOP, 5) == store.scan_back(rows[9][0], rows[5][0], 5) == []
    store.write([(key, None) for key, _ in rows[:-3]])
    assert store.scan_back(b"", TOP, 3) == rows[:-4:-1]
    store.write([(rows[-2][0], None)])
    assert store.scan_back(b"", TOP, 2) == [rows[-1], rows[-3]]


def test_a_flush_changes_nothing_that_is_read(store):
    store.write([(b"a", b"1"), (b"b", b"2")])
    store.flush()
    store.write([(b"a", None), (b"c", b"3")])
    assert store.scan(b"", TOP, 10) == [(b"b", b"2"), (b"c", b"3")]
    assert store.get(b"a") is None
    assert store.multi_get([b"a", b"b"]) == [None, b"2"]


# --- snapshots ----------------------------------------------------------------------------------


def test_a_snapshot_is_one_moment(store):
    store.write([(b"a", b"1"), (b"b", b"2")])
    view = store.snapshot()
    store.write([(b"a", b"9"), (b"b", None), (b"c", b"3")])
    assert view.get(b"a") == b"1"
    assert view.get(b"c") is None
    assert view.multi_get([b"c", b"b", b"a"]) == [None, b"2", b"1"]
    assert view.scan(b"", TOP, 10) == [(b"a", b"1"), (b"b", b"2")]
    assert view.scan(b"", TOP, 1) == [(b"a", b"1")]
    assert view.scan_last(b"", TOP) == (b"b", b"2")
    view.close()
    assert store.scan(b"", TOP, 10) == [(b"a", b"9"), (b"c", b"3")]


def test_a_closed_snapshot_answers_nothing(store):
    view = store.snapshot()
    view.close()
    view.close()
    assert_closed(view)


def test_the_store_closes_its_snapshots(store):
    view = store.snapshot()
    store.close()
    assert_closed(view)


# --- the store's thread -------------------------------------------------------------------------


def test_a_sync_calls_back_once_with_none(store, wait_for):
    store.write([(b"k", b"v")])
    assert wait_for(store.start_sync) == [None]


def test_work_runs_in_the_order_it_was_asked_for(store):
    order = []
    for n in range(3):
        store.run(lambda n=n: order.append(n), lambda error, n=n: order.append((n, error)))
    store.start_sync(lambda error: order.append(("sync", error)))
    store.run(store.flush, lambda error: order.append(("flush", error)))
    store.close()
    assert order == [0, (0, None), 1, (1, None), 2, (2, None), ("sync", None), ("flush", None)]


def test_an_error_of_the_work_reaches_its_callback(store, wait_for):
    error = OSError("no")

    def fail():
        raise error

    assert wait_for(lambda done: store.run(fail, done)) == [error]


# --- the rest of the port -----------------------------------------------------------------------


def test_property_int(store):
    store.write([(b"a", b""), (b"b", b"")])
    assert store.property_int("rocksdb.estimate-num-keys") == 2
    assert store.property_int("rocksdb.no-such-thing") is None


def test_close_is_idempotent(store):
    store.close()
    store.close()
    assert_closed(store)
    for call in (
        lambda: store.write([(b"k", b"v")]),
        lambda: store.write([]),
        lambda: store.start_sync(print),
        lambda: store.run(print, print),
        store.flush,
        store.snapshot,
        lambda: store.checkpoint("never-made"),
        lambda: store.property_int("rocksdb.estimate-num-keys"),
    ):
        with pytest.raises(ClosedError):
            call()
    assert not Path("never-made").exists()


def test_a_retired_store_refuses_as_it_was_asked_to(store):
    store.write([(b"k", b"v")])
    view = store.snapshot()
    close = store.retire(lambda: NotLeaderError("elsewhere"))
    for _ in range(2):
        assert_closed(store, NotLeaderError)
        assert_closed(view, NotLeaderError)
        for call in (
            lambda: store.write([(b"k", b"v")]),
            lambda: store.run(print, print),
            store.flush,
            store.snapshot,
            lambda: store.checkpoint("never-made"),
            lambda: store.property_int("rocksdb.estimate-num-keys"),
        ):
            with pytest.raises(NotLeaderError, match="elsewhere"):
                call()
        close()
        store.close()


def test_a_retired_store_gives_its_folder_free(tmp_path):
    store = open_rocks(tmp_path / "db")
    store.write([(b"k", b"v")])
    first = store.retire(lambda: NotLeaderError("elsewhere"))  # whoever did it was cut short
    store.retire(lambda: NotLeaderError("elsewhere"))()
    again = open_rocks(tmp_path / "db")
    first()
    assert again.get(b"k") == b"v"
    again.close()


def assert_closed(view, kind=ClosedError):
    for call in (
        lambda: view.get(b"k"),
        lambda: view.multi_get([b"k"]),
        lambda: view.multi_get([]),
        lambda: view.scan(b"", TOP, 10),
        lambda: view.scan(b"", b"", 0),
        lambda: view.scan_part(b"", TOP, 10),
        lambda: view.scan_last(b"", TOP),
    ):
        with pytest.raises(kind):
            call()


# --- both, in step ------------------------------------------------------------------------------

keys = st.one_of(
    st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"b", b"\xfe", b"\xff", b"\xff\xff"]),
    st.binary(max_size=3),
)
batches = st.lists(st.tuples(keys, st.one_of(st.none(), st.binary(max_size=4))), max_size=8)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), batches),
        st.tuples(st.just("many"), st.integers(0, 255), st.booleans()),
        st.tuples(st.just("flush")),
        st.tuples(st.just("snapshot"), st.lists(keys, max_size=3)),
        st.tuples(st.just("get"), keys),
        st.tuples(st.just("multi_get"), st.lists(keys, max_size=4)),
        st.tuples(st.just("scan"), keys, keys, st.integers(0, 6)),
        st.tuples(st.just("scan_last"), keys, keys),
        st.tuples(st.just("parts"), keys, keys, st.integers(1, 6)),
    ),
    max_size=30,
)


def apply(store, views, step):
    """Do one step; reads are asked of the store and of every snapshot so far."""
    match step:
        case ("write", ops):
            return store.write(ops)
        case ("many", first, put):
            value = b"m" if put else None
            return store.write([(bytes([first, n]), value) for n in range(50)])
        case ("flush",):
            return store.flush()
        case ("snapshot", splits):
            return views.append(store.snapshot(sorted(splits)))
        case ("parts", lower, upper, limit):
            return [in_parts(view, lower, upper, limit) for view in (store, *views)]
        case (name, *args):
            return [getattr(view, name)(*args) for view in (store, *views)]


@pytest.mark.slow
@settings(max_examples=60)
@given(steps, st.sampled_from([1, 3, SKIPS]))
def test_both_stores_answer_alike(steps, skips):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lodeq.engine.store.rocks.SKIPS", skips)
        in_step(steps)


def in_step(steps):
    with tempfile.TemporaryDirectory() as folder:
        memory, rocks = MemoryStore(), open_rocks(f"{folder}/db")
        memory_views, rocks_views = [], []
        try:
            for step in steps:
                assert apply(memory, memory_views, step) == apply(rocks, rocks_views, step)
            assert memory.scan(b"", TOP, 100_000) == rocks.scan(b"", TOP, 100_000)
        except LodeqError as exc:  # pragma: no cover
            pytest.fail(f"{exc!r}")
        finally:
            rocks.close()
            memory.close()
