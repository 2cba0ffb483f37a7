"""Every task of a queue with its stored bytes, in the order of claims."""

from pathlib import Path

import pytest
from support_loop import on_loop

import lodeq
from lodeq.engine.records.keyspace import TASK
from lodeq.repository.bulk.export_scan import ExportedTask, UnreadableTask, scan_tasks
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing


@pytest.mark.parametrize("shards", [1, 3])
@on_loop
async def test_all_of_one_queue_in_the_order_of_claims(shards: int) -> None:
    clock = ManualClock()
    async with open_testing(clock=clock, shards=shards, seed=1) as engine:
        mail = engine.queue("mail")
        for n in range(600):
            await mail.enqueue(b"%d" % n, priority=n % 3, shard_key=str(n))
            clock.advance(0.001)
        await mail.enqueue({"later": 1}, delay=60)
        await engine.queue("other").enqueue(b"x")
        (lease,) = await mail.claim()
        await lease.bury("no")
        (worked,) = await mail.claim(lease=1000, exported=True)
        found = [
            one for one in scan_tasks(engine._state, b"mail", b"") if isinstance(one, ExportedTask)
        ]
        claimed = [lease.payload for lease in await mail.claim(limit=1000, lease=1000)]
        assert [one.payload for one in found if one.state == "ready"] == claimed
        assert [(one.state, one.kind) for one in found if one.state != "ready"] == [
            ("leased", 0),
            ("delayed", 1),
            ("dead", 0),
        ]
        assert (found[0].task_id, found[0].attempts) == (worked.task_id, 1)
        assert found[-1].reason == b"no"
        assert (
            list(scan_tasks(engine._state, b"mail", b"", dead=False))[-1].payload
            == b"\x81\xa5later\x01"
        )  # type: ignore[union-attr]
        assert list(scan_tasks(engine._state, b"none", b"")) == []


@pytest.mark.slow
@on_loop
async def test_bodies_and_compressed_payloads_come_whole(tmp_path: Path) -> None:
    async with lodeq.open(tmp_path / "store", compression="zlib") as engine:
        bodies = [b"a" * 100_000, bytes(range(256)) * 400]
        for body in bodies:
            await engine.queue("mail").enqueue(body)
        found = [
            one for one in scan_tasks(engine._state, b"mail", b"") if isinstance(one, ExportedTask)
        ]
        assert [one.payload for one in found] == bodies


@on_loop
async def test_a_damaged_task_is_told_and_the_others_come() -> None:
    async with open_testing(clock=ManualClock(), seed=1) as engine:
        mail = engine.queue("mail")
        ids = [(await mail.enqueue(b"%d" % n)).id for n in range(3)]
        shard = engine._state.shards[0]
        group = shard.coalescer.begin()
        group.ops.append((TASK + ids[1], b"damaged"))
        group.ops.append((TASK + ids[2], None))
        await shard.coalescer.wait(group)
        found = list(scan_tasks(engine._state, b"mail", b""))
        assert [type(one) for one in found] == [ExportedTask, UnreadableTask, UnreadableTask]
        assert [one.task_id for one in found] == ids
