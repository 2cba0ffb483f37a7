"""The page of a store that several processes of one machine have: who has which shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ....errors import TaskNotFoundError

__all__ = ["ProcessLine", "ProcessesPage"]


class ProcessLine(NamedTuple):
    """A row of the table of processes.

    Attributes:
        number: from 0.
        url: where clients reach it.
        shards: that it has.
        pid: None while there is none.
        state: ``starting``, ``serving``, ``down`` or ``stopped``.
        restarts: how often it was started again.
        why: how it ended last; empty if it has not.
    """

    number: int
    url: str
    shards: Sequence[int]
    pid: int | None
    state: str
    restarts: int
    why: str


class ProcessesPage:
    """What the page shows; ``is_there``: whether there is such a page."""

    def __init__(self, lines: Callable[[], Sequence[ProcessLine]] | None) -> None:
        self._lines = lines

    @property
    def is_there(self) -> bool:
        """Whether several processes have the store."""
        return self._lines is not None

    def page(self) -> dict[str, Any]:
        """The context of the template.

        Raises:
            TaskNotFoundError: one process has the store.
        """
        if self._lines is None:
            raise TaskNotFoundError("this store is served by one process")
        lines = self._lines()
        return {
            "lines": lines,
            "shards": sum(len(one.shards) for one in lines),
            "down": [one for one in lines if one.state != "serving"],
            "restarts": sum(one.restarts for one in lines),
        }
