"""Runs: bulk acts that go on slice by slice while nobody looks at their page, until stopped.

A run is of this process: it ends with it, or with the store. What it has done stays done, and it
does no harm to begin again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ....engine.runtime.ids import Rng
from ....errors import BusyError, LodeqError, TaskNotFoundError
from ....repository.model.filters import Act, FoundCount, TaskFilter
from ....repository.model.values import RedrivePolicy
from ..source import AnyEngine, source_of

__all__ = ["RUNNING_MAX", "Run", "Runs"]

SLICE: Final = 500  # tasks of one call
RUNNING_MAX: Final = 8
KEPT_MAX: Final = 50  # runs that are over and can still be looked at
REFUSED_MAX: Final = 100  # tasks that a page names
_log: Final = logging.getLogger("lodeq.dashboard")


@dataclass(slots=True)
class Run:
    """One bulk act, and how far it is.

    Attributes:
        id: names its page.
        act: one of ``filters.ACTS``.
        words: what is meant, in words.
        address: the query of the search it began with.
        total: how many there were when it was confirmed.
        began_us: wall microseconds.
        user: who confirmed it, where the application has said.
        state: ``running``, ``done``, ``stopped`` or ``failed``.
    """

    id: str
    act: Act
    words: Sequence[str]
    address: str
    total: FoundCount | None
    began_us: int
    user: str = ""
    state: str = "running"
    problem: str = ""
    ended_us: int = 0
    done: int = 0
    skipped: int = 0
    n_refused: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # the first of them
    is_stopping: bool = False
    task: Any = None  # held, so that it is not collected

    @property
    def is_over(self) -> bool:
        """Whether it goes on no more."""
        return self.state != "running"

    @property
    def seen(self) -> int:
        """Tasks that it has come past."""
        return self.done + self.skipped + self.n_refused

    @property
    def share(self) -> float | None:
        """Per cent of the tasks there were; None: their number is not known."""
        if self.total is None or not self.total.is_exact:
            return None
        return min(100.0, 100 * self.seen / self.total.count) if self.total.count else 100.0


class Runs:
    """The runs of one dashboard.

    Args:
        engine: an open one.
        rng: names runs, so that nobody guesses one.
    """

    def __init__(self, engine: AnyEngine, rng: Rng) -> None:
        self._engine = engine
        self._view = source_of(engine)
        self._rng = rng
        self._runs: dict[str, Run] = {}

    @property
    def known(self) -> list[Run]:
        """Runs that can be looked at, the newest first."""
        return list(reversed(self._runs.values()))

    def get(self, id: str) -> Run:
        """One of them, or ``TaskNotFoundError``."""
        run = self._runs.get(id)
        if run is None:
            raise TaskNotFoundError(
                "this run is not known any more: it ended with the process that it ran in, or long "
                "ago; what it had done stays done"
            )
        return run

    def start(
        self,
        act: Act,
        meant: TaskFilter,
        options: Mapping[str, Any],
        *,
        words: Sequence[str],
        address: str,
        total: FoundCount | None,
        user: str,
    ) -> Run:
        """Begin a run.

        Args:
            act: one of ``filters.ACTS``.
            meant: which tasks.
            options: ``priority`` or ``policy``, as ``Engine.act`` takes them.
            words: what is meant, in words.
            address: the query of the search.
            total: how many there were when it was confirmed; None: not known.
            user: who confirmed it.

        Raises:
            BusyError: ``RUNNING_MAX`` go on already.
        """
        if sum(not run.is_over for run in self._runs.values()) >= RUNNING_MAX:
            raise BusyError(f"{RUNNING_MAX} runs go on already: wait for one, or stop it")
        over = [run.id for run in self._runs.values() if run.is_over]
        for id in over[: max(0, len(over) - KEPT_MAX + 1)]:
            del self._runs[id]
        id = self._rng.bytes(8).hex()
        run = Run(id, act, words, address, total, self._view.clock.wall_us(), user)
        self._runs[id] = run
        priority: int | None = options.get("priority")
        policy: RedrivePolicy = options.get("policy", "stored")

        async def main() -> None:
            try:
                await self._slices(run, meant, priority, policy)
            except LodeqError as error:
                run.done += error.done or 0
                run.state, run.problem = "failed", str(error)
            except Exception as error:  # noqa: BLE001 - a bug of ours: on trio it would end everything
                _log.error("a bulk act failed", exc_info=error, extra={"event": "act_failed"})
                run.state, run.problem = "failed", "the dashboard failed: see its log"
            finally:
                if not run.is_over:  # the loop ends
                    run.state = "stopped"
                run.ended_us = self._view.clock.wall_us()
                run.task = None

        run.task = self._view.spawner.spawn(main, "lodeq dashboard act")
        _log.info(
            "%s of %r begun by %r",
            act,
            ", ".join(words) or "all tasks",
            user,
            extra={"event": "act_started", "act": act, "user": user},
        )
        return run

    async def _slices(
        self, run: Run, meant: TaskFilter, priority: int | None, policy: RedrivePolicy
    ) -> None:
        cursor: str | None = None
        while not run.is_stopping:
            report = await self._engine.act(
                run.act, meant, priority=priority, policy=policy, limit=SLICE, cursor=cursor
            )
            run.done += report.done
            run.skipped += report.skipped
            for task_id, why in report.refused.items():
                if len(run.refused) < REFUSED_MAX:
                    run.refused[task_id] = why
            run.n_refused += len(report.refused)
            cursor = report.cursor
            if cursor is None:
                run.state = "done"
                return
        run.state = "stopped"
