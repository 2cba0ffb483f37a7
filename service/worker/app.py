"""The app: task functions, the store they live in, and what runs them."""

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
QUEUES_MAX = 1024  # objects kept, one a function and tenant


class App(StoreBinding):
    """Task functions and the store they live in. See docs/worker.md.

    ::

        app = App("var/jobs")

        @app.task("mail", timeout=60)
        async def send(to: str) -> None: ...

        async with app, app.work():
            await send.enqueue("a@example.org")

    Args:
        store: a folder, for ``lodeq.open``; an address with ``://``, for ``lodeq.connect``; or
            what gives the engine when it is entered. None: ``use`` one.
        name: of this worker, kept with leases and results; the host's name and process id.
        concurrency: runs at once, of each queue that has no limit of its own; 1 to 10,000.
        threads: plain functions that run at once, of all queues; 1 to 1,000.
        lease: seconds after which the tasks of a dead process are another's, of queues without
            one of their own.
        grace: seconds that what runs has to end when the worker stops.
        codec: how arguments and results become bytes; msgpack by default.
        format_error: makes the reason of a failure of an exception.
        setup: an async context manager of the app, around all work.
        opening: options of ``lodeq.open`` (``durability="fsync"``), or of ``lodeq.connect``.
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
        **opening: Any,
    ) -> None:
        super().__init__(store, opening)
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
        """Of this worker. Asked for when it is needed: the app may have been forked since."""
        return self._name if self._name is not None else f"{socket.gethostname()}:{os.getpid()}"

    # -- what is registered ------------------------------------------------------------

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
        """Make the function below a task function. docs/worker.md has the options.

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
        """Enqueue the function below at each tick of a cron expression, once over all workers.

        Args:
            expression: five fields as in Debian's cron, or six with seconds in front.
            queue: where the ticks go.
            tz: an IANA time zone.
            catch_up: a worker that starts enqueues the latest tick of so many seconds.
            options: those of ``task``.

        Raises:
            UsageError: as ``task``; or the expression is wrong, the function needs arguments, or
                the extra is missing.
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
        """Install what ``service.worker.tracing`` puts around runs, queues and headers."""
        self._middleware.insert(0, middleware)
        self._wrap, self.carry = queue, headers
        self._queues.clear()

    # -- work --------------------------------------------------------------------------

    def forget(self) -> None:
        """The store is gone."""
        self._queues.clear()

    def queue_of(self, function: TaskFunction[..., Any], tenant: str) -> Queue:
        """The queue of a function and tenant, with the function's policy."""
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

    def _served(
        self, names: Sequence[str] | None, concurrency: int | None
    ) -> dict[str, tuple[Queue, Gate]]:
        known = self._registry.functions
        unknown = set(names or ()).difference(known)
        if unknown or not known:
            raise UsageError(
                f"no task function has queue {sorted(unknown)}; there are {sorted(known)}"
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
        """What surrounds all work: ``setup``, and the timer of the cron functions."""
        async with AsyncExitStack() as stack:
            if self._setup is not None:
                await stack.enter_async_context(self._setup(self))
            if cron and self._registry.cron:
                self._cron = Cron(self.ground(), self._registry.cron)
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
            queues: of these only; ticks are enqueued by every worker, whatever it serves.
            concurrency: instead of the app's.
            grace: instead of the app's.

        What cannot be mended by trying again (a poisoned store) stops the worker and is
        ``worker.error``; the block goes on.

        Durability: as the calls of the functions. Cancellation: what runs is cancelled and
        released at once, without any grace.
        """
        ground, served = self.ground(), self._served(queues, concurrency)
        grace_s = self._grace_s if grace is None else duration_s(grace, "grace")
        raised: Exception | None = None
        async with self.prepared() as cron:
            worker = Worker(ground, self._handlers(), cron, name=self.name, grace_s=grace_s)
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run, served)
                try:
                    yield worker
                except Exception as error:  # noqa: BLE001 - raised below: not as one of a group
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
            leave: called when all is closed but something goes on running that cannot be stopped;
                it may end the process.

        Raises:
            LodeqError: why the worker stopped by itself.

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
        """The lifespan of an ASGI app: ``FastAPI(lifespan=app.lifespan)``. Opens and works."""
        async with self, self.work():
            yield

    async def drain(
        self, *, errors: Literal["raise", "keep"] = "raise", limit: int = 10_000
    ) -> DrainReport:
        """Run what is ready, one task after another, until nothing is. For tests.

        Args:
            errors: ``raise`` what a function raised, once its task has been given back; ``keep``
                going.
            limit: of runs.

        Raises:
            LimitError: there is still more: a task that is put back at once by every run?

        Durability: as the calls of the functions. Cancellation: the task that runs is released.
        """
        if errors not in ("raise", "keep"):
            raise UsageError(f"errors {errors!r} is neither 'raise' nor 'keep'")
        if self._cron is not None:
            await self._cron.flush()
        queues = [queue for queue, _ in self._served(None, None).values()]
        return await drain(
            self.ground(), self._handlers(), queues, limit=limit, raises=errors == "raise"
        )
