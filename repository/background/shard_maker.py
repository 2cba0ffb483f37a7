"""Makes the shards of an engine: of an open store each, or a stub for one that is not here."""

from __future__ import annotations

from functools import partial

from ...coalescer.commit_loop import Coalescer
from ...coalescer.fsync import Syncer
from ...coalescer.hosting import Hosting, StubCoalescer
from ...engine.records.rows import ring_owner
from ...engine.recovery.open_shard import OpenShard
from ...errors import InvariantError
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from .leadership import Leadership

__all__ = ["ShardMaker"]


class ShardMaker:
    """See above. Leaves the shards to who has asked for them.

    Args:
        state: the engine's state.
        total: how many shards the store has.
        interval_s: seconds between syncs.
        commit_batch_max: submissions that share one commit at most.
        submit_queue_max: submissions that wait for a commit at most.
        leadership: of a replica.
        hosting: knows where shards are that are not here.
    """

    def __init__(
        self,
        state: EngineState,
        total: int,
        *,
        interval_s: float,
        commit_batch_max: int,
        submit_queue_max: int,
        leadership: Leadership | None,
        hosting: Hosting | None,
    ) -> None:
        self._state = state
        self._total = total
        self._interval_s = interval_s
        self._commit_batch_max = commit_batch_max
        self._submit_queue_max = submit_queue_max
        self._leadership = leadership
        self._hosting = hosting

    def make(self, one: OpenShard) -> Shard:
        """A shard over its open store; of a replica it follows."""
        state, leadership = self._state, self._leadership
        first = (one.incarnation << 40) + one.last + 1
        mark = one.watermark

        def write_watermark(number: int) -> None:
            if mark is not None:
                mark.write(number >> 40, number)

        syncer = Syncer(
            one.store,
            state.spawner,
            first_number=first,
            interval_s=self._interval_s,
            write_watermark=write_watermark,
        )
        coalescer = (
            Coalescer(
                one.store,
                state.spawner,
                shard=one.index,
                first_number=first,
                seq_source=state,
                syncer=syncer,
                is_fsync=state.is_fsync,
                commit_batch_max=self._commit_batch_max,
                submit_queue_max=self._submit_queue_max,
                tick_work=state.waiters,
                on_writes_end=state.on_writes_end,
            )
            if leadership is None
            else leadership.coalescer(
                one.store,
                shard=one.index,
                first_number=first,
                syncer=syncer,
                commit_batch_max=self._commit_batch_max,
                submit_queue_max=self._submit_queue_max,
            )
        )
        if leadership is None and one.watermark is not None:
            coalescer.whose = ring_owner(one.watermark.state.store_id, one.index)
        shard = Shard(one.index, one.store, coalescer, mark, one.path, one.incarnation, self._total)
        if leadership is not None:  # entries of other leaders are applied past it
            shard.dedup_filter.turn_off()
        coalescer.overlay.report = partial(state.unreadable_found, one.index)
        shard.swept_ms = state.seq // 1000  # the clock may have stepped back since; seq never does
        return shard

    def stub(self, index: int) -> Shard:
        """Stands in the place of a shard that is not here."""
        state, hosting = self._state, self._hosting
        if hosting is None:
            raise InvariantError(f"shard {index} is missing, and nobody knows who has it")
        coalescer = StubCoalescer(
            state.spawner,
            shard=index,
            seq_source=state,
            tick_work=state.waiters,
            hosting=hosting,
        )
        shard = Shard(index, coalescer.store, coalescer, None, None, 0, self._total)
        shard.dedup_filter.turn_off()
        return shard
