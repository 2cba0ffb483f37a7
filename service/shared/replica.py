"""What a replica's node knows: its status, and what it asks the log now and then.

The status is read from memory. How full the log is, and which checkpoints there are, takes a round
trip to the log service: it is asked every few seconds, only while somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from anyio import move_on_after

from ...errors import LodeqError
from ...replication.port import Checkpoint, LogSpace
from ...replication.replicator import LogReplicator
from ...replication.status import ClusterStatus
from ...repository.api.view import EngineView

__all__ = ["LogFacts", "LogLook", "is_replica", "replica_status"]

AGE_S: Final = 5.0
WAIT_S: Final = 1.0


def is_replica(view: EngineView) -> bool:
    """Whether the store is one of several that agree by a log."""
    return isinstance(view.replicator, LogReplicator)


def replica_status(view: EngineView) -> ClusterStatus | None:
    """The cluster as this engine's node sees it; None: the store is no replica."""
    layer = view.replicator
    return layer.status() if isinstance(layer, LogReplicator) else None


class LogFacts(NamedTuple):
    """What the log service said last.

    Attributes:
        checkpoints: each node's last one, the newest first.
        space: how full it is; None: it does not say.
    """

    checkpoints: Sequence[Checkpoint]
    space: LogSpace | None


@runtime_checkable
class _TellsSpace(Protocol):
    """A log that knows how full it is."""

    async def space(self) -> LogSpace: ...


class LogLook:
    """Asks the log of one engine, every five seconds at most. On the engine's loop."""

    def __init__(self, view: EngineView) -> None:
        self._view = view
        self._due_mono = 0.0
        self.facts: LogFacts | None = None  # None: it has not answered yet

    async def recent(self) -> LogFacts | None:
        """What the log said last, asked anew if that is old; after a second, the old answer."""
        if self._is_due():
            with move_on_after(WAIT_S):
                await self._ask()
        return self.facts

    def ask_soon(self) -> None:
        """Have it asked in the background, if the last answer is old."""
        if self._is_due():
            self._view.spawner.spawn(self._ask, "lodeq-log-look")

    def _is_due(self) -> bool:
        if not is_replica(self._view):
            return False
        now = self._view.clock.mono()
        if now < self._due_mono:
            return False
        self._due_mono = now + AGE_S
        return True

    async def _ask(self) -> None:
        layer = self._view.replicator
        if not isinstance(layer, LogReplicator):
            return
        log = layer.log
        try:
            checkpoints = await log.checkpoints()
            space = await log.space() if isinstance(log, _TellsSpace) else None
        except LodeqError:
            return  # the status says that the log does not answer
        self.facts = LogFacts(checkpoints, space)
