"""Runs by function: which are counted, as what, and where it ends."""

import gc
import weakref

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support_behaviour import StillClock, in_memory

import lodeq
import lodeq.testing
from lodeq.repository.api.view import view_of
from lodeq.repository.model.faces import packed_face
from lodeq.repository.state import function_counts
from lodeq.repository.state.function_counts import (
    FUNCTIONS_MAX,
    OUTCOMES,
    RUN_BOUNDS_US,
    FunctionCounts,
)
from lodeq.service.metrics.collector import LodeqCollector, render
from lodeq.service.metrics.otel import observe
from lodeq.service.worker import tracing
from lodeq.service.worker.tracing import trace_app
from lodeq.testing import worker
from lodeq.worker import App

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def clock():
    return StillClock()


@pytest.fixture
async def engine(clock):
    async with in_memory(clock) as engine:
        yield engine


async def look(engine):
    with LodeqCollector(engine) as collector:
        text = (await render(collector)).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_queue(found, name, **labels):
    return found[(name, *sorted({"queue": "mail", **labels}.items()))]


def ends_of(engine, function="send"):
    (runs,) = [one for one in view_of(engine).function_runs() if one.function == function]
    return {name: n for name, n in zip(OUTCOMES, runs.ends, strict=True) if n}


async def claimed(engine, **options):
    queue = engine.queue("mail", max_attempts=2)
    await queue.enqueue({"x": 1}, function="send", **options)
    return await queue.claim_one(lease=30)


async def test_each_end_is_counted_once(engine, clock):
    await (await claimed(engine)).complete(1)
    lease = await claimed(engine, headers={"x": 1})
    await engine.complete_many([(lease, None)])
    lease = await claimed(engine)
    await lease.nack()
    await clock.advance(60)
    lease = await engine.queue("mail").claim_one()
    await lease.nack()
    await (await claimed(engine)).bury("bad")
    await (await claimed(engine)).cancel()
    lease = await claimed(engine)
    await lease.release()
    lease = await engine.queue("mail").claim_one(lease=1)
    await clock.advance(30)  # reaped
    lease = await engine.queue("mail").claim_one()
    await lease.complete(2)
    assert ends_of(engine) == {
        "completed": 3,
        "failed": 2,
        "dead": 2,
        "cancelled": 1,
        "released": 1,
    }
    (runs,) = view_of(engine).function_runs()
    assert (runs.queue, runs.started) == ("mail", 9)
    assert sum(runs.ends) == runs.started
    assert sum(runs.times) == 7


async def test_a_task_that_ends_by_its_ttl(engine, clock):
    lease = await claimed(engine, ttl=5)
    await clock.advance(10)
    await lease.release()
    assert ends_of(engine) == {"expired": 1}


async def test_the_page_shows_them_with_their_times(engine, clock):
    lease = await claimed(engine)
    await clock.advance(3)
    await lease.complete()
    found = await look(engine)
    of = {"function": "send"}
    assert of_queue(found, "lodeq_function_starts_total", **of) == 1
    assert of_queue(found, "lodeq_function_ends_total", outcome="completed", **of) == 1
    assert of_queue(found, "lodeq_function_ends_total", outcome="dead", **of) == 0
    assert of_queue(found, "lodeq_function_run_seconds_sum", **of) == pytest.approx(3, abs=0.01)
    name = "lodeq_function_run_seconds_bucket"
    assert of_queue(found, name, le="1.0", **of) == 0
    assert of_queue(found, name, le="5.0", **of) == 1
    assert of_queue(found, name, le="+Inf", **of) == 1


async def test_nothing_is_counted_without_a_function(engine):
    queue = engine.queue("mail")
    await queue.enqueue(b"x")
    await queue.enqueue(b"x", preview="only", labels={"a": "b"})
    for lease in await queue.claim(limit=2):
        await lease.complete()
    assert view_of(engine).function_runs() == []


async def test_nothing_is_counted_where_faces_are_off(engine):
    await engine.configure("mail", faces=False)
    await (await claimed(engine)).complete()
    assert view_of(engine).function_runs() == []


async def test_beyond_the_bound_all_are_one(monkeypatch):
    monkeypatch.setattr(function_counts, "FUNCTIONS_MAX", 2)
    counts = FunctionCounts()
    for name in ("a", "b", "c", "d", "a"):
        face = packed_face(name, "x", None)
        counts.started(b"q", face)
        counts.of(b"q", face).ended(1, 5)
    found = [(one.queue, one.function, one.started) for one in counts.read()]
    assert found == [("q", "a", 2), ("q", "b", 1), ("other", "other", 2)]
    assert FUNCTIONS_MAX == 200


@pytest.mark.parametrize("name", ["f", "ä", "f" * 31, "f" * 32, "f" * 255, "f" * 256, "\n'"])
def test_names_of_any_length_are_read_from_the_packed_face(name):
    counts = FunctionCounts()
    counts.of(b"q", packed_face(name, "preview", {"a": "b"})).ended(1, -5)
    (runs,) = counts.read()
    assert (runs.function, runs.times[0], runs.total_us) == (name, 1, 0)


@pytest.mark.parametrize("face", [b"\x93", b"\x93\xd9\xff", b"\x93\xd9\x00\x00", b"\xff" * 9])
def test_what_is_no_face_harms_nothing(face):
    counts = FunctionCounts()
    counts.started(b"q", face)
    tally = counts.of(b"q", face)
    if tally is not None:
        tally.ended(1, RUN_BOUNDS_US[-1] + 1)
    counts.read()


async def test_a_hostile_name_is_escaped(engine):
    await engine.queue("mail").enqueue(b"x", function='a"} 1\nlodeq_up 0')
    await engine.queue("mail").claim()
    with LodeqCollector(engine) as collector:
        registry = CollectorRegistry()
        registry.register(collector)
        assert "\nlodeq_up 0" not in generate_latest(registry).decode()


# --- OpenTelemetry ------------------------------------------------------------------------------


def points(reader):
    data = reader.get_metrics_data()
    found = {}
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    key = metric.name, *sorted(dict(point.attributes).values())
                    found[key] = getattr(point, "value", None) or getattr(point, "sum", None)
    return found


@pytest.fixture
def reader():
    return InMemoryMetricReader()


async def test_a_reader_of_opentelemetry_sees_the_same(engine, clock, reader):
    provider = MeterProvider([reader])
    observe(engine, provider)
    lease = await claimed(engine)
    await clock.advance(2)
    await lease.nack()
    found = points(reader)
    assert found["lodeq.function.starts", "mail", "send"] == 1
    assert found["lodeq.function.ends", "failed", "mail", "send"] == 1
    assert found["lodeq.function.run_time", "mail", "send"] == pytest.approx(2, abs=0.01)
    assert len([key for key in found if key[0] == "lodeq.function.ends"]) == 1
    provider.shutdown()


@pytest.mark.slow
async def test_a_reader_keeps_no_engine_alive(reader):
    provider = MeterProvider([reader])
    async with lodeq.testing.open() as engine:
        observe(engine, provider)
        await claimed(engine)
    assert points(reader) == {}
    held = weakref.ref(engine)
    del engine
    gc.collect()
    assert held() is None
    assert points(reader) == {}
    provider.shutdown()


async def test_only_an_open_engine_is_observed(engine):
    with pytest.raises(lodeq.UsageError, match="open engine"):
        observe(object())
    async with lodeq.testing.open() as other:
        pass
    with pytest.raises(lodeq.ClosedError):
        observe(other)


async def test_a_traced_app_records_how_long_its_runs_take(engine, reader, monkeypatch):
    provider = MeterProvider([reader])
    histogram = provider.get_meter("test").create_histogram("messaging.process.duration")
    monkeypatch.setattr(tracing, "_duration", lambda: histogram)
    app = App()
    trace_app(app)

    @app.task("mail", max_attempts=1)
    async def send(fails: bool) -> None:
        if fails:
            raise KeyError("no")

    async with worker(app):
        await send.enqueue(fails=False)
        await send.enqueue(fails=True)
        with pytest.raises(KeyError):
            await app.drain()
    found = points(reader)
    keys = {key for key in found if key[0] == "messaging.process.duration"}
    rest = ("lodeq", "mail", "process", "process", "send")
    name = "messaging.process.duration"
    assert keys == {(name, *rest), (name, "KeyError", *rest)}
    provider.shutdown()
