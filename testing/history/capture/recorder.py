"""The recorder: calls the operations of an engine and emits a record before and after each.

``["i", …]`` is emitted before the call, ``["a", …]`` right after it returned (``["e", …]``,
``["u", …]`` or ``["c", …]`` if it raised). So the history holds exactly what a user of the engine
could know, and the death of the process loses none of it if ``emit`` writes each record at once
(``HistoryFile``). docs/history.md describes the records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from ....errors import (
    BusyError,
    ClosedError,
    DuplicateTaskError,
    LeaseLostError,
    LodeqError,
    NotLeaderError,
    StorageFullError,
    StoragePoisonedError,
    TaskNotFoundError,
    UsageError,
)
from ....repository.api.engine import Engine
from ....repository.api.queue import LEASE_S, Queue, options_of
from ....repository.api.view import view_of
from ....repository.model.arguments import duration_s
from ....repository.model.queue_settings import label_of, parse_rate
from ....repository.model.values import AnyId, Duration, NewTask, Receipt
from ....repository.tasks.lease import Lease
from ..rules import broken
from .contents import HEADER, contents, number_in
from .flows import FlowRecorder
from .serialise import (
    bytes_of,
    hex_of,
    home_of,
    serialise_delay,
    serialise_options,
    serialise_queue,
    serialise_receipts,
    size_of,
)

__all__ = ["Recorder"]

T = TypeVar("T")
Show = Callable[[Any], Any]

# Errors after which an operation that is one batch of one shard has changed nothing.
_NOTHING = (
    UsageError,
    LeaseLostError,
    TaskNotFoundError,
    DuplicateTaskError,
    BusyError,
    StorageFullError,
    StoragePoisonedError,
    ClosedError,
    NotLeaderError,
)
# Operations of several batches: some may be written although the call failed.
_SEVERAL = frozenset(
    {"claim", "claim_dead", "enqueue_many", "complete_many", "purge", "redrive", "fsync"}
)
_CHUNK_BYTES = 1 << 20  # half the limit of one batch of an enqueue_many
_RETENTION_S, _DEAD_RETENTION_S, _ATTEMPTS = 3600.0, 604_800.0, 5  # defaults of Engine.queue


class Recorder:
    """The operations of an engine, each recorded before and after.

    ::

        recorder = lodeq.testing.Recorder(engine, lodeq.testing.HistoryFile("history"))
        await recorder.enqueue(engine.queue("mail"), {"to": "a@example.org"})

    Every task of the store must go through it, also over several processes, one after another.

    Args:
        engine: an open engine.
        emit: takes each record, a list that JSON can hold.
        first_number: of the first task; a process that goes on after another has died passes
            ``History.next_number``.
        first_op: of the first operation; then ``History.next_op``.
        in_payload: put the number in front of the payload (which is then bytes), not into a
            header. The attribute may be changed at any time.
    """

    def __init__(
        self,
        engine: Engine,
        emit: Callable[[list[Any]], object],
        *,
        first_number: int = 1,
        first_op: int = 1,
        in_payload: bool = False,
    ) -> None:
        self.engine = engine
        self.in_payload = in_payload
        self.next_number = first_number
        self.next_op = first_op
        self._emit = emit
        self._view = view_of(engine)
        self._clock = self._view.clock
        self.flows = FlowRecorder(engine, self.emit)

    def emit(self, *record: Any) -> None:
        """Emit one record with both clocks."""
        self._emit([*record, self._clock.wall_us(), round(self._clock.mono() * 1e6)])

    def number_of(self, lease: Lease) -> int | None:
        """Return the number of a claimed task."""
        number = lease.headers.get(HEADER)
        return number if isinstance(number, int) else number_in({}, lease.payload)

    async def _call(
        self,
        kind: str,
        params: dict[str, Any],
        make: Callable[[], Awaitable[T]],
        show: Show | None = None,
    ) -> T:
        op = self.next_op
        self.next_op += 1
        self.emit("i", op, kind, params)
        try:
            answer = await make()
        except Exception as error:
            self._emit_error(op, kind, error)
            raise
        except BaseException:
            self.emit("c", op)
            raise
        self.emit("a", op, show(answer) if show is not None else None)
        return answer

    def _emit_error(self, op: int, kind: str, error: Exception) -> None:
        name = type(error).__name__
        receipts = error.receipts if isinstance(error, LodeqError) else ()
        is_whole = kind not in _SEVERAL or isinstance(error, UsageError | TaskNotFoundError)
        if receipts or not is_whole or not isinstance(error, _NOTHING):
            shown = serialise_receipts(receipts) if kind == "enqueue_many" and receipts else None
            self.emit("u", op, name, shown)
            return
        task_id = error.task_id if isinstance(error, DuplicateTaskError) else b""
        self.emit("e", op, name, task_id.hex() or None)

    # -- enqueue ---------------------------------------------------------------------------

    async def enqueue(
        self, queue: Queue, task: Any, *, durable: bool | None = None, **options: Any
    ) -> Receipt:
        """Call ``queue.enqueue`` with a payload and options, or with a ``NewTask``.

        Args:
            queue: the queue.
            task: the payload, or a ``NewTask`` that has the options in it.
            durable: as ``Queue.enqueue``.
            options: of the payload, as ``Queue.enqueue``.
        """
        new = task if isinstance(task, NewTask) else NewTask(task, **options)
        fields, new = self._number(new, queue)
        params: dict[str, Any] = {"tasks": [fields]}
        if durable:
            params["durable"] = True

        def make() -> Awaitable[Receipt]:
            return queue.enqueue(
                new.payload,
                priority=new.priority,
                delay=new.delay,
                run_at=new.run_at,
                ttl=new.ttl,
                dedup_key=new.dedup_key,
                dedup_window=new.dedup_window,
                on_conflict=new.on_conflict,
                headers=new.headers,
                max_attempts=new.max_attempts,
                shard_key=new.shard_key,
                labels=new.labels,
                durable=durable,
            )

        return await self._call(
            "enqueue", params, make, lambda receipt: serialise_receipts([receipt])
        )

    async def enqueue_many(
        self,
        tasks: Sequence[NewTask],
        *,
        queue: Queue | None = None,
        durable: bool | None = None,
        atomic: bool = False,
    ) -> list[Receipt]:
        """Call ``queue.enqueue_many``, or without a queue ``engine.enqueue_many``.

        Args:
            tasks: the tasks; without a queue each names its own.
            queue: the queue, or None.
            durable: as ``Queue.enqueue_many``.
            atomic: as ``Queue.enqueue_many``.
        """
        numbered = [self._number(task, queue) for task in tasks]
        new = [task for _, task in numbered]
        params: dict[str, Any] = {"tasks": [fields for fields, _ in numbered]}
        if durable:
            params["durable"] = True
        if not atomic and sum(size_of(task) for task in new) > _CHUNK_BYTES:
            params["split"] = True

        def make() -> Awaitable[list[Receipt]]:
            home = self.engine if queue is None else queue
            return home.enqueue_many(new, durable=durable, atomic=atomic)

        return await self._call("enqueue_many", params, make, serialise_receipts)

    def _number(
        self, task: NewTask, queue: Queue | None, parent: Lease | None = None
    ) -> tuple[dict[str, Any], NewTask]:
        """Return the fields of a task's record, and the task with its number."""
        number = self.next_number
        self.next_number += 1
        headers: Mapping[str, Any] | None = task.headers
        payload = task.payload
        if headers is not None and HEADER in headers:
            raise UsageError(f"the header {HEADER!r} is reserved for the recorder")
        if self.in_payload:
            if not isinstance(payload, bytes):
                raise UsageError("with in_payload the payload must be bytes")
            payload = b"%d:%b" % (number, payload)
        else:
            headers = {**(headers or {}), HEADER: number}
        own = queue is not None and task.queue is None and task.tenant is None
        defaults = options_of(queue) if queue is not None and own else None
        fields: dict[str, Any] = {"n": number, **home_of(task, queue, parent)}
        most = task.max_attempts
        if most is None:
            most = defaults.max_attempts if defaults else _ATTEMPTS
        fields["attempts"] = most
        kept_s = defaults.retention_s if defaults else _RETENTION_S
        dead_s = defaults.dead_retention_s if defaults else _DEAD_RETENTION_S
        if task.retention is not None:
            kept_s = duration_s(task.retention, "retention")
        if task.dead_retention is not None:
            dead_s = duration_s(task.dead_retention, "dead_retention")
        fields["retention_us"] = round(kept_s * 1e6)
        fields["dead_retention_us"] = round(dead_s * 1e6)
        serialise_options(fields, task)
        return fields, task._replace(headers=headers, payload=payload)

    # -- leases ----------------------------------------------------------------------------

    async def claim(
        self,
        queues: Queue | Sequence[str | Queue],
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        exported: bool = False,
    ) -> list[Lease]:
        """Call ``queue.claim``, or for a list ``engine.claim``.

        Args:
            queues: a queue, or a list of queues and queue names.
            limit: tasks at most.
            lease: seconds; the shortest lease of the queues by default.
            wait: seconds to wait for a task.
            worker: name kept with the leases.
            exported: the lease outlives this process.
        """
        several = [queues] if isinstance(queues, Queue) else list(queues)
        options = [options_of(q) for q in several if isinstance(q, Queue)]
        own_s = [one.lease_s for one in options] + [LEASE_S] * (len(several) - len(options))
        lease_s = duration_s(min(own_s, default=LEASE_S) if lease is None else lease, "lease")
        params: dict[str, Any] = {
            "queues": [serialise_queue(queue) for queue in several],
            "limit": limit,
            "lease_us": int(lease_s * 1e6),
        }
        if exported:
            params["exported"] = True
        if any(one.boost_after_s is not None for one in options):
            params["starvation"] = True

        def make() -> Awaitable[list[Lease]]:
            if isinstance(queues, Queue):
                return queues.claim(
                    limit=limit, lease=lease, wait=wait, worker=worker, exported=exported
                )
            return self.engine.claim(
                several, limit=limit, lease=lease, wait=wait, worker=worker, exported=exported
            )

        sick = self._view.refusing_shards()
        leases = await self._call("claim", params, make, self._delivered)
        if len(leases) < limit and self._view.refusing_shards() > sick:
            # Tasks it took on a shard that failed meanwhile are recorded as another, unknown claim.
            op = self.next_op
            self.next_op += 1
            self.emit("i", op, "claim", {**params, "limit": limit - len(leases)})
            self.emit("u", op, "CommitUnknownError", None)
        return leases

    async def claim_dead(
        self,
        queue: Queue,
        *,
        limit: int = 1,
        lease: Duration | None = None,
        wait: Duration = 0.0,
        worker: str = "",
        exported: bool = False,
    ) -> list[Lease]:
        """Call ``queue.claim(dead=True)``.

        Args:
            queue: of one tenant.
            limit: dead letters at most.
            lease: seconds; None uses the queue's.
            wait: seconds to wait for one.
            worker: name kept with the leases.
            exported: the lease outlives this process.
        """
        own_s = options_of(queue).lease_s
        lease_s = own_s if lease is None else duration_s(lease, "lease")
        name, tenant = serialise_queue(queue)
        params: dict[str, Any] = {
            "queue": name,
            "tenant": tenant,
            "limit": limit,
            "lease_us": int(lease_s * 1e6),
        }
        if exported:
            params["exported"] = True

        def make() -> Awaitable[list[Lease]]:
            return queue.claim(
                limit=limit, lease=lease, wait=wait, worker=worker, exported=exported, dead=True
            )

        return await self._call("claim_dead", params, make, self._delivered)

    def _delivered(self, leases: list[Lease]) -> list[list[Any]]:
        return [[self.number_of(x), x.task_id.hex(), x.attempt, x.epoch] for x in leases]

    def _of(self, lease: Lease, **params: Any) -> dict[str, Any]:
        return {"n": self.number_of(lease), "epoch": lease.epoch, **params}

    async def complete(
        self,
        lease: Lease,
        result: Any = None,
        *,
        then: Sequence[NewTask] = (),
        keep: bool = True,
        durable: bool | None = None,
    ) -> None:
        """Call ``lease.complete``.

        Args:
            lease: the lease.
            result: kept with the task.
            then: follow-ups, written in the same batch.
            keep: False keeps no result.
            durable: as ``Lease.complete``.
        """
        numbered = [self._number(task, None, lease) for task in then]
        params = self._of(lease)
        if numbered:
            params["then"] = [fields for fields, _ in numbered]
        if not keep:
            params["keep"] = False
        if result is None:
            params["value"] = False
        if durable:
            params["durable"] = True
        new = [task for _, task in numbered]
        await self._call(
            "complete",
            params,
            lambda: lease.complete(result, then=new, keep=keep, durable=durable),
        )

    async def complete_many(
        self, pairs: Sequence[tuple[Lease, Any]], *, durable: bool | None = None
    ) -> list[LeaseLostError | None]:
        """Call ``engine.complete_many``."""
        params: dict[str, Any] = {"pairs": [[self.number_of(x), x.epoch] for x, _ in pairs]}
        if any(result is None for _, result in pairs):
            params["value"] = False
        if durable:
            params["durable"] = True
        if sum(bytes_of(result) for _, result in pairs) > _CHUNK_BYTES:
            params["split"] = True
        return await self._call(
            "complete_many",
            params,
            lambda: self.engine.complete_many(pairs, durable=durable),
            lambda answer: [error is None for error in answer],
        )

    async def nack(self, lease: Lease, *, delay: Duration | None = None, reason: str = "") -> None:
        """Call ``lease.nack``."""
        params = self._of(lease, **serialise_delay(delay))
        await self._call("nack", params, lambda: lease.nack(delay=delay, reason=reason))

    async def release(self, lease: Lease, *, delay: Duration | None = None) -> None:
        """Call ``lease.release``."""
        params = self._of(lease, **serialise_delay(delay))
        await self._call("release", params, lambda: lease.release(delay=delay))

    async def bury(self, lease: Lease, reason: str = "") -> None:
        """Call ``lease.bury``."""
        await self._call("bury", self._of(lease), lambda: lease.bury(reason))

    async def redrive_lease(self, lease: Lease) -> None:
        """Call ``lease.redrive``."""
        await self._call("redrive_lease", self._of(lease), lease.redrive)

    async def cancel_lease(self, lease: Lease) -> None:
        """Call ``lease.cancel``."""
        await self._call("cancel_lease", self._of(lease), lease.cancel)

    async def heartbeat(self, lease: Lease, seconds: Duration | None = None) -> datetime:
        """Call ``lease.heartbeat``."""
        length = lease.lease_s if seconds is None else duration_s(seconds, "seconds")
        params = self._of(lease, seconds_us=int(length * 1e6))
        return await self._call("heartbeat", params, lambda: lease.heartbeat(seconds))

    # -- operating -------------------------------------------------------------------------

    async def cancel(self, task_id: AnyId) -> bool:
        """Call ``engine.cancel``."""
        params = {"id": hex_of(task_id)}
        return await self._call("cancel", params, lambda: self.engine.cancel(task_id), bool)

    async def redrive(self, queue: Queue, ids: Sequence[AnyId] | None = None) -> int:
        """Call ``queue.redrive``."""
        name, tenant = serialise_queue(queue)
        params: dict[str, Any] = {"queue": name, "tenant": tenant}
        if ids is not None:
            params["ids"] = [hex_of(task_id) for task_id in ids]
        return await self._call("redrive", params, lambda: queue.redrive(ids), int)

    async def purge(self, queue: Queue, state: str | None = None) -> int:
        """Call ``queue.purge``."""
        name, tenant = serialise_queue(queue)
        params = {"queue": name, "tenant": tenant, "state": state}
        return await self._call("purge", params, lambda: queue.purge(state), int)

    async def pause(self, queue: Queue) -> None:
        """Call ``queue.pause``, without a record."""
        await queue.pause()

    async def resume(self, queue: Queue) -> None:
        """Call ``queue.resume``, without a record."""
        await queue.resume()

    async def configure(
        self,
        queue: str,
        *,
        rate: str | None = None,
        concurrency: int | None = None,
        key_concurrency: str | None = None,
    ) -> None:
        """Call ``engine.configure`` with all limits of a queue; None takes one back.

        Args:
            queue: its name.
            rate: starts in any window of a period, such as ``"10/s"``.
            concurrency: leases at once.
            key_concurrency: leases at once for each value of a label, such as ``"2/customer"``.
        """
        params: dict[str, Any] = {"queue": queue}
        if rate is not None:
            count, period_ms = parse_rate(rate)
            params["rate"] = [count, period_ms * 1000]
        if concurrency is not None:
            params["concurrency"] = concurrency
        if key_concurrency is not None:
            params["keys"] = label_of(key_concurrency)
        call = partial(
            self.engine.configure,
            queue,
            rate=rate,
            concurrency=concurrency,
            key_concurrency=key_concurrency,
        )
        await self._call("configure", params, call)

    async def fsync(self) -> None:
        """Call ``engine.fsync``."""
        await self._call("fsync", {}, self.engine.fsync)

    # -- looking ---------------------------------------------------------------------------

    async def look(self) -> dict[str, Any]:
        """Record the contents of the store and the findings of ``verify``; it must be idle."""
        findings = [repr(finding) for finding in (await self.engine.verify()).findings]
        await self._view.quiesce()
        found = {**contents(self.engine), "findings": findings}
        lost = set(found.pop("lost"))  # a task without its payload is gone
        found["tasks"] = [row for row in found["tasks"] if row[1] not in lost]
        self.emit("found", found)
        return found

    async def drain(
        self,
        queues: Sequence[Queue],
        *,
        within: Duration = 60.0,
        idle: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Claim and complete until nothing is pending or leased, look, and emit ``["drained"]``.

        Args:
            queues: all that hold tasks.
            within: seconds of the engine's monotonic time, after which rule 12 is broken.
            idle: awaited when there is nothing to claim yet, to let time pass.
        """
        until = self._clock.mono() + duration_s(within, "within")
        while any(s.pending or s.leased for s in [await queue.stats() for queue in queues]):
            wait = 0.05 if idle is None else 0.0
            leases = await self.claim(queues, limit=64, wait=wait)
            if leases:
                await self.complete_many([(lease, None) for lease in leases])
            elif idle is not None:
                await idle()
            if self._clock.mono() > until:
                left = [await queue.stats() for queue in queues]
                raise broken(12, f"not empty after {within} s: {left}")
        await self.look()
        self._emit(["drained"])
