"""The app: task functions, their store, and the worker that runs them."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import anyio

from ...engine.records.face import PREVIEW_BYTES_MAX
from ...engine.records.keyspace import check_name
from ...errors import UsageError
from ...repository.api.serve_options import ServeAs
from ...repository.model.arguments import duration_s, length_s
from ...repository.model.calls.functions import PublishedFunction, unknown_function
from ...repository.model.calls.previews import preview_of
from ...repository.model.faces import redacted_labels
from ...repository.model.flows.workflow_handle import Workflow
from ...repository.model.flows.workflows import OnFailure
from ...repository.model.preview_cuts import SEEN_MAX
from ...repository.model.redaction import Redact, redaction_of
from ...repository.model.values import ALL_TENANTS, Backoff, Codec, Duration, NewTask, Receipt
from .app_store import Store, StoreBinding
from .cron import Cron, CronEntry
from .drain import DrainReport, drain
from .limit_settings import publish_limits
from .registry import Registry, count, make_policy
from .report import Beats, published_function
from .run.batches import Batches, one_of
from .run.functions import TaskFunction, check_needs_nothing
from .run.limit_keys import LimitBy
from .run.limits import Gate, RunSlots
from .run.provided import NOTHING, value_from
from .run.reasons import format_error
from .run.task_run import Handlers, Middleware
from .run.uniqueness import UniqueBy
from .signals import Hearing, signals, while_heard
from .store_wait import until_reached
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
        concurrency: runs at once in this process, of all queues; 1 to 10,000.
        threads: plain functions that run at once, of all queues; 1 to 1,000.
        lease: seconds after which the tasks of a dead process go to another, for queues without
            a lease of their own.
        grace: seconds that runs have to end when the worker stops.
        cleanup: seconds that a cancelled run has for its ``finally`` and ``__aexit__`` blocks,
            which may wait meanwhile; 0 cancels each of their waits. On trio always so.
        codec: turns arguments and results into bytes; msgpack by default.
        format_error: makes the reason of a failure from an exception.
        faces: False stores no function, preview and labels with tasks.
        redact: takes the preview of a call, the value of a label or the reason of a failure, and
            returns what of it may be stored; where it raises, nothing of that is. docs/jobs.md.
        setup: takes the app and returns an async context manager, entered around all work.
        serve: let commands, the dashboard and other processes reach the store: see ``lodeq.open``.
        join: with ``serve``, where another process has the store open: connect to it, and take its
            place when it has ended. For services of several processes.
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
        cleanup: Duration = 3.0,
        codec: Codec | None = None,
        format_error: Callable[[BaseException], str] = format_error,
        faces: bool = True,
        redact: Redact | None = None,
        setup: Setup | None = None,
        serve: ServeAs = None,
        join: bool = False,
        **open_options: Any,
    ) -> None:
        super().__init__(store, open_options, serve, is_joining=join)
        self._name = name
        self._concurrency = count(concurrency, "concurrency", 10_000)
        self._threads = count(threads, "threads", 1_000)
        self._lease_s = length_s(lease)
        self._grace_s = duration_s(grace, "grace")
        self._cleanup_s = duration_s(cleanup, "cleanup")
        self._codec = codec
        self._format_error = format_error
        self._has_faces = faces
        self._redaction = redaction_of(redact)
        self._setup = setup
        self._registry = Registry()
        self._middleware: list[Middleware] = []
        self._cron: Cron | None = None
        self._yielded: Any = NOTHING  # by setup, while it is entered
        self._queues: dict[tuple[TaskFunction[..., Any], str], Queue] = {}
        self._sync_queues: dict[tuple[TaskFunction[..., Any], str], tuple[Any, Any]] = {}
        self._wrap: Callable[[Any], Any] | None = None
        self._owns_signals = False  # while ``run`` receives them
        self.carry: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None

    def __repr__(self) -> str:
        state = "open" if self._bound is not None else "closed"
        return f"<App {self.name!r} queues={sorted(self._registry.functions)} {state}>"

    @property
    def name(self) -> str:
        """Name of this worker. Computed at each call, because the process may have forked."""
        return self._name if self._name is not None else f"{socket.gethostname()}:{os.getpid()}"

    @property
    def codec(self) -> Codec | None:
        """The codec of arguments and results; None for msgpack."""
        return self._codec

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
        queue_concurrency: int | None = None,
        rate: str | None = None,
        max_inflight_per_tenant: int | None = None,
        unique: bool = False,
        unique_by: UniqueBy | None = None,
        key_concurrency: str | None = None,
        limit_by: LimitBy | None = None,
        middleware: Sequence[Middleware] = (),
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
            concurrency: runs at once of this function in this process, 1 to 10,000; no limit but
                the app's by default.
            queue_concurrency: leases at once of the queue, over all processes; 1 to 1,000,000.
            rate: starts of the queue in a period, over all processes: ``"100/m"``, ``"3/10s"``.
            max_inflight_per_tenant: runs at once of one tenant of the queue, 1 to 10,000.
            unique: at most one live task of a tenant has the same arguments.
            unique_by: … the same of these: names of parameters, or a callable that gets all
                arguments as attributes and returns a plain value.
            key_concurrency: leases at once of the queue for each value of a label, over all
                processes: ``"2/customer"``. Calls get the label from the parameter of that name.
            limit_by: … from another: the name of a parameter, or a callable that gets all arguments
                as attributes and returns a str, an int, or None for no limit.
            middleware: as ``App.middleware``, around this function alone; inside the app's.

        Raises:
            UsageError: an option is wrong, the name is taken in this queue, or another function of
                the queue has set the same limit.
        """
        if callable(queue):
            name = getattr(queue, "__name__", "the function")
            raise UsageError(f'name the queue of {name}: @app.task("mail"), not @app.task')
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
            queue_concurrency=queue_concurrency,
            rate=rate,
            key_concurrency=key_concurrency,
            max_inflight_per_tenant=max_inflight_per_tenant,
        )

        def register(function: Callable[P, R]) -> TaskFunction[P, R]:
            given = name if name is not None else getattr(function, "__name__", "")
            made = TaskFunction(
                self,
                function,
                given,
                queue,
                policy,
                middleware=middleware,
                unique=unique,
                unique_by=unique_by,
                limit_by=limit_by,
            )
            if made.limit_key is not None and not self._has_faces:
                raise UsageError(
                    f"{given}: key_concurrency goes by a label, and App(faces=False) stores none"
                )
            self._registry.add(made)
            if self._bound is not None:
                self.adopt()
            return made

        return register

    def batch(
        self, queue: str, *, size: int, wait: Duration = 0.0, **options: Any
    ) -> Callable[[Callable[..., Any]], TaskFunction[[Any], Any]]:
        """Make the decorated function take several tasks of a queue in one call.

        ::

            @app.batch("index", size=100, wait=0.5)
            async def index(documents: list[Document]) -> None: ...

            await index.enqueue(Document(…))  # one document: a task of its own

        The function gets a list, and returns None, or a list with one entry for each item, in
        order: the task's result, or an exception (or ``Snooze``, ``Retry``, …) that ends this task
        alone. What it raises ends all tasks of the call. A timeout counts the wait, too.

        Args:
            queue: the queue of its tasks, which has no other function.
            size: tasks of one call at most, 1 to 1,000.
            wait: seconds that the first task waits for more.
            options: those of ``task``; ``concurrency`` counts calls.

        Raises:
            UsageError: as ``task``; or the queue has another function, or the function takes
                something else than a list (and what comes from ``setup``).
        """
        most, wait_s = count(size, "size", 1_000), duration_s(wait, "wait")

        def register(function: Callable[..., Any]) -> TaskFunction[[Any], Any]:
            batches = Batches(self, function, most, wait_s)
            named = {**options, "name": options.get("name") or getattr(function, "__name__", "")}
            made: TaskFunction[[Any], Any] = self.task(queue, **named)(one_of(function, batches))
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

    async def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> list[Receipt]:
        """Enqueue calls of any functions, made by ``new``; return receipts in the same order.

        Each carries its function's policy, queue and tenant.

        Args:
            tasks: from ``function.new(…)``, or any ``NewTask`` that names its queue.
            durable: as ``Engine.enqueue_many``.
            atomic: as ``Engine.enqueue_many``.

        Otherwise as ``Engine.enqueue_many``, including Durability and Cancellation.
        """
        return await self.engine.enqueue_many(tasks, durable=durable, atomic=atomic)

    # -- work --------------------------------------------------------------------------

    def adopt(self) -> None:
        """Have the store encode the functions' tasks with the app's codec, whoever enqueues them.

        So it is known to ``engine.enqueue_many`` and for follow-ups, too.
        """
        if self._codec is not None:
            for name in self._registry.functions:
                self.engine.queue(name, codec=self._codec)

    def forget(self) -> None:
        """Drop the queues of a store that is closed."""
        self._queues.clear()
        self._sync_queues.clear()

    def queue_of(self, function: TaskFunction[..., Any], tenant: str) -> Queue:
        """Return the queue of a function and tenant, with the function's policy."""
        queue = self._queues.get((function, tenant))
        if queue is None:
            queue = self._queue_at(self.engine, function, tenant)
            if self._wrap is not None:
                queue = self._wrap(queue)
            if len(self._queues) >= QUEUES_MAX:
                self._queues.clear()
            self._queues[function, tenant] = queue
        return queue

    def published(self) -> list[PublishedFunction]:
        """The functions, as the store is to know them."""
        cron = {entry.function: entry for entry in self._registry.cron}
        return [
            published_function(
                one,
                cron.get(one),
                has_codec=self._codec is not None,
                faces=self._has_faces,
                is_redacted=self._redaction is not None,
            )
            for several in self._registry.functions.values()
            for one in several.values()
        ]

    def function(self, queue: str, name: str) -> TaskFunction[..., Any]:
        """Return a registered function.

        Raises:
            UsageError: there is none; the text says which there are.
        """
        found = self._registry.functions.get(queue, {}).get(name)
        if found is None:
            raise unknown_function(queue, name, self.published())
        return found

    def sync_queue_of(self, function: TaskFunction[..., Any], tenant: str) -> Any:
        """Return the same queue for threads: its calls block."""
        engine = self.sync_engine()
        found, queue = self._sync_queues.get((function, tenant), (None, None))
        if found is not engine:
            queue = self._queue_at(engine, function, tenant)
            if len(self._sync_queues) >= QUEUES_MAX:
                self._sync_queues.clear()
            self._sync_queues[function, tenant] = engine, queue
        return queue

    def _queue_at(self, engine: Any, function: TaskFunction[..., Any], tenant: str) -> Any:
        policy = function.policy
        return engine.queue(
            function.queue,
            tenant=tenant,
            max_attempts=policy.max_attempts,
            retention=policy.retention,
            dead_retention=policy.dead_retention,
            backoff=policy.retry,
            codec=self._codec,
        )

    async def workflow(
        self,
        callback: NewTask | None = None,
        *,
        key: str | bytes | None = None,
        name: str = "",
        on_failure: OnFailure = "run",
    ) -> Workflow:
        """Open a workflow: ``fn.new(…)`` makes its members and its callback.

        ::

            async with await app.workflow(send.new("boss"), key="report-42") as report:
                await report.add([render.new(page) for page in range(1000)])

        Args:
            callback: runs once when all members have ended; see ``Context.parts``.
            key: whoever opens a workflow with it again gets the same one.
            name: shown to people, at most 128 bytes.
            on_failure: ``run`` the callback all the same, ``wait`` for a redrive, or ``cancel``.

        Raises:
            UsageError: the app has no open store.

        Durability and Cancellation: as ``Engine.workflow``.
        """
        return await self.engine.workflow(callback, key=key, name=name, on_failure=on_failure)

    @property
    def redact_failures(self) -> int:
        """Texts that were not stored because the hook ``redact`` failed."""
        return 0 if self._redaction is None else self._redaction.failures

    def face_of(
        self,
        name: str,
        arguments: Mapping[str, Any],
        labels: Mapping[str, str] | None,
        *,
        is_for_store: bool = False,
    ) -> dict[str, Any]:
        """Return function, preview and labels of a call, as far as they may be stored.

        Args:
            name: of the function.
            arguments: by name.
            labels: as given.
            is_for_store: the task goes into the app's own store. Else a hook of another may have
                to see more of the preview than is stored.
        """
        if not self._has_faces:
            return {}
        bound = self._bound  # None: a task is made before there is a store
        session = None if bound is None else getattr(bound.engine, "session", None)  # of a client
        if session is not None and not session.takes_faces:
            return {"labels": labels} if labels else {}  # asked for: the enqueue says what lacks
        redaction = self._redaction
        is_seen = (
            redaction is not None or bound is None or bound.has_redaction
        )  # before it is stored
        bytes_max = SEEN_MAX if is_seen or not is_for_store else PREVIEW_BYTES_MAX
        preview = preview_of(arguments, bytes_max)
        if redaction is not None:
            preview = redaction(preview)
            if isinstance(labels, Mapping):
                labels = redacted_labels(labels, redaction)
        return {"function": name, "preview": preview, "labels": labels or None}

    def _gates(
        self, names: Sequence[str] | None, concurrency: int | None
    ) -> tuple[dict[str, tuple[Queue, Gate]], RunSlots]:
        known = self._registry.functions
        unknown = set(names or ()).difference(known)
        if unknown or not known:
            raise UsageError(
                f"no task function has queue {sorted(unknown)}; known queues: {sorted(known)}"
                if known
                else 'the app has no task functions: decorate one with @app.task("mail")'
            )
        at_once = self._concurrency if concurrency is None else count(concurrency, "concurrency")
        slots = RunSlots(at_once, self._registry.caps)
        found = {}
        for name in names or known:
            shared = self._registry.limits(name)
            lease = self._lease_s if shared.lease is None else shared.lease
            queue = self.engine.queue(name, tenant=ALL_TENANTS, lease=lease, codec=self._codec)
            sizes = [f.batches.size for f in known[name].values() if f.batches is not None]
            # A call of a batch is one run, of several tasks: they need no slots of the process.
            batch = sizes[0] if sizes else 1
            capacity = self._registry.capacity(name, at_once) * batch
            gate = Gate(
                capacity,
                shared.max_inflight_per_tenant,
                slots if batch == 1 else RunSlots(capacity, {}),
            )
            found[name] = queue, gate
        return found, slots

    def banner(self, queues: Sequence[str] | None = None) -> list[str]:
        """Return what a worker does, one line each: queues with their functions, and cron.

        Args:
            queues: these only; None: all.
        """
        known = self._registry.functions
        served = [name for name in queues or known if name in known]
        return self._registry.banner(served, self._concurrency)

    def _handlers(self) -> Handlers:
        return Handlers(
            self._registry.functions,
            tuple(self._middleware),
            self._threads,
            self._format_error,
            redaction=self._redaction,
            owns_signals=self._owns_signals,
            cleanup_s=self._cleanup_s,
            signatures={(one.queue, one.name): one.signature for one in self.published()},
        )

    @asynccontextmanager
    async def prepared(self, *, cron: bool = True) -> AsyncIterator[Cron | None]:
        """Enter what surrounds all work: ``setup``, and the timer of the cron functions."""
        async with AsyncExitStack() as stack:
            if self._setup is not None:
                self._yielded = await stack.enter_async_context(self._setup(self))
                stack.callback(self._forget_yielded)
            for here in self._registry.functions.values():
                for function in here.values():
                    self.provided(function)  # what is missing is found before anything is claimed
                    function.check_result()
            if cron and self._registry.cron:
                self._cron = Cron(self.backend(), self._registry.cron)
                stack.callback(self._forget_cron)
            yield self._cron

    def provided(self, function: TaskFunction[..., Any]) -> dict[str, Any]:
        """Return what ``setup`` yielded, by the function's parameters that ask for it.

        Raises:
            UsageError: there is no such value, or it is of another class than the annotation.
        """
        kinds = function.typed.kinds
        try:
            return {
                name: value_from(self._yielded, name, kinds.get(name))
                for name in function.from_setup
            }
        except UsageError as error:
            raise UsageError(f"{function.name}(): {error}") from None

    def _forget_yielded(self) -> None:
        self._yielded = NOTHING

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

        First ``rate``, ``queue_concurrency`` and ``key_concurrency`` of its functions become
        settings of their queues in the store. Where another function has set one to another value
        there, ``UsageError`` names both, and no task is run; where an operator has, that stays. See
        docs/limits.md.

        An error that a retry does not help (this process's own store is poisoned) stops the worker
        and becomes ``worker.error``; the block goes on.

        Durability: as the calls of the functions. Cancellation: runs are cancelled and their
        tasks released at once, without grace.
        """
        await self._publish_limits(queues)
        async with self._working(queues, concurrency, grace) as worker:
            yield worker

    async def _publish_limits(self, queues: Sequence[str] | None) -> None:
        served = self._gates(queues, None)[0]
        await publish_limits(self.engine, self._registry, list(served))

    @asynccontextmanager
    async def _working(
        self, queues: Sequence[str] | None, concurrency: int | None, grace: Duration | None
    ) -> AsyncIterator[Worker]:
        backend = self.backend()
        served, slots = self._gates(queues, concurrency)
        grace_s = self._grace_s if grace is None else duration_s(grace, "grace")
        raised: Exception | None = None
        known = self.published()
        async with self.prepared() as cron:
            handlers = self._handlers()
            worker = Worker(backend, handlers, cron, name=self.name, grace_s=grace_s, slots=slots)
            worker.beats = Beats(
                backend,
                self.name,
                tuple(served),
                known,
                lambda: worker.running,
                cron,
                handlers.elsewhere.unknown,
                self._redaction,
            )
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
        opened: Callable[[], object] | None = None,
        leave: Callable[[], object] | None = None,
    ) -> None:
        """Open the store if it is not open, and work until SIGTERM or SIGINT; in the main thread.

        While the store's server is out of reach it waits, and tries again with growing pauses.

        Args:
            queues, concurrency, grace: as ``work``.
            opened: called once, when the store is open and nothing is claimed yet.
            leave: called when all is closed but a thread that cannot be stopped still runs, or when
                a run has cancelled the worker and does not end; it may end the process.

        Raises:
            LodeqError: the worker stopped by itself; this is its ``error``.

        Durability, Cancellation: as ``work``.
        """
        async with AsyncExitStack() as stack:
            received = stack.enter_context(signals())
            self._owns_signals = True
            stack.callback(setattr, self, "_owns_signals", False)
            if self._bound is None:
                enter = partial(stack.enter_async_context, self)
                if not await until_reached(enter, received, is_cut=self._is_others):
                    return
            if opened is not None:
                opened()
            if not await until_reached(partial(self._publish_limits, queues), received):
                return

            async def work(hearing: Hearing) -> None:
                async with self._working(queues, concurrency, grace) as worker:
                    hearing.worker = worker
                    if leave is not None:
                        worker.leave = partial(self._leave, leave, worker)
                    await worker.finished.wait()
                    if worker.has_left_some and worker.leave is not None:
                        await worker.leave()

            worker = await while_heard(work, received)
        if worker is not None and worker.error is not None:
            raise worker.error

    async def _leave(self, leave: Callable[[], object], worker: Worker) -> None:
        await self.engine.close()
        worker.log_unstored()
        leave()

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
        queues = [queue for queue, _ in self._gates(None, None)[0].values()]
        return await drain(
            self.backend(), self._handlers(), queues, limit=limit, raises=errors == "raise"
        )
