"""Progress of a job: a line for each step, on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, TextIO

from ....engine.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Progress"]

_EVERY_S: Final = 0.5


class Progress:
    """Steps of a job. Without an output it prints nothing and only measures the time.

    Args:
        out: file for the lines. On a terminal the line of the running step shows how many of
            Spark's tasks are done.
        spark: the session whose tasks are counted.
        clock: measures the time; the machine's by default.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        spark: SparkSession | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._out = out
        self._spark = spark if out is not None and out.isatty() else None
        self._clock = clock or SystemClock()
        self._began = self._clock.mono()

    @property
    def seconds(self) -> float:
        """Seconds since the object was made."""
        return self._clock.mono() - self._began

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Run a named step of the work."""
        began = self._clock.mono()
        over = Event()
        watch = Thread(target=self._watch, args=(what, over), daemon=True)
        if self._spark is not None:
            watch.start()
        try:
            yield
        except BaseException:
            self._end(watch, over, f"{what}: failed after {self._clock.mono() - began:.1f} s")
            raise
        self._end(watch, over, f"{what}: {self._clock.mono() - began:.1f} s")

    def skip(self, what: str) -> None:
        """Report a step that an earlier run has done."""
        self._line(f"{what}: done before")

    def _end(self, watch: Thread, over: Event, line: str) -> None:
        over.set()
        if watch.is_alive():
            watch.join()
        self._line(line)

    def _line(self, line: str, end: str = "\n") -> None:
        if self._out is not None:
            start = "\r\x1b[K" if self._spark is not None else ""
            self._out.write(f"{start}{line}{end}")
            self._out.flush()

    def _watch(self, what: str, over: Event) -> None:
        spark = self._spark
        if spark is None:
            return
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(_EVERY_S):
            done = total = 0
            for number in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(number)
                if stage is not None:
                    done += stage.numCompletedTasks
                    total += stage.numTasks
            self._line(f"{what}: {done}/{total} tasks" if total else f"{what}: …", end="")
