"""Counts of runs by function as OpenTelemetry metrics: read when its reader collects, never before.

::

    async with lodeq.open("jobs") as engine:
        observe(engine)                    # of the global meter provider

Durations as a histogram come from workers: ``lodeq.service.worker.tracing.trace_app``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from weakref import ref

from ... import __version__
from ...errors import UsageError
from ...repository.api.engine import Engine
from ...repository.api.view import view_of
from ...repository.state.function_counts import OUTCOMES, FunctionRuns

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, Observation
except ImportError as exc:
    raise UsageError('metrics of OpenTelemetry need an extra: pip install "lodeq[otel]"') from exc

__all__ = ["observe"]

_Read = Callable[[FunctionRuns, dict[str, str]], Iterable[Observation]]


def observe(engine: Engine, meter_provider: Any = None) -> None:
    """Have a meter provider read the counts of an engine. Call it once for an engine.

    At most 200 functions of tasks that carry one are counted apart, the others as ``other``. The
    engine is not kept alive; once it is closed there is nothing to read.

    Args:
        engine: an open one.
        meter_provider: of OpenTelemetry; None: the global one.
    """
    if not isinstance(engine, Engine):
        raise UsageError("metrics need an open engine: a service exports its own")
    view_of(engine).check()
    meter = metrics.get_meter("lodeq", __version__, meter_provider)
    held = ref(engine)

    def callback(read: _Read) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observations(options: CallbackOptions) -> Iterator[Observation]:
            del options
            found = held()
            view = None if found is None else view_of(found)
            if view is None or view.is_closed:
                return
            for runs in view.function_runs():
                yield from read(
                    runs,
                    {"messaging.destination.name": runs.queue, "lodeq.function": runs.function},
                )

        return observations

    for name, unit, what, read in _INSTRUMENTS:
        meter.create_observable_counter(name, [callback(read)], unit, what)


def _starts(runs: FunctionRuns, of: dict[str, str]) -> Iterator[Observation]:
    yield Observation(runs.started, of)


def _ends(runs: FunctionRuns, of: dict[str, str]) -> Iterator[Observation]:
    for outcome, count in zip(OUTCOMES, runs.ends, strict=True):
        if count:
            yield Observation(count, {**of, "lodeq.outcome": outcome})


def _time(runs: FunctionRuns, of: dict[str, str]) -> Iterator[Observation]:
    yield Observation(runs.total_us / 1e6, of)


_INSTRUMENTS: Final = (
    ("lodeq.function.starts", "{run}", "Leases granted on tasks of a function", _starts),
    ("lodeq.function.ends", "{run}", "Runs by how they ended", _ends),
    ("lodeq.function.run_time", "s", "Time of runs that completed or failed, summed", _time),
)
