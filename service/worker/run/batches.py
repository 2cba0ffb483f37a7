"""Batches: one call of a function for several tasks, each with a lease and an end of its own.

Every task is a run like any other, whose function hands its item in and waits. So leases, timeouts,
middleware and the stop of a worker are those of single runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, get_args, get_origin

import anyio

from ....errors import UsageError
from ..typed.resolve import caller_names, globals_of, resolved
from .context import run_of_caller
from .forked_child import ChildEnds
from .provided import FROM_SETUP
from .threads import ThreadPermit, Threads

if TYPE_CHECKING:
    from ....engine.runtime.event_loop import TaskHandle
    from .backend import WorkerBackend

__all__ = ["BatchHost", "Batches", "batches_of", "one_of"]


class BatchHost(Protocol):
    """The app, as far as its batches use it."""

    def backend(self) -> WorkerBackend:
        """Return the open store with its clock."""


class _Batch:
    """Items of one call, and what became of each.

    Args:
        threads: of the worker, for a plain function.
    """

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.permit: ThreadPermit | None = None
        self.in_thread = False
        self.items: dict[int, Any] = {}  # of runs that still wait, in the order they came
        self.ends: dict[int, Any] = {}
        self.error: BaseException | None = None
        self.full = anyio.Event()
        self.over = anyio.Event()
        self.count = 0
        self.task: TaskHandle | None = None

    def leave_thread(self) -> None:
        """See ``ThreadRun``: the rest is cancelled as all of it is, by its task."""

    @property
    def raised(self) -> BaseException | None:
        """See ``Lasting``."""
        return None if self.permit is None else self.permit.raised

    def when_free(self, call: Callable[[], object]) -> None:
        """See ``Lasting``."""
        if self.permit is None:
            call()
        else:
            self.permit.when_free(call)


class Batches:
    """Collects the items of a queue into calls.

    Args:
        host: the app.
        function: called with a list of items.
        size: items of one call at most.
        wait_s: seconds that the first item waits for more.
    """

    def __init__(
        self, host: BatchHost, function: Callable[..., Any], size: int, wait_s: float
    ) -> None:
        self._host = host
        self._function = function
        self.size = size
        self._size_now = size
        self._wait_s = wait_s
        self._open: _Batch | None = None

    @contextmanager
    def exactly(self, count: int) -> Iterator[None]:
        """Call the function once so many items have come, and wait for no more. For tests."""
        self._size_now = count
        try:
            yield
        finally:
            self._size_now = self.size

    def one_has_ended(self) -> None:
        """Wait for one item less: inside ``exactly``, a run is over, perhaps without its item."""
        self._size_now -= 1
        batch = self._open
        if batch is not None and batch.count >= self._size_now:
            self._open = None
            batch.full.set()

    async def call(self, item: Any, given: dict[str, Any]) -> Any:
        """Hand one item in; return what the function returned for it, or raise that.

        Args:
            item: of this run.
            given: what the function gets from ``setup``.
        """
        batch, run = self._open, run_of_caller()
        if batch is None:
            threads = None if run is None else run.threads
            batch = self._open = _Batch(threads or Threads(1))
            spawn = self._host.backend().spawner.spawn
            started = batch
            batch.task = spawn(lambda: self._run(started, given), "lodeq-batch")
        number = batch.count
        batch.count += 1
        batch.items[number] = item
        if run is not None:
            run.batch = batch
        if batch.count >= self._size_now:
            self._open = None
            batch.full.set()
        try:
            await batch.over.wait()
        except BaseException:
            batch.items.pop(number, None)
            if not batch.items and batch.task is not None:
                batch.task.cancel()  # nobody waits for it any more
                if self._open is batch:
                    self._open = None
                try:
                    await batch.over.wait()  # it cleans up
                except BaseException:
                    batch.task.cancel()  # for too long
                    raise
            raise
        if batch.error is not None:
            raise batch.error
        end = batch.ends[number]
        if isinstance(end, BaseException):
            raise end
        return end

    async def _run(self, batch: _Batch, given: dict[str, Any]) -> None:
        try:
            backend = self._host.backend()
            await backend.wait(batch.full, backend.clock.mono() + self._wait_s)
            if self._open is batch:
                self._open = None
            if not inspect.iscoroutinefunction(self._function):
                batch.permit = await batch.threads.acquire(batch, backend.spawner)
            items = dict(batch.items)
            if items:
                ends = await self._ends(batch, list(items.values()), given)
                batch.ends = dict(zip(items, ends, strict=True))
        except anyio.get_cancelled_exc_class():
            batch.error = UsageError("the batch was cancelled")
            raise
        except BaseException as error:  # noqa: BLE001 - each of its tasks ends with it
            batch.error = error
        finally:
            if batch.permit is not None:
                batch.permit.end()
            batch.over.set()

    async def _ends(self, batch: _Batch, items: list[Any], given: dict[str, Any]) -> Sequence[Any]:
        if batch.permit is None:
            with ChildEnds():
                value = await self._function(items, **given)
        else:
            value = await batch.permit.call(lambda: self._function(items, **given))
        if value is None:
            return [None] * len(items)
        if not isinstance(value, list | tuple) or len(value) != len(items):
            got = (
                f"{len(value)} of them" if isinstance(value, list | tuple) else type(value).__name__
            )
            raise UsageError(
                f"a batch function returns None, or a list with one entry for each of its "
                f"{len(items)} items, not {got}"
            )
        return value


def one_of(function: Callable[..., Any], batches: Batches) -> Callable[..., Any]:
    """Return a function of one item, which stands for the batch function in the registry.

    Raises:
        UsageError: the function takes no list, or more than that and what comes from ``setup``.
    """
    name = getattr(function, "__name__", repr(function))
    signature = inspect.signature(function)
    first, *others = signature.parameters.values() or [None]
    wrong = [p for p in others if p is not None and p.default is not FROM_SETUP]
    if first is None or wrong or first.kind is not first.POSITIONAL_OR_KEYWORD:
        raise UsageError(f"{name}{signature}: a batch function takes one list of items")
    found, _ = resolved(first.annotation, globals_of(function), caller_names(function))
    given = get_args(found)
    is_list = get_origin(found) in (list, Sequence) and len(given) == 1
    if not (is_list or found in (Any, first.empty, list)):
        raise UsageError(f"{name}{signature}: annotate {first.name} as a list of what one task has")

    async def one(item: Any, **given: Any) -> Any:
        return await batches.call(item, given)

    one.__name__ = one.__qualname__ = name
    one.__doc__ = function.__doc__
    item = inspect.Parameter("item", first.POSITIONAL_OR_KEYWORD)
    one.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[item.replace(annotation=given[0] if is_list else Any), *others],
        return_annotation=Any,
    )
    one.batches = batches  # type: ignore[attr-defined]
    return one


def batches_of(function: Callable[..., Any]) -> Batches | None:
    """Return the batches behind a function of one item; None of any other."""
    found = getattr(function, "batches", None)
    return found if isinstance(found, Batches) else None
