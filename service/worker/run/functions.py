"""Task functions: the objects that ``@app.task`` returns, and how calls of them are enqueued.

Arguments are bound to the signature before anything is written, and stored by name: payloads are
maps that read well in a dashboard, parameters may be reordered between two deploys, and a wrong
call fails where it is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from ....errors import LodeqError, UsageError
from ....repository.model.arguments import check_retry, duration_s, names_of
from ....repository.model.flows.workflows import OnFailure
from ....repository.model.values import AnyId, Backoff, Codec, Duration, NewTask, OnConflict
from ..typed.signature import TypedSignature
from .batches import batches_of
from .control import Control
from .elsewhere import MisfitError
from .limit_keys import LimitBy, limit_key_of
from .provided import names_from_setup
from .receipt import JobReceipt, ResultHost
from .uniqueness import UniqueBy, uniqueness_of

if TYPE_CHECKING:
    from ....repository.api.queue import Queue

__all__ = [
    "NAME_HEADER",
    "TICK_HEADER",
    "TIMEOUT_HEADER",
    "BoundTask",
    "FunctionHost",
    "Policy",
    "TaskFunction",
    "check_needs_nothing",
    "name_in",
    "without_policy",
]

NAME_HEADER = "lodeq.task"
TICK_HEADER = "lodeq.tick"
TIMEOUT_HEADER = "lodeq.timeout"  # seconds, of a task that departs from its function's
NAME_BYTES_MAX = 256
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class FunctionHost(ResultHost, Protocol):
    """The app, as far as its task functions use it to enqueue their calls."""

    @property
    def codec(self) -> Codec | None:
        """The codec of arguments and results; None for msgpack."""

    carry: Callable[[Mapping[str, Any]], dict[str, Any]] | None
    """Adds headers to every task, a trace context for instance; None adds nothing."""

    def face_of(
        self,
        name: str,
        arguments: Mapping[str, Any],
        labels: Mapping[str, str] | None,
        *,
        is_for_store: bool,
    ) -> dict[str, Any]:
        """Return the options of a call's task that people see it by; see ``App.face_of``."""

    def queue_of(self, function: TaskFunction[..., Any], tenant: str) -> Queue:
        """Return the queue of a function and tenant, with the function's policy."""

    def sync_queue_of(self, function: TaskFunction[..., Any], tenant: str) -> Any:
        """Return the same queue for threads: its calls block."""

    def provided(self, function: TaskFunction[..., Any]) -> dict[str, Any]:
        """Return what ``setup`` yielded, by the function's parameters that ask for it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Options of ``App.task``, checked. docs/worker.md describes each."""

    max_attempts: int
    retry: Backoff
    timeout_s: float | None
    priority: int
    ttl: Duration | None
    retention: Duration
    dead_retention: Duration
    lease: Duration | None
    concurrency: int | None
    queue_concurrency: int | None
    rate: str | None
    key_concurrency: str | None
    max_inflight_per_tenant: int | None

    def carried(self) -> dict[str, Any]:
        """The fields of ``NewTask`` that say what a task's policy is."""
        return {
            "max_attempts": self.max_attempts,
            "retry": self.retry,
            "retention": self.retention,
            "dead_retention": self.dead_retention,
        }


def without_policy(task: NewTask, policy: Policy) -> NewTask:
    """The task for a queue that has this policy: what it carries of the same is left out.

    A task without a policy of its own is enqueued the short way.
    """
    same: dict[str, Any] = {
        name: None for name, value in policy.carried().items() if getattr(task, name) == value
    }
    return task._replace(**same)


def _options(task: NewTask) -> dict[str, Any]:
    """Return what of the task are options of ``Queue.enqueue``."""
    left_out = ("payload", "queue", "tenant")
    return {name: value for name, value in task._asdict().items() if name not in left_out}


def name_in(headers: Mapping[str, Any]) -> str | None:
    """Return the function name in a task's headers, or None if they name none."""
    name = headers.get(NAME_HEADER)
    return name if isinstance(name, str) else None


def _is(kind: Callable[[object], bool], function: Any) -> bool:
    """Return whether it is a function of this kind, or an object whose ``__call__`` is."""
    return kind(function) or kind(type(function).__call__)


def _check(function: object, name: str) -> None:
    if isinstance(function, TaskFunction):
        raise UsageError(
            f"{name} is a task function already: decorate the plain function itself, once for "
            "each queue"
        )
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise UsageError(f"{name}: a generator function runs nothing when called: no task function")


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise UsageError(
                f"{name}: arguments are stored by name, so a task function cannot take "
                f"positional-only ones ({parameter})"
            )
    return signature


def _unknown_argument(signature: inspect.Signature, kwargs: Mapping[str, Any]) -> str:
    """Name the first argument that is no parameter, and the one that it looks like; or nothing.

    Python names a missing one first, which is beside the point where one is misspelt.
    """
    parameters = signature.parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return ""
    for name in kwargs:
        if name not in parameters:
            near = get_close_matches(name, [one for one in parameters if one not in kwargs], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"got an unexpected argument {name!r}{hint}"
    return ""


def check_needs_nothing(function: Callable[..., Any]) -> None:
    """Raise ``UsageError`` if the function has required arguments: cron passes none."""
    signature = inspect.signature(function)
    try:
        signature.bind()
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise UsageError(f"{name}{signature}: cron calls it without arguments: {error}") from error


class TaskFunction(Generic[P, R_co]):
    """A function whose calls can be enqueued. Calling it directly runs the function here.

    Made by ``App.task`` and ``App.cron``.
    """

    def __init__(
        self,
        app: FunctionHost,
        function: Callable[P, R_co],
        name: str,
        queue: str,
        policy: Policy,
        *,
        middleware: Sequence[Any] = (),
        unique: bool = False,
        unique_by: UniqueBy | None = None,
        limit_by: LimitBy | None = None,
    ) -> None:
        _check(function, name)
        self._app = app
        self.function = function
        self.name = name
        self.queue = queue
        self.policy = policy
        self.is_async = _is(inspect.iscoroutinefunction, function)
        self._signature = _signature(function, name)
        self.from_setup = names_from_setup(self._signature)
        self.typed = TypedSignature(function, name, self._signature, self.from_setup, ends=Control)
        self.check_result()
        self.middleware = tuple(middleware)
        if not all(map(callable, self.middleware)):
            raise UsageError(f"{name}: middleware takes functions of a context and call_next")
        self.unique = uniqueness_of(
            name, self.signature, self.typed, unique=unique, unique_by=unique_by
        )
        self.limit_key = limit_key_of(
            name,
            self.signature,
            self.typed,
            key_concurrency=policy.key_concurrency,
            limit_by=limit_by,
        )
        self.batches = batches_of(function)  # of ``App.batch``
        self._plain: BoundTask[P, R_co] = BoundTask(app, self, {}, None)
        update_wrapper(self, function, updated=())  # do not copy attributes set on the function

    def check_result(self) -> None:
        """Raise ``UsageError`` if its results cannot be stored, as far as types are defined yet."""
        if self._app.codec is None:
            self.typed.check_result()

    @property
    def signature(self) -> inspect.Signature:
        """The parameters that a task carries: without those that come from ``setup``."""
        whole = self._signature
        carried = [one for name, one in whole.parameters.items() if name not in self.from_setup]
        return whole.replace(parameters=carried)

    def __repr__(self) -> str:
        return f"<TaskFunction {self.name!r} queue={self.queue!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function here and now, without any queue."""
        return self.function(*args, **kwargs)

    # -- enqueue -----------------------------------------------------------------------

    def options(
        self,
        *,
        tenant: str = "",
        priority: int | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        ttl: Duration | None = None,
        dedup_key: str | bytes | None = None,
        dedup_window: Duration | None = None,
        on_conflict: OnConflict = "return",
        headers: Mapping[str, Any] | None = None,
        max_attempts: int | None = None,
        retry: Backoff | None = None,
        timeout: Duration | None = None,
        retention: Duration | None = None,
        dead_retention: Duration | None = None,
        shard_key: str | bytes | None = None,
        labels: Mapping[str, str] | None = None,
        durable: bool | None = None,
        after: Sequence[AnyId] = (),
        on_failure: OnFailure = "run",
    ) -> BoundTask[P, R_co]:
        """Return the same function, bound to these options of ``Queue.enqueue`` and of ``task``.

        Args:
            tenant: whose tasks they are; empty for the default tenant.
            priority: 0 to 9, 9 is claimed first; None takes the function's.
            delay: seconds until the task may be claimed; not with ``run_at``.
            run_at: an aware datetime before which it is not claimed.
            ttl: seconds after which the task expires unless it is leased; None takes the
                function's.
            dedup_key: at most one live task of the queue and tenant has this key; instead of the
                one that ``unique=`` makes of the arguments.
            dedup_window: seconds from the enqueue for which the key stays taken, if that is longer.
            on_conflict: when the key is taken: ``return`` the holder's receipt, ``raise``
                DuplicateTaskError, or ``replace`` a holder that is not leased.
            headers: a mapping with str keys; ``lodeq.task`` is added.
            max_attempts: 1 to 65,535; None takes the function's.
            retry: how long a failed task waits; None takes the function's.
            timeout: seconds that one run of these tasks may take, at least 0.001, carried in the
                header ``lodeq.timeout``; None takes what the function that runs says.
            retention: seconds that the result is kept; None takes the function's.
            dead_retention: seconds that a dead letter is kept; None takes the function's.
            shard_key: tasks of one key live on one shard; not with ``dedup_key``.
            labels: str to str, to find the task by: at most 8 of 64 bytes as ``key=value``.
            durable: True waits for an fsync, with ``enqueue`` only: tasks made by ``new`` follow
                the call that they are passed to.
            after: ids of at most 255 tasks, which these wait for; not with ``delay``, ``run_at``.
            on_failure: what follows when one of ``after`` did not complete: ``run``, ``wait`` or
                ``cancel``.
        """
        names_of(self.queue, tenant)  # None names no tenant
        given = {
            "tenant": tenant,
            "delay": delay,
            "run_at": run_at,
            "dedup_key": dedup_key,
            "dedup_window": dedup_window,
            "on_conflict": on_conflict,
            "headers": headers,
            "shard_key": shard_key,
            "labels": labels,
            "priority": priority,
            "ttl": ttl,
            "max_attempts": max_attempts,
            "retry": None if retry is None else check_retry(retry),
            "retention": retention,
            "dead_retention": dead_retention,
            "after": after or None,
            "on_failure": None if on_failure == "run" else on_failure,
        }
        if timeout is not None:
            timeout_s = duration_s(timeout, "timeout", least=0.001)
            given["headers"] = {**(headers or {}), TIMEOUT_HEADER: timeout_s}
        options = {k: v for k, v in given.items() if v is not None}
        return BoundTask(self._app, self, options, durable)

    @overload
    async def enqueue(
        self: TaskFunction[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> JobReceipt[T]: ...

    @overload
    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobReceipt[R_co]: ...

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Enqueue a call of the function with these arguments.

        Raises:
            UsageError: the arguments do not match the signature and its annotations, or the app
                has no open store; nothing was written.

        Otherwise as ``Queue.enqueue``, including Durability and Cancellation.
        """
        return await self._plain.enqueue(*args, **kwargs)

    @overload
    def enqueue_sync(
        self: TaskFunction[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> JobReceipt[T]: ...

    @overload
    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobReceipt[R_co]: ...

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Enqueue a call from a thread without an event loop, which it blocks.

        In threads beside the loop of ``async with app:``; inside ``with app:``; and, where the
        app's store is an address, anywhere: the first call connects.

        Raises:
            UsageError: as ``enqueue``; or an event loop runs in this thread.

        Otherwise as ``enqueue``, including Durability. Cancellation: interrupted, it may happen.
        """
        return self._plain.enqueue_sync(*args, **kwargs)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Make a task for ``enqueue_many`` or ``Context.then``, without writing anything."""
        return self._plain.new(*args, **kwargs)

    @overload
    async def enqueue_many(
        self: TaskFunction[P, Coroutine[Any, Any, T]],
        tasks: Iterable[NewTask],
        *,
        durable: bool | None = None,
        atomic: bool = False,
    ) -> list[JobReceipt[T]]: ...

    @overload
    async def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> list[JobReceipt[R_co]]: ...

    async def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> Any:
        """Enqueue many calls, made by ``new``; return receipts in the same order.

        Args:
            tasks: tasks of this function, of any tenants.
            durable: as ``Queue.enqueue_many``.
            atomic: write all in one batch; then all must have the same tenant.

        Otherwise as ``Queue.enqueue_many``, including Durability and Cancellation.
        """
        given = list(tasks)
        tenants: dict[str, list[int]] = {}
        for i, task in enumerate(given):
            if not isinstance(task, NewTask) or name_in(task.headers or {}) != self.name:
                error = UsageError(f"enqueue_many takes what {self.name}.new() returns")
                error.at(i)
                raise error
            tenants.setdefault(task.tenant or "", []).append(i)
        if atomic and len(tenants) > 1:
            raise UsageError("atomic=True takes tasks of one tenant")
        receipts: list[Any] = [None] * len(given)
        try:
            for tenant, positions in tenants.items():
                queue = self._app.queue_of(self, tenant)
                # The queue has the function's policy: what they carry beyond that is kept.
                part = [
                    without_policy(given[i], self.policy)._replace(queue=None, tenant=None)
                    for i in positions
                ]
                done = await queue.enqueue_many(part, durable=durable, atomic=atomic)
                for i, receipt in zip(positions, done, strict=True):
                    receipts[i] = receipt
        except LodeqError as error:
            if isinstance(error, UsageError) and error.index is not None:
                error.at(positions[error.index])
            for i, receipt in zip(positions, error.receipts, strict=False):
                receipts[i] = receipt
            error.receipts = receipts
            raise
        return [JobReceipt.of(receipt, self._app, self.typed) for receipt in receipts]

    def headers_with(self, more: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return these headers with the one that names the function."""
        return {**(more or {}), NAME_HEADER: self.name}

    def payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, as they are stored: the payload of a task."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            why = _unknown_argument(self._signature, kwargs) or error
            raise UsageError(f"{self.name}{self._signature}: {why}") from error
        self._check_stored(bound.arguments)
        values: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if self._signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                values.update(value)
            else:
                values[name] = value
        return self.typed.encode(values)

    # -- run ---------------------------------------------------------------------------

    def arguments(self, payload: Any, is_named: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Read the call's arguments from a task's payload.

        Raises:
            UsageError: they do not match the signature and its annotations.
        """
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if isinstance(payload, dict) and all(isinstance(key, str) for key in payload):
            kwargs = payload
        elif is_named:
            raise UsageError(f"the payload of a task for {self.name!r} is not a map of arguments")
        else:
            args = (payload,)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            why = _unknown_argument(self._signature, kwargs) or error
            raise MisfitError(f"{self.name}{self._signature}: {why}") from error
        self._check_stored(bound.arguments)
        values = self.typed.decode(kwargs if not args else bound.arguments)
        return (), values | self._app.provided(self) if self.from_setup else values

    def _check_stored(self, arguments: Mapping[str, Any]) -> None:
        """Raise ``UsageError`` if a task carries what comes from ``setup``."""
        if not self.from_setup.isdisjoint(arguments):
            name = min(self.from_setup.intersection(arguments))
            raise UsageError(f"{self.name}(): {name} comes from App(setup=…), not with the task")


class BoundTask(Generic[P, R_co]):
    """A task function with options. See ``TaskFunction.options``."""

    def __init__(
        self,
        app: FunctionHost,
        function: TaskFunction[P, R_co],
        options: dict[str, Any],
        durable: bool | None,
    ) -> None:
        self._app = app
        self._function = function
        self._options = options
        self._tenant: str = options.get("tenant", "")
        self._durable = durable
        self._headers = function.headers_with(options.get("headers"))

    @overload
    async def enqueue(
        self: BoundTask[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> JobReceipt[T]: ...

    @overload
    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobReceipt[R_co]: ...

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """See ``TaskFunction.enqueue``, also for Durability and Cancellation."""
        task = self._alone(args, kwargs)
        queue = self._app.queue_of(self._function, self._tenant)
        receipt = await queue.enqueue(task.payload, **_options(task), durable=self._durable)
        return JobReceipt.of(receipt, self._app, self._function.typed)

    @overload
    def enqueue_sync(
        self: BoundTask[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> JobReceipt[T]: ...

    @overload
    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobReceipt[R_co]: ...

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """See ``TaskFunction.enqueue_sync``, also for Durability and Cancellation."""
        task = self._alone(args, kwargs)
        queue = self._app.sync_queue_of(self._function, self._tenant)
        receipt = queue.enqueue(task.payload, **_options(task), durable=self._durable)
        return JobReceipt.of(receipt, self._app, self._function.typed)

    def _alone(self, args: Any, kwargs: Any) -> NewTask:
        """Return the task for its function's own queue object, which has the rest of the policy."""
        task = without_policy(self._task(args, kwargs, is_for_store=True), self._function.policy)
        return task._replace(queue=None, tenant=None)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """See ``TaskFunction.new``."""
        return self._task(args, kwargs, is_for_store=False)

    def _task(self, args: Any, kwargs: Any, *, is_for_store: bool) -> NewTask:
        """Return a task; ``is_for_store``: it goes into the app's own store, and no other."""
        function = self._function
        policy, carry = function.policy, self._app.carry
        options = {
            "priority": policy.priority,
            "ttl": policy.ttl,
            **policy.carried(),
            **self._options,
            "tenant": self._tenant,
            "headers": self._headers if carry is None else carry(self._headers),
        }
        arguments = function.payload(args, kwargs)
        if function.unique is not None and "dedup_key" not in options:
            options["dedup_key"] = function.unique.key(arguments, args, kwargs)
        labels = options.pop("labels", None)
        if function.limit_key is not None:
            labels = function.limit_key.labels(labels, arguments, args, kwargs)
        options |= self._app.face_of(function.name, arguments, labels, is_for_store=is_for_store)
        return NewTask(arguments, queue=function.queue, **options)
