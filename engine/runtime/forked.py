"""Forked children: they must not touch the store of their parent.

A child has a copy of every handle but none of RocksDB's threads. Whatever waits for one of them
(a flush, the destructor of a database, RocksDB's own static destructor at exit) hangs or crashes.
So in the child, at once: every handle watched here is abandoned (which closes it for its users),
what it held is leaked rather than destroyed, no other store can be opened, and the process, when
Python is done, ends with ``_exit``.
"""

from __future__ import annotations

import ctypes
import logging
import os
from typing import ClassVar, Protocol
from weakref import WeakSet

__all__ = ["Handle", "is_orphaned", "leak", "unwatch", "watch"]

_log = logging.getLogger(__name__)


class Handle(Protocol):
    """Something open that a child must let go of."""

    def abandon(self) -> None:
        """In the child: be closed, wait for nothing, destroy nothing."""


class _State:
    watched: ClassVar[WeakSet[Handle]] = WeakSet()
    used = False  # a store was opened in this process: RocksDB has started threads
    orphaned = False  # forked from a process that had


def watch(handle: Handle) -> None:
    """Have ``handle`` abandoned in any child forked from now on. Keeps no reference."""
    _State.used = True
    _State.watched.add(handle)


def unwatch(handle: Handle) -> None:
    """It is closed: there is nothing left to abandon."""
    _State.watched.discard(handle)


def is_orphaned() -> bool:
    """Whether this process was forked from one that used RocksDB, and hence cannot."""
    return _State.orphaned


def leak(thing: object) -> None:
    """Keep ``thing`` alive past interpreter exit: one reference that nothing gives back."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _skip_exit_handlers() -> None:
    libc = ctypes.CDLL(None)
    try:
        libc.on_exit(libc._exit, None)  # handlers run last in, first out, and get the status
    except AttributeError:
        _log.debug(
            "no on_exit in this libc: end forked children with os._exit()",
            extra={"event": "no_on_exit"},
        )


def _after_fork() -> None:
    if not _State.used:
        return
    _State.orphaned = True
    for handle in list(_State.watched):
        handle.abandon()
    _State.watched.clear()
    _skip_exit_handlers()


os.register_at_fork(after_in_child=_after_fork)
