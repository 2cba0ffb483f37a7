"""Ranges leave no wanted row out and read none twice, however they are narrowed and cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_bulk import MemoryReader
from support_rows import Life, busy

from lodeq.engine.bulk.ranges import TABLES, Filters, KeyRange, cut, key_ranges
from lodeq.engine.bulk.reader import TableFile
from lodeq.engine.records import keyspace as ks
from lodeq.engine.runtime.ids import IdSource, SeededRng
from lodeq.engine.store.memory import MemoryStore
from lodeq.errors import InvalidNameError, UsageError

FAMILY = {"tasks": b"t/", "leases": b"l/", "results": b"r/", "ghosts": b"g/", "kv": b""}
KIND = {"ready": ks.READY, "delayed": ks.DELAYED, "dead": ks.DEAD}


@pytest.fixture(scope="module")
def rows():
    store = MemoryStore()
    busy(Life(store))
    return dict(store.scan(b"", b"\xff", 1 << 20))


def of_table(rows, table):
    """By a look at every key."""
    if table in KIND:
        index = {key: ks.decode_index_key(key) for key in rows if key.startswith(b"q/")}
        return sorted(key for key, found in index.items() if found.kind == KIND[table])
    return sorted(key for key in rows if key.startswith(FAMILY[table]))


def read(reader, ranges):
    return [key for one in ranges for key, _ in reader.scan(one.lower, one.upper, 1 << 20)]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_its_rows_and_no_others(rows, table):
    reader = MemoryReader(rows)
    expected = of_table(rows, table)
    assert expected
    assert read(reader, key_ranges(reader, table)) == expected
    assert key_ranges(reader, table, Filters(shards=frozenset([1]))) == []


@pytest.mark.parametrize("table", ["ready", "delayed", "dead"])
@pytest.mark.parametrize("queues", [None, {"mail"}, {"audit", "none"}])
@pytest.mark.parametrize("tenants", [None, {""}, {"acme"}])
def test_narrowed_by_queue_and_tenant(rows, table, queues, tenants):
    reader = MemoryReader(rows)
    filters = Filters(
        queues=None if queues is None else frozenset(queues),
        tenants=None if tenants is None else frozenset(tenants),
    )
    found = {key: ks.decode_index_key(key) for key in of_table(rows, table)}
    expected = [
        key
        for key, index in found.items()
        if (queues is None or index.queue.decode() in queues)
        and (tenants is None or index.tenant.decode() in tenants)
    ]
    assert read(reader, key_ranges(reader, table, filters)) == expected


def us_of(table, key):
    """The time a key holds, in microseconds."""
    if table in ("tasks", "leases", "results"):
        return int.from_bytes(key[2:8], "big") * 1000
    found = ks.decode_index_key(key)
    return found.seq if table == "ready" else found.at * 1000


@pytest.mark.parametrize("table", ["tasks", "leases", "results", "ready", "delayed", "dead"])
def test_narrowed_by_time(rows, table):
    reader = MemoryReader(rows)
    times = sorted({us_of(table, key) for key in of_table(rows, table)})
    edges = [None, *times, times[-1] + 1, times[0] - 1, -5, 1 << 62, 1 << 70]
    for since in edges:
        for until in edges:
            filters = Filters(since_us=since, until_us=until)
            expected = [
                key
                for key in of_table(rows, table)
                if (since is None or us_of(table, key) >= since)
                and (until is None or us_of(table, key) < until)
            ]
            assert read(reader, key_ranges(reader, table, filters)) == expected


def test_narrowed_by_id():
    ids = IdSource(SeededRng(1))
    all_ids = [ids.new(1_700_000_000_000 + n, n * 100) for n in range(40)]
    found = []
    for shard in range(3):
        reader = MemoryReader({b"t/" + id: b"" for id in all_ids}, shard=shard, shards=3)
        filters = Filters(ids=frozenset(all_ids[:10] + all_ids[20:]))
        found += read(reader, key_ranges(reader, "tasks", filters))
    assert sorted(found) == sorted(b"t/" + id for id in all_ids[:10] + all_ids[20:])


def test_what_cannot_be_filtered_by(rows):
    reader = MemoryReader(rows)
    with pytest.raises(UsageError, match="no table"):
        key_ranges(reader, "jobs")
    with pytest.raises(UsageError, match="16 bytes"):
        key_ranges(reader, "tasks", Filters(ids=frozenset([b"x"])))
    with pytest.raises(InvalidNameError):
        key_ranges(reader, "ready", Filters(queues=frozenset(["no such\0name"])))
    with pytest.raises(UsageError, match="parts"):
        cut([], [], 0)


keys = st.binary(min_size=1, max_size=6)
spans = st.lists(keys, min_size=2, max_size=8, unique=True).map(sorted)
files = st.lists(
    st.tuples(keys, keys, st.integers(0, 1 << 30)).map(
        lambda f: TableFile(min(f[:2]), max(f[:2]), f[2])
    ),
    max_size=6,
).map(sorted)


@pytest.mark.slow
@given(spans, files, st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_cuts_are_together_what_they_were(bounds, tables, parts):
    ranges = [KeyRange(2, a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=False)]
    shares = cut(ranges, tables, parts)
    assert all(shares)
    assert len(shares) <= parts
    joined: list[KeyRange] = []
    for one in (one for share in shares for one in share):
        assert one.lower < one.upper
        if joined and joined[-1].upper == one.lower and one.lower not in bounds:
            joined[-1] = joined[-1]._replace(upper=one.upper)
        else:
            joined.append(one)
    assert joined == ranges


def test_cuts_are_about_even():
    tables = [TableFile(b"t/%03d" % n, b"t/%03d~" % n, 1000) for n in range(100)]
    (whole,) = [KeyRange(0, b"t/", b"t0")]
    shares = cut([whole], tables, 4)
    assert len(shares) == 4
    weights = [
        sum(f.bytes for f in tables for r in share if r.lower <= f.first_key < r.upper)
        for share in shares
    ]
    assert max(weights) < 1.5 * min(weights)


def test_one_large_file_is_cut_too():
    shares = cut([KeyRange(0, b"t/", b"t0")], [TableFile(b"t/\0", b"t/\xff", 1 << 20)], 4)
    assert len(shares) == 4
