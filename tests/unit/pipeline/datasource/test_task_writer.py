"""Loads as Spark's tasks stage them: all or nothing, once, and the same when done again."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from support_jobs import refuse

import lodeq
from lodeq.engine.bulk.inbox import pending, staged_path
from lodeq.engine.bulk.manifest import IDS, KEYS
from lodeq.engine.recovery.dedup_secret import Secrets
from lodeq.engine.runtime.task_id import TaskId
from lodeq.errors import DuplicateTaskError, StorePathError, UsageError
from lodeq.pipeline.datasource import task_writer
from lodeq.pipeline.datasource.encoder import Policy, TaskEncoder
from lodeq.pipeline.datasource.options import Options
from lodeq.pipeline.datasource.routing import batch_loader, check_batches
from lodeq.pipeline.datasource.task_writer import Staged, TaskStreamWriter, TaskWriter

SECRETS = Secrets((bytes(32),))
SHARDS = 3


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with lodeq.sync.open(tmp_path / "store", shards=SHARDS):
        return tmp_path / "store"


class Context:
    """Of one of Spark's tasks."""

    def __init__(self) -> None:
        self.partition = self.attempt = 0

    def partitionId(self) -> int:  # noqa: N802
        return self.partition

    def taskAttemptId(self) -> int:  # noqa: N802
        self.attempt += 1
        return self.attempt

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return {"streaming.sql.batchId": "3"}.get(name)


@pytest.fixture(autouse=True)
def context(monkeypatch: pytest.MonkeyPatch) -> Context:
    fresh = Context()
    monkeypatch.setattr(task_writer.TaskContext, "get", lambda: fresh)
    return fresh


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = list(dict.fromkeys(name for row in rows for name in row))
    types = {
        "headers": pa.map_(pa.string(), pa.string()),
        "run_at": pa.timestamp("us", "UTC"),
        "slot": pa.int32(),
    }
    arrays = [pa.array([row.get(name) for row in rows], types.get(name)) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names)


def writer_of(store: Path, batch: pa.RecordBatch, kind: type = TaskWriter, **options: str) -> Any:
    given = Options({"path": str(store)} | options)
    schema = from_arrow_schema(batch.schema, prefer_timestamp_ntz=False)
    return kind(given, schema, overwrite=False)


def write(store: Path, *batches: pa.RecordBatch, **options: str) -> TaskWriter:
    """As Spark does it, one task a batch."""
    writer = writer_of(store, batches[0], **options)
    writer.commit([writer.write(iter([batch])) for batch in batches])
    return writer


def drained(store: Path) -> list[lodeq.Lease]:
    """Take the loads in, then claim all there is."""

    async def live() -> list[lodeq.Lease]:
        async with lodeq.open(store, shards=SHARDS) as engine:
            report = await engine.ingest()
            assert all(job.state == "done" for job in report.jobs), report
            assert (await engine.verify()).ok
            found = []
            for queue in ("mail", "audit"):
                for tenant in ("", "acme"):
                    found += await engine.queue(queue, tenant=tenant).claim(limit=4096)
            return found

    return asyncio.run(live())


def test_rows_become_tasks(store: Path) -> None:
    rows = [
        {"queue": "mail", "payload": b"plain", "priority": 2},
        {"queue": "mail", "payload": b"first", "priority": 9, "headers": [("trace", "17")]},
        {"queue": "mail", "payload": b"\x81\xa1n\x05", "payload_kind": "msgpack"},
        {"queue": "audit", "payload": b"x", "tenant": "acme", "dedup_key": "k", "max_attempts": 1},
        {"queue": "mail", "payload": b"later", "run_at": datetime.now(UTC) + timedelta(hours=1)},
    ]
    write(store, batch_of(rows), commitId="load-1")
    assert pending(str(store)) == ["load-1"]
    mail, audit = _split(drained(store))
    assert [lease.payload for lease in mail] == [b"first", {"n": 5}, b"plain"]
    assert dict(mail[0].headers) == {"trace": "17"}
    assert [(lease.payload, lease.policy.max_attempts) for lease in audit] == [(b"x", 1)]


def test_a_large_payload_is_a_file_of_its_own(store: Path) -> None:
    large = os.urandom(4 << 20)
    rows = [
        {"payload": large, "dedup_key": "one", "headers": [("trace", "17")]},
        {"payload": b"small"},
        {"payload": large[::-1]},
    ]
    write(store, batch_of(rows), commitId="load", queue="mail")
    named = (store / "inbox" / "load.json").read_bytes()
    assert named.count(b'"bodies"') == 2

    async def live() -> list[bytes]:
        async with lodeq.open(store) as engine:
            assert (await engine.ingest()).tasks == 3
            assert (await engine.verify()).ok
            assert (await engine.queue("mail").enqueue(b"", dedup_key="one")).duplicate
            return [await x.read_payload() for x in await engine.queue("mail").claim(limit=9)]

    assert asyncio.run(live()) == [large, b"small", large[::-1]]


def test_an_abort_removes_large_payloads(store: Path) -> None:
    batch = batch_of([{"payload": bytes(4 << 20)}])
    writer = writer_of(store, batch, commitId="load", queue="mail")
    writer.abort([writer.write(iter([batch]))])
    assert not os.path.exists(staged_path(str(store), "load"))


def _split(leases: list[lodeq.Lease]) -> tuple[list[lodeq.Lease], list[lodeq.Lease]]:
    return [x for x in leases if x.queue == "mail"], [x for x in leases if x.queue != "mail"]


def test_a_load_is_published_once(store: Path) -> None:
    batch = batch_of([{"payload": b"%d" % n} for n in range(20)])
    write(store, batch, commitId="once", queue="mail")
    write(store, batch, commitId="once", queue="mail")
    assert len(drained(store)) == 20
    write(store, batch, commitId="once", queue="mail")
    assert len(drained(store)) == 20
    assert not os.path.exists(staged_path(str(store), "once"))


def test_an_abort_leaves_what_was_published(store: Path) -> None:
    """Spark aborts, with the same messages, where anything fails after the commit."""
    batch = batch_of([{"payload": b"x"}] * 10)
    writer = writer_of(store, batch, commitId="load", queue="mail")
    messages = [writer.write(iter([batch])), None]
    writer.commit(messages)
    writer.abort(messages)
    assert len(drained(store)) == 10
    writer.abort(messages)


def test_an_abort_removes_what_was_not(store: Path) -> None:
    batch = batch_of([{"payload": b"x"}] * 10)
    first, second = (writer_of(store, batch, commitId="load", queue="mail") for _ in range(2))
    kept = first.write(iter([batch]))
    second.write(iter([batch]))  # its task failed later: there is no message
    second.abort([None])
    first.commit([kept])
    assert len(drained(store)) == 10


def test_a_task_that_runs_again_stages_the_same(store: Path) -> None:
    batch = batch_of([{"payload": b"%d" % n, "dedup_key": f"k{n}"} for n in range(50)])
    writer = writer_of(store, batch, commitId="load", queue="mail")
    one, two = (_sums(writer.write(iter(part))) for part in ([batch], _halves(batch)))
    assert one == two
    assert len(one) == 5 * SHARDS
    first, second = (
        TaskEncoder("load", partition, 0, SHARDS, Policy("mail"), SECRETS).task({"payload": b""})[0]
        for partition in (0, 1)
    )
    assert first.task_id != second.task_id


def _halves(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch.slice(0, 20), batch.slice(20)]


def _sums(staged: Staged) -> list[tuple]:
    """What the files hold; an SST file also has a number of its own."""
    return sorted(
        (
            mark.shard,
            mark.family,
            mark.rows,
            mark.first,
            mark.last,
            mark.xxh3_128 if mark.family in (IDS, KEYS) else "",
        )
        for part in staged.parts
        for mark in part.files
    )


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([{"payload": b"x"}], {}, "need a column 'queue'"),
        ([{"queue": "mail"}], {}, "need a column 'payload'"),
        ([{"payload": b"", "colour": 1}], {"queue": "q"}, "tasks have no column 'colour'"),
        ([{"payload": b"", "priority": "high"}], {"queue": "q"}, "'priority' is string, not"),
        ([{"payload": b""}], {"queue": "No Name"}, "queue name 'No Name' is not valid"),
        ([{"payload": b""}], {"queue": "q", "onConflict": "ask"}, "on_conflict 'ask'"),
        ([{"payload": b""}], {"queue": "q", "commitId": "../x"}, "job '../x' is not valid"),
        ([{"payload": b""}], {"queue": "q", "retention": "-1"}, "retention -1.0 is not between"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    store: Path, rows: list[dict], options: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        writer_of(store, batch_of(rows), **options)
    assert not (store / "inbox").exists()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"queue": "No"}, "queue name 'No'"),
        ({"queue": None}, "a task needs a queue"),
        ({"payload": None}, "a task needs a payload"),
        ({"priority": 12}, "priority 12 is not between"),
        ({"delay": -1.0}, "delay -1.0 is not between"),
        ({"ttl": float("nan")}, "ttl nan is not between"),
        ({"dedup_window": 5.0}, "dedup_window and on_conflict need a dedup_key"),
        ({"payload": b"\xc1", "payload_kind": "msgpack"}, "the payload is not msgpack"),
        ({"payload_kind": "json"}, "payload_kind 'json' must be"),
        ({"id": b"short"}, "not a task id"),
        ({"id": b"x" * 16}, "no id of a task, which is a UUID of version 7"),
        ({"dedup_key": "k", "slot": 1}, "slot 1 is not that of its key"),
        ({"payload": bytes((64 << 20) + 1)}, "payload is 67108865 bytes, the limit"),
    ],
)
def test_a_row_that_is_no_task_is_named(store: Path, row: dict, words: str) -> None:
    rows = [{"queue": "mail", "payload": b"good"}, {"queue": "mail", "payload": b""} | row]
    batch = batch_of(rows)
    writer = writer_of(store, batch)
    with pytest.raises(lodeq.LodeqError, match=f"row 1 of partition 0: .*{words}"):
        writer.write(iter([batch]))
    writer.abort([])
    assert drained(store) == []


def test_a_time_beyond_python_is_that_of_its_row(store: Path) -> None:
    times = pa.array([0, 253_402_300_800_000_000], pa.timestamp("us", "UTC"))
    rows = [pa.array([b"a", b"b"]), times]
    batch = pa.RecordBatch.from_arrays(rows, ["payload", "run_at"])
    writer = writer_of(store, batch, queue="mail")
    with pytest.raises(UsageError, match="row 1 of partition 0: run_at cannot be read"):
        writer.write(iter([batch]))


def test_text_that_is_json(store: Path) -> None:
    values = ['{"n": [1, 1.0, "1", null]}', '"x"', "[]"]
    batch = batch_of([{"payload": text, "payload_kind": "json"} for text in values])
    write(store, batch, queue="mail")
    found = sorted(repr(lease.payload) for lease in drained(store))
    assert found == ["'x'", "[]", "{'n': [1, 1.0, '1', None]}"]
    bad = batch_of([{"payload": "{n: 1}", "payload_kind": "json"}])
    with pytest.raises(UsageError, match="row 0 of partition 0: the payload is not JSON"):
        writer_of(store, bad, queue="mail").write(iter([bad]))


def test_a_key_twice_in_the_load_is_refused(store: Path) -> None:
    one = batch_of([{"payload": b"x", "dedup_key": "k"}])
    with pytest.raises(DuplicateTaskError, match="two rows of the load"):
        write(store, one, one, queue="mail")
    both = batch_of([{"payload": b"x", "dedup_key": "k"}, {"payload": b"y", "dedup_key": "k"}])
    with pytest.raises(DuplicateTaskError, match="one dedup key"):
        write(store, both, queue="mail")
    write(store, both, queue="mail", onConflict="skip")
    assert [lease.payload for lease in drained(store)] == [b"x"]


def test_nothing_in_is_nothing_out(store: Path) -> None:
    batch = batch_of([{"payload": b""}]).slice(0, 0)
    write(store, batch, queue="mail", commitId="empty")
    assert pending(str(store)) == []


def test_places_that_are_none(tmp_path: Path) -> None:
    batch = batch_of([{"payload": b""}])
    with pytest.raises(StorePathError, match="create the store"):
        writer_of(tmp_path / "missing", batch, queue="mail")
    assert not (tmp_path / "missing").exists()
    with pytest.raises(UsageError, match="needs the option 'path'"):
        writer_of(Path(), batch, queue="mail", path="")


def test_a_batch_of_a_stream_is_a_load(store: Path) -> None:
    batch = batch_of([{"payload": b"x"}] * 5)
    with pytest.raises(UsageError, match="needs the option 'appId'"):
        writer_of(store, batch, TaskStreamWriter, queue="mail")
    for _ in range(2):  # the second time as after a crash
        writer = writer_of(store, batch, TaskStreamWriter, queue="mail", appId="app")
        messages = [writer.write(iter([batch]))]
        writer.commit(messages, 3)
        writer.abort(messages, 3)
    assert pending(str(store)) == ["app-3"]
    assert len(drained(store)) == 5


def test_a_stream_leaves_out_rows_whose_keys_are_held(store: Path) -> None:
    with lodeq.sync.open(store, shards=SHARDS) as engine:
        engine.queue("mail").enqueue(b"before", dedup_key="k1")
    batch = batch_of([{"payload": b"%d" % n, "dedup_key": f"k{n}"} for n in range(3)])
    writer = writer_of(store, batch, TaskStreamWriter, queue="mail", appId="app")
    writer.commit([writer.write(iter([batch]))], 3)
    assert sorted(lease.payload for lease in drained(store)) == [b"0", b"2", b"before"]


def test_a_stream_ends_once_a_batch_of_it_was_refused(store: Path) -> None:
    refuse(store, "app-2", shards=SHARDS)
    refuse(store, "other-app-2", shards=SHARDS)
    batch = batch_of([{"payload": b"x"}])
    options = {"queue": "mail", "appId": "app"}
    writer = writer_of(store, batch, TaskStreamWriter, **options)
    staged = [writer.write(iter([batch]))]
    with pytest.raises(UsageError, match=r"load 'app-2' of this query was refused \(1 of its"):
        writer.commit(staged, 3)
    writer.abort(staged, 3)
    assert pending(str(store)) == []
    with pytest.raises(UsageError, match="load 'app-2'"):
        batch_loader(store, "app")(None, 3)
    check_batches(str(store), "app", 2)  # it is the one that is done again
    inbox = store / "inbox"
    (inbox / "refused" / "app-2.json.manifest").rename(inbox / "app-2.json")
    check_batches(str(store), "app", 3)  # it waits
    (inbox / "app-2.json").unlink()
    (inbox / "refused" / "app-2.json").unlink()
    writer = writer_of(store, batch, TaskStreamWriter, **options)
    writer.commit([writer.write(iter([batch]))], 3)
    assert pending(str(store)) == ["app-3"]


ID = TaskId("01a2209b-74fa-765c-9ffd-3157909d1f1c")


def with_id(payload: bytes) -> pa.RecordBatch:
    return batch_of([{"queue": "mail", "payload": payload, "id": bytes(ID)}])


def test_an_id_twice_in_one_load_is_refused_in_the_planner(store: Path) -> None:
    with pytest.raises(DuplicateTaskError, match=f"{ID}: drop one of the rows"):
        write(store, with_id(b"one"), with_id(b"two"), commitId="load")
    assert pending(str(store)) == []


def test_an_id_twice_in_one_of_sparks_tasks_is_refused_or_skipped(store: Path) -> None:
    writer = writer_of(store, with_id(b"one"))
    with pytest.raises(DuplicateTaskError, match=str(ID)):
        writer.write(iter([with_id(b"one"), with_id(b"two")]))
    writer.abort([])
    writer = writer_of(store, with_id(b"one"), onConflict="skip")
    writer.commit([writer.write(iter([with_id(b"one"), with_id(b"two")]))])
    assert [(lease.task_id, lease.payload) for lease in drained(store)] == [(ID, b"one")]


def test_an_id_that_an_earlier_load_has_brought_overwrites_nothing(store: Path) -> None:
    write(store, with_id(b"first"), commitId="a")
    assert [lease.payload for lease in drained(store)] == [b"first"]  # and it is leased
    write(store, with_id(b"second"), commitId="b", onConflict="skip")
    write(store, with_id(b"third"), commitId="c")

    async def take() -> None:
        async with lodeq.open(store, inbox=False) as engine:
            skipped, refused = (await engine.ingest()).jobs
            assert (skipped.tasks, skipped.skipped, refused.state) == (0, 1, "refused")
            leases = await engine.queue("mail").claim(limit=9)
            assert [lease.payload for lease in leases] == [b"first"]
            assert (await engine.verify()).ok

    asyncio.run(take())
