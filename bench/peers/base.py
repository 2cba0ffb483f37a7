"""The calls that a benchmark makes of a queue, ours or another's: put, take, done.

A *session* is one caller's end of a queue: a thread's of a library that blocks, a coroutine's of
one that awaits. ``done`` stores ``result`` with the acknowledgement where the queue keeps results;
``keeps`` says in a word what the queue gives beyond handing bytes on (lease, ack, nothing), so
that nobody compares a pop that forgets with a lease that is fenced.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Protocol

__all__ = ["Peer", "Session", "no_package"]


class Session(Protocol):
    """A caller's own handle: of one thread, or with coroutines for one on an event loop."""

    def put(self, payload: bytes) -> None:
        """Put a task; it is acknowledged on return."""

    def take(self) -> Any:
        """Take a task. Returns a token, or None if there is nothing."""

    def done(self, token: Any, result: bytes) -> None:
        """End the task."""

    def close(self) -> None:
        """Let go of files and connections."""


class Peer(ABC):
    """A queue in one mode. ``open`` before sessions, ``close`` after them."""

    name: ClassVar[str]
    durability: ClassVar[str]  # none, os (survives the process), fsync (survives a power cut)
    keeps: ClassVar[str]  # lease, ack, nothing
    is_async: ClassVar[bool] = False
    callers_max: ClassVar[int] = 64
    has_batches: ClassVar[bool] = False  # its sessions have put_many, take_many, done_many

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def missing(cls) -> str | None:
        """Say why it cannot run here. None: it can."""
        return None

    def open(self) -> None:
        """Make the store, start the server."""

    async def enter(self) -> None:
        """Open what belongs to the loop its callers are on."""

    @abstractmethod
    def session(self) -> Any:
        """Return a ``Session`` for one more caller."""

    async def leave(self) -> None:
        """Close what ``enter`` opened."""

    def close(self) -> None:
        """Stop what ``open`` started."""


def no_package(*modules: str) -> str | None:
    """The reason if one of these cannot be imported."""
    lacking = [module for module in modules if importlib.util.find_spec(module) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else None
