"""Connecting a command to an engine: over a folder, or through the service at an address.

A command that reads opens the folder without a lock, whoever holds it
(``repository/api/read_only``). One that writes opens it as a service would; if another process
holds it, the command goes through that process's socket, if it has one, and says so.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar, cast

import click
from anyio import fail_after

from ...client.connect import connect
from ...engine.files.paths import is_rocksdb, normal_path, only_journal, shard_path
from ...errors import AccessDeniedError, LockedError, StorePathError, UnreachableError, UsageError
from ...repository.api.engine import Engine
from ...repository.api.open import open_engine
from ...repository.api.read_only import open_read_only
from ...repository.model.values import Limits
from .output import shown
from .served_note import Note, read_note

__all__ = [
    "LIMITS",
    "Folder",
    "Silent",
    "asked",
    "check_folder",
    "check_store",
    "confirm",
    "folder_argument",
    "is_url",
    "reading",
    "run",
    "store_argument",
    "writing",
]

T = TypeVar("T")

# The largest tasks that any engine takes: the service that hands them out may allow less.
LIMITS: Final = Limits(payload_bytes_max=3 << 20, headers_bytes_max=512 << 10)
ANSWER_TIMEOUT_S: Final = 2.0  # of a service whose folder can be read instead
_SCHEMES: Final = ("unix://", "http://", "https://")

store_argument: Final = click.argument("store")


def check_folder(path: str) -> str:
    """Refuse the address of a service where a folder is meant; else return the path."""
    if is_url(path):
        raise UsageError(f"{path!r} is the address of a service: give a folder here")
    return path


class Folder(click.Path):
    """A click type: a path that ``check_folder`` accepts, checked before the command runs."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ``click.ParamType``."""
        return super().convert(check_folder(os.fsdecode(value)), param, ctx)


folder_argument: Final = click.argument("store", type=Folder())


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in the one event loop of a command."""
    return asyncio.run(main())


def is_url(store: str) -> bool:
    """Whether STORE is the address of a service."""
    return store.startswith(_SCHEMES)


def check_store(store: str) -> str:
    """The path of a store that exists; only ``init`` creates one."""
    root = normal_path(store)
    if not is_rocksdb(shard_path(root, 0)):
        raise StorePathError(
            f"{store!r} holds no store: give the folder of one, or create it with 'lodeq init'"
        )
    return root


@asynccontextmanager
async def reading(store: str) -> AsyncIterator[Engine]:
    """Open an engine for reading: through a service, over a folder, or over a checkpoint."""
    if is_url(store):
        async with _connected(store) as engine:
            yield engine
    else:
        async with open_read_only(store) as engine:
            yield engine


class Silent(NamedTuple):
    """No service answered: there is none, or (``why``) it does not respond."""

    why: str = ""


async def asked(store: str, ask: Callable[[Engine], Awaitable[T]]) -> T | Silent:
    """Ask the service of STORE for what only a service knows.

    A service that the folder's note names, but that is stopped, killed or busy, gets two seconds:
    the folder can be read instead. One that answers, if only to ask for a token, is asked.
    """
    if is_url(store):
        async with _connected(store) as engine:
            return await ask(engine)
    note = read_note(store)
    if note is None:
        return Silent()
    try:
        with fail_after(ANSWER_TIMEOUT_S):
            async with _connected(note.url, ANSWER_TIMEOUT_S) as engine:
                return await ask(engine)
    except (UnreachableError, TimeoutError):
        return Silent(f"process {note.pid} at {shown(note.url)} does not answer")


@asynccontextmanager
async def writing(store: str, *, is_quiet: bool = False) -> AsyncIterator[Engine]:
    """Open an engine for writing: through a service, or over the folder.

    ``is_quiet``: over the folder, neither the reaper nor the inbox runs.
    """
    async with AsyncExitStack() as stack:
        if is_url(store):
            yield await stack.enter_async_context(_connected(store))
            return
        root = check_store(store)
        try:
            opening = open_engine(
                root,
                limits=LIMITS,
                journal=only_journal(root),
                reaper=not is_quiet,
                inbox=not is_quiet,
            )
            engine = await stack.enter_async_context(opening)
        except LockedError as exc:
            note = read_note(root)
            if note is None:
                raise _held(exc) from exc
            engine = await stack.enter_async_context(_served_by(note, exc))
        yield engine


def _held(exc: LockedError) -> LockedError:
    advice = "stop it, or let it serve the store ('lodeq serve'): commands then go through it"
    return LockedError(f"{exc}; {advice}", pid=exc.pid)


@asynccontextmanager
async def _served_by(note: Note, held: LockedError) -> AsyncIterator[Engine]:
    holder = "another process" if held.pid is None else f"process {held.pid}"
    click.echo(f"the store is held by {holder}: asking {shown(note.url)}", err=True)
    async with _connected(note.url) as engine:
        yield engine


@asynccontextmanager
async def _connected(url: str, timeout_s: float = 30.0) -> AsyncIterator[Engine]:
    try:
        engine = await connect(url, token=os.environ.get("LODEQ_TOKEN"), timeout=timeout_s)
    except AccessDeniedError as exc:
        raise AccessDeniedError(
            f"{shown(url)}: {exc}; the commands take its token from LODEQ_TOKEN"
        ) from exc
    async with engine:
        yield cast("Engine", engine)  # the same names


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask before something is destroyed. Without a terminal to ask on, ``--yes`` is needed."""
    if is_sure:
        return
    if not _is_asked_on_a_terminal():
        raise UsageError(f"{question} There is no terminal to ask on. Give --yes")
    if not click.confirm(question, err=True):
        raise UsageError("nothing was done")


def _is_asked_on_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()  # None: it is closed
