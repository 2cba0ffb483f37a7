"""Check a whole history, and the file that a process writes it to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from .checker import History
from .rules import BrokenError

__all__ = ["HistoryFile", "Report", "check", "read_history", "report_of"]


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome of a check. ``broken`` is empty, or explains which rule is broken and how."""

    broken: str
    rule: int  # its number; 0 for none, and for records that are no history
    records: int  # checked, including the one that broke a rule
    tasks: int
    invoked: int
    acknowledged: int
    refused: int  # raised, and nothing happened
    unknown: int
    cancelled: int
    delivered: int
    kills: int
    cuts: int  # of the power
    looks: int

    @property
    def ok(self) -> bool:
        """Whether no rule is broken."""
        return not self.broken


def check(
    records: Iterable[Sequence[Any]],
    *,
    shards: int = 1,
    durability: Literal["nosync", "fsync"] = "nosync",
    order_across_shards: bool = False,
    keeps_results: bool = True,
    history_s: float = 0,
) -> Report:
    """Check a history against the rules of docs/history.md; rule 23 where it is asked.

    Rules 20 to 22 are asked of workflows that ``Recorder.flows`` has recorded.

    Args:
        records: those of a ``Recorder``, in order, with ``["kill"]`` where its process died.
        shards: how many the store has.
        durability: of the engine.
        order_across_shards: check rule 7 over all shards of a queue, not only within each.
        keeps_results: False where results may go before their time (``Limits.results_max``).
        history_s: ``Limits.history_s`` of the store; 0: rule 23 is not asked.
    """
    history = History(
        shards,
        durability=durability,
        order_across_shards=order_across_shards,
        keeps_results=keeps_results,
        history_s=history_s,
    )
    text, rule = "", 0
    try:
        history.take_all(records)
    except BrokenError as error:
        text, rule = f"record {history.at}: {error}", error.rule
    return report_of(history, text, rule)


def report_of(history: History, text: str = "", rule: int = 0) -> Report:
    """Make the report of a history that was checked record by record."""
    return Report(
        broken=text,
        rule=rule,
        records=history.at,
        tasks=len(history.tasks),
        invoked=history.invoked,
        acknowledged=history.acked,
        refused=history.refused,
        unknown=history.unknown,
        cancelled=history.cancelled,
        delivered=history.delivered,
        kills=history.kills,
        cuts=history.cuts,
        looks=history.found,
    )


class HistoryFile:
    """Appends records to a file, one JSON array a line; each is written before the call returns.

    Records survive the death of the process at any instant, but not a power cut. A line that the
    death cut short is dropped when the file is opened again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        size = os.fstat(self._fd).st_size
        data = os.pread(self._fd, size, 0)
        os.ftruncate(self._fd, data.rfind(b"\n") + 1)

    def __call__(self, record: list[Any]) -> None:
        """Append one record."""
        data = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read_history(path: str | os.PathLike[str]) -> Iterator[list[Any]]:
    """Read the records of a ``HistoryFile``, without a torn last line."""
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
