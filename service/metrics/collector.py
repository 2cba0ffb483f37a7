"""A collector for prometheus-client: every scrape reads the engine, nothing is counted twice.

::

    collector = LodeqCollector(engine)
    prometheus_client.REGISTRY.register(collector)
    prometheus_client.start_http_server(9000)          # or render() in a route of your own

An exporter that scrapes in a thread of its own waits up to five seconds for the engine's loop. A
loop that is held for longer counts as down: ``lodeq_up 0``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Event
from types import TracebackType
from typing import Final, Self, TypeVar

from ...errors import ClosedError, UsageError
from ...repository.api.engine import Engine
from ...repository.api.view import view_of
from ..shared.engine_status import EngineStatus, status_cache
from ..shared.replica import LogLook
from .loop_lag import LoopLag
from .sampler import Distribution, Sample, sample_engine, sample_stores
from .table import METRICS, Metric

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector
except ImportError as exc:
    raise UsageError('metrics need an extra: pip install "lodeq[metrics]"') from exc

__all__ = ["CONTENT_TYPE", "LodeqCollector", "render"]

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
T = TypeVar("T")
QUEUES_MAX: Final = 500
LOOP_WAIT_S: Final = 5.0


class LodeqCollector(Collector):
    """The metrics of one engine. Make it on the engine's loop.

    ``close`` it, or leave that to the engine's end.

    Args:
        engine: an open one.
        queues_max: queues that get metrics of their own; of the rest only their number.
    """

    def __init__(self, engine: Engine, *, queues_max: int = QUEUES_MAX) -> None:
        if not isinstance(engine, Engine):
            raise UsageError("metrics need an open engine: a service exports its own")
        if queues_max < 0:
            raise UsageError("queues_max is not negative")
        view = view_of(engine)
        view.check()
        self._engine = engine
        self._view = view
        self._queues_max = queues_max
        self._status = status_cache(engine)
        self._log = LogLook(view)
        self._lag = LoopLag(view.clock, view.spawner, lambda: view.is_closed)
        self._lag.start()

    def close(self) -> None:
        """Stop the timer that measures the loop. On the engine's loop. Idempotent."""
        self._lag.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def describe(self) -> Iterable[Family]:
        """The families, without reading the engine: a registry asks for them first."""
        return [_family(metric) for metric in METRICS.values()]

    def collect(self) -> Iterator[Family]:
        """All metrics. On the engine's loop at once, from another thread through it."""
        try:
            if self._view.is_on_loop_thread:
                found = self._memory(self._status.get_now())
            else:
                found = self._from_thread()
            found += sample_stores(self._view)
        except ClosedError:
            found = [Sample("lodeq_up", (), 0)]
        return _families(found)

    async def look(self) -> list[Family]:
        """As ``collect``, for a route on the engine's loop: RocksDB is asked in a thread."""
        return list(_families(await self.sample(lambda found: found)))

    async def sample(self, then: Callable[[list[Sample]], T]) -> T:
        """Call ``then`` with all samples, in the thread that asks RocksDB, away from the loop."""
        closed = [Sample("lodeq_up", (), 0)]

        def rest() -> T:
            try:
                return then(found + sample_stores(self._view))
            except ClosedError:
                return then(closed)

        try:
            found = self._memory(await self._status.get())
            done: T = await self._view.spawner.run_in_thread(rest)
        except ClosedError:
            return then(closed)
        return done

    def _memory(self, status: EngineStatus) -> list[Sample]:
        found = sample_engine(
            self._engine,
            status,
            loop_lag_s=self._lag.worst_s,
            queues_max=self._queues_max,
            log=self._log.facts,
        )
        self._log.ask_soon()  # for the next scrape: none waits for the log
        return found

    def _from_thread(self) -> list[Sample]:
        found: list[Sample] = []
        failures: list[Exception] = []
        is_over = Event()
        spawner, steps = self._view.spawner, self._status.collect()

        def collect() -> None:
            try:
                status = self._status.recent()
                if status is None:
                    turns = self._view.turns()
                    for _ in steps:
                        if turns.is_over:
                            spawner.call_soon(collect)
                            return
                    status = self._status.latest()
                found.extend(self._memory(status))
            except Exception as error:  # noqa: BLE001 - it belongs to the thread that asked
                failures.append(error)
            is_over.set()

        is_scheduled = spawner.call_soon_threadsafe(collect) is not None
        if not is_scheduled or not is_over.wait(LOOP_WAIT_S):
            raise ClosedError("the engine's loop does not answer")
        if failures:
            raise failures[0]
        return found


async def render(collector: LodeqCollector) -> bytes:
    """The page of a ``/metrics`` route on the engine's loop; its type is ``CONTENT_TYPE``."""
    return await collector.sample(_page)


def _page(found: list[Sample]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collected(list(_families(found))))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


_KINDS: Final[dict[str, Callable[..., Family]]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _family(metric: Metric) -> Family:
    return _KINDS[metric.kind](metric.name, metric.help, labels=metric.labels)


def _families(samples: Iterable[Sample]) -> Iterator[Family]:
    """Each metric once, in the order of the table, with all its samples."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    for name, metric in METRICS.items():
        found = by_name.pop(name, None)
        if found is None:
            continue
        family = _family(metric)
        for sample in found:
            _add(family, sample)
        yield family


def _add(family: Family, sample: Sample) -> None:
    value = sample.value
    if isinstance(family, HistogramMetricFamily) and isinstance(value, Distribution):
        buckets = [(_bound(bound), float(count)) for bound, count in value.buckets]
        family.add_metric(sample.labels, buckets, value.total)
    elif isinstance(family, GaugeMetricFamily | CounterMetricFamily) and not isinstance(
        value, Distribution
    ):
        family.add_metric(sample.labels, float(value))


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(float(bound))
