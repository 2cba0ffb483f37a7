"""An engine over body files that is led by hand, and stores of the older format."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support_live import copy_live

import lodeq
from lodeq.engine.records.keyspace import (
    BODY,
    BODY_AT,
    BODY_AT_END,
    BODY_END,
    BODY_FILES,
    TASK,
    body_at_key,
)
from lodeq.engine.records.rows import BodyRow, decode_body, encode_body, encode_body_at
from lodeq.engine.records.task import decode_task
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.repository.background.body_gc import BodyGC
from lodeq.repository.state.bodies import Bodies
from lodeq.segments.bodies.files import BodyFiles
from lodeq.segments.bodies.layout import Location
from lodeq.segments.formats.rdq import Rdq
from lodeq.testing import ManualClock

__all__ = [
    "SIZE",
    "Opened",
    "Rig",
    "as_v1",
    "crash_image",
    "during_the_sync",
    "names",
    "payloads",
    "recorded",
    "rewrite",
]

SIZE = 40_000


class Rig:
    """An engine on disk whose keeper moves when it is told to."""

    def __init__(self, engine: lodeq.Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.shard = engine._state.shards[0]
        self.queue = engine.queue("q")
        engine._state.held_bytes_max = 0

    @property
    def bodies(self) -> Bodies:
        assert self.shard.bodies is not None
        return self.shard.bodies

    @property
    def keeper(self) -> BodyGC:
        return self.engine._runtime.body_gc

    def files(self) -> list[int]:
        return [file.number for file in self.bodies.files.files()]

    def rows(self) -> int:
        return len(self.shard.store.scan(BODY, BODY_END, 10_000))

    def location(self, task_id: bytes) -> Location:
        row = decode_body(self.shard.overlay.get(BODY + task_id) or b"")
        return Location(row.file, row.offset, row.size)

    def body(self, task_id: bytes) -> bytes:
        """The payload, or why there is none."""
        task = decode_task(self.shard.overlay.get(TASK + task_id) or b"")
        return self.shard.whole_task(task_id, task).payload

    async def fill(self, n: int) -> list[bytes]:
        """A file of ``n`` tasks, sealed."""
        # Without 255, which ends a message of the older format: behind a hole a byte of zeros more
        # may be taken for a shorter size, and then nothing but that end tells the two apart.
        noise = [os.urandom(SIZE).replace(b"\xff", b"\xfe") for _ in range(n)]
        payloads = [b"%03d" % i + one for i, one in enumerate(noise)]
        receipts = await self.queue.enqueue_many([lodeq.NewTask(p) for p in payloads])
        self.bodies.files.seal()
        return [receipt.id for receipt in receipts]

    async def end(self, n: int) -> None:
        """The first ``n`` tasks are over."""
        for _ in range(n):
            (lease,) = await self.queue.claim()
            await lease.complete(keep=False)

    async def look(self) -> None:
        """What the keeper does, now and once everything has been quiet for long enough."""
        for _ in range(2):
            step = asyncio.ensure_future(self.keeper.step(self.shard))
            while not step.done():
                await asyncio.sleep(0)
                self.clock.advance(1.0)  # it pauses between two slices
            await step
            self.clock.advance(20.0)


class Opened:
    """``async with`` it."""

    def __init__(self, path: Path, **how: Any) -> None:
        self.clock = ManualClock()
        self.opening = lodeq.open(path / "s", clock=self.clock, **how)

    async def __aenter__(self) -> Rig:
        engine = await self.opening.__aenter__()
        task, engine._runtime._body_gc_task = engine._runtime._body_gc_task, None
        task.cancel()  # it moves when it is told to
        await task.join()
        rig = Rig(engine, self.clock)
        rig.bodies.to_look.update(rig.files())
        return rig

    async def __aexit__(self, *error: Any) -> None:
        await self.opening.__aexit__(*error)


async def payloads(rig: Rig) -> list[bytes]:
    return [task.payload[:3] for task in await rig.queue.list("ready", limit=100)]


async def during_the_sync(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]
) -> None:
    """``act`` after the keeper has copied, before it moves rows."""
    sync = BodyGC._sync

    async def acting(keeper: BodyGC, shard: Any, bodies: Bodies) -> None:
        await sync(keeper, shard, bodies)
        await act()

    with monkeypatch.context() as patch:
        patch.setattr(BodyGC, "_sync", acting)
        await rig.look()


def recorded(monkeypatch: pytest.MonkeyPatch, did: list[str]) -> None:
    """The order of syncs, and of what must not come before them."""
    sync, flush, remove = BodyFiles.sync, RocksStore._sync, BodyFiles.unlink
    write = RocksStore.write

    def bodies_sync(files: BodyFiles) -> None:
        sync(files)
        did.append("bodies")

    def store_sync(store: RocksStore) -> None:
        flush(store)
        did.append("log")

    def removed(files: BodyFiles, number: int) -> None:
        did.append("remove")
        remove(files, number)

    def written(store: RocksStore, ops: Any) -> None:
        write(store, ops)
        did.append("rows")

    monkeypatch.setattr(BodyFiles, "sync", bodies_sync)
    monkeypatch.setattr(RocksStore, "_sync", store_sync)
    monkeypatch.setattr(BodyFiles, "unlink", removed)
    monkeypatch.setattr(RocksStore, "write", written)


def crash_image(root: Path, target: Path) -> None:
    """What a kill at this moment would leave of an open store."""
    copy_live(root / "s", target / "s")


def names(root: Path) -> list[str]:
    """Of the body files of shard 0."""
    return sorted(path.name for path in (root / "s" / "bodies0").iterdir())


def rewrite(root: Path, change: Callable[[RocksStore], None]) -> None:
    """Change the rows of a closed store behind its back."""
    path = str(root / "s" / "shard0")
    store = RocksStore.open(path, shared=SharedMemory(8 << 20), shards=1, create=False)
    try:
        change(store)
    finally:
        store.close()


def as_v1(root: Path, *, down: int = 0) -> None:
    """Make the body files of a closed store those of the older format, numbers lower by ``down``.

    So a store looks whose messages were brought over from a v1 message store as they lay there.
    """
    folder = root / "s" / "bodies0"

    def convert(store: RocksStore) -> None:
        files = BodyFiles.open(str(folder))
        moved: dict[tuple[int, int], BodyRow] = {}
        new: dict[int, bytearray] = {}
        rows = [(key, decode_body(raw)) for key, raw in store.scan(BODY, BODY_END, 10_000)]
        for _, row in sorted(rows, key=lambda found: found[1][1:3]):
            if (row.file, row.offset) in moved:
                continue
            body = files.read(Location(row.file, row.offset, row.size), row.record_id)
            assert body is not None
            record = Rdq().encode(row.record_id, body)
            data = new.setdefault(row.file - down, bytearray())
            at = BodyRow(len(record), row.file - down, len(data), row.record_id)
            moved[row.file, row.offset] = at
            data += record
        files.close()
        ops: list[Any] = [(key, None) for key, _ in store.scan(BODY_AT, BODY_AT_END, 10_000)]
        ops.append((BODY_FILES, None))  # which no such store has yet
        for key, row in rows:
            at = moved[row.file, row.offset]
            ops.append((key, encode_body(at)))
            ops.append((body_at_key(at.file, at.offset, key[2:]), encode_body_at(at.size)))
        store.write(ops)
        for path in list(folder.iterdir()):
            path.unlink()
        for number, data in new.items():
            (folder / f"{number}.rdq").write_bytes(data)

    rewrite(root, convert)
