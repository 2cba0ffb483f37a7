"""Reports of a worker: its functions at the start, and every few seconds what it runs.

Neither may hold up the work: a store that does not take it is logged, once, and the worker goes on.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import anyio

from ...errors import BusyError
from ...repository.model.calls.functions import (
    DOC_BYTES_MAX,
    TEXT_BYTES_MAX,
    FunctionParameter,
    PublishedFunction,
    cut,
)
from ...repository.model.values import Duration
from ...repository.model.workers import (
    KNOWN_MAX,
    RUNS_MAX,
    CronTick,
    KnownFunction,
    RunningTask,
    UnknownFunction,
    WorkerReport,
)
from .run.functions import TaskFunction

if TYPE_CHECKING:
    from ...engine.runtime.clock import Clock
    from .cron import Cron, CronEntry
    from .run.backend import WorkerBackend
    from .run.context import Running

__all__ = ["Beats", "published_function", "version_of"]

BEAT_S: Final = 5.0
NOTE_BYTES_MAX: Final = 256
log = logging.getLogger("lodeq.worker")


def published_function(
    function: TaskFunction[..., Any],
    cron: CronEntry | None,
    *,
    has_codec: bool,
    faces: bool = True,
    is_redacted: bool = False,
) -> PublishedFunction:
    """A function, as the store is to know it.

    Args:
        function: as registered.
        cron: its schedule; None for most.
        has_codec: the app packs arguments with a codec of its own.
        faces: the app stores function, preview and labels with tasks.
        is_redacted: the app has a hook that texts pass before they are stored.
    """
    policy = function.policy
    described = [
        _parameter(one, function.typed.schema(one.name))
        for one in function.signature.parameters.values()
    ]
    return PublishedFunction(
        function.queue,
        function.name,
        max_attempts=policy.max_attempts,
        retry=policy.retry,
        retention=_seconds(policy.retention),
        dead_retention=_seconds(policy.dead_retention),
        priority=policy.priority,
        ttl=None if policy.ttl is None else _seconds(policy.ttl),
        timeout=policy.timeout_s,
        parameters=tuple(described),
        signature=_digest(str(one) for one in function.signature.parameters.values()),
        doc=cut(_first_line(function), DOC_BYTES_MAX),
        cron="" if cron is None else cron.ticks.expression,
        tz="" if cron is None else cron.ticks.tz,
        has_codec=has_codec,
        faces=faces,
        is_redacted=is_redacted,
        unique=() if function.unique is None else function.unique.names,
        defaults=None if function.unique is None else function.unique.defaults or None,
        limit_by=() if function.limit_key is None else function.limit_key.published,
    )


def _seconds(value: Duration) -> float:
    return float(value) if isinstance(value, int | float) else value.total_seconds()


def _parameter(one: inspect.Parameter, schema: str) -> FunctionParameter:
    if one.kind is inspect.Parameter.VAR_KEYWORD:
        kind = "rest"
    else:
        kind = "required" if one.default is inspect.Parameter.empty else "optional"
    return FunctionParameter(one.name, kind, cut(str(one), TEXT_BYTES_MAX), schema)


def _first_line(function: TaskFunction[..., Any]) -> str:
    doc = inspect.getdoc(function.function) or ""
    return doc.partition("\n")[0].strip()


def _digest(texts: Iterable[str]) -> str:
    return blake2b("\n".join(texts).encode("utf-8", "replace"), digest_size=8).hexdigest()


def version_of(functions: Sequence[PublishedFunction]) -> str:
    """A hash of functions and policies: two deployed versions of an app differ in it."""
    return _digest(sorted(repr(one) for one in functions))


class Beats:
    """Reports a worker to the store every five seconds, until ``close``.

    Args:
        backend: the store and its clock.
        name: of the worker.
        queues: that it serves.
        functions: that it can run.
        running: the runs of the moment.
        cron: its schedule; None without cron functions.
        unknown: functions that it was asked for of late and does not have.
        redact: applied to the notes of runs.
    """

    def __init__(
        self,
        backend: WorkerBackend,
        name: str,
        queues: Sequence[str],
        functions: Sequence[PublishedFunction],
        running: Callable[[], Sequence[Running]],
        cron: Cron | None,
        unknown: Callable[[Clock], Sequence[UnknownFunction]],
        redact: Callable[[str], str] | None = None,
    ) -> None:
        self._redact = redact
        self._unknown = unknown
        self._backend = backend
        self._running = running
        self._cron = cron
        now = datetime.fromtimestamp(backend.clock.wall_us() / 1e6, UTC)
        self._base: Mapping[str, Any] = {
            "name": name,
            "queues": tuple(queues),
            "version": version_of(functions),
            "pid": os.getpid(),
            "started_at": now,
            "functions": len(functions),
            "known": tuple(
                KnownFunction(one.queue, one.name, one.signature) for one in functions[:KNOWN_MAX]
            ),
        }
        self._functions = functions
        self._is_published = False
        self._is_refused = False

    async def run(self) -> None:
        """Publish the functions, and beat until cancelled."""
        backend = self._backend
        while True:
            if not self._is_published:
                await self._publish()
            await self._send(self._report())
            await backend.wait(anyio.Event(), backend.clock.mono() + BEAT_S)

    async def _publish(self) -> None:
        try:
            await self._backend.engine.publish_functions(self._functions)
        except (BusyError, OSError):
            return  # with the next beat
        except Exception as error:  # noqa: BLE001 - whatever it is, the work goes on
            log.warning(
                "the functions were not published, so nobody can call them by name: %r",
                error,
                extra={"event": "functions_not_published"},
            )
        self._is_published = True

    async def end(self) -> None:
        """Report that the worker is over."""
        await self._send(WorkerReport(**self._base, is_over=True))

    async def _send(self, report: WorkerReport) -> None:
        try:
            await self._backend.engine.beat(report)
            self._is_refused = False
        except Exception as error:  # noqa: BLE001 - whatever it is, the work goes on
            if not self._is_refused:
                log.info("a beat was not taken: %r", error, extra={"event": "beat_refused"})
            self._is_refused = True

    def _report(self) -> WorkerReport:
        running = self._running()
        return WorkerReport(
            **self._base,
            running_count=len(running),
            running=tuple(self._run_of(one) for one in running[:RUNS_MAX]),
            unknown=tuple(self._unknown(self._backend.clock)),
            ticks=() if self._cron is None else tuple(_tick_of(one) for one in self._cron.entries),
        )

    def _run_of(self, one: Running) -> RunningTask:
        note = one.note
        if self._redact is not None and note:
            note = self._redact(note)
        return RunningTask(
            str(one.task_id),
            one.name,
            one.queue,
            one.tenant,
            one.attempt,
            round(one.seconds, 3),
            one.progress,
            cut(note, NOTE_BYTES_MAX),
        )


def _tick_of(entry: CronEntry) -> CronTick:
    function = entry.function
    upcoming = entry.upcoming()
    return CronTick(function.queue, function.name, entry.next, entry.last, entry.last_id, upcoming)
