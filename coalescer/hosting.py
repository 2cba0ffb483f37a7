"""Which shards of a store a process has, and what stands in the place of those it has not.

A store of N shards is N stores with one face. A process may have some of them: one node of a
cluster that places shards, or one of several processes that share a folder. The *hosted* ones are
open here. In the place of each other stands a *stub*: a commit loop that follows for ever, over a
store that refuses every read. Whoever needs such a shard gets ``NotLeaderError`` with the address
of its leader; what walks over shards passes it over, so nothing of a stub is taken for data.

Shard 0 is special: it has the rows of pauses, of settings of queues and of published functions. A
process without it neither knows nor keeps them. So every node of a cluster should host it.
Processes that share a folder keep copies, each on the first shard that it has
(``engine/offline/settings_rows.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..engine.runtime.event_loop import Future, Spawner
from ..engine.store.stub import StubStore
from ..errors import LodeqError, NotLeaderError
from .commit_loop import Coalescer, SeqSource, TickWork
from .fsync import Syncer
from .shard_status import FOLLOWING

__all__ = ["Hosting", "StubCoalescer"]


@runtime_checkable
class Hosting(Protocol):
    """Which of the store's shards this process has; the rest are led, or at least held, elsewhere.

    ``lodeq.open(…, hosting=…)`` takes one, or a ``Replicator`` is one as well.
    """

    def hosts(self, shard: int) -> bool:
        """Whether this process has ``shard``.

        Asked at the open only, when all is prepared; ``Replica.host`` and ``Replica.unhost`` change
        it later.
        """

    def leader(self, shard: int) -> str | None:
        """Where clients reach the leader of a shard that is not here; None: not known."""

    def member_urls(self) -> Sequence[str]:
        """Where clients reach the processes that are there, this one too; those that say it."""


class StubCoalescer(Coalescer):
    """The commit loop of a shard that is not here: it takes nothing, and has nothing."""

    def __init__(
        self,
        spawner: Spawner,
        *,
        shard: int,
        seq_source: SeqSource,
        tick_work: TickWork | None,
        hosting: Hosting,
    ) -> None:
        store = StubStore(self.not_leader)
        super().__init__(
            store,
            spawner,
            shard=shard,
            first_number=1,
            seq_source=seq_source,
            syncer=Syncer(store, spawner, first_number=1, interval_s=1.0, write_watermark=_nothing),
            is_fsync=False,
            tick_work=tick_work,
        )
        self._hosting = hosting
        self.enter(FOLLOWING, self.not_leader())

    def not_leader(self) -> NotLeaderError:
        """A new error that names the leader, as far as it is known."""
        leader = self._hosting.leader(self.shard)
        where = "its leader is not known: retry" if leader is None else f"ask {leader}, its leader"
        return NotLeaderError(
            f"this process does not host shard {self.shard}: {where}", leader=leader
        )

    def refusal(self) -> LodeqError:
        """As ``Coalescer.refusal``; who leads is asked anew."""
        return self.not_leader()

    @property
    def has_session(self) -> bool:
        """False: no answer about the shard rests on what is here."""
        return False

    def commit_barrier(self, *, is_durable: bool = False, is_local: bool = False) -> Future | None:
        """Raise ``NotLeaderError``: whoever waits is about to read."""
        raise self.not_leader()


def _nothing(number: int) -> None:
    """Write no watermark: nothing is ever synced."""
