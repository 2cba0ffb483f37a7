"""The app: task functions, their store, and the worker that runs them."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import anyio

from ...engine.records.keyspace import check_name
from ...errors import UsageError
from ...repository.model.arguments import duration_s, length_s
from ...repository.model.values import ALL_TENANTS, Backoff, Codec, Duration
from .app_store import Store, StoreBinding
from .cron import Cron, CronEntry
from .drain import DrainReport, drain
from .registry import Registry, count, make_policy
from .run.functions import TaskFunction, check_needs_nothing
from .run.limits import Gate
from .run.task_run import Handlers, Middleware, format_error
from .signals import signals, until_signalled
from .worker import Worker

if TYPE_CHECKING:
    from ...repository.api.queue import Queue

__all__ = ["App"]

P = ParamSpec("P")
R = TypeVar("R")
Setup = Callable[["App"], AbstractAsyncContextManager[Any]]
QUEUES_MAX = 1024  # queue objects kept, one for each function and tenant


class App(StoreBinding):
    """Task functions and their store. See docs/worker.md.

    ::

        app = App("var/jobs")

        @app.task("mail", timeout=60)
        async def send(to: str) -> None: ...

        async with app, app.work():
            await send.enqueue("a@example.org")

    Args:
        store: a folder for ``lodeq.open``, an address with ``://`` for ``lodeq.connect``, or a
            callable that returns an async context manager of the engine. None: call ``use``.
        name: of this worker, kept with leases and results; host name and process id by default.
        concurrency: runs at once of each queue that has no limit of its own; 1 to 10,000.
        threads: plain functions that run at once, of all queues; 1 to 1,000.
        lease: seconds after which the tasks of a dead process go to another, for queues without
            a lease of their own.
        grace: seconds that runs have to end when the worker stops.
        codec: turns arguments and results into bytes; msgpack by default.
        format_error: makes the reason of a failure from an exception.
        setup: takes the app and returns an async context manager, entered around all work.
        open_options: options of ``lodeq.open`` (``durability="fsync"``), or of ``lodeq.connect``.
    """

    def __init__(
        self,
        store: Store = None,
        *,
        name: str | None = None,
        concurrency: int = 16,
        threads: int = 40,
        lease: Duration = 30.0,
        grace: Duration = 20.0,
        codec: Codec | None = None,
        format_error: Callable[[BaseException], str] = format_error,
        setup: Setup | None = None,
        **open_options: Any,
    ) -> None:
        super().__init__(store, open_options)
        self._name = name
        self._concurrency = count(concurrency, "concurrency", 10_000)
        self._threads = count(threads, "threads", 1_000)
        self._lease_s = length_s(lease)
        self._grace_s = duration_s(grace, "grace")
        self._codec = codec
        self._format_error = format_error
        self._setup = setup
        self._registry = Registry()
        self._middleware: list[Middleware] = []
        self._cron: Cron | None = None
        self._queues: dict[tuple[TaskFunction[..., Any], str], Queue] = {}
        self._wrap: Callable[[Any], Any] | None = None
        self.carry: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None

    def __repr__(self) -> str:
        state = "open" if self._bound is not None else "closed"
        return f"<App {self.name!r} queues={sorted(self._registry.functions)} {state}>"

    @property
    def name(self) -> str:
        """Name of this worker. Computed at each call, because the process may have forked."""
        return self._name if self._name is not None else f"{socket.gethostname()}:{os.getpid()}"

    # -- registration ------------------------------------------------------------------

    def task(
        self,
        queue: str,
        *,
        name: str | None = None,
        max_attempts: int = 5,
        retry: Backoff | None = None,
        timeout: Duration | None = None,
        priority: int = 5,
        ttl: Duration | None = None,
        retention: Duration = 3600.0,
        dead_retention: Duration = 604_800.0,
        lease: Duration | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        max_inflight_per_tenant: int | None = None,
    ) -> Callable[[Callable[P, R]], TaskFunction[P, R]]:
        """Make the decorated function a task function. docs/worker.md describes the options.

        Args:
            queue: the queue of its tasks.
            name: stored with each task, unique in the queue; the function's by default.
            max_attempts: runs before the task is a dead letter, 1 to 65,535.
            retry: how long a failed task waits; ``lodeq.Backoff()`` by default.
            timeout: seconds that one run may take, at least 0.001.
            priority: 0 to 9, 9 is claimed first.
            ttl: seconds after which a task expires unless it is leased.
            retention: seconds that the result is kept.
            dead_retention: seconds that a dead letter is kept.
            lease: seconds, for the queue; the app's by default.
            concurrency: runs at once of the queue in this process, 1 to 10,000; the app's by
                default.
            rate: starts of the queue in a period, ``"100/m"`` or ``"3/10s"``.
            max_inflight_per_tenant: runs at once of one tenant of the queue, 1 to 10,000.

        Raises:
            UsageError: an option is wrong, the name is taken in this queue, or another function of
                the queue has set the same limit.
        """
        check_name(queue, "queue")
        policy = make_policy(
            max_attempts=max_attempts,
            retry=retry,
            timeout=timeout,
            priority=priority,
            ttl=ttl,
            retention=retention,
            dead_retention=dead_retention,
            lease=lease,
            concurrency=concurrency,
            rate=rate,
            max_inflight_per_tenant=max_inflight_per_tenant,
        )

        def register(function: Callable[P, R]) -> TaskFunction[P, R]:
            given = name if name is not None else getattr(function, "__name__", "")
            made = TaskFunction(self, function, given, queue, policy)
            self._registry.add(made)
            return made

        return register

    def cron(
        self,
        expression: str,
        *,
        queue: str = "cron",
        tz: str = "UTC",
        catch_up: Duration = 0.0,
        **options: Any,
    ) -> Callable[[Callable[P, R]], TaskFunction[P, R]]:
        """Enqueue the decorated function at each tick of a cron expression, once over all workers.

        Args:
            expression: five fields as in Debian's cron, or six with seconds in front.
            queue: the queue of the ticks.
            tz: an IANA time zone.
            catch_up: a worker that starts enqueues the latest tick of the last so many seconds.
            options: those of ``task``.

        Raises:
            UsageError: as ``task``; or the expression is wrong, the function has required
                arguments, or the extra is missing.
        """
        try:
            from .cron_ticks import Ticks  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            if error.name != "cronsim":
                raise
            raise UsageError('@app.cron needs an extra: pip install "lodeq[worker]"') from error
        ticks, catch_up_s = Ticks(expression, tz), duration_s(catch_up, "catch_up")
        decorate = self.task(queue, **options)

        def register(function: Callable[P, R]) -> TaskFunction[P, R]:
            check_needs_nothing(function)
            made = decorate(function)
            self._registry.cron.append(CronEntry(made, ticks, catch_up_s))
            return made

        return register

    def middleware(self, function: Middleware) -> Middleware:
        """Call ``await function(context, call_next)`` around every run; the first is outermost."""
        self._middleware.append(function)
        return function

    def instrument(
        self,
        middleware: Middleware,
        queue: Callable[[Any], Any],
        headers: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        """Install tracing: a middleware, a wrapper of queues, a function that adds headers."""
        self._middleware.insert(0, middleware)
        self._wrap, self.carry = queue, headers
        self._queues.clear()

    # -- work --------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop the queues of a store that is closed."""
        self._queues.clear()

    def queue_of(self, function: TaskFunction[..., Any], tenant: str) -> Queue:
        """Return the queue of a function and tenant, with the function's policy."""
        queue = self._queues.get((function, tenant))
        if queue is None:
            policy = function.policy
            queue = self.engine.queue(
                function.queue,
                tenant=tenant,
                max_attempts=policy.max_attempts,
                retention=policy.retention,
                dead_retention=policy.dead_retention,
                backoff=policy.retry,
                codec=self._codec,
            )
            if self._wrap is not None:
                queue = self._wrap(queue)
            if len(self._queues) >= QUEUES_MAX:
                self._queues.clear()
            self._queues[function, tenant] = queue
        return queue

    def _gates(
        self, names: Sequence[str] | None, concurrency: int | None
    ) -> dict[str, tuple[Queue, Gate]]:
        known = self._registry.functions
        unknown = set(names or ()).difference(known)
        if unknown or not known:
            raise UsageError(
                f"no task function has queue {sorted(unknown)}; known queues: {sorted(known)}"
                if known
                else "the app has no task functions"
            )
        at_once = self._concurrency if concurrency is None else count(concurrency, "concurrency")
        found = {}
        for name in names or known:
            shared = self._registry.limits(name)
            lease = self._lease_s if shared.lease is None else shared.lease
            queue = self.engine.queue(name, tenant=ALL_TENANTS, lease=lease, codec=self._codec)
            gate = Gate(
                at_once if shared.concurrency is None else shared.concurrency,
                None if shared.rate is None else shared.rate.fresh(),
                shared.max_inflight_per_tenant,
            )
            found[name] = queue, gate
        return found

    def _handlers(self) -> Handlers:
        return Handlers(
            self._registry.functions, tuple(self._middleware), self._threads, self._format_error
        )

    @asynccontextmanager
    async def prepared(self, *, cron: bool = True) -> AsyncIterator[Cron | None]:
        """Enter what surrounds all work: ``setup``, and the timer of the cron functions."""
        async with AsyncExitStack() as stack:
            if self._setup is not None:
                await stack.enter_async_context(self._setup(self))
            if cron and self._registry.cron:
                self._cron = Cron(self.backend(), self._registry.cron)
                stack.callback(self._forget_cron)
            yield self._cron

    def _forget_cron(self) -> None:
        if self._cron is not None:
            self._cron.close()
        self._cron = None

    @asynccontextmanager
    async def work(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        grace: Duration | None = None,
    ) -> AsyncIterator[Worker]:
        """Run tasks in the background until the block ends; the app must be open.

        Args:
            queues: these only; every worker enqueues cron ticks, whichever queues it serves.
            concurrency: instead of the app's.
            grace: instead of the app's.

        An error that a retry does not help (a poisoned store) stops the worker and becomes
        ``worker.error``; the block goes on.

        Durability: as the calls of the functions. Cancellation: runs are cancelled and their
        tasks released at once, without grace.
        """
        backend, served = self.backend(), self._gates(queues, concurrency)
        grace_s = self._grace_s if grace is None else duration_s(grace, "grace")
        raised: Exception | None = None
        async with self.prepared() as cron:
            worker = Worker(backend, self._handlers(), cron, name=self.name, grace_s=grace_s)
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run, served)
                try:
                    yield worker
                except Exception as error:  # noqa: BLE001 - raised below, outside the exception group
                    raised = error
                finally:
                    worker.stop()
        if raised is not None:
            raise raised

    async def run(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        grace: Duration | None = None,
        leave: Callable[[], object] | None = None,
    ) -> None:
        """Open the store if it is not open, and work until SIGTERM or SIGINT; in the main thread.

        Args:
            queues, concurrency, grace: as ``work``.
            leave: called when all is closed but a thread that cannot be stopped still runs; it
                may end the process.

        Raises:
            LodeqError: the worker stopped by itself; this is its ``error``.

        Durability, Cancellation: as ``work``.
        """
        async with AsyncExitStack() as stack:
            received = stack.enter_context(signals())
            if self._bound is None:
                await stack.enter_async_context(self)
            async with self.work(queues=queues, concurrency=concurrency, grace=grace) as worker:
                await until_signalled(worker, received)
                if worker.has_left_some and leave is not None:
                    await self.engine.close()
                    leave()
        if worker.error is not None:
            raise worker.error

    @asynccontextmanager
    async def lifespan(self, host: object = None) -> AsyncIterator[None]:
        """Open the store and work: ``FastAPI(lifespan=app.lifespan)``, or any ASGI app."""
        async with self, self.work():
            yield

    async def drain(
        self, *, errors: Literal["raise", "keep"] = "raise", limit: int = 10_000
    ) -> DrainReport:
        """Run ready tasks, one after another, until none is left. For tests.

        Args:
            errors: ``raise`` what a function raised, once its lease has ended; or ``keep`` going.
            limit: number of runs.

        Raises:
            LimitError: a task is still ready after ``limit`` runs; perhaps each run puts it back.

        Durability: as the calls of the functions. Cancellation: the task that runs is released.
        """
        if errors not in ("raise", "keep"):
            raise UsageError(f"errors must be 'raise' or 'keep', got {errors!r}")
        if self._cron is not None:
            await self._cron.flush()
        queues = [queue for queue, _ in self._gates(None, None).values()]
        return await drain(
            self.backend(), self._handlers(), queues, limit=limit, raises=errors == "raise"
        )
