"""What an operator reads in the log."""

import logging

import pytest

import lodeq
import lodeq.testing

pytestmark = pytest.mark.anyio


def events(caplog):
    return [record for record in caplog.records if hasattr(record, "event")]


async def test_the_life_of_an_engine(tmp_path, caplog):
    caplog.set_level(logging.INFO, "lodeq")
    async with lodeq.open(tmp_path / "s", shards=2, block_cache_bytes=8 << 20) as engine:
        engine._state.anomaly("something does not fit")
        for _ in range(2):
            engine._state.shards[1].coalescer.fail(OSError("the disk is gone"))
    told = events(caplog)
    assert [record.event for record in told] == ["opened", "anomaly", "poisoned", "closed"]
    opened, anomaly, poisoned, closed = told
    assert (opened.shards, opened.durability, opened.path) == (2, "nosync", str(tmp_path / "s"))
    assert (anomaly.levelname, anomaly.detail) == ("WARNING", "something does not fit")
    assert (poisoned.levelname, poisoned.shard) == ("ERROR", 1)
    assert "the disk is gone" in poisoned.getMessage()
    assert closed.path == str(tmp_path / "s")


async def test_what_a_salvage_did(tmp_path, caplog):
    async with lodeq.open(tmp_path / "s", shards=2, block_cache_bytes=8 << 20) as engine:
        await engine.queue("mail").enqueue(b"x")
    (tmp_path / "s" / "shard1").rename(tmp_path / "gone")
    async with lodeq.open(tmp_path / "s", recovery="salvage", block_cache_bytes=8 << 20):
        pass
    recovered = [one for one in events(caplog) if one.event == "recovered"]
    assert "shard 1: was missing" in recovered[0].detail
    assert {one.levelname for one in recovered} == {"WARNING"}


async def test_in_memory_nothing_is_opened_or_closed(caplog):
    caplog.set_level(logging.INFO, "lodeq")
    async with lodeq.testing.open() as engine:
        await engine.queue("mail").enqueue(b"x")
    assert events(caplog) == []


async def test_anomalies_after_the_first_hundred_are_counted_in_bounded_memory(caplog):
    async with lodeq.testing.open() as engine:
        for n in range(100 + 1000):
            engine._state.anomaly(f"row {n} does not fit")
        health, stats = await engine.health(), await engine.stats()
        assert len(engine._state.anomalies) == 100
    assert len(stats.anomalies) == 101
    assert stats.anomalies[99] == "row 99 does not fit"
    assert stats.anomalies[-1] == "1000 more anomalies, the last: row 1099 does not fit"
    assert stats.anomalies[-1] in health.reasons
    told = [one.detail for one in events(caplog)]
    assert len(told) == 100 + 10  # of the others those whose number is a power of two
    assert told[-1] == "512 more anomalies, the last: row 611 does not fit"
