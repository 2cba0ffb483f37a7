"""From what stands on the command line to an engine: a folder, or the address of a service.

A command that reads opens the folder without a lock, whoever holds it (``repository/looking``). One
that writes opens it as a service would; held by one, it goes through that service's socket,
if it has one, and says so.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar, cast

import click

from ...client.connecting import connect
from ...engine.paths import is_rocksdb, normal_path, only_journal, shard_path
from ...errors import LockedError, StorePathError, UsageError
from ...repository.engine import Engine
from ...repository.looking import look
from ...repository.opening import open_engine
from ...repository.values import Limits
from ..served import Note, read_note
from ..telling import shown

__all__ = [
    "LIMITS",
    "check_store",
    "confirm",
    "is_url",
    "reading",
    "run",
    "served",
    "store_argument",
    "writing",
]

T = TypeVar("T")

# As much as a task may have at all: the service that will hand it out need not allow as much.
LIMITS: Final = Limits(payload_bytes_max=3 << 20, headers_bytes_max=512 << 10)
_SCHEMES: Final = ("unix://", "http://", "https://")

store_argument: Final = click.argument("store")


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The one event loop of a command."""
    return asyncio.run(main())


def is_url(store: str) -> bool:
    """Whether STORE is the address of a service."""
    return store.startswith(_SCHEMES)


def check_store(store: str) -> str:
    """The folder of a store that is there: no command but ``init`` makes one."""
    root = normal_path(store)
    if not is_rocksdb(shard_path(root, 0)):
        raise StorePathError(f"{store!r} holds no store: give its folder, or 'lodeq init' one")
    return root


@asynccontextmanager
async def reading(store: str) -> AsyncIterator[Engine]:
    """An engine to be read: of a service, a folder (held or not), or a checkpoint."""
    if is_url(store):
        async with _connected(store) as engine:
            yield engine
    else:
        async with look(store) as engine:
            yield engine


@asynccontextmanager
async def served(store: str) -> AsyncIterator[Engine | None]:
    """The service's own engine if STORE is served, for what only that knows; else None."""
    note = None if is_url(store) else read_note(store)
    if note is None and not is_url(store):
        yield None
        return
    async with AsyncExitStack() as stack:
        try:
            connection = _connected(store if note is None else note.url)
            engine: Engine | None = await stack.enter_async_context(connection)
        except UsageError:
            raise
        except Exception:
            if note is None:
                raise
            engine = None  # its server has died; the folder is still there
        yield engine


@asynccontextmanager
async def writing(store: str, *, is_quiet: bool = False) -> AsyncIterator[Engine]:
    """An engine to work with: of a service, or over the folder.

    ``is_quiet``: over the folder nothing happens by itself, neither reaper nor inbox.
    """
    async with AsyncExitStack() as stack:
        if is_url(store):
            yield await stack.enter_async_context(_connected(store))
            return
        root = check_store(store)
        try:
            opening = open_engine(
                root, limits=LIMITS, journal=only_journal(root), reaper=not is_quiet,
                inbox=not is_quiet,
            )  # fmt: skip
            engine = await stack.enter_async_context(opening)
        except LockedError as exc:
            note = read_note(root)
            if note is None:
                raise _held(exc) from exc
            engine = await stack.enter_async_context(_served_by(note, exc))
        yield engine


def _held(exc: LockedError) -> LockedError:
    advice = "stop it, or have it serve the store ('lodeq serve'), and commands go through it"
    return LockedError(f"{exc}; {advice}", pid=exc.pid)


@asynccontextmanager
async def _served_by(note: Note, held: LockedError) -> AsyncIterator[Engine]:
    holder = "another process" if held.pid is None else f"process {held.pid}"
    click.echo(f"the store is held by {holder}: asking {shown(note.url)}", err=True)
    async with _connected(note.url) as engine:
        yield engine


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Engine]:
    async with connect(url, token=os.environ.get("LODEQ_TOKEN")) as engine:
        yield cast("Engine", engine)  # the same names


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask before something is destroyed. Without a terminal to ask on, ``--yes`` is needed."""
    if is_sure:
        return
    if not _is_asked_on_a_terminal():
        raise UsageError(f"{question} Give --yes to say so")
    if not click.confirm(question, err=True):
        raise UsageError("nothing was done")


def _is_asked_on_a_terminal() -> bool:
    return sys.stdin.isatty()
