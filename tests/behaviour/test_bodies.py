"""Large payloads outside the tree: everything users do with a task, and what lies on the disk."""

import os
from pathlib import Path
from typing import Any

import pytest
from support_loop import on_loop

import lodeq
from lodeq.engine.records.keyspace import BODY, BODY_AT, BODY_AT_END, BODY_END

LARGE = 40_000


def opened(path: Path, **how: Any) -> Any:
    return lodeq.open(path / "s", **how)


def rows(engine: lodeq.Engine) -> tuple[int, int]:
    """How many rows find bodies, and how many find tasks of bodies."""
    counts = []
    for lower, upper in ((BODY, BODY_END), (BODY_AT, BODY_AT_END)):
        counts.append(
            sum(len(shard.store.scan(lower, upper, 10_000)) for shard in engine._state.shards)
        )
    return counts[0], counts[1]


def held(engine: lodeq.Engine) -> None:
    """From here on nothing is claimed from memory."""
    engine._state.held_bytes_max = 0


@on_loop
async def test_a_large_payload_goes_round(tmp_path: Path) -> None:
    payloads = [os.urandom(LARGE), b"small", os.urandom(200_000), {"a": "x" * LARGE}]
    for from_memory in (True, False):
        async with opened(tmp_path) as engine:
            if not from_memory:
                held(engine)
            queue = engine.queue("q")
            for payload in payloads:
                await queue.enqueue(payload)
            assert rows(engine) == (3, 3)
            leases = await queue.claim(limit=10)
            assert [lease.payload for lease in leases] == payloads
            for lease in leases:
                await lease.complete(b"done")
            assert rows(engine) == (0, 0)
            assert (await engine.verify()).ok


@on_loop
async def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    payloads = [os.urandom(LARGE + i) for i in range(5)]
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        await queue.enqueue_many([lodeq.NewTask(payload) for payload in payloads])
    async with opened(tmp_path, body_bytes_min=None) as engine:  # what is there is read
        leases = await engine.queue("q").claim(limit=10)
        assert [lease.payload for lease in leases] == payloads
        await engine.complete_many([(lease, None) for lease in leases])
        assert rows(engine) == (0, 0)
        await engine.queue("q").enqueue(payloads[0])
        assert rows(engine) == (0, 0)


@on_loop
async def test_it_keeps_its_payload_wherever_it_goes(tmp_path: Path) -> None:
    payload = os.urandom(LARGE)
    async with opened(tmp_path) as engine:
        held(engine)
        queue = engine.queue("q", max_attempts=2, backoff=lodeq.Backoff("fixed", base=0.0))
        receipt = await queue.enqueue(payload, delay=0.01)
        (listed,) = await queue.list("delayed")
        assert listed.payload == payload
        (lease,) = await queue.claim(wait=5.0)
        assert lease.payload == payload
        await lease.release()
        (lease,) = await queue.claim()
        found = await engine.get(receipt.id)
        assert found is not None
        assert found.payload == payload
        await lease.nack()
        (lease,) = await queue.claim(wait=5.0)
        assert (lease.payload, lease.attempt) == (payload, 2)
        await lease.nack(reason="again")
        (dead,) = await queue.dead_letters()
        assert dead.payload == payload
        assert rows(engine) == (1, 1)
        await queue.redrive([receipt.id])
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        (lease,) = await queue.claim()
        assert lease.payload == payload
        await lease.bury("for good")
        assert await queue.purge() == 1
        assert rows(engine) == (0, 0)
        assert (await engine.verify()).ok


@pytest.mark.parametrize("end", ["cancel", "purge", "replace", "ttl"])
@on_loop
async def test_its_rows_go_with_it_however_it_ends(tmp_path: Path, end: str) -> None:
    async with opened(tmp_path) as engine:
        held(engine)
        queue = engine.queue("q")
        how: dict[str, Any] = {"replace": {"dedup_key": "k"}, "ttl": {"ttl": 0.01}}.get(end, {})
        receipt = await queue.enqueue(os.urandom(LARGE), **how)
        if end == "cancel":
            await engine.cancel(receipt.id)
        elif end == "purge":
            await queue.purge()
        elif end == "replace":
            await queue.enqueue(b"small", dedup_key="k", on_conflict="replace")
        else:
            await engine.result(receipt.id, wait=5.0)
        assert rows(engine) == (0, 0)
        assert (await engine.verify()).ok


@on_loop
async def test_one_payload_of_many_tasks_is_written_once(tmp_path: Path) -> None:
    payload = os.urandom(100_000)
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        await queue.enqueue_many([lodeq.NewTask(payload)] * 50)
        assert rows(engine) == (50, 50)
        (file,) = engine._state.shards[0].bodies.files.files()
        assert file.bytes < 101_000
        held(engine)
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        left = 49
        while left:  # a claim stops at 4 MiB of payloads
            leases = await queue.claim(limit=left)
            assert {lease.payload for lease in leases} == {payload}
            await engine.complete_many([(lease, None) for lease in leases])
            left -= len(leases)
        assert rows(engine) == (1, 1)
        (last,) = await queue.claim()
        assert last.payload == payload


@on_loop
async def test_a_follow_up_has_one_too(tmp_path: Path) -> None:
    payload = os.urandom(LARGE)
    async with opened(tmp_path) as engine:
        held(engine)
        queue = engine.queue("q")
        await queue.enqueue(b"first")
        (lease,) = await queue.claim()
        await lease.complete(then=[lodeq.NewTask(payload), lodeq.NewTask(payload)])
        assert rows(engine) == (2, 2)
        assert [lease.payload for lease in await queue.claim(limit=5)] == [payload] * 2


def spoil(path: Path) -> None:
    """Flip a bit of a payload."""
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


@on_loop
async def test_a_lost_payload_is_told_and_blocks_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        receipt = await queue.enqueue(os.urandom(LARGE))
        await queue.enqueue(b"small")
        spoil(Path(engine._state.shards[0].bodies.files.path(1)))
    async with opened(tmp_path) as engine:
        queue = engine.queue("q")
        (listed,) = [t for t in await queue.list("ready") if t.id == receipt.id]
        assert listed.payload is None
        (lease,) = await queue.claim(limit=5)
        assert lease.payload == b"small"
        (dead,) = await queue.dead_letters()
        assert dead.id == receipt.id
        assert "damaged" in dead.reason
        assert (await engine.stats()).anomalies
        await queue.purge()
        assert rows(engine) == (0, 0)


@pytest.mark.parametrize("compression", [None, "zstd"])
@on_loop
async def test_one_object_for_many_tasks_is_encoded_and_written_once(
    tmp_path: Path, compression: Any
) -> None:
    class Counting:
        calls = 0

        def encode(self, value: Any) -> bytes:
            self.calls += 1
            return bytes(value["raw"])

        def decode(self, data: bytes) -> Any:
            return {"raw": data}

    async with opened(tmp_path, compression=compression) as engine:
        held(engine)
        codec = Counting()
        queue = engine.queue("q", codec=codec)
        first, second = {"raw": os.urandom(LARGE)}, {"raw": os.urandom(LARGE)}
        tasks = [lodeq.NewTask(p, priority=n % 10) for n in range(10) for p in (first, second)]
        await queue.enqueue_many(tasks)
        assert codec.calls == 2
        (file,) = engine._state.shards[0].bodies.files.files()
        assert 2 * LARGE < file.bytes < 3 * LARGE
        leases = await queue.claim(limit=20)
        assert [lease.payload for lease in leases] == [first, second] * 10
        small = {"raw": b"small"}  # lies with its task, which is cheaper than to look
        await queue.enqueue_many([lodeq.NewTask(small, priority=9)] * 3)
        assert [lease.payload for lease in await queue.claim(limit=3)] == [small] * 3
        assert (await engine.verify()).ok
