"""``lodeq serve``, its longest turns and collector passes told: ``FILE COLLECTOR ARG …``.

``FILE`` has three numbers of milliseconds: the longest turn of its loop, the same in CPU time of
the thread, the longest pass of Python's collector. Who measures sets them to zero and reads them
back. ``COLLECTOR``: ``frozen`` as ``lodeq serve`` sets it, ``python`` as Python does.
"""

from __future__ import annotations

import gc
import mmap
import selectors
import sys
import time
from typing import Any

from lodeq.service.cli.commands import serve
from lodeq.service.cli.entry import main

NUMBERS = 3
WALL, CPU, PASS = range(NUMBERS)


def told(path: str) -> Any:
    """The numbers of the file, shared by all processes that ask for them."""
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), NUMBERS * 8)).cast("d")


def watch(numbers: Any) -> None:
    """Note the longest of each from here on, for every loop that asyncio makes."""

    class Watched(selectors.DefaultSelector):  # type: ignore[misc]
        _wall, _cpu = time.perf_counter(), time.thread_time()

        def select(self, timeout: float | None = None) -> Any:
            numbers[WALL] = max(numbers[WALL], (time.perf_counter() - self._wall) * 1e3)
            numbers[CPU] = max(numbers[CPU], (time.thread_time() - self._cpu) * 1e3)
            events = super().select(timeout)
            self._wall, self._cpu = time.perf_counter(), time.thread_time()
            return events

    began = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            numbers[PASS] = max(numbers[PASS], (time.perf_counter() - began) * 1e3)

    selectors.DefaultSelector = Watched  # type: ignore[misc]
    gc.callbacks.append(note)


if __name__ == "__main__":
    watch(told(sys.argv[1]))
    if sys.argv[2] == "python":
        serve.settle_collector = lambda: False  # type: ignore[attr-defined]
    sys.argv[1:3] = []
    raise SystemExit(main())
