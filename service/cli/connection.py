"""Connecting a command to an engine: over a folder, or through the service at an address.

A command that reads opens the folder without a lock, whoever holds it
(``repository/api/read_only``). One that writes opens it as a service would; if another process
holds it, the command goes through that process's socket, if it has one, and says so.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple, TypeVar, cast

import click
from anyio import fail_after

from ...client.cluster.address import is_cluster
from ...client.connect import connect
from ...engine.files.lockfile import without_cure
from ...engine.files.paths import is_rocksdb, normal_path, only_journal, shard_path
from ...engine.files.served_note import Note, find_served
from ...errors import AccessDeniedError, LockedError, StorePathError, UnreachableError, UsageError
from ...repository.api.engine import Engine
from ...repository.api.open import open_engine
from ...repository.api.read_only import open_read_only
from ...repository.model.values import PAYLOAD_BYTES_MAX, Limits
from .output import shown

__all__ = [
    "LIMITS",
    "Folder",
    "Silent",
    "asked",
    "check_folder",
    "check_store",
    "checked_store",
    "confirm",
    "folder_argument",
    "is_url",
    "reading",
    "run",
    "store_argument",
    "told_what_to_do",
    "writing",
]

T = TypeVar("T")

# The largest tasks that any engine takes: the service that hands them out may allow less.
LIMITS: Final = Limits(payload_bytes_max=PAYLOAD_BYTES_MAX, headers_bytes_max=512 << 10)
ANSWER_TIMEOUT_S: Final = 2.0  # of a service whose folder can be read instead
CONNECT_TIMEOUT_S: Final = 30.0  # of one that must answer
_SCHEMES: Final = ("unix://", "tcp://", "http://", "https://", "lodeq://")
_HOST_PORT: Final = re.compile(r"[A-Za-z0-9.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


_NO_SLASHES: Final = re.compile(r"(unix|tcp|https?|lodeq):/?(?!/)(?P<rest>.*)", re.IGNORECASE)


def checked_store(store: str) -> str:
    """Return the store that was given; refuse HOST:PORT without its scheme, and ``unix:FILE``."""
    found = _NO_SLASHES.fullmatch(store)
    if found is not None and not os.path.lexists(store):
        scheme, rest = found[1].lower(), found["rest"]
        url = f"unix://{os.path.abspath('/' + rest)}" if scheme == "unix" else f"{scheme}://{rest}"
        raise UsageError(
            f"{store!r} looks like the address of a service: write {url}; for a folder of that "
            f"name write ./{store}"
        )
    if _HOST_PORT.fullmatch(store) and not os.path.lexists(store):
        raise UsageError(f"there is no folder {store!r}; the server there is tcp://{store}")
    return store


store_argument: Final = click.argument("store", callback=lambda *given: checked_store(given[2]))


def check_folder(path: str) -> str:
    """Refuse the address of a service where a folder is meant; else return the path."""
    if is_url(path) or (_NO_SLASHES.fullmatch(path) and not os.path.lexists(path)):
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
        raise _swapped(store) or StorePathError(
            f"{store!r} holds no store: give the folder of one, or create it with 'lodeq init'"
        )
    return root


def _swapped(store: str) -> StorePathError | None:
    """The error that says so if another argument of the command is a store, and STORE is none."""
    context = click.get_current_context(silent=True)
    if context is None or is_rocksdb(shard_path(store, 0)):
        return None
    for param in context.command.params:
        given = context.params.get(param.name or "")
        for one in given if isinstance(given, tuple) else (given,):
            if isinstance(param, click.Argument) and one and is_rocksdb(shard_path(str(one), 0)):
                return StorePathError(
                    f"{store!r} holds no store, but {one!r} does: STORE comes first "
                    f"({context.command_path} --help)"
                )
    return None


@asynccontextmanager
async def reading(store: str) -> AsyncIterator[Engine]:
    """Open an engine for reading: through a service, over a folder, or over a checkpoint."""
    if is_url(store):
        async with _connected(store) as engine:
            yield engine
    else:
        async with AsyncExitStack() as stack:
            try:
                engine = await stack.enter_async_context(open_read_only(store))
            except StorePathError as exc:
                swapped = _swapped(store)
                if swapped is None:
                    raise
                raise swapped from exc
            yield engine


class Silent(NamedTuple):
    """No service answered: there is none, or (``why``) it does not respond."""

    why: str = ""


async def asked(store: str, ask: Callable[[Engine], Awaitable[T]]) -> T | Silent:
    """Ask the service of STORE for what only a service knows.

    A service that the folder's note names, but that is stopped or busy, gets two seconds:
    the folder can be read instead. One that answers, if only to ask for a token, is asked.
    """
    if is_url(store):
        async with _connected(store) as engine:
            return await ask(engine)
    note = find_served(store)
    if note is None:
        return Silent()
    try:
        with fail_after(ANSWER_TIMEOUT_S):
            async with _connected(note.url, 2 * ANSWER_TIMEOUT_S) as engine:
                return await ask(engine)
    except (UnreachableError, TimeoutError):
        return Silent(_unanswered(note))


def _unanswered(note: Note) -> str:
    return (
        f"process {note.pid} at {shown(note.url)} does not answer: the owner's loop has not "
        f"answered for {ANSWER_TIMEOUT_S:g} s"
    )


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
            if exc.address is None:
                raise _held(exc) from exc
            engine = await stack.enter_async_context(_served_by(exc.address, exc.pid))
        yield engine


@contextmanager
def told_what_to_do(served: str) -> Iterator[None]:
    """Say what a command line can do about a store that another process holds.

    Args:
        served: what to do where that process serves it; ``{url}`` stands for the address.
    """
    try:
        yield
    except LockedError as exc:
        if exc.address is None:
            raise _held(exc) from exc
        cure = served.format(url=shown(exc.address))
        text = f"{str(exc).partition('; ')[0]}; {cure}"
        raise LockedError(text, pid=exc.pid, address=exc.address) from exc


def _held(exc: LockedError) -> LockedError:
    advice = (
        "stop it, or let it serve the store (lodeq.open(…, serve=True), App(…, serve=True), "
        "'lodeq serve'): commands then go through it"
    )
    return LockedError(f"{without_cure(str(exc))}; {advice}", pid=exc.pid)


@asynccontextmanager
async def _served_by(url: str, pid: int | None) -> AsyncIterator[Engine]:
    holder = "another process" if pid is None else f"process {pid}"
    click.echo(f"the store is held by {holder}: asking {shown(url)}", err=True)
    async with _connected(url) as engine:
        yield engine


@asynccontextmanager
async def _connected(url: str, timeout_s: float | None = None) -> AsyncIterator[Engine]:
    """Connect; while that takes longer than it should, say on stderr whom the command waits for."""
    timeout_s = CONNECT_TIMEOUT_S if timeout_s is None else timeout_s
    is_late = False

    def say() -> None:
        nonlocal is_late
        is_late = True
        who = "no leader has" if is_cluster(url) else "the owner's loop has not"
        click.echo(
            f"{shown(url)}: {who} answered for {ANSWER_TIMEOUT_S:g} s; waiting up to "
            f"{timeout_s:g} s",
            err=True,
        )

    loop = asyncio.get_running_loop()
    is_patient = (
        timeout_s > 2 * ANSWER_TIMEOUT_S
    )  # another is given up soon, and its caller says so
    timer = loop.call_later(ANSWER_TIMEOUT_S, say) if is_patient else None
    try:
        engine = await connect(url, token=os.environ.get("LODEQ_TOKEN"), timeout=timeout_s)
    except AccessDeniedError as exc:
        raise AccessDeniedError(
            f"{shown(url)}: {exc}; the commands take its token from LODEQ_TOKEN"
        ) from exc
    except UnreachableError as exc:
        if not is_late or is_cluster(url):  # which says itself what is wrong with its nodes
            raise
        raise UnreachableError(
            f"{shown(url)}: the owner's loop has not answered for {timeout_s:g} s, so nothing was "
            "done: it is blocked by a long call, or the process is stopped"
        ) from exc
    finally:
        if timer is not None:
            timer.cancel()
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
