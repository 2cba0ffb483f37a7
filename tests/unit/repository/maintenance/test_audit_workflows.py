"""Faults are planted in rows of workflows: verify and the audit find each; repair mends most."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import lodeq
from lodeq import NewTask
from lodeq.engine.offline.audit import audit_shard
from lodeq.engine.offline.repair_plan import read_plan, write_plan
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import workflow as w
from lodeq.engine.records.lease import decode_lease, encode_lease
from lodeq.engine.records.result import decode_result, encode_result
from lodeq.engine.records.rows import decode_index_row, encode_index_row
from lodeq.engine.recovery.verify import verify
from lodeq.engine.runtime.ids import shard_of, slot_of_id
from lodeq.engine.store.port import pages
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.repository.maintenance.apply_repair import apply_repair
from lodeq.repository.maintenance.audit import plan_repair

SHARDS = 2


async def make(path: Path) -> None:
    """Workflows under way and cancelled, tasks that wait elsewhere, ends that are not counted."""
    async with lodeq.open(path, shards=SHARDS, reaper=False) as engine:
        for n in range(4):
            flow = await engine.workflow(NewTask(b"all", "tops"), key=f"flow{n}")
            first = await flow.add([NewTask(b"p", "parts") for _ in range(5)])
            await flow.add([NewTask(b"c", "parts"), NewTask(b"d", "parts")], chain=True)
            await flow.add([NewTask(b"a", "parts")], after=first[:2])
            await flow.seal()
            if n == 3:
                await engine.cancel_workflow(flow.id)
        parts = engine.queue("parts")
        for lease in await parts.claim(limit=6):
            await lease.complete(b"v")
        for lease in await parts.claim(limit=2):
            await lease.bury("bad")
        await parts.claim(limit=2, lease=900, exported=True)
        done = engine.queue("done", retention=3600)
        ids = [(await done.enqueue(b"s", shard_key=f"k{n}")).id for n in range(8)]
        for lease in await done.claim(limit=2):
            await lease.complete(b"v")
        await engine.enqueue_after(NewTask(b"late", "tops", shard_key="here"), ids)
        await engine.enqueue_after(NewTask(b"late", "tops"), ids[:3])
        for lease in await done.claim(limit=3):
            await lease.complete(b"v")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / "store"
    asyncio.run(make(path))
    return path


class Rows:
    """All shards of a closed store, open to be spoilt."""

    def __init__(self, root: Path) -> None:
        self.stores = [
            RocksStore.open(
                root / f"shard{shard}", shared=SharedMemory(8 << 20), shards=SHARDS, create=False
            )
            for shard in range(SHARDS)
        ]

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def all(self, lower: bytes):
        for store in self.stores:
            for rows in pages(store, lower, ks.prefix_end(lower)):
                for key, raw in rows:
                    yield store, key, raw

    def join(self, fits: Callable[[w.JoinRecord], bool]):
        """(store, id, record) of the first such join."""
        for store, key, raw in self.all(w.JOIN):
            if fits(record := w.decode_join(raw)):
                return store, key[4:], record
        raise LookupError

    def part(self, fits: Callable[[w.JoinRecord, w.PartRecord], bool]):
        """(store, key, record) of the first such part on its join's slot."""
        for store, key, raw in self.all(w.PART):
            part, join = w.decode_part(raw), w.decode_join(store.get(w.JOIN + key[4:20]))
            if slot_of_id(part.source) == slot_of_id(key[4:20]) and fits(join, part):
                return store, key, part
        raise LookupError

    def index(self, kind: bytes, queue: bytes = b"parts"):
        for store, key, raw in self.all(ks.INDEX):
            at = ks.decode_index_key(key)
            if at.kind == kind and at.queue == queue:
                return store, key, decode_index_row(raw)
        raise LookupError


def is_open(join: w.JoinRecord) -> bool:
    return join.state == w.WAITS and bool(join.flags & w.WORKFLOW_FLAG)


def miscounted(rows: Rows) -> None:
    store, join, record = rows.join(is_open)
    store.write([(w.JOIN + join, w.encode_join(record._replace(ended=record.ended + 1)))])


def without_edge(rows: Rows) -> None:
    store, _, part = rows.part(lambda join, part: is_open(join) and not part.status)
    store.write([(w.edges_key(part.source), None)])


def ended_without_edge(rows: Rows) -> None:
    store, _, part = rows.part(lambda join, part: is_open(join) and part.status == 1)
    store.write([(w.edges_key(part.source), None)])


def vanished(rows: Rows) -> None:
    store, key, _ = rows.index(ks.READY)
    store.write([(key, None), (ks.TASK + key[-16:], None), (ks.MOVED + key[-16:], None)])


def unfired(rows: Rows) -> None:
    store, join, record = rows.join(lambda r: is_open(r) and r.ended > 0)
    ops = []
    for _, key, raw in rows.all(w.PART + join):
        ops.append((key, w.encode_part(w.decode_part(raw)._replace(status=1))))
    ended = record._replace(ended=record.parts, failed=0)
    store.write([*ops, (w.JOIN + join, w.encode_join(ended))])


def fired_in_vain(rows: Rows) -> None:
    store, join, record = rows.join(is_open)
    store.write([(w.JOIN + join, w.encode_join(record._replace(state=w.FIRED)))])


def without_join(rows: Rows) -> None:
    store, join, _ = rows.join(is_open)
    store.write([(w.JOIN + join, None)])


def unflagged_row(rows: Rows) -> None:
    store, key, row = rows.index(ks.READY)
    store.write([(key, encode_index_row(row._replace(flags=row.flags & ~w.MEMBER_ROW)))])


def unflagged_lease(rows: Rows) -> None:
    store, key, raw = next(rows.all(ks.LEASE))
    lease = decode_lease(raw)
    store.write([(key, encode_lease(lease._replace(flags=lease.flags & ~w.MEMBER_LEASE)))])


def unflagged_result(rows: Rows) -> None:
    for store, key, raw in rows.all(ks.RESULT):
        result = decode_result(raw)
        if result.queue == b"parts" and result.status == 1:
            plain = result._replace(flags=result.flags & ~w.MEMBER_RESULT)
            store.write([(key, encode_result(plain))])
            return


def sent_too_early(rows: Rows) -> None:
    store, key, _ = rows.index(ks.READY)
    other = next(k[4:] for s, k, _ in rows.all(w.JOIN) if s is store)
    row = w.encode_outbox(w.OutboxRecord(1, 77, 0, 1))
    store.write([(w.outbox_key(key[-16:], other), row)])


def sent_to_nobody(rows: Rows) -> None:
    store, _, part = rows.part(lambda join, part: part.status == 1)
    nobody = part.source[:-1] + bytes((part.source[-1] ^ 1,))
    row = w.encode_outbox(w.OutboxRecord(1, 0, 0, 1))
    store.write([(w.outbox_key(part.source, nobody), row)])


def sent_to_a_stranger(rows: Rows) -> None:
    store, key, part = rows.part(lambda join, part: part.status == 1)
    row = w.encode_outbox(w.OutboxRecord(1, 999, 0, 1))
    store.write([(w.outbox_key(part.source, key[4:20]), row)])


def damaged(family: bytes) -> Callable[[Rows], None]:
    def plant(rows: Rows) -> None:
        store, key, raw = next(rows.all(family))
        store.write([(key, raw[:-1] + bytes((raw[-1] ^ 255,)))])

    return plant


def stray(rows: Rows) -> None:
    store, key, raw = next(rows.all(w.KEY))
    other = rows.stores[1 - rows.stores.index(store)]
    store.write([(key, None)])
    other.write([(key, raw)])


class Fault(NamedTuple):
    plant: Callable[[Rows], None]
    words: str
    kind: str = "workflow"
    is_mended: bool = True


FAULTS = {
    "a counter that lies": Fault(miscounted, "its join says"),
    "a part without its edge": Fault(without_edge, "has no edge to the join"),
    "a pin that is gone": Fault(ended_without_edge, "has no edge to the join"),
    "an end that nobody counted": Fault(vanished, "has not counted it", is_mended=False),
    "a join that has not fired": Fault(unfired, "it has not fired", is_mended=False),
    "a join that has fired in vain": Fault(fired_in_vain, "its join has fired, and its target"),
    "parts without a join": Fault(without_join, "part of a join that is not", is_mended=False),
    "a target without a join": Fault(without_join, "no join to let it go", is_mended=False),
    "a row without the flag": Fault(unflagged_row, "its place does not say"),
    "a lease without the flag": Fault(unflagged_lease, "its place does not say"),
    "a result without the flag": Fault(unflagged_result, "its result does not say"),
    "an outbox row of a task under way": Fault(sent_too_early, "and it is under way"),
    "an outbox row for no join": Fault(sent_to_nobody, "no join"),
    "an outbox row for another's join": Fault(sent_to_a_stranger, "does not wait for it"),
    "a damaged join": Fault(damaged(w.JOIN), "checksum", "damaged", is_mended=False),
    "a damaged part": Fault(damaged(w.PART), "checksum", "damaged", is_mended=False),
    "damaged edges": Fault(damaged(w.EDGES), "checksum", "damaged"),
    "a damaged outbox row": Fault(damaged(ks.OUTBOX), "checksum", "damaged"),
    "a key on another shard": Fault(stray, "w/", "wrong_shard"),
}


def verified(root: Path) -> list[lodeq.Finding]:
    rows = Rows(root)
    found = [f for n, store in enumerate(rows.stores) for f in verify(store, n, SHARDS)]
    rows.close()
    return found


def audited(root: Path):
    return [audit_shard(str(root), shard) for shard in range(SHARDS)]


def of_workflows(findings) -> set[tuple[int, str, bytes | None]]:
    return {(f.shard, f.detail, f.task_id) for f in findings if f.kind == "workflow"}


def test_nothing_is_found_where_nothing_is_wrong(sound, tmp_path):
    root = tmp_path / "store"
    shutil.copytree(sound, root)
    assert verified(root) == []
    audits = audited(root)
    assert [one.findings for one in audits] == [()] * SHARDS
    assert sum(one.rows["joins"] for one in audits) > 10
    assert sum(one.rows["outbox"] for one in audits) > 0


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_mended(sound, tmp_path, name):
    root, fault = tmp_path / "store", FAULTS[name]
    shutil.copytree(sound, root)
    rows = Rows(root)
    fault.plant(rows)
    rows.close()
    by_verify = verified(root)
    audits = audited(root)
    by_audit = [f for one in audits for f in one.findings]
    for found in (by_verify, by_audit):
        assert [f for f in found if f.kind == fault.kind and fault.words in f.detail], found
    assert of_workflows(by_verify) == of_workflows(by_audit)
    write_plan(tmp_path / "plan.json", plan_repair(audits, []))
    apply_repair(root, read_plan(tmp_path / "plan.json"))
    if fault.is_mended:
        assert verified(root) == []
        assert [one.findings for one in audited(root)] == [()] * SHARDS


def test_shards_are_where_they_should_be(sound, tmp_path):
    """The store that faults are planted in has joins whose parts lie on the other shard."""
    root = tmp_path / "store"
    shutil.copytree(sound, root)
    rows = Rows(root)
    crossing = [
        key
        for _, key, raw in rows.all(w.PART)
        if shard_of(w.decode_part(raw).source, SHARDS) != shard_of(key[4:20], SHARDS)
    ]
    rows.close()
    assert crossing
