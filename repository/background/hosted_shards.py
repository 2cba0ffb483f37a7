"""Brings shards into a running replica, and lets them go: ``Replica.host`` and ``Replica.unhost``.

Every shard has one place in the engine. There stands either the shard, over its open store, or a
stub. Both calls change that in one step, in which nobody else runs: whoever comes before it meets
the one, whoever comes later the other. One call is at work at a time, and a close waits for it.

- *host* opens the store in a thread, puts the shard in the stub's place, as a follower, and counts
  its rows. If anything of that fails the stub is back, and the folder is left as it is.
- *unhost* has the shard follow, and puts the stub in its place. Who waited is answered by then, or
  by the log, for which ``ReplicatedCoalescer.drain`` waits. Then the store is synced and closed.
  If anything of that fails the shard is *leaving* until another call has seen it through: its store
  may be open still, so nobody may open it again, or remove its folder.
  Somebody may still be at a walk through it, begun before: from now on its reads are refused with
  ``NotLeaderError``, as by the stub.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyio import Lock

from ...coalescer.replicated import ReplicatedCoalescer
from ...engine.recovery.open_shard import OpenShard, OpenStore, open_hosted
from ...engine.runtime.ids import Rng
from ...engine.runtime.shielded import await_shielded, obtain
from ...errors import ClosedError, InvariantError
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..tasks.follower import drop_counts
from .leadership import Leadership
from .shard_maker import ShardMaker

__all__ = ["HostedShards"]


class HostedShards:
    """See above.

    Args:
        state: the engine's state.
        opened: its store.
        maker: makes shards and stubs.
        leadership: gives them their commit loops.
        rng: for what a new shard wants.
        open_files: gives a shard its body files; blocks. None: the stores are in memory.
        is_here: notified before anything is applied to a shard.
        is_gone: notified of a shard that is let go.
    """

    def __init__(
        self,
        state: EngineState,
        opened: OpenStore,
        maker: ShardMaker,
        leadership: Leadership,
        rng: Rng,
        *,
        open_files: Callable[[Shard], None] | None,
        is_here: Callable[[Shard], None],
        is_gone: Callable[[Shard], None],
    ) -> None:
        self._state = state
        self._opened = opened
        self._maker = maker
        self._leadership = leadership
        self._rng = rng
        self._open_files = open_files
        self._is_here = is_here
        self._is_gone = is_gone
        self._leaving: dict[int, Shard] = {}  # a stub is in their place, their stores may be open
        self._lock: Lock | None = None

    def _one_at_a_time(self) -> Lock:
        if self._lock is None:
            self._lock = Lock()
        return self._lock

    def _check_open(self) -> None:
        if self._leadership.is_closing:
            raise ClosedError("the engine is closed, or being closed")

    async def host(self, shard: int) -> None:
        """See ``Replica.host``."""
        async with self._one_at_a_time():
            self._check_open()
            if not self._state.shards[shard].is_stub:
                return
            await self._see_off(shard)
            self._check_open()
            one = await self._open(shard)
            here: Shard | None = None
            try:
                self._check_open()
                here = self._maker.make(one)
                if self._open_files is not None:
                    await self._state.spawner.run_in_thread(partial(self._open_files, here))
                self._check_open()
            except BaseException:
                self._leadership.forget(shard)
                if here is not None:
                    _close_files(here)
                await await_shielded(partial(self._state.spawner.run_in_thread, one.close))
                raise
            self._opened.shards.append(one)
            self._opened.shards.sort(key=lambda each: each.index)
            self._state.seq = max(self._state.seq, one.seq)
            self._put(here)
            try:
                self._is_here(here)
                await self._leadership.count(shard)
            except BaseException:
                self._leaving[shard] = here
                await await_shielded(partial(self._let_go, here))
                raise
            self._opened.recoveries += one.recoveries

    async def unhost(self, shard: int) -> None:
        """See ``Replica.unhost``."""
        async with self._one_at_a_time():
            self._check_open()
            if not self._state.shards[shard].is_stub:
                self._leaving[shard] = self._state.shards[shard]
            await self._see_off(shard)

    async def finish(self) -> None:
        """Wait for what is under way; the engine is being closed, and nothing begins any more."""
        async with self._one_at_a_time():
            pass

    async def _see_off(self, shard: int) -> None:
        """Let a shard go that is leaving; there may be none."""
        leaving = self._leaving.get(shard)
        if leaving is not None:
            cancelled = await await_shielded(partial(self._let_go, leaving))
            if cancelled is not None:
                raise cancelled

    async def _open(self, shard: int) -> OpenShard:
        make = partial(open_hosted, self._opened, shard, rng=self._rng)
        if self._opened.path is None:
            return make()
        return await obtain(self._state.spawner, make, OpenShard.close)

    def _put(self, shard: Shard) -> None:
        """Put a shard, or a stub, in its place. All memory of what was there goes."""
        state = self._state
        before = state.shards[shard.index]
        drop_counts(state, before)
        state.flows.forget(before)
        state.hidden.forget(before)
        state.leased_runs.clear()  # they may name leases of it
        state.logged_failures.discard(shard.index)
        state.shards[shard.index] = shard
        state.hosted = [one for one in state.shards if not one.is_stub]

    async def _let_go(self, shard: Shard) -> None:
        """Put a stub in the place of a shard, and close it.

        Called again if it was cancelled, or has failed.
        """
        state, coalescer = self._state, shard.coalescer
        if not isinstance(coalescer, ReplicatedCoalescer):
            raise InvariantError(f"shard {shard.index} is none of a replica")
        if state.shards[shard.index] is shard:
            coalescer.depose()
            self._leadership.forget(shard.index)
            stub = self._maker.stub(shard.index)
            coalescer.closed_error = stub.coalescer.refusal()
            self._put(stub)
            self._answer_waits(stub)
            self._is_gone(shard)
        await coalescer.drain()
        close = shard.store.retire(state.shards[shard.index].coalescer.refusal)
        await state.thread_reads.finish()
        await state.spawner.run_in_thread(close)
        _close_files(shard)
        if shard.watermark is not None:
            shard.watermark.close()
        self._opened.shards[:] = [one for one in self._opened.shards if one.index != shard.index]
        self._leaving.pop(shard.index, None)

    def _answer_waits(self, stub: Shard) -> None:
        """Results of its tasks arrive here no more: answer who waits for one."""
        state = self._state
        for task_id in list(state.result_waiters):
            if state.shard_of(task_id) is stub:
                for future in state.result_waiters.pop(task_id):
                    if not future.done():
                        future.set_exception(stub.coalescer.refusal())


def _close_files(shard: Shard) -> None:
    if shard.bodies is not None:
        shard.bodies.files.close()
