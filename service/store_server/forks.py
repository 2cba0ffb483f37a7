"""Forked children: a child shares the sockets of its parent, and must not keep them open.

A listener that lives on in a child would make the socket of a dead server look alive: connections
would be taken by the kernel and never answered. So the child puts /dev/null in the place of each
descriptor: no number is free for another file, and the parent's sockets stay open.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Protocol

__all__ = ["Forkable", "watch_forks"]


class Forkable(Protocol):
    """Something with sockets."""

    def descriptors(self) -> list[int]:
        """The numbers of its open sockets."""


_servers: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch_forks(server: Forkable) -> None:
    """Let go of its sockets in every child that is forked from now on."""
    _servers.add(server)


def _drop_in_child() -> None:
    found = [fd for server in list(_servers) for fd in server.descriptors()]
    _servers.clear()
    if not found:
        return
    null = os.open(os.devnull, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    for fd in found:
        with suppress(OSError):
            os.dup2(null, fd, inheritable=False)
    os.close(null)


os.register_at_fork(after_in_child=_drop_in_child)
