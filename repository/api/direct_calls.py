"""Calls whose outcome goes to an object, not to a coroutine that waits for it.

For who answers many callers on one connection: neither a task nor a future of the loop for each
call. They do what the calls of ``Queue`` and ``Lease`` do, in their common form; anything else they
leave alone, and the caller goes the general way.
"""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any

from ...engine.records.result import Status
from ...errors import InvariantError, LeaseLostError
from ..model.faces import packed_face
from ..model.task_options import CONFLICT_DEFAULT
from ..model.values import NewTask
from ..state.engine_state import EngineState
from ..state.long_polls import ClaimBound, LongPoll
from ..tasks import lease_operations
from ..tasks.claim import TURN_TASKS, bounded, drop, serve_waiter, take
from ..tasks.fast_path import submit_claim, submit_complete, submit_plain, submit_plain_many
from ..tasks.lease import Lease
from ..tasks.option_path import submit_keyed, submit_task, submit_tasks
from ..tasks.task_end import End, finish_all, give_back
from .lease_proof import LeaseProof, find
from .queue import Queue

__all__ = ["ClaimOutcome", "DirectCalls", "Outcome"]


class Outcome(ABC):
    """Where the outcome of one call goes: stands where a future does, and must not raise."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False

    def done(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.is_over

    @abstractmethod
    def set_result(self, value: Any, /) -> None:
        """Take the value: what is promised of it holds."""

    @abstractmethod
    def set_exception(self, error: BaseException, /) -> None:
        """Take the error."""

    def __await__(self) -> Generator[Any, Any, Any]:
        raise InvariantError("nobody waits for the outcome of a direct call")


class ClaimOutcome(Outcome):
    """The outcome of a claim: ``granted`` or ``failed`` is called, or it is cancelled."""

    __slots__ = ("_leases", "poll")

    def __init__(self) -> None:
        super().__init__()
        self._leases: Sequence[Any] = ()
        self.poll: LongPoll | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether there was nothing ready so far."""
        return self.poll is not None and self.poll.is_waiting

    def holds(self, leases: Sequence[Any]) -> None:
        """Note the leases whose commit is awaited."""
        self._leases = leases

    @abstractmethod
    def granted(self, leases: Sequence[Lease]) -> None:
        """Take the leases; none where the wait is over."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """Take the error: nothing was granted."""

    def set_result(self, value: Any, /) -> None:
        """See ``Outcome``."""
        self.is_over = True
        self.granted(value)

    def set_exception(self, error: BaseException, /) -> None:
        """See ``Outcome``. The leases are nobody's: their shard is poisoned."""
        self.is_over = True
        drop(self._leases if self.poll is None else self.poll.leases)
        self.failed(error)


class DirectCalls:
    """Direct calls of one engine. Each returns False, with nothing done, for any other form."""

    __slots__ = ("_state",)

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def check(self) -> None:
        """As ``EngineView.check``. Call it before the calls of one turn."""
        self._state.check()

    def enqueue(self, queue: Queue, payload: Any, outcome: Outcome) -> bool:
        """``Queue.enqueue`` without options; its receipt is the outcome.

        Raises: as ``Queue.enqueue``.
        """
        if queue._is_everybodys:
            return False
        submitted = submit_plain(self._state, queue._defaults, payload, None, outcome)
        if submitted is None:
            return False
        if submitted[0] is None:
            outcome.set_result(submitted[1])
        return True

    def enqueue_with(self, queue: Queue, task: NewTask, outcome: Outcome) -> bool:
        """``Queue.enqueue`` with options; the receipt is the outcome.

        Raises: as ``Queue.enqueue``.
        """
        state, shared = self._state, queue._defaults
        fields: Any = task  # of any type: compiled code would refuse a wrong one before we can
        (
            payload,
            _,
            _,
            priority,
            delay,
            run_at,
            ttl,
            key,
            window,
            on_conflict,
            headers,
            _,
            shard_key,
            _,
            _,
            _,
            labels,
            function,
            preview,
            *_,
        ) = fields
        if (
            queue._is_everybodys
            or run_at is not None
            or shard_key is not None
            or on_conflict != CONFLICT_DEFAULT
        ):
            return False
        policy = shared.policy_of(fields)
        face = b""
        has_face = function is not None or preview is not None or labels is not None
        if has_face and shared.faces and state.keeps_faces(shared.queue):
            face = packed_face(function, preview, labels, state.redaction)
        if (
            key is not None
            and delay is None
            and ttl is None
            and headers is None
            and not face
            and policy is shared.policy
        ):
            queued = submit_keyed(state, shared, payload, priority, key, window, None, outcome)
        else:
            queued = submit_task(
                state,
                shared,
                payload,
                priority,
                delay,
                ttl,
                key,
                window,
                headers,
                None,
                face,
                outcome,
                policy,
            )
        return queued is not None

    def enqueue_many(self, queue: Queue, payloads: Sequence[Any], outcome: Outcome) -> bool:
        """``Queue.enqueue_many`` without options; the receipts are the outcome.

        Raises: as ``Queue.enqueue_many``.
        """
        if queue._is_everybodys:
            return False
        tasks = [NewTask(payload) for payload in payloads]
        return submit_plain_many(self._state, queue._defaults, tasks, None, outcome) is not None

    def enqueue_tasks(self, queue: Queue, tasks: Sequence[NewTask], outcome: Outcome) -> bool:
        """``Queue.enqueue_many`` of tasks with options; the receipts are the outcome.

        Raises: as ``Queue.enqueue_many``.
        """
        if queue._is_everybodys:
            return False
        state, shared = self._state, queue._defaults
        queued = submit_plain_many(state, shared, tasks, None, outcome) or submit_tasks(
            state, shared, tasks, None, outcome
        )
        return queued is not None

    def claim(
        self,
        queue: Queue,
        limit: int,
        lease_s: float | None,
        wait_s: float,
        worker: str,
        outcome: ClaimOutcome,
        bound: ClaimBound | None = None,
    ) -> bool:
        """``Queue.claim`` for another process (exported).

        Args:
            queue: of one tenant or of all.
            limit: 1 to 4,096.
            lease_s: seconds; None takes the queue's.
            wait_s: seconds for which to wait for the first task.
            worker: at most 256 bytes.
            outcome: gets the leases. While it waits, ``cancel_claim`` ends that.
            bound: says how many bytes it may take, where that is not one task.

        Raises: as ``Queue.claim``.
        """
        state = self._state
        request = queue._request(limit, lease_s, worker, True)
        if request.is_plain:
            submitted = submit_claim(state, request, outcome)
            if submitted is not None:
                if submitted[0] is None:
                    outcome.set_result(submitted[1])
                else:
                    outcome.holds(submitted[1])
                return True
        elif bound is not None:
            request = bounded(request, bound)
        if limit > TURN_TASKS:
            return False
        for shard in state.shards:
            if shard.coalescer.takes_writes and not shard.coalescer.has_capacity:
                return False
        if wait_s > 0:
            poll = outcome.poll = state.waiters.add(request, wait_s, outcome)
            try:
                if not serve_waiter(state, poll):
                    state.check_healthy()
            except BaseException:
                state.waiters.remove(poll)
                outcome.poll = None
                raise
            return True
        if len(state.shards) > 1:
            return False
        leases, groups = take(state, request)
        if leases:
            (group,) = groups.values()
            outcome.holds(leases)
            group.waiters.append((outcome, leases))
        elif groups:  # only expired tasks so far: look again once they are gone
            return False
        else:
            state.check_empty()
            outcome.set_result(leases)
        return True

    def cancel_claim(self, outcome: ClaimOutcome) -> None:
        """Give up a claim whose outcome nobody wants: what it took goes back."""
        if outcome.is_over:
            return
        outcome.is_over = True
        poll = outcome.poll
        if poll is not None:
            self._state.waiters.remove(poll)
        give_back(self._state, outcome._leases if poll is None else poll.leases)

    def complete(
        self,
        task_id: bytes,
        epoch: int,
        token: bytes,
        result: Any,
        keep: bool,
        outcome: Outcome,
    ) -> bool:
        """``Lease.complete`` of a live lease, by its proof.

        Args:
            task_id: 16 bytes.
            epoch: of the lease.
            token: of the lease.
            result: as ``Lease.complete`` takes it.
            keep: False keeps no result.
            outcome: gets None.

        Raises: as ``Lease.complete``.
        """
        lease: Any = self._state.leases.get(task_id)
        if (
            lease is None
            or lease.epoch != epoch
            or not hmac.compare_digest(lease.token, token)
            or not lease.is_live
        ):
            return False
        submitted = submit_complete(lease, result, keep, None, outcome)
        if submitted is None:
            return False
        if submitted[0] is None:
            outcome.set_result(None)
        return True

    def complete_many(
        self, ends: Sequence[tuple[bytes, int, bytes, Any]], outcome: Outcome
    ) -> bool:
        """``Engine.complete_many`` of live leases of one shard, if they fit one submission.

        Args:
            ends: id, epoch and token of each lease, and its result.
            outcome: gets None: all have ended.

        Raises: as ``Engine.complete_many``.
        """
        state = self._state
        live, make_end = state.leases, lease_operations.encode_result
        encoded: dict[Any, End] = {}
        cost = 0
        for task_id, epoch, token, result in ends:
            lease: Any = live.get(task_id)
            if (
                lease is None
                or lease.epoch != epoch
                or not hmac.compare_digest(lease.token, token)
                or not lease.is_live
                or lease in encoded
            ):
                return False
            end = encoded[lease] = (lease, *make_end(state, lease, result))
            cost += 300 + len(end[2])
        if not encoded:
            return False
        shards = {lease.shard_queue.shard for lease in encoded}
        (shard, *others) = shards
        if others or cost > shard.coalescer.group_bytes_max or not shard.coalescer.has_capacity:
            return False
        group = shard.coalescer.begin(cost)
        with group:
            finish_all(state, group, list(encoded.values()), Status.COMPLETED)
        state.totals.completed += len(encoded)
        group.waiters.append((outcome, None))
        return True

    def heartbeat(self, proof: LeaseProof, seconds: float | None) -> int | None:
        """``Lease.heartbeat`` of a live lease: its deadline in wall microseconds; else None."""
        state = self._state
        lease = find(state, proof)
        if lease is None or not lease.is_live:
            return None
        try:
            lease_operations.heartbeat(lease, lease.lease_s if seconds is None else seconds)
        except LeaseLostError:
            return None
        return self.deadline_us(lease)

    def deadline_us(self, lease: Lease) -> int:
        """When a lease may be reaped, in wall microseconds."""
        clock = self._state.clock
        return clock.wall_us() + round((lease.deadline_mono - clock.mono()) * 1e6)

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Release leases that nobody will work on."""
        give_back(self._state, leases)
