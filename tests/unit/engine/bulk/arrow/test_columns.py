"""Columns say what the plain decoders say, of every table, for any records; damage is told."""

import base64
import json
import zlib
from datetime import UTC, datetime, timedelta

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_bulk import MemoryReader, write_shard

from lodeq.engine.bulk.arrow.columns import read_columns, schema, to_columns
from lodeq.engine.bulk.ranges import KeyRange, key_ranges
from lodeq.engine.bulk.reader import open_shard
from lodeq.engine.bulk.tables import COLUMNS, columns_of
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.records.face import Face, pack_face, unpack_face
from lodeq.engine.records.lease import (
    DEAD_LEASE,
    EXPORTED,
    LeaseRecord,
    decode_lease,
    encode_lease,
    ends_us,
)
from lodeq.engine.records.policy import Policy, decode_policy, encode_policy
from lodeq.engine.records.result import (
    HAS_VALUE,
    ResultRecord,
    Status,
    decode_result,
    encode_result,
)
from lodeq.engine.records.task import BODY_FLAG, NO_GHOST, TaskRecord, decode_task, encode_task
from lodeq.engine.records.workflow import HELD_MS
from lodeq.engine.runtime.task_id import TaskId
from lodeq.errors import CorruptionError, RecordCorruptError, UsageError

KINDS = {0: "raw", 1: "msgpack", 2: "codec", 3: None}
BODY = b"outside " * 300

names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True).map(str.encode)
tenants = st.just(b"") | names
ids = st.builds(
    lambda ms, rest: ms.to_bytes(6, "big") + rest,
    st.integers(1, 1 << 47),
    st.binary(min_size=10, max_size=10),
)
us = st.integers(0, 1 << 51)
ms = st.integers(0, 1 << 41)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, (1 << 32) - 1)
text = st.text(max_size=20).map(lambda s: s.encode("utf-8", "ignore"))
ghosts = st.just(NO_GHOST) | ids
policies = st.builds(
    Policy, st.integers(1, 0xFFFF), st.just(0), st.just(1.0), u32, u32, ms, ms
).map(encode_policy)
header_values = (
    st.text(max_size=5)
    | st.integers(-5, 5)
    | st.binary(max_size=4)
    | st.lists(st.booleans())
    | st.dictionaries(st.text(max_size=2), st.binary(max_size=2), max_size=1)
)
headers = st.just(b"") | st.dictionaries(st.text(max_size=6), header_values, min_size=1).map(
    lambda found: msgpack.packb(found, datetime=True)
)
words = st.text(max_size=8)
faces = st.builds(
    lambda *face: pack_face(Face(*face)),
    words,
    words,
    st.lists(st.tuples(st.sampled_from("abc"), words).map("=".join), max_size=2).map(tuple),
)
index_rows = st.builds(small.IndexRow, st.integers(0, 3), st.integers(0, 9), u16, u32, ms, text)


def stored(data, code, kind, other):
    """(flags, bytes, size before): compressed or not."""
    return kind | code << 2 | other, zlib.compress(data) if code else data, len(data)


@st.composite
def tasks(draw):
    is_outside = draw(st.booleans())
    data = BODY if is_outside else draw(st.binary(max_size=40))
    flags, payload, size = stored(
        data, draw(st.integers(0, 1)), draw(st.integers(0, 2)), BODY_FLAG * is_outside
    )
    kind = draw(st.sampled_from(b"rd"))
    return TaskRecord(
        flags,
        draw(st.integers(0, 9)),
        kind,
        draw(us),
        draw(us),
        draw(ms),
        draw(ms),
        draw(policies),
        draw(ghosts),
        draw(ms),
        size,
        draw(names),
        draw(tenants),
        draw(headers),
        draw(ids) if is_outside else payload,
        face=draw(faces),
    )


flags = st.integers(0, 7)
dead_rows = st.builds(small.encode_index_row, index_rows)
leases = st.builds(
    lambda flags, *fields: LeaseRecord(flags[0], *fields, dead_row=flags[1]),
    st.tuples(flags, st.just(b"")) | st.tuples(flags.map(DEAD_LEASE.__or__), dead_rows),
    u16,
    st.integers(0, 9),
    st.integers(0, 1 << 60),
    ids,
    us,
    u32,
    u32,
    us,
    us,
    ms,
    policies,
    ghosts,
    ms,
    names,
    tenants,
    text,
    st.integers(-(1 << 31), (1 << 31) - 1),
)


@st.composite
def results(draw):
    flags, value, size = stored(
        draw(st.binary(max_size=40)),
        draw(st.integers(0, 1)),
        draw(st.integers(0, 2)),
        HAS_VALUE * draw(st.booleans()),
    )
    if not flags & HAS_VALUE:
        flags, value, size = 0, b"", 0
    return ResultRecord(
        flags,
        draw(st.integers(1, 4)),
        draw(st.integers(0, 9)),
        draw(u16),
        draw(us),
        draw(us),
        draw(us),
        draw(us),
        draw(us),
        draw(us),
        draw(ms),
        size,
        draw(names),
        draw(tenants),
        draw(text),
        draw(text),
        value,
        draw(faces),
    )


@st.composite
def shards(draw):
    """Rows of every family. Tasks may be moved, leased, both, or have rows that lead nowhere."""
    rows = {}
    for id, task in draw(st.dictionaries(ids, tasks(), max_size=6)).items():
        rows[ks.TASK + id] = encode_task(task)
        prefix = ks.shard_queue_prefix(task.queue, task.tenant)
        if draw(st.booleans()):
            key = draw(
                st.sampled_from(
                    [
                        ks.ready_key(prefix, task.priority, draw(us), id),
                        ks.delayed_key(prefix, draw(ms), draw(us), id),
                        ks.dead_key(prefix, draw(ms), id),
                    ]
                )
            )
            rows[ks.MOVED + id] = small.encode_moved(small.Moved(draw(u16), key))
        if draw(st.booleans()):
            rows[ks.LEASE + id] = encode_lease(draw(leases))
        if task.flags & BODY_FLAG:
            size = draw(st.sampled_from([0, 9]))
            row = small.BodyRow(size, 1, task.flags >> 2 & 3, task.payload)
            rows[ks.BODY + id] = small.encode_body(row)
    for id, lease in draw(st.dictionaries(ids, leases, max_size=2)).items():
        rows[ks.LEASE + id] = encode_lease(lease)
    for id, result in draw(st.dictionaries(ids, results(), max_size=4)).items():
        rows[ks.RESULT + id] = encode_result(result)
    for key, id in draw(st.dictionaries(ids, ids, max_size=3)).items():
        rows[ks.GHOST + key] = small.encode_ghost(small.Ghost(id, draw(ms)))
    for id, row in draw(st.dictionaries(ids, index_rows, max_size=6)).items():
        prefix = ks.shard_queue_prefix(draw(names), draw(tenants))
        key = draw(
            st.sampled_from(
                [
                    ks.ready_key(prefix, row.priority, draw(us), id),
                    ks.delayed_key(prefix, draw(ms), draw(us), id),
                    ks.dead_key(prefix, draw(ms), id),
                ]
            )
        )
        rows[key] = small.encode_index_row(row)
    return rows


def bodies(shard, row):
    """A reader of body files: ``offset`` says how the payload is compressed."""
    return zlib.compress(BODY) if row.offset else BODY


# -- the same by the plain decoders -----------------------------------------------------------


def at(us):
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us) if us else None


def named(shard, id):
    return {
        "shard": shard,
        "id": id,
        "task_id": str(TaskId(id)),
        "id_at": at(int.from_bytes(id[:6], "big") * 1000),
    }


def tenant_queue(record):
    return {
        "queue": record.queue.decode(),
        "tenant": record.tenant.decode(),
        "priority": record.priority,
    }


def opened(flags, data, size):
    return zlib.decompress(data) if flags >> 2 & 3 else data


def shown(value):
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return json.dumps(value, ensure_ascii=False, default=lambda b: base64.b64encode(b).decode())


def place(rows, id, task):
    """State and what goes with it."""
    found = dict.fromkeys(
        ["ready_at", "due_at", "leased_at", "lease_until", "died_at", "worker"]
    ) | {"attempts": 0}
    if ks.LEASE + id in rows:
        lease = decode_lease(rows[ks.LEASE + id])
        return found | {
            "state": "leased",
            "attempts": lease.attempts,
            "ready_at": at(lease.seq),
            "leased_at": at(lease.leased_us),
            "worker": lease.worker.decode(),
            "lease_until": at(ends_us(lease)),
        }
    if ks.MOVED + id in rows:
        moved = small.decode_moved(rows[ks.MOVED + id])
        key = ks.decode_index_key(moved.key)
        found["attempts"] = moved.attempts
        if key.kind == ks.READY:
            return found | {"state": "ready", "ready_at": at(key.seq)}
        if key.kind == ks.DELAYED:
            return found | {"state": "delayed", "due_at": at(key.at * 1000)}
        return found | {"state": "dead", "died_at": at(key.at * 1000)}
    if task.first_kind == ord("r"):
        return found | {"state": "ready", "ready_at": at(task.seq)}
    return found | {"state": "delayed", "due_at": at(task.due_ms * 1000)}


def face_of(raw):
    face = unpack_face(raw)
    return {
        "function": face.function or None,
        "preview": face.preview or None,
        "labels": [tuple(label.split("=", 1)) for label in face.labels] or None,
    }


def expected_task(rows, shard, key, value):
    task, id = decode_task(value), key[2:]
    payload = task.payload
    if task.flags & BODY_FLAG:
        row = small.decode_body(rows[ks.BODY + id])
        payload = bodies(shard, row) if row.size else None
    found = msgpack.unpackb(task.headers, timestamp=3) if task.headers else {}
    return (
        named(shard, id)
        | tenant_queue(task)
        | place(rows, id, task)
        | {
            "max_attempts": decode_policy(task.policy).max_attempts,
            "created_at": at(task.created_us),
            "run_at": at(task.due_ms * 1000),
            "expires_at": at(task.expires_ms * 1000),
            "dedup_hash": None if task.ghost == NO_GHOST else task.ghost,
            "dedup_until": at(task.ghost_expires_ms * 1000),
            "headers": [(name, shown(value)) for name, value in found.items()],
            "payload": None if payload is None else opened(task.flags, payload, task.raw_bytes),
            "payload_kind": KINDS[task.flags & 3],
            "payload_bytes": task.raw_bytes,
        }
        | face_of(task.face)
    )


def expected_lease(rows, shard, key, value):
    lease = decode_lease(value)
    return (
        named(shard, key[2:])
        | tenant_queue(lease)
        | {
            "attempts": lease.attempts,
            "max_attempts": decode_policy(lease.policy).max_attempts,
            "worker": lease.worker.decode(),
            "epoch": lease.epoch,
            "exported": bool(lease.flags & EXPORTED),
            "created_at": at(lease.created_us),
            "ready_at": at(lease.seq),
            "leased_at": at(lease.leased_us),
            "lease_until": at(ends_us(lease)),
            "expires_at": at(lease.expires_ms * 1000),
            "record_bytes": lease.record_bytes,
        }
    )


def expected_result(rows, shard, key, value):
    result = decode_result(value)
    is_kept = bool(result.flags & HAS_VALUE)
    return (
        named(shard, key[2:])
        | tenant_queue(result)
        | {
            "outcome": Status(result.status).name.lower(),
            "attempts": result.attempts,
            "error": result.error.decode(),
            "worker": result.worker.decode(),
            "created_at": at(result.created_us),
            "ready_at": at(result.ready_us),
            "leased_at": at(result.leased_us),
            "finished_at": at(result.finished_us),
            "retention_ms": result.retention_ms,
            "value": opened(result.flags, result.value, result.raw_bytes) if is_kept else None,
            "value_kind": KINDS[result.flags & 3] if is_kept else None,
            "value_bytes": result.raw_bytes,
        }
        | face_of(result.face)
    )


def expected_index(rows, shard, key, value):
    index, row = ks.decode_index_key(key), small.decode_index_row(value)
    own = {
        ks.READY: {"ready_at": at(index.seq), "expires_at": at(row.expires_ms * 1000)},
        ks.DELAYED: {"due_at": at(index.at * 1000), "expires_at": at(row.expires_ms * 1000)},
        ks.DEAD: {"died_at": at(index.at * 1000), "forget_at": at(row.expires_ms * 1000)},
    }[index.kind]
    return (
        named(shard, index.task_id)
        | own
        | {
            "queue": index.queue.decode(),
            "tenant": index.tenant.decode(),
            "priority": row.priority,
            "attempts": row.attempts,
            "reason": row.reason.decode(),
            "record_bytes": row.record_bytes,
        }
    )


def expected_ghost(rows, shard, key, value):
    ghost = small.decode_ghost(value)
    return named(shard, ghost.task_id) | {
        "dedup_hash": key[2:],
        "expires_at": at(ghost.expires_ms * 1000),
    }


def expected_row(rows, shard, key, value):
    return {"shard": shard, "family": key[:1].decode(), "key": key, "value": value}


EXPECTED = {
    "tasks": expected_task,
    "ready": expected_index,
    "delayed": expected_index,
    "dead": expected_index,
    "leases": expected_lease,
    "results": expected_result,
    "ghosts": expected_ghost,
    "kv": expected_row,
}


@given(shards(), st.integers(1, 5), st.booleans(), st.data())
def test_columns_say_what_the_decoders_say(rows, size, verify, data):
    reader = MemoryReader(rows, shard=3)
    for table, expected in EXPECTED.items():
        wanted = data.draw(st.none() | st.permutations(list(COLUMNS[table])).map(lambda p: p[:4]))
        found = []
        for one in key_ranges(reader, table):
            for batch in read_columns(
                reader, one, table, wanted, rows=size, bodies=bodies, verify=verify
            ):
                assert batch.schema == schema(table, wanted)
                batch.validate(full=True)
                found += batch.to_pylist()
        names = list(columns_of(table, wanted))
        plain = [
            expected(rows, 3, key, value)
            for one in key_ranges(reader, table)
            for key, value in reader.scan(one.lower, one.upper, 1 << 20)
        ]
        assert found == [{name: row[name] for name in names} for row in plain]


# -- damage -----------------------------------------------------------------------------------

ID = bytes(range(16))
TASK = TaskRecord(
    0,
    5,
    ord("r"),
    7,
    7,
    0,
    0,
    encode_policy(Policy(3, 0, 1.0, 1, 1, 1, 1)),
    NO_GHOST,
    0,
    3,
    b"mail",
    b"",
    b"",
    b"abc",
    face=pack_face(Face("send", "to='a'", ("k=v",))),
)
PREFIX = ks.shard_queue_prefix(b"mail", b"")
GOOD = {
    "tasks": (ks.TASK + ID, encode_task(TASK)),
    "ready": (
        ks.ready_key(PREFIX, 5, 7, ID), small.encode_index_row(small.IndexRow(0, 5, 0, 9, 0, b"r"))
    ),
    "leases": (ks.LEASE + ID, encode_lease(LeaseRecord(
        0, 1, 5, 1, ID, 7, 7, 7, 7, 7, 0, TASK.policy, NO_GHOST, 0, b"mail", b"", b"w"
    ))),
    "results": (ks.RESULT + ID, encode_result(ResultRecord(
        HAS_VALUE, 1, 5, 1, 1, 1, 7, 7, 7, 7, 7, 1, b"mail", b"", b"w", b"e", b"v", TASK.face
    ))),
    "ghosts": (ks.GHOST + ID, small.encode_ghost(small.Ghost(ID, 7))),
}  # fmt: skip


def columns(table, rows, **options):
    return to_columns(MemoryReader(dict(rows)), rows, table, **options)


@pytest.mark.parametrize("table", GOOD)
def test_any_flipped_bit_is_found_by_its_checksum(table):
    key, value = GOOD[table]
    assert columns(table, [(key, value)], verify=True).num_rows == 1
    for bit in range(8 * len(value)):
        bad = bytearray(value)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordCorruptError, match="shard 0, row"):
            columns(table, [(key, bytes(bad))], verify=True)


@pytest.mark.parametrize("table", GOOD)
@pytest.mark.parametrize("verify", [False, True])
def test_a_record_cut_short_too_long_or_of_another_kind(table, verify):
    key, value = GOOD[table]
    other = GOOD["ghosts" if table != "ghosts" else "tasks"][1]
    for bad in [value[:n] for n in range(len(value))] + [value + b"\0", b"\xff" * 300, other]:
        if not verify and table == "ghosts" and len(bad) > len(value):
            continue  # nothing in a ghost says how long it is
        with pytest.raises(RecordCorruptError, match="shard 0, row"):
            columns(table, [(key, value), (key[:-1] + b"\xff", bad)], verify=verify)


def test_only_damage_that_a_wanted_column_meets_is_told():
    """Without ``verify`` the tail of a record is believed: RocksDB has checked its block."""
    key, value = GOOD["tasks"]
    bad = value[:-12] + b"?" + value[-11:]
    assert columns("tasks", [(key, bad)], columns=["created_at"]).num_rows == 1
    bad = value[:112] + b"\xff" + value[113:]
    with pytest.raises(RecordCorruptError, match=r"(?i)utf-?8"):
        columns("tasks", [(key, bad)], columns=["queue"])


def test_a_damaged_row_beside_a_task_is_told():
    key, value = GOOD["tasks"]
    for beside in (b"", b"S\x01", b"S\x01" + bytes(20), b"\xff" * 40):
        for family in (ks.MOVED, ks.LEASE):
            rows = {key: value, family + ID: beside}
            page = MemoryReader(rows)
            assert to_columns(page, [(key, value)], "tasks", ["priority"]).num_rows == 1
            with pytest.raises(RecordCorruptError, match="shard 0, row"):
                to_columns(page, [(key, value)], "tasks", ["state"])


def test_headers_and_payloads_that_cannot_be_read():
    key = ks.TASK + ID
    for headers in (b"\xc1", b"\x81", msgpack.packb([1])):
        value = encode_task(TASK._replace(headers=headers))
        with pytest.raises(RecordCorruptError, match="headers"):
            columns("tasks", [(key, value)], columns=["headers"])
    bomb = zlib.compress(bytes(10_000))
    value = encode_task(TASK._replace(flags=4, payload=bomb, raw_bytes=10))
    with pytest.raises(RecordCorruptError, match="payload"):
        columns("tasks", [(key, value)], columns=["payload"])


def test_a_payload_outside():
    key, value = ks.TASK + ID, encode_task(TASK._replace(flags=BODY_FLAG, payload=ID))
    with pytest.raises(RecordCorruptError, match="no row says where"):
        columns("tasks", [(key, value)], bodies=bodies)
    rows = {key: value, ks.BODY + ID: small.encode_body(small.BodyRow(9, 1, 0, ID))}
    reader = MemoryReader(rows)
    with pytest.raises(UsageError, match="bodies="):
        to_columns(reader, [(key, value)], "tasks")
    with pytest.raises(CorruptionError, match="not there"):
        to_columns(reader, [(key, value)], "tasks", bodies=lambda shard, row: None)
    assert to_columns(reader, [(key, value)], "tasks", ["payload_bytes"]).num_rows == 1


@pytest.mark.parametrize(
    "key",
    [
        b"q/",
        b"q/mail",
        ks.dead_key(PREFIX, 1, ID),
        ks.delayed_key(PREFIX, 1, 1, ID),
        ks.ready_key(b"q/mail\0", 1, 1, ID),
        ks.ready_key(b"x/mail\0\0", 1, 1, ID),
        ID + ID,
    ],
)
def test_a_key_of_another_shape(key):
    good, value = GOOD["ready"]
    with pytest.raises(RecordCorruptError, match="key"):
        columns("ready", [(good, value), (key, value)])


def test_what_is_asked_wrongly():
    with pytest.raises(UsageError, match="no table"):
        schema("jobs")
    with pytest.raises(UsageError, match="no column 'token'"):
        schema("leases", ["id", "token"])
    assert columns("tasks", []).num_rows == 0


def test_no_columns_is_how_many_there_are():
    assert columns("tasks", [GOOD["tasks"]], columns=[]).num_rows == 1


def test_from_a_shard_on_disk(tmp_path):
    rows = {ks.TASK + n.to_bytes(16, "big"): encode_task(TASK._replace(seq=n)) for n in range(3000)}
    write_shard(tmp_path, rows)
    with open_shard(str(tmp_path), 0) as reader:
        whole = KeyRange(0, ks.TASK, ks.TASK_END)
        batches = list(read_columns(reader, whole, "tasks", ["id", "ready_at"], rows=1000))
        assert [batch.num_rows for batch in batches] == [1000, 1000, 1000]
        assert [id for batch in batches for id in batch["id"].to_pylist()] == [
            key[2:] for key in sorted(rows)
        ]


def test_a_task_that_waits_for_others_is_due_at_no_time():
    prefix = ks.shard_queue_prefix(TASK.queue, TASK.tenant)
    held = TASK._replace(first_kind=ord("d"), due_ms=HELD_MS)
    index = ks.delayed_key(prefix, HELD_MS, held.seq, ID)
    (row,) = columns("tasks", [(ks.TASK + ID, encode_task(held))]).to_pylist()
    assert (row["state"], row["due_at"], row["run_at"]) == ("waiting", None, None)
    value = small.encode_index_row(small.IndexRow(4, 5, 0, 99, 0, b""))
    (row,) = columns("delayed", [(index, value)]).to_pylist()
    assert row["due_at"] is None
