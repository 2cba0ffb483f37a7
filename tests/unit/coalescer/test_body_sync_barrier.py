"""In fsync mode nothing is written before what it rests on is durable."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from support_loop import FaultyStore, ManualSpawner, Seq, on_loop, settle

from lodeq.coalescer.body_sync_barrier import BodySyncBarrier
from lodeq.coalescer.commit_loop import Coalescer
from lodeq.coalescer.fsync import Syncer
from lodeq.errors import CommitUnknownError, StoragePoisonedError, StoreStalledError

FIRST = 1 << 40 | 1


class ThreadedStore(FaultyStore):
    """What is to run in its thread waits for ``work``."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[tuple[Any, Any]] = []

    def run(self, fn: Any, done: Any) -> None:
        self.jobs.append((fn, done))

    def work(self) -> None:
        jobs, self.jobs = self.jobs, []
        for fn, done in jobs:
            try:
                fn()
            except OSError as error:
                done(error)
            else:
                done(None)


@dataclass
class Rig:
    store: ThreadedStore = field(default_factory=ThreadedStore)
    log: list[str] = field(default_factory=list)
    error: OSError | None = None

    def __post_init__(self) -> None:
        spawner = ManualSpawner()
        syncer = Syncer(
            self.store, spawner, first_number=FIRST, interval_s=1.0, write_watermark=lambda _: None
        )
        self.coalescer = Coalescer(
            self.store,
            spawner,
            shard=0,
            first_number=FIRST,
            seq_source=Seq(7),
            syncer=syncer,
            is_fsync=True,
        )
        self.coalescer.body_barrier = BodySyncBarrier(self.coalescer, spawner, self.sync)

    def sync(self) -> None:
        self.log.append("bodies")
        if self.error is not None:
            raise self.error

    def put(self, key: bytes, *, body: bool = False) -> Any:
        group = self.coalescer.begin()
        group.has_bodies |= body
        group.ops.append((key, b"v"))
        return self.coalescer.wait(group, key)

    @property
    def written(self) -> list[list[bytes]]:
        return [[key for key, _ in batch if key[:2] != b"m/"] for batch in self.store.batches]


@on_loop
async def test_a_group_waits_for_its_bodies_and_the_line_behind_it_too() -> None:
    rig = Rig()
    first = rig.put(b"a", body=True)
    await settle()
    second = rig.put(b"b")
    await settle()
    assert rig.written == []
    assert rig.log == []
    rig.store.work()
    await settle()
    assert rig.log == ["bodies"]
    assert rig.written == [[b"a"], [b"b"]]
    assert [await first, await second] == [b"a", b"b"]


@on_loop
async def test_a_group_without_bodies_waits_for_nothing() -> None:
    rig = Rig()
    assert await rig.put(b"a") == b"a"
    assert rig.store.jobs == []


@on_loop
async def test_one_sync_covers_the_groups_sealed_when_it_starts_and_no_later_one() -> None:
    rig = Rig()
    rig.put(b"a", body=True)
    rig.coalescer.seal_full(always=True)
    rig.put(b"b", body=True)
    rig.coalescer.seal_full(always=True)
    await settle()
    rig.put(b"c", body=True)
    await settle()
    rig.store.work()
    await settle()
    assert rig.written == [[b"a"], [b"b"]]
    assert rig.log == ["bodies"]
    rig.store.work()
    await settle()
    assert rig.written == [[b"a"], [b"b"], [b"c"]]
    assert rig.log == ["bodies", "bodies"]


@on_loop
async def test_a_failed_sync_of_bodies_poisons_and_writes_nothing() -> None:
    rig = Rig(error=OSError(5, "Input/output error"))
    first = rig.put(b"a", body=True)
    await settle()
    second = rig.put(b"b")
    rig.store.work()
    await settle()
    with pytest.raises(CommitUnknownError, match="Input/output error"):
        await first
    with pytest.raises(StoragePoisonedError):
        await second
    assert rig.written == []
    assert not rig.coalescer.takes_writes


@on_loop
async def test_a_shard_poisoned_meanwhile_writes_nothing() -> None:
    rig = Rig()
    first = rig.put(b"a", body=True)
    await settle()
    rig.coalescer.fail(OSError("gone"))
    rig.store.work()
    await settle()
    assert rig.written == []
    with pytest.raises(CommitUnknownError):
        await first


@on_loop
async def test_a_refused_write_is_tried_again_and_its_bodies_are_not_synced_twice() -> None:
    rig = Rig()
    rig.store.write_errors = [StoreStalledError("slow")]
    first = rig.put(b"a", body=True)
    await settle()
    rig.store.work()
    await settle()
    assert rig.written == []
    rig.coalescer._retry_now()
    assert await first == b"a"
    assert rig.log == ["bodies"]
