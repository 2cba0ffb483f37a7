"""Backpressure: the line of callers while ``submit_queue_max`` submissions wait already.

The first to come is the first to be admitted. There are two ways to stand in it:

- *By a call.* The calls a queue lives by leave in the line what submits them, with the future that
  their caller awaits anyway (``enter``). When it is their turn the line makes the call; the caller
  is woken once, by the commit. So that a turn of the event loop stays short, the line makes calls
  of ``TURN_CALLS`` submissions or ``TURN_BYTES`` in a turn, and goes on in the next.
- *In person.* Any other call waits for its admission and then submits (``wait``). For an admitted
  caller one submission is *reserved* until it has had its turn of the event loop, in which it
  submits or gives up. Nobody else gets that one meanwhile.

Nobody overtakes: as long as anybody is in the line or on the way out of it, newcomers stand
behind, and a call behind somebody who has been woken and has yet to submit is not made: its caller
is woken as well, and submits behind him. The same becomes of a caller whose call found that it
needs more than one submission in memory (a claim that finds nothing, a shard that takes no more).

A call that submits to several shards stands in one line after the other. It keeps nothing
reserved on one shard while it waits for another: a stalled shard must not use up the capacity of
those that are well. So it may find more waiting on the earlier ones than ``submit_queue_max``, by
as many submissions as the last line admitted at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from ..engine.runtime.event_loop import Future, Spawner

__all__ = ["ADMITTED", "TURN_CALLS", "SubmitLine"]

ADMITTED: Final = object()  # what the future of a woken caller gets: submit now, yourself
TURN_CALLS: Final = 256  # 2 ms of them; counted, not timed: a simulation repeats it
TURN_BYTES: Final = 2 << 20


# About how many bytes the submission has, what makes it, and with which arguments. A bare tuple:
# one is made for each call that stands in line.
_Call = tuple[int, Callable[..., tuple[Any, ...] | None], tuple[Any, ...]]


class SubmitLine:
    """The callers of one shard who wait to submit; see the module's essay.

    Its length is how many wait; ``futures`` says without a call whether anybody does.
    """

    __slots__ = (
        "_admitted",
        "_capacity",
        "_free",
        "_is_due",
        "_left",
        "_left_reserved",
        "_spawner",
        "futures",
        "queued",
        "reserved",
    )

    def __init__(
        self, spawner: Spawner, free: Callable[[], None], capacity: Callable[[], int]
    ) -> None:
        """Make an empty line.

        Args:
            spawner: the event loop.
            free: called a turn after callers have left the line; it admits the next ones.
            capacity: how many submissions fit now, reserved ones included.
        """
        self._spawner = spawner
        self._free = free
        self._capacity = capacity
        self._is_due = False  # calls are made in a turn that comes
        self._admitted: set[Future] = set()  # woken, and yet to run
        self._left = self._left_reserved = 0  # callers who ran since ``_leave`` was last called
        self.futures: OrderedDict[Future, _Call | None] = OrderedDict()  # None: comes in person
        self.queued = 0  # in the line, or admitted and not out of it yet
        self.reserved = 0  # admitted, and may not have queued yet

    def __len__(self) -> int:
        return len(self.futures)

    # -- who stands in it --------------------------------------------------------------

    def enter(
        self,
        future: Future,
        cost_bytes: int,
        submit: Callable[..., tuple[Any, ...] | None],
        args: tuple[Any, ...],
    ) -> None:
        """Stand in line by a call: ``submit(*args)`` is made when it is its turn.

        It queues the submission with ``future`` as who waits for it, and returns a tuple. None: it
        has done nothing; the caller is woken with ``ADMITTED``, says ``leave`` and submits itself,
        before the next ``await``. Whoever gives up while it waits says ``leave`` as well.

        Args:
            future: what the caller awaits; an error of the call is its error.
            cost_bytes: about how many bytes the submission's operations have.
            submit: its tuple begins with None where all is committed already; the value follows.
            args: of ``submit``.
        """
        self.futures[future] = (cost_bytes, submit, args)
        self.queued += 1

    def leave(self, future: Future) -> None:
        """Be out of it: woken and about to submit, or cancelled. Nothing once the call was made."""
        if future in self.futures:  # gave up: over a stalled store nobody else removes it
            del self.futures[future]
            self.queued -= 1
        elif future in self._admitted:
            self._note_left(future)

    async def wait(self) -> None:
        """Stand in line until admitted. Submit before the next ``await``: it is reserved till then.

        A caller that does not submit (it was cancelled, or has lost its lease) passes it on.
        """
        future = self._spawner.future()
        self.futures[future] = None
        self.queued += 1
        try:
            await future
        finally:
            self.futures.pop(future, None)  # gave up: over a stalled store nobody else removes it
            self._note_left(future)

    def _note_left(self, future: Future) -> None:
        if not self._left:
            self._spawner.call_soon(self._leave)
        self._left += 1
        if future in self._admitted:
            self._admitted.remove(future)
            self._left_reserved += 1

    def _leave(self) -> None:
        """Release what was reserved: callers who left a turn ago have submitted, or never will."""
        self.queued -= self._left
        self.reserved -= self._left_reserved
        self._left = self._left_reserved = 0
        self._free()

    # -- who comes out of it -----------------------------------------------------------

    def admit(self, free: int) -> None:
        """Admit callers while more submissions fit than are reserved already.

        Args:
            free: submissions that fit, reserved ones included.
        """
        free -= self.reserved
        if not self.futures or free <= 0:
            return
        if self.reserved or next(iter(self.futures.values())) is None:
            self._wake(free)
        elif not self._is_due:
            self._is_due = True
            self._spawner.call_soon(self._make_calls)

    def admit_all(self) -> None:
        """Admit everybody: the shard takes no more, and callers find that out by trying."""
        self._wake(len(self.futures))

    def _wake(self, most: int) -> None:
        futures = self.futures
        admitted: list[tuple[Future, object]] = []
        while futures and most > len(admitted):
            future, call = futures.popitem(last=False)
            if not future.done():
                admitted.append((future, ADMITTED))
            elif call is not None:  # it has no more to say
                self.queued -= 1
        if admitted:
            self._admitted.update(future for future, _ in admitted)
            self.reserved += len(admitted)
            self._spawner.answer(admitted)

    def _make_calls(self) -> None:
        """Make the calls whose turn it is, in this turn of the loop as many as it may take."""
        self._is_due = False
        futures = self.futures
        calls, left_bytes = min(TURN_CALLS, self._capacity()), TURN_BYTES
        try:
            while futures and calls > 0 and left_bytes > 0 and not self.reserved:
                future = next(iter(futures))
                call = futures[future]
                if call is None:
                    break
                del futures[future]
                if future.done():
                    self.queued -= 1
                    continue
                cost_bytes, submit, args = call
                calls -= 1
                left_bytes -= cost_bytes
                try:
                    submitted = submit(*args)
                except BaseException as error:  # the caller's, as if he had made the call
                    self.queued -= 1
                    if not future.done():
                        future.set_exception(error)
                    if not isinstance(error, Exception):
                        raise  # an interrupt is the loop's as well
                    continue
                if submitted is None:
                    self._admitted.add(future)
                    self.reserved += 1
                    self._spawner.answer([(future, ADMITTED)])
                    continue
                self.queued -= 1
                if submitted[0] is None and not future.done():  # committed already
                    future.set_result(submitted[1] if len(submitted) > 1 else None)
        finally:
            if futures:
                self._free()
