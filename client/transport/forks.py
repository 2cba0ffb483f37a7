"""Forked children: a blocking client has connections of its own in each, or answers get mixed up.

A child has the sockets of its parent. What it sent on them would stand between the frames of the
parent, and whoever read first would take the answer of the other one.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

__all__ = ["Forkable", "watch_forks"]


class Forkable(Protocol):
    """Something with connections and locks."""

    def forked(self) -> None:
        """In the child, where no other thread is: let go of them, and harm none in the parent."""


_watched: WeakSet[Forkable] = WeakSet()


def watch_forks(one: Forkable) -> None:
    """Tell it of every fork from now on, in the child. Keeps no reference."""
    _watched.add(one)


def _in_child() -> None:
    for one in list(_watched):
        one.forked()


os.register_at_fork(after_in_child=_in_child)
