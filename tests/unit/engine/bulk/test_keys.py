"""Who takes which dedup key: found again, in order, and twice is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_rows import NOW_US, POLICY

from lodeq.engine.bulk.keys import KeyTable, write_keys
from lodeq.engine.bulk.rows import task_rows
from lodeq.engine.records.task import TaskRecord, encode_task
from lodeq.engine.runtime.ids import IdSource, SeededRng
from lodeq.errors import CorruptionError, UsageError

IDS = IdSource(SeededRng(5))


def keyed(ghost, *, due_ms=0, queue=b"mail", tenant=b"", priority=5):
    record = TaskRecord(
        0,
        priority,
        ord("d" if due_ms else "r"),
        NOW_US,
        NOW_US,
        due_ms,
        0,
        POLICY,
        ghost,
        0,
        0,
        queue,
        tenant,
        b"",
        b"",
    )
    return task_rows(IDS.new(NOW_US // 1000, 0), encode_task(record), 1)


@given(st.sets(st.binary(min_size=16, max_size=16).filter(any), min_size=1, max_size=40))
def test_each_is_found(tmp_path_factory, ghosts):
    folder = str(tmp_path_factory.mktemp("keys"))
    tasks = [
        keyed(ghost, due_ms=i % 3, queue=b"q%d" % (i % 4), tenant=b"t" * (i % 2), priority=i % 10)
        for i, ghost in enumerate(ghosts)
    ]
    mark = write_keys(folder, "x", 0, tasks)
    table = KeyTable.read(f"{folder}/{mark.name}")
    assert len(table) == mark.rows == len(ghosts)
    assert (mark.first, mark.last) == (min(ghosts), max(ghosts))
    for task in tasks:
        found = table.find(task.ghost)
        assert found is not None
        assert (found.task_id, found.index_key) == (task.task_id, task.index_key)
    assert table.find(bytes(16)) is None
    assert table.find(b"\xff" * 17) is None
    assert [one.ghost for part in table.slices(7) for one in part] == sorted(ghosts)


def test_one_key_for_two_is_refused(tmp_path):
    with pytest.raises(UsageError, match="one dedup key"):
        write_keys(str(tmp_path), "x", 0, [keyed(b"g" * 16), keyed(b"g" * 16)])


def test_what_is_none_is_told(tmp_path):
    mark = write_keys(str(tmp_path), "x", 0, [keyed(b"g" * 16)])
    raw = (tmp_path / mark.name).read_bytes()
    for bad in (raw[:-1], raw + b"x", b"", b"x" + raw[1:], raw[:17]):
        with pytest.raises(CorruptionError, match="stage the load again"):
            KeyTable(bad, "keys")
