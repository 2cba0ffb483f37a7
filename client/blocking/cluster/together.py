"""Calls to several nodes at once, each in a thread, and pauses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Event, Lock, Thread
from typing import Any, TypeVar

from ....errors import LodeqError
from ...calls import Call

__all__ = ["Ask", "Send", "Take", "at_last", "closed", "first_true", "gather", "pause"]

T = TypeVar("T")
Ask = Callable[[], T]
Send = Callable[[Call], Any]  # sends a call, and returns the document of its answer
# Claims at a node, by its identity: how many tasks, and for how many seconds it may wait.
Take = Callable[[str, int, float], list[Any]]


def _begun(thread: Thread) -> bool:
    """Whether it could be started: a process may have no more threads."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def gather(asks: Sequence[Ask[T]]) -> list[T | LodeqError]:
    """Ask all; returns each one's answer or error, in order.

    The first runs in the caller's thread, and so do those for which no thread can be started.
    """
    found: list[T | LodeqError | BaseException] = [LodeqError("not asked")] * len(asks)

    def one(n: int) -> None:
        try:
            found[n] = asks[n]()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            found[n] = error

    threads = {n: Thread(target=one, args=(n,), daemon=True) for n in range(1, len(asks))}
    begun = {n for n, thread in threads.items() if _begun(thread)}
    for n in range(len(asks)):
        if n not in begun:
            one(n)
    for n in begun:
        threads[n].join()
    out: list[T | LodeqError] = []
    for outcome in found:
        if isinstance(outcome, BaseException) and not isinstance(outcome, LodeqError):
            raise outcome
        out.append(outcome)
    return out


def first_true(asks: Sequence[Ask[bool]], stop: Callable[[int], object]) -> int | None:
    """The number of the first that returns True; None: none does.

    The others are stopped then, and not waited for. Those for which no thread can be started are
    not asked, but for one where none can.

    Args:
        asks: one at least. What fails counts as False.
        stop: ends the one of that number, from another thread.
    """
    lock, over = Lock(), Event()
    running = set(range(len(asks)))
    first: int | None = None

    def one(n: int) -> None:
        nonlocal first
        answer = False
        try:
            answer = asks[n]()
        except LodeqError:
            pass
        finally:
            with lock:
                running.discard(n)
                if answer and first is None:
                    first = n
                if answer or not running:
                    over.set()

    threads = [Thread(target=one, args=(n,), daemon=True) for n in range(len(asks))]
    unasked = {n for n, thread in enumerate(threads) if not _begun(thread)}
    with lock:
        running -= unasked
    try:
        if len(unasked) == len(asks):
            one(0)
        elif unasked:
            with lock:
                if not running:  # all that were asked have ended meanwhile
                    over.set()
        over.wait()
    finally:
        with lock:
            left = sorted(running)
        for n in left:  # each may be at a node that is silent
            end = partial(at_last, partial(stop, n), 0.0)
            if not _begun(Thread(target=end, daemon=True)):
                end()
    return first


def pause(seconds: float) -> None:
    """Let so much time pass."""
    if seconds:
        Event().wait(seconds)


def at_last(ask: Ask[object], seconds: float) -> None:
    """Do it; a failure is passed over. How long it may take the call says itself."""
    try:
        ask()
    except LodeqError:
        pass


def closed(closes: Sequence[Ask[object]]) -> None:
    """Close all."""
    for close in closes:
        close()
