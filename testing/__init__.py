"""Test kit of lodeq and of its users: an engine in memory, a clock, a history checker.

::

    clock = lodeq.testing.ManualClock()
    async with lodeq.testing.open(clock=clock) as engine:
        ...
        clock.advance(60)

``worker`` puts an app of ``lodeq.worker`` on such an engine. ``Recorder`` records every operation
of an engine, ``check`` checks the records (docs/history.md).
"""

from .bench import Bench, worker
from .clock import ManualClock
from .engine import open
from .history.checker import History
from .history.contents import at_rest, contents
from .history.file_check import HistoryFile, Report, check, read_history
from .history.recorder import Recorder
from .history.rules import BrokenError

__all__ = [
    "Bench",
    "BrokenError",
    "History",
    "HistoryFile",
    "ManualClock",
    "Recorder",
    "Report",
    "at_rest",
    "check",
    "contents",
    "open",
    "read_history",
    "worker",
]
