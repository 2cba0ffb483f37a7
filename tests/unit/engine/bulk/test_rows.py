"""A staged task's rows are those its enqueue would have written."""

import pytest
from support_behaviour import StillClock, in_memory
from support_ingest import publish
from support_loop import on_loop
from support_rows import NOW_US, POLICY, dump

import lodeq
from lodeq import NewTask
from lodeq.engine.bulk.rows import EXPIRY_ENTRIES, expiry_rows, task_rows
from lodeq.engine.records.keyspace import EXPIRY, GHOST, INDEX, TASK, decode_expiry_key
from lodeq.engine.records.rows import decode_expiry
from lodeq.engine.records.task import BODY_FLAG, NO_GHOST, TaskRecord, encode_task
from lodeq.engine.runtime.ids import IdSource, SeededRng
from lodeq.errors import RecordCorruptError, UsageError

TASKS = [
    NewTask(b"plain"),
    NewTask({"a": [1, 2]}, priority=9, headers={"h": 1}, max_attempts=2),
    NewTask("later", delay=60, ttl=30),
    NewTask("once", dedup_key="k", dedup_window=90),
    NewTask("kept", dedup_key="l", tenant="acme", ttl=5),
    NewTask(b"x" * 3000, shard_key="s"),
]


def rows_of(engine):
    """All rows of tasks, ids left out: those are drawn."""
    found = []
    for shard in engine._state.shards:
        for key, value in dump(shard.store):
            if key[:2] in (TASK, INDEX, GHOST):
                found.append((key[:2] if key[:2] == TASK else key[:-16], len(value), value[:8]))
            elif key[:2] == EXPIRY:
                kinds = sorted(kind for kind, _ in decode_expiry(value))
                found.append((decode_expiry_key(key)[0], kinds))
    return sorted(map(repr, found))


@on_loop
async def test_rows_are_those_of_an_enqueue(tmp_path) -> None:
    clock = StillClock()
    async with in_memory(clock, rng=SeededRng(1)) as engine:
        await engine.queue("mail").enqueue_many(TASKS)
        wanted = rows_of(engine)
        records = sorted(v for k, v in dump(engine._state.shards[0].store) if k[:2] == TASK)
    # The same seed, so the same secret: dedup keys lie under the same hashes.
    async with lodeq.open(tmp_path / "s", clock=clock, inbox=False, rng=SeededRng(1)) as engine:
        publish(tmp_path / "s", TASKS, clock=clock)
        await engine.ingest()
        assert rows_of(engine) == wanted
        assert sorted(v for k, v in dump(engine._state.shards[0].store) if k[:2] == TASK) == records


def record(**fields):
    base = TaskRecord(
        0, 5, ord("r"), NOW_US, NOW_US, 0, 0, POLICY, NO_GHOST, 0, 1, b"q", b"", b"", b"x"
    )
    return encode_task(base._replace(**fields))


def test_what_is_no_new_task_is_refused():
    task_id = IdSource(SeededRng(1)).new(NOW_US // 1000, 4000)
    assert task_rows(task_id, record(), 2).shard == 1
    with pytest.raises(RecordCorruptError):
        task_rows(task_id, record()[:-1], 2)
    for bad, raw in (
        (task_id, record(flags=BODY_FLAG)),
        (task_id, record(due_ms=5)),
        (bytes(16), record()),
        (task_id[:-1], record()),
    ):
        with pytest.raises(UsageError):
            task_rows(bad, raw, 2)


def test_expiry_rows_are_bounded_and_apart_from_those_of_commits():
    entries = [b"t" + n.to_bytes(16, "big") for n in range(3 * EXPIRY_ENTRIES + 1)]
    rows = list(expiry_rows("job/0", {2000: entries, 1000: entries[:1]}))
    assert [key for key, _ in rows] == sorted({key for key, _ in rows})
    assert [decode_expiry_key(key)[0] for key, _ in rows] == [1000, 2000, 2000, 2000, 2000]
    assert all(decode_expiry_key(key)[1] >> 63 for key, _ in rows)
    told = [named for _, value in rows for _, named in decode_expiry(value)]
    assert sorted(told) == sorted(entry[1:] for entry in (*entries, entries[0]))
    assert not {k for k, _ in rows} & {k for k, _ in expiry_rows("job/1", {2000: entries})}
