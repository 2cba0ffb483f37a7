"""Gaining and losing the leadership of a shard: what ``lodeq.open(replicator=…)`` adds.

Gaining is opening once more, for one shard of a running engine:

1. The new leader's first entry goes through the log: ``m/open`` with the next incarnation. Epochs
   and commit numbers start above everything an earlier leader can have given out, and whatever
   that leader still proposes can no longer follow in order.
2. Once it is applied, the rows are all there is. Memory is dropped and built from them as open
   does: counters, then leases (an in-process lease goes back at once with its attempt counted, an
   exported one restarts in full), then deadlines. Until that is done the shard serves nobody:
   claims would see an incomplete lease table.
3. Then the shard serves everybody, and waiting claims get what is ready.

Losing drops memory at once. Leases raise ``LeaseLostError``, calls in flight are answered (see
``coalescer/replicated.py``), the reaper passes the shard over, and waiting claims go on as long as
any shard is led here.

A deposed leader that does not know it yet goes on granting leases in memory, but hands out none
before its entry is committed, and the log no longer commits its entries. So there may be two
leaders, but never two valid leases of one task. What it would answer without an entry (a heartbeat)
it answers only while it has a session with the log, in which nobody else is elected. Where the
layer elects earlier (``InheritanceDelay``), the new leader keeps what leases it finds until then.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from ...coalescer.fsync import Syncer
from ...coalescer.replicated import ReplicatedCoalescer
from ...coalescer.replicator import (
    ENTRY_BYTES_LEAST,
    Entry,
    InheritanceDelay,
    Replicator,
    submission_bytes_max,
)
from ...engine.records.frame import attempt
from ...engine.records.keyspace import GHOST, GHOST_END, OLD_GHOSTS, OPEN, SECRET, ring_key
from ...engine.records.rows import (
    OLD_FORM,
    Applied,
    decode_ghost,
    decode_open,
    decode_ring,
    encode_old_ghosts,
    encode_secret,
)
from ...engine.store.port import Op, Store
from ...errors import (
    ClosedError,
    CommitUnknownError,
    CorruptionError,
    InvariantError,
    LodeqError,
    NotLeaderError,
    UsageError,
)
from ..model.values import Limits
from ..state import engine_log
from ..state.turns import in_slices
from ..tasks.follower import drop_counts, note_rows, reload_counts
from .state_rebuild import Noted, deadline_slices, lease_slices, note_leases

if TYPE_CHECKING:
    from ...coalescer.group import Group
    from ..state.engine_state import EngineState
    from ..state.queue_state import Shard

__all__ = ["Hosted", "Leadership", "let_go", "limits_within"]

SLICE: Final = 256
BESIDE_BYTES: Final = 64 << 10  # beside a payload or a result: headers, names, rows
_END: Final = object()


class Hosted(Protocol):
    """Brings shards here and lets them go: ``HostedShards``, which needs a ``Leadership``."""

    async def host(self, shard: int) -> None:
        """See ``Replica.host``."""

    async def unhost(self, shard: int) -> None:
        """See ``Replica.unhost``."""

    async def finish(self) -> None:
        """Wait for what is under way; the engine is being closed."""


class Leadership:
    """The ``Replica`` port of one engine, called by the replication layer."""

    def __init__(self, state: EngineState, replicator: Replicator) -> None:
        self._state = state
        self._replicator = replicator
        self.hosted: Hosted | None = None  # set by open, where the replicator is a ``Hosting``
        self._coalescers: dict[int, ReplicatedCoalescer] = {}
        self._reloads: dict[int, object] = {}  # by shard: its latest reload; an older one stops
        self._is_closing = False

    def coalescer(
        self,
        store: Store,
        *,
        shard: int,
        first_number: int,
        syncer: Syncer,
        commit_batch_max: int,
        submit_queue_max: int,
    ) -> ReplicatedCoalescer:
        """Make the commit loop of one shard; it follows until ``lead``.

        Args:
            store: the shard's store.
            shard: its index.
            first_number: the number of its next commit.
            syncer: decides when to fsync.
            commit_batch_max: submissions that share one entry at most; see ``lodeq.open``.
            submit_queue_max: submissions that wait at most; see ``lodeq.open``.
        """
        state = self._state
        coalescer = self._coalescers[shard] = ReplicatedCoalescer(
            store,
            state.spawner,
            shard=shard,
            first_number=first_number,
            seq_source=state,
            syncer=syncer,
            is_fsync=state.is_fsync,
            commit_batch_max=commit_batch_max,
            submit_queue_max=submit_queue_max,
            tick_work=state.waiters,
            on_writes_end=state.on_writes_end,
            replicator=self._replicator,
            mono=state.clock.mono,
            on_rows=partial(self._applied, shard),
            on_deposed=partial(self._deposed, shard),
        )
        return coalescer

    async def start(self) -> None:
        """Attach to the replication layer, and lead the shards that it says are ours already."""
        await self._replicator.start(self, self._state.spawner, self._state.clock)
        for index in list(self._coalescers):
            if self._replicator.is_leader(index):
                try:
                    await self.lead(index)
                except (NotLeaderError, CommitUnknownError):
                    pass  # lost again meanwhile; the layer says when to try again

    async def closing(self) -> None:
        """The engine begins to close: no shard is gained any more, and the layer takes no part."""
        self._is_closing = True
        try:
            await self._replicator.closing()
        except Exception as error:  # noqa: BLE001 - the store is closed all the same
            engine_log.anomaly(f"the replication layer failed in closing(): {error!r}")
        if self.hosted is not None:
            await self.hosted.finish()

    async def closed(self) -> None:
        """The stores are closed."""
        await let_go(self._replicator)

    def _find(self, shard: int) -> ReplicatedCoalescer:
        state = self._state
        state.check_loop()
        if state.is_closed:
            raise ClosedError("the engine is closed")
        return self._known(shard)

    def _known(self, shard: int) -> ReplicatedCoalescer:
        state = self._state
        coalescer = self._coalescers.get(shard)
        if coalescer is None:
            self.check_shard(shard)
            raise state.shards[shard].coalescer.refusal()
        return coalescer

    def check_shard(self, shard: int) -> None:
        """Raise ``UsageError`` unless the store has such a shard, here or not."""
        count = len(self._state.shards)
        if type(shard) is not int or not 0 <= shard < count:
            raise UsageError(f"there is no shard {shard!r}: this store has {count}")

    @property
    def is_closing(self) -> bool:
        """Whether no shard is gained, or hosted, any more."""
        return self._is_closing or self._state.is_closed

    # -- what the replication layer calls ----------------------------------------------

    def applied(self, shard: int) -> Applied:
        """See ``Replica.applied``."""
        return self._find(shard).applied

    def apply(self, entry: Entry) -> None:
        """See ``Replica.apply``."""
        self._find(entry.shard).apply(entry)

    def durable(self, shard: int) -> int:
        """See ``Replica.durable``."""
        return self._find(shard).durable

    def apply_many(self, entries: Sequence[Entry]) -> None:
        """See ``Replica.apply_many``."""
        if entries:
            self._find(entries[0].shard).apply_many(entries)

    def limit_intake(self, reason: str | None) -> None:
        """See ``Replica.limit_intake``."""
        self._state.check_loop()
        self._state.note_log_room(reason)

    def follow(self, shard: int) -> None:
        """See ``Replica.follow``. A shard that is not here has nothing to lose."""
        self._state.check_loop()
        self.check_shard(shard)
        coalescer = self._coalescers.get(shard)
        if coalescer is not None:
            coalescer.depose()

    async def host(self, shard: int) -> None:
        """See ``Replica.host``."""
        await self._hosting(shard).host(shard)

    async def unhost(self, shard: int) -> None:
        """See ``Replica.unhost``."""
        await self._hosting(shard).unhost(shard)

    def _hosting(self, shard: int) -> Hosted:
        self._state.check_loop()
        if self.is_closing:
            raise ClosedError("the engine is closed, or being closed")
        self.check_shard(shard)
        if self.hosted is None:
            raise UsageError("this replica has all shards for good: its replicator is no Hosting")
        return self.hosted

    def forget(self, shard: int) -> None:
        """Drop the commit loop of a shard, which is let go: no entry reaches it any more."""
        self._reloads[shard] = object()  # ends one that is under way
        self._coalescers.pop(shard, None)

    async def count(self, shard: int) -> None:
        """Count the rows of a shard that has come here, unless it is gained or let go meanwhile."""
        token = self._reloads[shard] = object()
        await in_slices(self._state, self._counts(shard, token))

    def _counts(self, shard: int, token: object) -> Generator[None, None, None]:
        coalescer = self._coalescers[shard]
        for _ in reload_counts(self._state, self._state.shards[shard]):
            yield
            if coalescer.election is not None or self._reloads[shard] is not token:
                return

    async def lead(self, shard: int) -> None:
        """See ``Replica.lead``."""
        coalescer = self._find(shard)
        if self._is_closing:
            raise ClosedError("the engine is being closed: let another replica lead")
        if coalescer.failure is not None:
            raise coalescer.breakdown()
        if coalescer.election is not None:
            return
        engine_state, state = self._state, self._state.shards[shard]
        incarnation = self._next_incarnation(coalescer, state)
        elected = coalescer.elect(incarnation)
        election = coalescer.election
        try:
            await elected
            await self._build(coalescer, state, election, incarnation)
        except BaseException as exc:
            if coalescer.election is election:  # else it has been lost already, or even won again
                coalescer.depose()
            if isinstance(exc, CorruptionError):
                raise CorruptionError(
                    f"shard {shard} cannot be led from here, a row is damaged ({exc}): let another "
                    "replica lead, and restore a checkpoint of one in place of this"
                ) from exc
            raise
        engine_state.claim_sets.reset()
        for queue_state in engine_state.queue_states.values():
            for tenant_queue in queue_state.tenant_queues.values():
                if tenant_queue.ready:
                    engine_state.waiters.note(tenant_queue)
        engine_state.deadlines.wake_reaper()

    def _next_incarnation(self, coalescer: ReplicatedCoalescer, shard: Shard) -> int:
        """An incarnation that no leader of the shard has had. Also raises the engine's seq.

        Reads the overlay: committed entries may still wait for a stalled store.
        """
        number = coalescer.taken_number
        raw = coalescer.overlay.get(ring_key(number))
        if raw is not None:
            self._state.seq = max(self._state.seq, decode_ring(raw)[1])
        stored = coalescer.overlay.get(OPEN)
        if stored is None:
            raise InvariantError(f"shard {shard.index} has no incarnation")
        return max(decode_open(stored), number >> 40) + 1

    async def _build(
        self, coalescer: ReplicatedCoalescer, shard: Shard, election: Group | None, incarnation: int
    ) -> None:
        coalescer.check_election(election)
        await self._write_dedup_secret(coalescer, shard, election)
        drop_counts(self._state, shard)
        # With what follows a loss: it led until just now, maybe, and that is not done yet.
        await in_slices(
            self._state, _while_elected(coalescer, election, reload_counts(self._state, shard))
        )
        self._state.queue_limits.gain(shard.index)
        shard.next_epoch = shard.first_epoch = (incarnation << 40) + 1
        shard.inherits_mono = 0.0
        if isinstance(self._replicator, InheritanceDelay):
            shard.inherits_mono = self._replicator.inherits_at(shard.index)
        shard.swept_ms = self._state.seq // 1000
        noted: list[Noted] = []
        notes = iter(note_leases(self._state, shard, noted))
        while True:
            with coalescer.loading():
                if next(notes, _END) is _END:
                    break
            await self._state.spawner.checkpoint()
            coalescer.check_election(election)
        slices = lease_slices(self._state, noted)
        while True:
            with coalescer.loading():
                groups = next(slices, None)
            if groups is None:
                break
            for group in groups.values():
                await coalescer.wait(group)
            coalescer.check_election(election)
        await in_slices(
            self._state, _while_elected(coalescer, election, deadline_slices(self._state, shard))
        )
        coalescer.serve()  # with no await since the last check: from now on rows come in
        self._state.queue_limits.share_out()

    async def _write_dedup_secret(
        self, coalescer: ReplicatedCoalescer, shard: Shard, election: Group | None
    ) -> None:
        """Put the secret of dedup hashes into the log, as the first leader of a shard.

        Nothing else is written to the shard before it serves, so its old entries can be counted.
        """
        if coalescer.overlay.get(SECRET) is not None:
            return
        state, count, lower = self._state, 0, GHOST
        while True:
            rows, resume = coalescer.overlay.scan(lower, GHOST_END, SLICE)
            ghosts = [attempt(decode_ghost, raw) for _, raw in rows]
            count += sum(ghost is not None and ghost.form == OLD_FORM for ghost in ghosts)
            if resume is None:
                break
            lower = resume
            await state.spawner.checkpoint()
            coalescer.check_election(election)
        known = next((one.secret for one in state.shards if one.secret), None)
        with coalescer.loading():
            group = coalescer.begin()
            group.ops.append((SECRET, encode_secret(known or state.ids.secret())))
            group.ops.append((OLD_GHOSTS, encode_old_ghosts(count) if count else None))
        await coalescer.wait(group)
        coalescer.check_election(election)

    # -- what the commit loop calls ----------------------------------------------------

    def _applied(self, shard: int, ops: Sequence[Op]) -> None:
        if shard in self._coalescers:  # else it is being let go, and no caller sees its rows
            note_rows(self._state, self._state.shards[shard], ops)

    def _deposed(self, shard: int) -> None:
        state = self._state
        if shard not in self._coalescers:
            return
        drop_counts(state, state.shards[shard])
        state.queue_limits.share_out()
        token = self._reloads[shard] = object()
        state.spawner.spawn(partial(self._reload, shard, token), "lodeq-counts")
        state.on_writes_end()

    async def _reload(self, shard: int, token: object) -> None:
        """Count the rows again after losing a shard. A later gain or loss ends this reload."""
        state, coalescer = self._state, self._coalescers.get(shard)
        if coalescer is None or self._reloads[shard] is not token:
            return
        try:
            if coalescer.election is None and not state.is_closed:
                await in_slices(state, self._counts(shard, token))
        except ClosedError:
            pass
        except LodeqError as error:  # nobody awaits this
            state.anomaly(
                f"shard {shard}: its counters cannot be read and are unknown here ({error}): "
                "restore a checkpoint of another replica"
            )


def limits_within(limits: Limits | None, replicator: Replicator | None) -> Limits:
    """The limits of an engine: of a replica, values that fit no entry of its log are refused.

    Raises:
        UsageError: the log takes less than an entry may have whatever anybody enqueues.
    """
    limits = limits if limits is not None else Limits()
    if replicator is None:
        return limits
    if replicator.entry_bytes_max < ENTRY_BYTES_LEAST:
        raise UsageError(
            f"a replicator must take entries of {ENTRY_BYTES_LEAST:,} bytes at least, this one "
            f"takes {replicator.entry_bytes_max:,}"
        )
    most = submission_bytes_max(replicator) - BESIDE_BYTES
    return replace(
        limits,
        payload_bytes_max=min(limits.payload_bytes_max, most),
        headers_bytes_max=min(limits.headers_bytes_max, BESIDE_BYTES // 2),
        result_bytes_max=min(limits.result_bytes_max, most),
    )


async def let_go(replicator: Replicator) -> None:
    """Tell the layer that the engine is gone; an error of its is logged."""
    try:
        await replicator.closed()
    except Exception as error:  # noqa: BLE001 - there is nobody left to tell
        engine_log.anomaly(f"the replication layer failed in closed(): {error!r}")


def _while_elected(
    coalescer: ReplicatedCoalescer, election: Group | None, slices: Generator[None, None, None]
) -> Generator[None, None, None]:
    """Run ``slices`` while the election holds; after a loss there is nothing to build."""
    for _ in slices:
        yield
        coalescer.check_election(election)
