"""``lodeq serve``: a store for other processes."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import stat
from typing import TYPE_CHECKING, Any, Literal

import click

from ....engine.files.paths import SHARDS_MAX
from ....errors import UsageError
from ....repository.api.open import open_engine
from ..connection import Folder
from ..output import shown
from ..served_note import forget_note, leave_note

if TYPE_CHECKING:
    import socket

    from starlette.routing import BaseRoute

    from ....repository.api.engine import Engine
    from ...http.guard import Settings

__all__ = ["FILES", "allow_files", "read_token", "serve"]

TOKEN_CHARS_MIN = 16
PORT = 8765
FILES = 8192  # a store may have 1,024 open, callers three times 1,024 connections


@click.command()
@click.argument("path", type=Folder())
@click.option("--uds", type=click.Path(), help="A unix socket; PATH.sock by default.")
@click.option("--host", help="An address instead of a socket; needs a token unless it is loopback.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help=f"Port of the address, or of 127.0.0.1; {PORT} by default, 0 for any that is free.",
)
@click.option(
    "--token-file", type=click.Path(), help="File whose first line every request must carry."
)
@click.option("--allow-host", multiple=True, help="A further name that the header Host may give.")
@click.option(
    "--dashboard",
    type=click.Choice(["read", "write", "off"]),
    default="read",
    show_default=True,
    help="What its pages may do.",
)
@click.option(
    "--checkpoints", type=Folder(), help="The folder in which clients may make checkpoints."
)
@click.option(
    "--shards",
    type=click.IntRange(1, SHARDS_MAX),
    help="Number of shards of a store that is created.",
)
@click.option(
    "--durability",
    type=click.Choice(["nosync", "fsync"]),
    help="Default: as the store was created.",
)
@click.option("--journal", help="The name of a lifecycle journal to write.")
@click.option(
    "--lock-wait", type=click.FloatRange(0), default=0.0, help="Seconds to wait for the store."
)
def serve(
    path: str,
    uds: str | None,
    host: str | None,
    port: int | None,
    token_file: str | None,
    allow_host: tuple[str, ...],
    dashboard: Literal["read", "write", "off"],
    checkpoints: str | None,
    shards: int | None,
    durability: Literal["nosync", "fsync"] | None,
    journal: str | None,
    lock_wait: float,
) -> None:
    """Open the store at PATH (created if need be) and serve it over HTTP, until SIGINT or SIGTERM.

    At the end long polls are answered and the store is closed. Leases keep their full length, also
    when the store is served again.

    Args:
        path: the store's folder.
        uds: path of the unix socket; None: ``PATH.sock``.
        host: address to listen on instead of a socket; other than loopback, a token is needed.
        port: of ``host``; 0: any that is free.
        token_file: file whose first line every request must carry, 16 characters or more.
        allow_host: further names that the header Host may give.
        dashboard: what its pages may do.
        checkpoints: folder that clients may make checkpoints in; None: nowhere.
        shards: of a store that is created.
        durability: None: as the store is stamped.
        journal: name of a lifecycle journal to write; None: as the store has it.
        lock_wait: seconds to wait for a store that another process holds.
    """
    if uds is not None and (host is not None or port is not None):
        raise UsageError("give --uds, or --host and --port, not both")
    if host is None and port is not None:
        host = "127.0.0.1"
    token = None if token_file is None else read_token(token_file)
    allow_files()
    asyncio.run(
        _serve(
            path,
            uds,
            host,
            PORT if port is None else port,
            token,
            allow_host,
            checkpoints,
            dashboard,
            shards=shards,
            durability=durability,
            journal=journal,
            lock_wait=lock_wait,
        )
    )


def allow_files() -> None:
    """Raise the limit of open files to what callers and a store need; often it is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def read_token(path: str) -> str:
    """Read the token: the first line of a file that only its owner can read."""
    with open(path, encoding="ascii", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        token = file.readline(4096).strip()
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(f"{path} can be read by others: chmod 600 it")
    if len(token) < TOKEN_CHARS_MIN or not (token.isascii() and token.isprintable()):
        raise UsageError(
            f"{path}: the token must be {TOKEN_CHARS_MIN} printable characters or more"
        )
    return token


def _settings(
    host: str | None, token: str | None, allow_host: tuple[str, ...], checkpoints: str | None
) -> Settings:
    from ...http.guard import Settings, host_of, loopback_hosts  # noqa: PLC0415

    for name in allow_host:
        if not host_of(name):
            raise UsageError(
                f"expected a host name in --allow-host ([…] around IPv6), got {name!r}"
            )
    hosts = loopback_hosts | {host_of(name) for name in allow_host}
    if host is not None:
        hosts |= {host.lower()}
    return Settings(token=token, hosts=hosts, checkpoints=checkpoints)


async def _serve(
    path: str,
    uds: str | None,
    host: str | None,
    port: int,
    token: str | None,
    allow_host: tuple[str, ...],
    checkpoints: str | None,
    dashboard: Literal["read", "write", "off"],
    **options: Any,
) -> None:
    from ...dashboard.routes import Dashboard  # noqa: PLC0415 - an extra
    from ...http.listener import find_tcp, find_unix, listen_tcp, listen_unix  # noqa: PLC0415
    from ...http.server import Server  # noqa: PLC0415

    settings = _settings(host, token, allow_host, checkpoints)
    where = _socket_path(path, uds)
    if host is None:  # before a store is made
        find_unix(where)
    else:
        find_tcp(host, port, token)
    loop = asyncio.get_running_loop()
    async with open_engine(path, **options) as engine:
        listener = listen_unix(where) if host is None else listen_tcp(host, port, token)
        bound = None if host is not None else _identity(where)
        address = _address(listener)

        def announce() -> None:
            leave_note(path, address)
            click.echo(f"serving {shown(address)}")

        routes = _routes(engine)
        if dashboard != "off":
            board = Dashboard(engine, access=dashboard, token=token)
            settings = board.guarded(settings)
            routes += board.routes
        server = Server(engine, [listener], settings, routes=routes, on_ready=announce)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stop)
        try:
            await server.run()
        finally:
            listener.close()
            forget_note(path)
            if bound is not None and _identity(where) == bound:
                os.unlink(where)  # not one that somebody else has put there since


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a file, whatever it is called now; None: there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _routes(engine: Engine) -> list[BaseRoute]:
    """Routes beside the interface itself: metrics, where their extra is installed."""
    try:
        from ...metrics.route import metrics_route  # noqa: PLC0415 - an extra
    except UsageError:
        return []
    return [metrics_route(engine)]


def _socket_path(path: str, uds: str | None) -> str:
    return os.path.abspath(f"{path.rstrip('/')}.sock" if uds is None else uds)


def _address(listener: socket.socket) -> str:
    name = listener.getsockname()
    if isinstance(name, str):
        return f"unix://{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"
