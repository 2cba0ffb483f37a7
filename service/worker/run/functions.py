"""Task functions: the objects that ``@app.task`` returns, and how calls of them are enqueued.

Arguments are bound to the signature before anything is written, and stored by name: payloads are
maps that read well in a dashboard, parameters may be reordered between two deploys, and a wrong
call fails where it is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from ....errors import LodeqError, UsageError
from ....repository.model.values import Backoff, Duration, NewTask, OnConflict, Receipt
from .limits import Rate

if TYPE_CHECKING:
    from ....repository.api.queue import Queue
    from ....repository.tasks.lease import Lease

__all__ = [
    "NAME_HEADER",
    "TICK_HEADER",
    "BoundTask",
    "FunctionHost",
    "Policy",
    "TaskFunction",
    "check_needs_nothing",
    "name_in",
]

NAME_HEADER = "lodeq.task"
TICK_HEADER = "lodeq.tick"
NAME_BYTES_MAX = 256
P = ParamSpec("P")
R = TypeVar("R")


class FunctionHost(Protocol):
    """The app, as far as its task functions use it to enqueue their calls."""

    carry: Callable[[Mapping[str, Any]], dict[str, Any]] | None
    """Adds headers to every task, a trace context for instance; None adds nothing."""

    def queue_of(self, function: TaskFunction[..., Any], tenant: str) -> Queue:
        """Return the queue of a function and tenant, with the function's policy."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Options of ``App.task``, checked. docs/worker.md describes each."""

    max_attempts: int
    retry: Backoff | None
    timeout_s: float | None
    priority: int
    ttl: Duration | None
    retention: Duration
    dead_retention: Duration
    lease: Duration | None
    concurrency: int | None
    rate: Rate | None
    max_inflight_per_tenant: int | None


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


def check_needs_nothing(function: Callable[..., Any]) -> None:
    """Raise ``UsageError`` if the function has required arguments: cron passes none."""
    signature = inspect.signature(function)
    try:
        signature.bind()
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise UsageError(f"{name}{signature}: cron calls it without arguments: {error}") from error


class TaskFunction(Generic[P, R]):
    """A function whose calls can be enqueued. Calling it directly runs the function here.

    Made by ``App.task`` and ``App.cron``.
    """

    def __init__(
        self, app: FunctionHost, function: Callable[P, R], name: str, queue: str, policy: Policy
    ) -> None:
        _check(function, name)
        self._app = app
        self.function = function
        self.name = name
        self.queue = queue
        self.policy = policy
        self.is_async = _is(inspect.iscoroutinefunction, function)
        self._signature = _signature(function, name)
        self._plain: BoundTask[P, R] = BoundTask(app, self, {}, None)
        update_wrapper(self, function, updated=())  # do not copy attributes set on the function

    def __repr__(self) -> str:
        return f"<TaskFunction {self.name!r} queue={self.queue!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
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
        shard_key: str | bytes | None = None,
        durable: bool | None = None,
    ) -> BoundTask[P, R]:
        """Return the same function, bound to these options of ``Queue.enqueue``.

        Args:
            tenant: whose tasks they are; empty for the default tenant.
            priority: 0 to 9, 9 is claimed first; None takes the function's.
            delay: seconds until the task may be claimed; not with ``run_at``.
            run_at: an aware datetime before which it is not claimed.
            ttl: seconds after which the task expires unless it is leased; None takes the
                function's.
            dedup_key: at most one live task of the queue and tenant has this key.
            dedup_window: seconds from the enqueue for which the key stays taken, if that is longer.
            on_conflict: when the key is taken: ``return`` the holder's receipt, ``raise``
                DuplicateTaskError, or ``replace`` a holder that is not leased.
            headers: a mapping with str keys; ``lodeq.task`` is added.
            max_attempts: 1 to 65,535; None takes the function's.
            shard_key: tasks of one key live on one shard; not with ``dedup_key``.
            durable: True waits for an fsync, with ``enqueue`` only: tasks made by ``new`` follow
                the call that they are passed to.
        """
        given = {
            "tenant": tenant,
            "delay": delay,
            "run_at": run_at,
            "dedup_key": dedup_key,
            "dedup_window": dedup_window,
            "on_conflict": on_conflict,
            "headers": headers,
            "shard_key": shard_key,
            "priority": priority,
            "ttl": ttl,
            "max_attempts": max_attempts,
        }
        options = {k: v for k, v in given.items() if v is not None}
        return BoundTask(self._app, self, options, durable)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Enqueue a call of the function with these arguments.

        Raises:
            UsageError: the arguments do not match the signature, or the app has no open store;
                nothing was written.

        Otherwise as ``Queue.enqueue``, including Durability and Cancellation.
        """
        return await self._plain.enqueue(*args, **kwargs)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Make a task for ``enqueue_many`` or ``Context.then``, without writing anything."""
        return self._plain.new(*args, **kwargs)

    async def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> list[Receipt]:
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
                raise UsageError(f"enqueue_many takes what {self.name}.new() returns")
            tenants.setdefault(task.tenant or "", []).append(i)
        if atomic and len(tenants) > 1:
            raise UsageError("atomic=True takes tasks of one tenant")
        receipts: list[Any] = [None] * len(given)
        try:
            for tenant, positions in tenants.items():
                queue = self._app.queue_of(self, tenant)
                # Without queue and tenant of their own they get the policy of this queue.
                part = [given[i]._replace(queue=None, tenant=None) for i in positions]
                done = await queue.enqueue_many(part, durable=durable, atomic=atomic)
                for i, receipt in zip(positions, done, strict=True):
                    receipts[i] = receipt
        except LodeqError as error:
            for i, receipt in zip(positions, error.receipts, strict=False):
                receipts[i] = receipt
            error.receipts = receipts
            raise
        return receipts

    def headers_with(self, more: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return these headers with the one that names the function."""
        return {**(more or {}), NAME_HEADER: self.name}

    def payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name: the payload of a task."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"{self.name}{self._signature}: {error}") from error
        values: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if self._signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                values.update(value)
            else:
                values[name] = value
        return values

    # -- run ---------------------------------------------------------------------------

    def arguments(self, lease: Lease, is_named: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Read the call's arguments from a task's payload.

        Raises:
            UsageError: they do not match the signature.
        """
        payload = lease.payload
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if isinstance(payload, dict) and all(isinstance(key, str) for key in payload):
            kwargs = payload
        elif is_named:
            raise UsageError(f"the payload of a task for {self.name!r} is not a map of arguments")
        else:
            args = (payload,)
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"{self.name}{self._signature}: {error}") from error
        return args, kwargs


class BoundTask(Generic[P, R]):
    """A task function with options. See ``TaskFunction.options``."""

    def __init__(
        self,
        app: FunctionHost,
        function: TaskFunction[P, R],
        options: dict[str, Any],
        durable: bool | None,
    ) -> None:
        self._app = app
        self._function = function
        self._options = options
        self._tenant: str = options.get("tenant", "")
        self._durable = durable
        self._headers = function.headers_with(options.get("headers"))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """See ``TaskFunction.enqueue``, also for Durability and Cancellation."""
        task = self.new(*args, **kwargs)
        queue = self._app.queue_of(self._function, self._tenant)
        options = task._asdict()
        del options["payload"], options["queue"], options["tenant"]
        return await queue.enqueue(task.payload, **options, durable=self._durable)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """See ``TaskFunction.new``."""
        function = self._function
        policy, carry = function.policy, self._app.carry
        options = {
            "priority": policy.priority,
            "ttl": policy.ttl,
            "max_attempts": policy.max_attempts,
            **self._options,
            "tenant": self._tenant,
            "headers": self._headers if carry is None else carry(self._headers),
        }
        return NewTask(function.payload(args, kwargs), queue=function.queue, **options)
