"""A store that the process which has it open serves to others: options, and a server that runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ...errors import UsageError

__all__ = ["NOTE_WAIT_S", "RunningServer", "Serve", "ServeAs", "check_token"]

NOTE_WAIT_S = 2.0  # a holder that has just opened the store says within this time where it serves
TOKEN_CHARS_MIN = 16


@dataclass(frozen=True, slots=True)
class Serve:
    """How an open store is served: ``lodeq.open("var/jobs", serve=lodeq.Serve(…))``.

    Args:
        address: True: the socket ``PATH.sock``; else the path of a socket (a relative one is beside
            the store), or ``HOST:PORT``.
        token: every request must carry it; 16 printable characters or more. Required where other
            machines can reach the address. Clients take it from ``connect(token=)``, commands from
            ``LODEQ_TOKEN``.
        tokens: a file of tokens that may do a part, by role, queue and tenant (docs/roles.md).
            It is read again when it changes. Without ``token`` there is no dashboard.
        dashboard: what its pages may do; ``off``: there are none.
        hosts: further names that the header Host may give.
        checkpoints: folder in which clients may make checkpoints; None: nowhere.
        grace: seconds that requests have to end once the engine closes, 0 or more.
        routes: called with the engine; returns further Starlette routes, behind the same token.
    """

    address: Literal[True] | str | os.PathLike[str] = True
    token: str | None = field(default=None, repr=False)
    tokens: str | os.PathLike[str] | None = None
    dashboard: Literal["read", "write", "off"] = "read"
    hosts: tuple[str, ...] = ()
    checkpoints: str | None = None
    grace: float = 5.0
    routes: Callable[[Any], Sequence[Any]] | None = None

    def __post_init__(self) -> None:
        # Files are those of the folder in which they are named, whenever the server starts.
        for name in ("tokens", "checkpoints"):
            path = getattr(self, name)
            if isinstance(path, str | os.PathLike) and os.fspath(path):
                object.__setattr__(self, name, os.path.abspath(path))


ServeAs = bool | str | os.PathLike[str] | Serve | None


class RunningServer(Protocol):
    """A server that has been started, as the engine that it serves knows it."""

    address: str  # that clients connect to; known from the start on
    problem: str | None  # why it serves no more, although nobody stopped it

    @property
    def warning(self) -> str | None:
        """A reason for ``health`` to fail while it serves; None: there is none."""

    async def wait(self) -> None:
        """Wait until it serves no more."""

    async def close(self) -> None:
        """End polls, answer requests, stop. Bounded. If cancelled it may be called again."""


def check_token(token: str | None, whose: str) -> str | None:
    """The token, if it is one: nothing that can be guessed, or that a header cannot carry."""
    if token is None:
        return None
    if (
        not isinstance(token, str)
        or len(token) < TOKEN_CHARS_MIN
        or not (token.isascii() and token.isprintable())
    ):
        raise UsageError(
            f"{whose}: the token must be {TOKEN_CHARS_MIN} printable characters or more"
        )
    return token
