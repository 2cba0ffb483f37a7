"""Several processes in one simulation: each can die, freeze and start again on its own.

``SimProcess`` is the event loop of one of them. Its callbacks wait in the line of the simulation's
loop, so one seed picks among the callbacks of all; while one runs, its process is the running loop,
and to the code in it there is no other. A *dead* process runs nothing any more. A *frozen* one
(SIGSTOP, a suspended machine) runs what has waited once it is thawed, however late.

``run`` lets one process ask another: the caller gets the answer, or ``GoneError`` when the process
dies first, as it would over a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ...errors import InvariantError, LodeqError
from .loop import SimLoop, _Handle

__all__ = ["GoneError", "SimProcess"]

T = TypeVar("T")


class GoneError(LodeqError):
    """The process died before it answered: nobody knows what became of the call."""


class _ProcessHandle(_Handle):
    """A callback of a process, in the line of the simulation's loop."""

    __slots__ = ("process",)
    process: SimProcess  # assigned by whoever makes it, which spares each callback a call

    def run(self) -> None:
        """Run it as the process, unless that is dead or frozen."""
        process = self.process
        if process.is_dead:
            return
        if process._held is not None:
            process._held.append(self)
            return
        outer = events._get_running_loop()
        events._set_running_loop(process)
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - a loop outlives its callbacks
            process.call_exception_handler({"message": f"a callback failed: {error!r}"})
        finally:
            events._set_running_loop(outer)


class SimProcess(SimLoop):
    """One process of a simulation.

    Args:
        parent: the loop that runs all processes.
        name: shown in error messages.
    """

    def __init__(self, parent: SimLoop, name: str) -> None:
        super().__init__(parent._time, parent._random)
        self.name = name
        self._parent = parent
        self._held: list[_ProcessHandle] | None = None  # None: it is not frozen
        self._asked: dict[asyncio.Future[Any], None] = {}  # in order: a seed repeats it

    def __repr__(self) -> str:
        return f"<SimProcess {self.name}>"

    # -- what happens to it ----------------------------------------------------------------

    def die(self) -> None:
        """End the process: nothing of it runs any more, and whoever asked it hears that."""
        if self.is_dead:
            return
        self.is_dead = True
        self._held = None
        self._parent.call_soon(self._end)

    def close(self) -> None:
        """End the process at once, when the simulation runs no more."""
        self._is_closed = self.is_dead = True
        self._held = None
        self._end()

    def _end(self) -> None:
        for future in self._asked:
            if not future.done():
                future.set_exception(GoneError(f"{self.name} is dead"))
        self._asked.clear()
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            self._bury()
        finally:
            events._set_running_loop(outer)

    def freeze(self) -> None:
        """Stop the process where it is."""
        if self._held is None and not self.is_dead:
            self._held = []

    def thaw(self) -> None:
        """Let it go on: everything that has waited runs."""
        held, self._held = self._held, None
        self._parent._ready += held or ()

    @property
    def is_frozen(self) -> bool:
        """Whether it is frozen."""
        return self._held is not None

    def ask(self, call: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """Run ``call`` in the process; the future is of the parent's loop.

        It gets the answer, or what the call raises, or ``GoneError``.
        """
        answer: asyncio.Future[T] = self._parent.create_future()
        if self.is_dead:
            answer.set_exception(GoneError(f"{self.name} is dead"))
            return answer
        self._asked[answer] = None

        async def work() -> None:
            try:
                value = await call()
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                self._parent.call_soon(self._answer, answer, None, error)
            else:
                self._parent.call_soon(self._answer, answer, value, None)

        self.create_task(work())
        return answer

    def look(self, fn: Callable[[], T]) -> T:
        """Call ``fn`` at once as this process: for a test that looks into it."""
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return fn()
        finally:
            events._set_running_loop(outer)

    def _answer(
        self, answer: asyncio.Future[Any], value: object, error: BaseException | None
    ) -> None:
        self._asked.pop(answer, None)
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)

    # -- scheduling ------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        """Make a callback ready, among those of all processes."""
        handle = _ProcessHandle(callback, args, context, self._time.now_s)
        handle.process = self
        self._parent._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        """Make a callback ready at ``when``."""
        handle = _ProcessHandle(callback, args, context, when)
        handle.process = self
        self._parent._line_up(when, handle)
        return handle

    def run(self, main: Coroutine[Any, Any, T]) -> T | None:
        """Run nothing: the parent's loop runs all processes. Use ``ask``."""
        with contextlib.closing(main):
            raise InvariantError("a process is run by the loop it belongs to")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note the error in the parent's ``complaints``, unless the process is dead."""
        if not self.is_dead:
            self._parent.complaints.append(
                f"{self.name}: {context['message']} {context.get('exception')!r}"
            )
