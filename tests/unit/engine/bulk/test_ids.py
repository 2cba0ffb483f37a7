"""The ids of a load: found again with their places, merged in order, and twice is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.engine.bulk.ids import IdTable, merged_ids, write_ids
from lodeq.engine.records.keyspace import delayed_key, ready_key, shard_queue_prefix
from lodeq.engine.runtime.ids import IdSource, SeededRng, shard_of
from lodeq.errors import CorruptionError, DuplicateTaskError, UsageError

IDS = IdSource(SeededRng(5))


def key_of(task_id, n=0):
    prefix = shard_queue_prefix(b"q%d" % (n % 3), b"t" * (n % 2))
    if n % 4:
        return ready_key(prefix, n % 10, n, task_id)
    return delayed_key(prefix, n + 1, n << 8, task_id)


def table_of(folder: Path, ids, stem="x"):
    mark = write_ids(str(folder), stem, 0, [key_of(one, n) for n, one in enumerate(ids)])
    return IdTable.read(f"{folder}/{mark.name}")


@given(st.sets(st.binary(min_size=16, max_size=16), min_size=1, max_size=60))
def test_each_is_found_with_its_place(tmp_path_factory, ids):
    folder = tmp_path_factory.mktemp("ids")
    ids = list(ids)
    keys = {one: key_of(one, n) for n, one in enumerate(ids)}
    mark = write_ids(str(folder), "x", 3, list(keys.values()))
    assert (mark.shard, mark.family, mark.rows) == (3, "ids", len(ids))
    assert (mark.first, mark.last) == (min(ids), max(ids))
    table = IdTable.read(f"{folder}/{mark.name}")
    for n, one in enumerate(ids):
        found = table.find(one)
        assert found is not None
        assert (found.index_key, found.queue) == (keys[one], b"q%d" % (n % 3))
        assert found.due_ms == (0 if n % 4 else n + 1)
    assert table.find(bytes(15)) is None
    assert table.find(b"\xff" * 17) is None


@given(
    st.lists(st.sets(st.integers(0, 500), min_size=1), min_size=1, max_size=5), st.integers(1, 9)
)
def test_many_tables_are_merged_in_order(tmp_path_factory, parts, many):
    folder, seen = tmp_path_factory.mktemp("ids"), set()
    tables = []
    for n, part in enumerate(parts):
        if part := part - seen:
            tables.append(table_of(folder, [one.to_bytes(16, "big") for one in part], f"x{n}"))
        seen |= part
    chunks = list(merged_ids(tables, many))
    assert [int.from_bytes(one, "big") for some in chunks for one in some] == sorted(seen)
    assert all(len(some) <= many * len(tables) for some in chunks)


@pytest.mark.parametrize("many", [1, 2, 100])
def test_an_id_in_two_tables_is_refused(tmp_path, many):
    ids = [bytes(15) + bytes((n,)) for n in range(9)]
    tables = [table_of(tmp_path, ids[:6], "a"), table_of(tmp_path, ids[5:], "b")]
    with pytest.raises(DuplicateTaskError, match="00000005"):
        list(merged_ids(tables, many))


def test_an_id_twice_in_one_table_is_refused(tmp_path):
    with pytest.raises(DuplicateTaskError, match="two tasks of the load have the id"):
        table_of(tmp_path, [b"a" * 16, b"a" * 16])
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_is_not_in_order_is_refused(tmp_path):
    table_of(tmp_path, [b"a" * 16, b"b" * 16])
    raw = (tmp_path / "x-ids").read_bytes()
    table = IdTable(raw[:-74] + raw[-37:] + raw[-74:-37], "x")
    with pytest.raises(UsageError, match="not in order"):
        list(merged_ids([table], 1))


def test_only_ids_of_ours_in_their_own_shard_pass(tmp_path):
    ids = [IDS.new(5, slot) for slot in range(0, 4096, 7)]
    here = [one for one in ids if shard_of(one, 3) == 1]
    table_of(tmp_path, here, "here").check(1, 3)
    with pytest.raises(UsageError, match="another shard"):
        table_of(tmp_path, ids, "all").check(1, 3)
    for at, to in ((6, 0x41), (8, 0x40), (8, 0xC0)):
        strange = bytearray(here[3])
        strange[at] = to
        with pytest.raises(UsageError, match="is no id of a task"):
            table_of(tmp_path, [*here, bytes(strange)], f"{at}-{to}").check(1, 3)


@pytest.mark.parametrize("cut", [0, 7, 15, 17, 20, -1, -37])
def test_what_is_cut_off_is_refused(tmp_path, cut):
    table_of(tmp_path, [b"a" * 16, b"b" * 16])
    with pytest.raises(CorruptionError, match="stage the load again"):
        IdTable((tmp_path / "x-ids").read_bytes()[:cut], "x")


def test_a_place_that_is_none_is_refused(tmp_path):
    table_of(tmp_path, [b"a" * 16])
    raw = bytearray((tmp_path / "x-ids").read_bytes())
    raw[-17] = ord("x")
    with pytest.raises(UsageError, match="names no place"):
        IdTable(bytes(raw), "x").find(b"a" * 16)
