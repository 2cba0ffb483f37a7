"""The metrics of an engine: what they tell, from which thread, and what it does not cost."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support_behaviour import StillClock, in_memory

import lodeq
from lodeq.engine.store.upkeep import Figures
from lodeq.service.metrics import collector as module
from lodeq.service.metrics.collector import LodeqCollector, render
from lodeq.service.metrics.sampler import MERGE_BOUNDS
from lodeq.service.metrics.table import METRICS

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def engine(tmp_path):
    async with lodeq.open(tmp_path / "s", shards=2, block_cache_bytes=8 << 20) as engine:
        yield engine


def values(text):
    """By name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def look(engine, **options):
    with LodeqCollector(engine, **options) as collector:
        return values((await render(collector)).decode())


def of_queue(found, name, queue="mail", **labels):
    return found[(name, *sorted({"queue": queue, **labels}.items()))]


async def test_every_metric_of_the_table_is_told(engine):
    await engine.queue("mail").enqueue(b"x", function="send")
    await engine.queue("mail").claim()
    with LodeqCollector(engine) as collector:
        families = {family.name: family for family in await collector.look()}
    stripped = {
        name.removesuffix("_total"): metric
        for name, metric in METRICS.items()
        if not name.startswith("lodeq_replica_")
    }
    assert set(families) == set(stripped)
    for name, metric in stripped.items():
        assert families[name].type == metric.kind
        for sample in families[name].samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


async def test_queues(engine):
    mail, acme = engine.queue("mail"), engine.queue("mail", tenant="acme", max_attempts=1)
    for _ in range(3):
        await mail.enqueue(b"x")
    await acme.enqueue(b"x")
    await mail.enqueue(b"x", delay=60)
    (lease,) = await acme.claim()
    await lease.nack()
    await mail.claim()
    found = await look(engine)
    counts = {"ready": 2, "delayed": 1, "leased": 1, "dead": 1}
    for state, count in counts.items():
        assert of_queue(found, "lodeq_tasks", state=state) == count
    assert of_queue(found, "lodeq_oldest_ready_age_seconds") > 0
    assert of_queue(found, "lodeq_queue_paused") == 0
    assert found["lodeq_tasks_enqueued_total",] == 5
    assert found["lodeq_tasks_claimed_total",] == 2
    assert found["lodeq_tasks_buried_total",] == 1
    assert found["lodeq_oldest_lease_age_seconds",] > 0


async def test_what_is_late_or_lost():
    clock = StillClock()
    async with in_memory(clock) as engine:
        queue = engine.queue("mail")
        await queue.enqueue(b"x", dedup_key="k")
        await queue.enqueue(b"x", dedup_key="k")
        await queue.claim(lease=1)
        await clock.advance(30)
        await queue.enqueue(b"gone", ttl=1)
        await clock.advance(30)
        found = await look(engine)
        assert found["lodeq_duplicates_total",] == 1
        assert found["lodeq_leases_expired_total",] == 1
        assert found["lodeq_tasks_expired_total",] == 1
        assert "lodeq_table_bytes" not in {name for name, *_ in found}  # in memory


async def test_commits_and_their_merge_sizes(engine):
    queue = engine.queue("mail")
    await asyncio.gather(*(queue.enqueue(b"x", shard_key="one") for _ in range(64)))
    await engine.fsync()
    found = await look(engine)
    commits = sum(shard.commits for shard in (await engine.stats()).shards)
    told = {key: value for key, value in found.items() if key[0] == "lodeq_merge_size_bucket"}
    assert sum(v for k, v in told.items() if ("le", "+Inf") in k) == commits
    assert sum(v for k, v in told.items() if ("le", "63.0") in k) < commits  # one held all 64
    assert len(told) == 2 * (len(MERGE_BOUNDS) + 1)
    for name in ("commit", "fsync"):
        count = sum(v for k, v in found.items() if k[0] == f"lodeq_{name}_seconds_count")
        assert count > 0
        quantiles = [v for k, v in found.items() if k[0] == f"lodeq_{name}_quantile_seconds"]
        assert len(quantiles) == 4
        assert max(quantiles) > 0
    assert sum(v for k, v in found.items() if k[0] == "lodeq_commit_bytes_total") > 64 * 100


async def test_buckets_are_cumulative(engine):
    queue = engine.queue("mail")
    for _ in range(50):
        await queue.enqueue(b"x", shard_key="one")
    with LodeqCollector(engine) as collector:
        families = {family.name: family for family in await collector.look()}
    series: dict[str, list[float]] = {}
    for sample in families["lodeq_commit_seconds"].samples:
        if sample.name.endswith("_bucket"):
            series.setdefault(sample.labels["shard"], []).append(sample.value)
    for counts in series.values():
        assert counts == sorted(counts)
    assert max(counts[-1] for counts in series.values()) >= 50


async def test_rocksdb_and_the_disk(engine):
    await engine.queue("mail").enqueue(b"x" * 10_000)
    found = await look(engine)
    assert sum(v for k, v in found.items() if k[0] == "lodeq_wal_bytes") > 10_000
    assert found["lodeq_disk_free_bytes",] > 0
    assert found["lodeq_disk_low",] == 0


async def test_a_scrape_reads_no_rows(engine, monkeypatch):
    """But for the heads of ready lists that are not in memory."""
    for n in range(200):
        await engine.queue(f"q{n}").enqueue(b"x")
    for shard in engine._state.shards:
        for name in ("get", "multi_get", "scan", "scan_part", "scan_last", "snapshot"):
            if name == "get":
                continue  # health reads one reserved key
            monkeypatch.setattr(type(shard.store), name, None)
    found = await look(engine)
    assert sum(v for k, v in found.items() if k[0] == "lodeq_tasks") == 200


async def test_more_queues_than_are_told(engine):
    for n in range(5):
        await engine.queue(f"q{n}").enqueue(b"x")
    found = await look(engine, queues_max=2)
    assert found["lodeq_queues_left_out",] == 3
    assert len([key for key in found if key[0] == "lodeq_results"]) == 2


async def test_from_another_thread(engine):
    await engine.queue("mail").enqueue(b"x")
    registry = CollectorRegistry()
    with LodeqCollector(engine) as collector:
        registry.register(collector)
        here = values(generate_latest(registry).decode())
        there = values((await asyncio.to_thread(generate_latest, registry)).decode())
    assert set(here) == set(there)
    assert of_queue(there, "lodeq_tasks", state="ready") == 1


async def test_a_loop_that_does_not_answer_is_down(engine, monkeypatch):
    registry = CollectorRegistry()
    with LodeqCollector(engine) as collector:
        registry.register(collector)
        monkeypatch.setattr(module, "LOOP_WAIT_S", 0.01)
        monkeypatch.setattr(engine._state.spawner, "call_soon_threadsafe", lambda fn: object())
        found = values((await asyncio.to_thread(generate_latest, registry)).decode())
    assert found == {("lodeq_up",): 0}


async def test_a_closed_engine_is_down(tmp_path):
    registry = CollectorRegistry()
    async with lodeq.open(tmp_path / "s", block_cache_bytes=8 << 20) as engine:
        collector = LodeqCollector(engine)
        registry.register(collector)
    assert values(generate_latest(registry).decode()) == {("lodeq_up",): 0}
    assert values((await render(collector)).decode()) == {("lodeq_up",): 0}
    assert values((await asyncio.to_thread(generate_latest, registry)).decode()) == {
        ("lodeq_up",): 0
    }
    with pytest.raises(lodeq.ClosedError):
        LodeqCollector(engine)


async def test_a_poisoned_shard(engine, monkeypatch):
    shard = engine._state.shards[1]
    shard.coalescer.fail(OSError("the disk is gone"))
    found = await look(engine)
    assert found["lodeq_healthy",] == 0
    assert found["lodeq_shard_poisoned", ("shard", "1")] == 1
    assert found["lodeq_shard_poisoned", ("shard", "0")] == 0


async def test_a_store_that_cannot_be_asked_hides_nothing_else(engine, monkeypatch):
    def fail(store: object) -> Figures:
        raise lodeq.StorageError("gone")

    monkeypatch.setattr("lodeq.repository.api.view.figures_of", fail)
    found = await look(engine)
    assert found["lodeq_up",] == 1


async def test_wrong_use(engine):
    with pytest.raises(lodeq.UsageError, match="open engine"):
        LodeqCollector(object())
    with pytest.raises(lodeq.UsageError, match="negative"):
        LodeqCollector(engine, queues_max=-1)


def test_registering_asks_nothing_of_the_engine():
    names = {family.name for family in LodeqCollector.describe(object())}
    assert "lodeq_merge_size" in names
