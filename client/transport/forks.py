"""Forked children: a client has no connection in common with its parent, or answers get mixed up.

A child has the sockets of its parent. What it sent on them would stand between the frames of the
parent, and whoever read first would take the answer of the other one. A blocking client connects
anew. An async one belongs to the event loop of its parent: in the child it is closed, says so, and
its sockets are *cut*. They lead nowhere there, even for a copy of that loop that goes on to run.
"""

from __future__ import annotations

import os
import socket
from typing import Final, Protocol
from weakref import WeakSet

__all__ = ["FORKED", "Forkable", "cut", "watch_forks"]

FORKED: Final = (
    "this client belongs to the process that this one was forked from: connect anew here, with "
    "lodeq.connect, or use engine.sync or lodeq.sync.connect, which connect by themselves"
)


class Forkable(Protocol):
    """Something with connections and locks."""

    def forked(self) -> None:
        """In the child, where no other thread is: let go of them, and harm none in the parent."""


_watched: WeakSet[Forkable] = WeakSet()


def watch_forks(one: Forkable) -> None:
    """Tell it of every fork from now on, in the child. Keeps no reference."""
    _watched.add(one)


class _Socket(Protocol):
    def fileno(self) -> int: ...


def cut(found: _Socket | None) -> None:
    """In a forked child: let a socket lead nowhere. That of the parent stays as it is.

    It is not closed: its loop would take it off the selector, which parent and child share.
    """
    fileno = -1 if found is None else found.fileno()
    if fileno >= 0:
        nowhere, other = socket.socketpair()
        other.close()
        with nowhere:
            os.dup2(nowhere.fileno(), fileno, inheritable=False)


def _in_child() -> None:
    """Have all of them let go, whatever one of them raises; Python prints the first of that."""
    error: Exception | None = None
    for one in list(_watched):
        try:
            one.forked()
        except Exception as exc:  # noqa: BLE001 - the others would go on with their parent's
            error = error or exc
    if error is not None:
        raise error


os.register_at_fork(after_in_child=_in_child)
