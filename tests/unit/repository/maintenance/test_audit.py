"""Faults are planted, one at a time: the audit finds each, and its plan mends what can be."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

import lodeq
from lodeq.engine.offline.audit import audit_shard
from lodeq.engine.offline.repair_plan import RepairPlan, read_plan, write_plan
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.records.lease import DEAD_LEASE, decode_lease, encode_lease
from lodeq.engine.records.result import Status, decode_result, encode_result
from lodeq.engine.records.task import decode_task
from lodeq.engine.runtime.ids import IdSource, SeededRng, shard_of
from lodeq.engine.store.port import pages
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.repository.maintenance.apply_repair import apply_repair
from lodeq.repository.maintenance.audit import audit_bodies, plan_repair
from lodeq.service.cli.app import lodeq as command

SHARDS = 2
BIG = bytes(range(256)) * 20


async def make(path: Path) -> None:
    """Rows of every family, leases too: they end with the next open."""
    async with lodeq.open(path, shards=SHARDS, body_bytes_min=2000) as engine:
        mail = engine.queue("mail", tenant="acme")
        await mail.enqueue_many(
            [
                lodeq.NewTask(b"%d" % n, priority=n % 10, dedup_key=f"k{n}", dedup_window=900)
                for n in range(80)
            ]
        )
        await mail.enqueue_many([lodeq.NewTask(b"later", delay=900, ttl=1800) for _ in range(20)])
        for _ in range(6):
            await engine.queue("big").enqueue(BIG)
        for lease in await mail.claim(limit=20):
            await lease.complete(b"ok")
        for lease in await mail.claim(limit=10):
            await lease.bury("bad")
        await mail.claim(dead=True, limit=3, lease=900)
        for lease in await mail.claim(limit=10):
            await lease.nack(delay=600)
        await mail.claim(limit=10, lease=900)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / "store"
    asyncio.run(make(path))
    return path


class Rows:
    """A shard of a closed store, open to be spoilt."""

    def __init__(self, root: Path, shard: int) -> None:
        self.root, self.shard = root, shard
        self.store = RocksStore.open(
            root / f"shard{shard}", shared=SharedMemory(8 << 20), shards=SHARDS, create=False
        )

    def all(self, lower: bytes) -> Iterator[tuple[bytes, bytes]]:
        for rows in pages(self.store, lower, ks.prefix_end(lower)):
            yield from rows

    def first(self, lower: bytes, fits: Callable[[bytes, bytes], bool] = lambda k, v: True):
        return next((k, v) for k, v in self.all(lower) if fits(k, v))

    def put(self, *ops: tuple[bytes, bytes | None]) -> None:
        for key, value in ops:
            assert self.store.get(key) != value, f"{key!r} is so already"
        self.store.write(ops)

    def task(self, kind: bytes):
        """An index row of a kind, and its task's id."""
        key, value = self.first(
            ks.INDEX, lambda k, v: ks.decode_index_key(k).kind == kind and b"mail" in k
        )
        return key, value, key[-16:]

    def stranger(self) -> bytes:
        ids = IdSource(SeededRng(1))
        while shard_of(task_id := ids.new(1_700_000_000_000, ids.slot()), SHARDS) != self.shard:
            pass
        return task_id


def orphan_index(kind: bytes) -> Callable[[Rows], None]:
    def plant(rows: Rows) -> None:
        key, value, _ = rows.task(kind)
        rows.put((key[:-16] + rows.stranger(), value))

    return plant


def orphan_by_id(prefix: bytes) -> Callable[[Rows], None]:
    def plant(rows: Rows) -> None:
        _, value = rows.first(prefix)
        task_id = rows.stranger()
        if prefix == ks.MOVED:
            at = small.decode_moved(value)
            value = small.encode_moved(at._replace(key=at.key[:-16] + task_id))
        rows.put((prefix + task_id, value))

    return plant


def stray_attempts(rows: Rows) -> None:
    """Those of a task that has not moved."""
    _, value = rows.first(ks.ATTEMPTS)
    _, _, task_id = rows.task(ks.READY)
    rows.put((ks.ATTEMPTS + task_id, value))


def duplicate_ready(rows: Rows) -> None:
    key, value, task_id = rows.task(ks.READY)
    at = ks.decode_index_key(key)
    again = ks.ready_key(
        ks.shard_queue_prefix(at.queue, at.tenant), at.priority, at.seq + 1, task_id
    )
    rows.put((again, value))


def leased_and_ready(rows: Rows) -> None:
    key, value, _ = rows.task(ks.READY)
    lease, _ = rows.first(ks.LEASE)
    rows.put((key[:-16] + lease[2:], value))


def no_place(rows: Rows) -> None:
    rows.put((rows.task(ks.READY)[0], None))


def misrouted(rows: Rows) -> None:
    key, value, task_id = rows.task(ks.READY)
    task = rows.store.get(ks.TASK + task_id)
    rows.put((key, None), (ks.TASK + task_id, None))
    rows.store.flush()
    other = Rows(rows.root, 1 - rows.shard)
    other.put((key, value), (ks.TASK + task_id, task))
    other.store.close()


def misrouted_with_a_payload(rows: Rows) -> None:
    """As where tables were swapped: the rows are elsewhere, the file of the payload is not."""
    body, where = rows.first(
        ks.BODY, lambda k, v: any(key[-16:] == k[2:] for key, _ in rows.all(ks.INDEX))
    )
    task_id = body[2:]
    at = small.decode_body(where)
    keys = [ks.TASK + task_id, body, ks.body_at_key(at.file, at.offset, task_id)]
    keys += [key for key, _ in rows.all(ks.INDEX) if key[-16:] == task_id]
    moved = [(key, rows.store.get(key)) for key in keys]
    rows.put(*((key, None) for key in keys))
    rows.store.flush()
    other = Rows(rows.root, 1 - rows.shard)
    other.put(*moved)
    other.store.close()


def wrong_counter(rows: Rows) -> None:
    key, value = rows.first(ks.COUNTERS)
    said = small.decode_counters(value)
    rows.put((key, small.encode_counters(*said._replace(ready=said.ready + 1))))


def no_counter(rows: Rows) -> None:
    rows.put((rows.first(ks.COUNTERS)[0], None))


def dangling_ghost(rows: Rows) -> None:
    rows.put((ks.GHOST + bytes(16), small.encode_ghost(small.Ghost(rows.stranger(), 0))))


def lost_ghost(rows: Rows) -> None:
    leases = rows.store.scan(ks.LEASE, ks.LEASE_END, 99)
    live = [key for key, raw in leases if not decode_lease(raw).flags & DEAD_LEASE]
    task_id = live[0][2:]
    rows.put((ks.GHOST + decode_task(rows.store.get(ks.TASK + task_id)).ghost, None))


def dangling_body(rows: Rows) -> None:
    key, value = rows.first(ks.BODY)
    row = small.decode_body(value)
    away = row._replace(offset=row.offset - 8)  # not behind: it may be the last of its file
    rows.put(
        (key, small.encode_body(away)),
        (ks.body_at_key(row.file, row.offset, key[2:]), None),
        (ks.body_at_key(away.file, away.offset, key[2:]), small.encode_body_at(away.size)),
    )


def lost_body_row(rows: Rows) -> None:
    rows.put((rows.first(ks.BODY)[0], None))


def lost_body_place(rows: Rows) -> None:
    rows.put((rows.first(ks.BODY_AT)[0], None))


def finished(rows: Rows) -> None:
    value = rows.first(ks.RESULT, lambda k, v: decode_result(v).status == Status.COMPLETED)[1]
    rows.put((ks.RESULT + rows.task(ks.READY)[2], value))


def revived(rows: Rows) -> None:
    value = rows.first(ks.RESULT)[1]
    dead = encode_result(decode_result(value)._replace(status=Status.DEAD))
    rows.put((ks.RESULT + rows.task(ks.READY)[2], dead))


def unfiled_result(rows: Rows) -> None:
    rows.put((ks.RESULT + rows.stranger(), rows.first(ks.RESULT)[1]))


def damaged(prefix: bytes) -> Callable[[Rows], None]:
    def plant(rows: Rows) -> None:
        key, value = rows.first(prefix)
        rows.put((key, value[:9] + bytes((value[9] ^ 1,)) + value[10:]))

    return plant


def wrong_moved(rows: Rows) -> None:
    key, value = rows.first(ks.MOVED, lambda k, v: rows.store.get(ks.LEASE + k[2:]) is None)
    at = small.decode_moved(value)
    elsewhere = at.key[:-17] + bytes((at.key[-17] ^ 1,)) + at.key[-16:]
    rows.put((key, small.encode_moved(at._replace(key=elsewhere))))


def wrong_flag(rows: Rows) -> None:
    key, value, _ = rows.task(ks.READY)
    row = small.decode_index_row(value)
    rows.put((key, small.encode_index_row(row._replace(flags=row.flags ^ small.MOVED_ROW))))


def wrong_lease_flag(rows: Rows) -> None:
    key, value = rows.first(ks.LEASE)
    lease = decode_lease(value)
    rows.put((key, encode_lease(lease._replace(flags=lease.flags ^ 2))))


def misplaced(rows: Rows) -> None:
    key, value, _ = rows.task(ks.READY)
    rows.put((key, None), (key.replace(b"mail", b"main"), value))


def flipped_sst(rows: Rows) -> None:
    rows.store.flush()
    name = max(Path(rows.store.path).glob("*.sst"), key=lambda one: one.stat().st_size)
    rows.store.close()
    raw = bytearray(name.read_bytes())
    raw[len(raw) // 8] ^= 1
    name.write_bytes(raw)


def flipped_segment(rows: Rows) -> None:
    file = next((rows.root / f"bodies{rows.shard}").glob("*.sqs"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


class Fault(NamedTuple):
    plant: Callable[[Rows], None]
    kind: str
    is_mended: bool = True


FAULTS = {
    "flipped byte in an SST": Fault(flipped_sst, "unreadable", is_mended=False),
    "flipped byte in a segment": Fault(flipped_segment, "segment", is_mended=False),
    "ready row without a task": Fault(orphan_index(ks.READY), "orphan_index"),
    "delayed row without a task": Fault(orphan_index(ks.DELAYED), "orphan_index"),
    "dead row without a task": Fault(orphan_index(ks.DEAD), "orphan_index"),
    "lease without a task": Fault(orphan_by_id(ks.LEASE), "orphan_lease"),
    "moved row without a task": Fault(orphan_by_id(ks.MOVED), "orphan_moved"),
    "payload row without a task": Fault(orphan_by_id(ks.BODY), "body"),
    "attempts that nothing leads to": Fault(stray_attempts, "orphan_attempts"),
    "two ready rows": Fault(duplicate_ready, "double_place"),
    "leased and ready": Fault(leased_and_ready, "double_place"),
    "task without a place": Fault(no_place, "no_place"),
    "task in a wrong shard": Fault(misrouted, "wrong_shard"),
    "task with a payload in a wrong shard": Fault(misrouted_with_a_payload, "wrong_shard"),
    "wrong counter": Fault(wrong_counter, "counters"),
    "no counter": Fault(no_counter, "counters"),
    "dedup key of nobody": Fault(dangling_ghost, "ghost"),
    "dedup key not held": Fault(lost_ghost, "ghost"),
    "payload not where its row says": Fault(dangling_body, "dangling_body"),
    "no row of a payload": Fault(lost_body_row, "body"),
    "no row by place": Fault(lost_body_place, "body"),
    "finished and still there": Fault(finished, "finished"),
    "dead result of a live task": Fault(revived, "revived"),
    "result that is never forgotten": Fault(unfiled_result, "expiry"),
    "damaged task": Fault(damaged(ks.TASK), "damaged"),
    "damaged index row": Fault(damaged(ks.INDEX), "damaged"),
    "damaged counter": Fault(damaged(ks.COUNTERS), "damaged"),
    "damaged expiry row": Fault(damaged(ks.EXPIRY), "damaged"),
    "moved row that lies": Fault(wrong_moved, "moved"),
    "flag that lies": Fault(wrong_flag, "moved"),
    "lease's flag that lies": Fault(wrong_lease_flag, "moved"),
    "row under another queue": Fault(misplaced, "misplaced"),
}


def audit(root: Path) -> tuple[dict[str, int], RepairPlan]:
    shards = [audit_shard(str(root), shard) for shard in range(SHARDS)]
    bodies = [audit_bodies(str(root), shard) for shard in range(SHARDS)]
    kinds: dict[str, int] = {}
    for one in shards:
        for kind, count in one.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    for two in bodies:
        for finding in two.findings:
            kinds[finding.kind] = kinds.get(finding.kind, 0) + 1
    return kinds, plan_repair(shards, bodies)


def shard_with(root: Path) -> int:
    """One that has rows of every family."""
    for shard in range(SHARDS):
        if (root / f"bodies{shard}").is_dir():
            return shard
    raise AssertionError("no payload outside the tree")


async def verified(root: Path) -> lodeq.VerifyReport:
    async with lodeq.open(root, reaper=False) as engine:
        return await engine.verify()


def test_nothing_is_found_where_nothing_is_wrong(sound):
    found, plan = audit(sound)
    assert found == {}
    assert plan.is_empty
    assert not plan.beyond
    held = [audit_shard(str(sound), shard) for shard in range(SHARDS)]
    assert sum(one.rows["leases"] for one in held) == 13
    assert any(one.oldest_lease_us for one in held)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_mended(sound, tmp_path, name):
    root, fault = tmp_path / "store", FAULTS[name]
    shutil.copytree(sound, root)
    rows = Rows(root, shard_with(root))
    fault.plant(rows)
    rows.store.close()
    found, plan = audit(root)
    assert fault.kind in found, found
    if not fault.is_mended:
        assert plan.beyond
        return
    write_plan(tmp_path / "plan.json", plan)
    apply_repair(root, read_plan(tmp_path / "plan.json"))
    assert audit(root)[0] == {}
    assert asyncio.run(verified(root)).ok


def test_what_verify_finds_the_audit_finds(sound, tmp_path):
    """The two have one set of rules."""
    for name in ("two ready rows", "dedup key not held", "moved row that lies", "no row by place"):
        root = tmp_path / name.replace(" ", "-")
        shutil.copytree(sound, root)
        rows = Rows(root, shard_with(root))
        FAULTS[name].plant(rows)
        rows.store.close()
        found = audit(root)[0]
        assert {one.kind for one in asyncio.run(verified(root)).findings} <= set(found)


def test_a_plan_of_another_store_is_refused(sound, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(sound, root)
    plan = RepairPlan(os.urandom(16), SHARDS, settle=(0,))
    with pytest.raises(lodeq.UsageError, match="audit this one"):
        apply_repair(root, plan)


def test_a_plan_that_was_changed_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    write_plan(path, RepairPlan(bytes(16), 1, settle=(0,)))
    path.write_bytes(path.read_bytes().replace(b'"shards": 1', b'"shards": 2'))
    with pytest.raises(lodeq.CorruptionError, match="checksum mismatch"):
        read_plan(path)


def test_a_row_that_has_changed_since_is_left_alone(sound, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(sound, root)
    rows = Rows(root, 0)
    damaged(ks.COUNTERS)(rows)
    rows.store.close()
    plan = audit(root)[1]
    rows = Rows(root, 0)
    key = plan.drop[0][1].key
    rows.put((key, small.encode_counters(1, 0, 0, 0, 0)))
    rows.store.close()
    done = apply_repair(root, plan)
    assert (done.dropped, done.skipped) == (0, 1)


def test_the_command_applies_a_plan(sound, tmp_path):
    root, file = tmp_path / "store", tmp_path / "plan.json"
    shutil.copytree(sound, root)
    rows = Rows(root, 0)
    wrong_counter(rows)
    rows.store.close()
    write_plan(file, audit(root)[1])
    args = ["repair", str(root), "--plan", str(file)]
    refused = CliRunner().invoke(command, args)
    assert (refused.exit_code, "--yes" in refused.output) == (2, True)
    done = CliRunner().invoke(command, [*args, "--yes"])
    assert done.exit_code == 0, done.output
    assert "shard 0" in done.output
    assert audit(root)[0] == {}
