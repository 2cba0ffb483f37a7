"""The dedup filter never denies an entry that is there."""

from __future__ import annotations

import asyncio
import random

import pytest

import lodeq
from lodeq.engine.records.keyspace import GHOST, GHOST_END
from lodeq.errors import CorruptionError
from lodeq.repository.api.in_place_reshard import reshard
from lodeq.repository.state.caches import dedup_filter
from lodeq.repository.state.caches.dedup_filter import DedupFilter
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Rows:
    """An overlay of entries: those that are queued, and those that a scan may only find later."""

    def __init__(self):
        self.there = set()
        self.is_damaged = False

    def scan(self, lower, upper, limit):
        if self.is_damaged:
            raise CorruptionError("a damaged block")
        keys = sorted(GHOST + ghost for ghost in self.there if GHOST + ghost >= lower)
        page = [(key, b"") for key in keys if key < upper][:limit]
        return page, page[-1][0] + b"\0" if len(page) == limit else None


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_it_proves_only_what_is_true(monkeypatch, seed):
    monkeypatch.setattr(dedup_filter, "FILTER_BYTES", 1024)
    monkeypatch.setattr(dedup_filter, "PAGE_ROWS", 8)
    monkeypatch.setattr(dedup_filter, "PAGES", 1)
    rng = random.Random(seed)
    rows, known = Rows(), DedupFilter(1)
    rows.there = {rng.randbytes(16) for _ in range(rng.choice([0, 5, 300]))}
    proofs = rebuilt = 0
    for number in range(5000):
        ghost = rng.choice(list(rows.there)) if rows.there and rng.random() < 0.2 else b""
        ghost = ghost or rng.randbytes(16)
        assert known.may_hold(ghost) or ghost not in rows.there
        if known.take(ghost):
            proofs += 1
            assert ghost not in rows.there
        if rng.random() < 0.7:
            rows.there.add(ghost)
        while len(rows.there) > 100 or (rows.there and rng.random() < 0.3):
            rows.there.discard(rng.choice(list(rows.there)))
        if rng.random() < 0.001:  # a load
            known.restart()
            rows.there |= {rng.randbytes(16) for _ in range(20)}
        filled = known.filled
        known.step(rows)
        rebuilt += known.filled < filled
        if number % 16 == 0:
            assert all(known.may_hold(ghost) for ghost in rows.there)
    assert proofs > 1000
    assert rebuilt


def test_a_step_is_bounded_and_it_is_off_where_rows_cannot_be_read(monkeypatch):
    monkeypatch.setattr(dedup_filter, "PAGES", 2)
    rows, known = Rows(), DedupFilter(4096)
    rows.there = {n.to_bytes(2, "big") * 8 for n in range(300)}
    known.step(rows)
    assert not known.is_complete
    known.step(rows)
    assert known.is_complete
    known.restart()
    assert not known.is_complete
    rows.is_damaged = True
    known.step(rows)
    assert known.is_off
    assert not known.take(b"x" * 16)
    assert known.may_hold(b"x" * 16)
    known.restart()
    known.step(rows)
    assert not known.is_complete


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_an_engine_and_its_store_agree_over_lives_loads_and_reshards(
    tmp_path, monkeypatch, seed
):
    monkeypatch.setattr(dedup_filter, "PAGE_ROWS", 4)
    monkeypatch.setattr(dedup_filter, "PAGES", 2)
    rng, clock, jobs, shards, completed = random.Random(seed), ManualClock(), 0, 1, 0
    for life in range(4):
        async with lodeq.open(tmp_path / "s", clock=clock, shards=shards) as engine:
            mail = engine.queue("mail", retention=5, dead_retention=20)
            keys = [f"k{n}" for n in range(40)]
            for _ in range(40):
                kind = rng.randrange(8)
                key, window = rng.choice(keys), rng.choice([None, 1, 30])
                if kind < 3:
                    how = rng.choice(["return", "return", "replace"])
                    delay = rng.choice([None, 2])
                    await mail.enqueue(
                        b"x", dedup_key=key, dedup_window=window, on_conflict=how, delay=delay
                    )
                elif kind == 3:
                    some = rng.sample(keys, 5)
                    await mail.enqueue_many([lodeq.NewTask(b"y", dedup_key=one) for one in some])
                elif kind == 4:
                    for lease in await mail.claim(limit=3):
                        await (lease.bury("no") if rng.random() < 0.3 else lease.complete(b"ok"))
                elif kind == 5:
                    clock.advance(rng.choice([0.5, 3, 10]))
                    await asyncio.sleep(0)
                elif kind == 6:
                    await mail.redrive()
                elif rng.random() < 0.4:
                    jobs += 1
                    stage = lodeq.Stage(tmp_path / "s", f"job-{jobs}", on_conflict="skip")
                    some = rng.sample([*keys, "l1", "l2", "l3"], 4)
                    stage.add([lodeq.NewTask(b"z", dedup_key=one) for one in some], queue="mail")
                    assert stage.publish()
                    await engine.ingest()
                for shard in engine._state.shards:
                    completed += shard.dedup_filter.is_complete
                    held = shard.overlay.scan(GHOST, GHOST_END, 10_000)[0]
                    assert all(shard.dedup_filter.may_hold(k[len(GHOST) :]) for k, _ in held)
            assert (await engine.verify()).ok
        if life == 1:
            shards = 4
            reshard(tmp_path / "s", shards)
    assert completed
