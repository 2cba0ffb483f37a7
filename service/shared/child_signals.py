"""Signals of forked children: they are the child's own, however its parent receives them.

An event loop learns of a signal by a byte that the signal handler writes into a socket. A forked
child has the same handler and the same socket: a signal meant for it would neither end it nor stay
with it, but stop its parent. So while a parent receives signals, they are held back during a fork,
and a child begins with the handlers that Python itself starts with, and without that socket.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

__all__ = ["leave_children_theirs", "leave_from_now_on"]

_DEFAULTS: Final = {signal.SIGINT: signal.default_int_handler}


class _State:
    received: ClassVar[Counter[int]] = Counter()  # signals, by how many receive them here
    mask: ClassVar[set[int] | None] = None  # of the thread that forks, during a fork


def leave_from_now_on(*numbers: signal.Signals) -> None:
    """Have every child that is forked from now on begin with the default handlers of these."""
    _State.received.update(numbers)


@contextmanager
def leave_children_theirs(*numbers: signal.Signals) -> Iterator[None]:
    """Do the same until the block ends; signals that were ignored before stay what they are."""
    leave_from_now_on(*numbers)
    try:
        yield
    finally:
        _State.received.subtract(numbers)


def _before() -> None:
    numbers = {number for number, count in _State.received.items() if count > 0}
    if numbers:  # one that comes between the fork and ``_in_child`` waits for it
        _State.mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def _in_parent() -> None:
    mask, _State.mask = _State.mask, None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    if _State.mask is None:
        return
    signal.set_wakeup_fd(-1)
    for number, count in _State.received.items():
        if count > 0:
            signal.signal(number, _DEFAULTS.get(signal.Signals(number), signal.SIG_DFL))
    _State.received.clear()
    _in_parent()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
