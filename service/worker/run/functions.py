"""Task functions: what ``@app.task`` makes of a function, and how they are enqueued.

Arguments are bound to the signature before anything is written and stored by name: payloads are
maps that read well in a dashboard, parameters may be reordered between two deploys, and a wrong
call fails where it is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ....errors import LodeqError, UsageError
from ....repository.model.values import Backoff, Duration, NewTask, OnConflict, Receipt
from .limits import Rate

if TYPE_CHECKING:
    from ....repository.tasks.lease import Lease
    from ..app import App

__all__ = [
    "NAME_HEADER",
    "TICK_HEADER",
    "BoundTask",
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


@dataclass(frozen=True, slots=True)
class Policy:
    """The options of ``App.task``; see there."""

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
    """The function a task is for; None if no header says so."""
    name = headers.get(NAME_HEADER)
    return name if isinstance(name, str) else None


def _is(kind: Callable[[object], bool], function: Any) -> bool:
    """Whether it is a function of this kind, or an object whose ``__call__`` is."""
    return kind(function) or kind(type(function).__call__)


def _check(function: object, name: str) -> None:
    if isinstance(function, TaskFunction):
        raise UsageError(
            f"{name}: it is a task function already: decorate the function itself, once for each "
            "queue"
        )
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        raise UsageError(f"{name}: a generator runs nothing when it is called: no task function")


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise UsageError(
                f"{name}: arguments are stored by name, so a task function takes no "
                f"positional-only ones ({parameter})"
            )
    return signature


def check_needs_nothing(function: Callable[..., Any]) -> None:
    """A function of cron is called without arguments."""
    signature = inspect.signature(function)
    try:
        signature.bind()
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise UsageError(f"{name}{signature}: cron gives no arguments: {error}") from error


class TaskFunction(Generic[P, R]):
    """A function that may be enqueued. Called, it is the function itself.

    Made by ``App.task`` and ``App.cron``.
    """

    def __init__(
        self, app: App, function: Callable[P, R], name: str, queue: str, policy: Policy
    ) -> None:
        _check(function, name)
        self._app = app
        self.function = function
        self.name = name
        self.queue = queue
        self.policy = policy
        self.is_async = _is(inspect.iscoroutinefunction, function)
        self._signature = _signature(function, name)
        self._plain: BoundTask[P, R] = BoundTask(self, {}, None)
        update_wrapper(self, function, updated=())  # attributes of the function are its own

    def __repr__(self) -> str:
        return f"<TaskFunction {self.name!r} queue={self.queue!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, without any queue."""
        return self.function(*args, **kwargs)

    # -- in ----------------------------------------------------------------------------

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
        """The same function, to be enqueued with these options: those of ``Queue.enqueue``.

        ``durable`` counts for ``enqueue`` only: tasks made by ``new`` take that of the call they
        are given to.
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
        return BoundTask(self, {k: v for k, v in given.items() if v is not None}, durable)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Enqueue a call of the function with these arguments.

        Raises:
            UsageError: the arguments do not fit, or the app has no store; nothing was written.

        Otherwise as ``Queue.enqueue``, including Durability and Cancellation.
        """
        return await self._plain.enqueue(*args, **kwargs)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """A task for ``enqueue_many`` or ``Context.then``. It writes nothing."""
        return self._plain.new(*args, **kwargs)

    async def enqueue_many(
        self, tasks: Iterable[NewTask], *, durable: bool | None = None, atomic: bool = False
    ) -> list[Receipt]:
        """Enqueue many calls, made by ``new``; receipts in the same order.

        Args:
            tasks: of this function, of any tenants.
            durable: as ``Queue.enqueue_many``.
            atomic: all in one batch; then they are of one tenant.

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
            for tenant, places in tenants.items():
                queue = self._app.queue_of(self, tenant)
                # Without names they get the policy of this very queue.
                part = [given[i]._replace(queue=None, tenant=None) for i in places]
                done = await queue.enqueue_many(part, durable=durable, atomic=atomic)
                for i, receipt in zip(places, done, strict=True):
                    receipts[i] = receipt
        except LodeqError as error:
            for i, receipt in zip(places, error.receipts, strict=False):
                receipts[i] = receipt
            error.receipts = receipts
            raise
        return receipts

    def headers_with(self, more: Mapping[str, Any] | None) -> dict[str, Any]:
        """The header that names the function, and these."""
        return {**(more or {}), NAME_HEADER: self.name}

    def payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name."""
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

    # -- out ---------------------------------------------------------------------------

    def arguments(self, lease: Lease, is_named: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments a task brings; raises what is wrong with them."""
        payload = lease.payload
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if isinstance(payload, dict) and all(isinstance(key, str) for key in payload):
            kwargs = payload
        elif is_named:
            raise UsageError(f"the payload of a task for {self.name!r} is no map of arguments")
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
        self, function: TaskFunction[P, R], options: dict[str, Any], durable: bool | None
    ) -> None:
        self._function = function
        self._options = options
        self._tenant: str = options.get("tenant", "")
        self._durable = durable
        self._headers = function.headers_with(options.get("headers"))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """See ``TaskFunction.enqueue``, also for Durability and Cancellation."""
        task = self.new(*args, **kwargs)
        queue = self._function._app.queue_of(self._function, self._tenant)
        options = task._asdict()
        del options["payload"], options["queue"], options["tenant"]
        return await queue.enqueue(task.payload, **options, durable=self._durable)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """See ``TaskFunction.new``."""
        function = self._function
        policy, carry = function.policy, function._app.carry
        options = {
            "priority": policy.priority,
            "ttl": policy.ttl,
            "max_attempts": policy.max_attempts,
            **self._options,
            "tenant": self._tenant,
            "headers": self._headers if carry is None else carry(self._headers),
        }
        return NewTask(function.payload(args, kwargs), queue=function.queue, **options)
