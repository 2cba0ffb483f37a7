"""Test kit of lodeq and of its users: an engine in memory, a clock, a history checker.

::

    clock = lodeq.testing.ManualClock()
    async with lodeq.testing.open(clock=clock) as engine:
        ...
        clock.advance(60)

``worker`` puts an app of ``lodeq.worker`` on such an engine. ``Recorder`` records every operation
of an engine, ``check`` checks the records (docs/history.md).
"""

from importlib import import_module
from sys import modules
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .bench import Bench, worker
    from .clock import ManualClock
    from .engine import open
    from .history.capture.contents import at_rest, contents
    from .history.capture.recorder import Recorder
    from .history.checker import History
    from .history.file_check import HistoryFile, Report, check, read_history
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

# Where each name is imported from when it is first used: the pytest plugin of this package is
# imported by every pytest run, of whatever project. tests/unit/testing compares it with the above.
_HOMES: Final[dict[str, tuple[str, ...]]] = {
    "bench": ("Bench", "worker"),
    "clock": ("ManualClock",),
    "engine": ("open",),
    "history.capture.contents": ("at_rest", "contents"),
    "history.capture.recorder": ("Recorder",),
    "history.checker": ("History",),
    "history.file_check": ("HistoryFile", "Report", "check", "read_history"),
    "history.rules": ("BrokenError",),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # type checkers would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
        setattr(modules[__name__], name, value)
        return value

    def __dir__() -> list[str]:
        """Names that are loaded already, and every public name."""
        return sorted({*vars(modules[__name__]), *__all__})
