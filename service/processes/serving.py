"""``lodeq serve --processes``: the lock, the processes, the main address, and their ends in order.

The supervisor holds the store's lock from before the first process starts until after the last has
ended, and the note in the folder is its own: a plain open is refused with the main address.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Final

from ...client.connect import connect
from ...engine.files.lockfile import LockFile
from ...engine.files.paths import lock_path, normal_path
from ...engine.files.served_note import forget_note, leave_note, with_address
from ...engine.runtime.clock import SystemClock
from ...errors import LockedError, StorageError, UsageError
from ...repository.api.serve_options import check_token
from ..http.access.tokens_file import TokensFile
from ..http.admission import Refusals
from ..http.guard import Settings, loopback_hosts
from ..http.server import AppServer
from ..shared.origin import host_of
from ..store_server.address import Address, address_of
from .front import Front
from .plan import Order, ProcessesOptions, addresses_of
from .prepare import Held, prepare
from .supervisor import Supervisor

__all__ = ["serve_processes"]

CACHE_BYTES: Final = 256 << 20  # of all processes together
LOCK_POLL_S: Final = 0.05
START_S: Final = 10.0
FRONT_GRACE_S: Final = 2.0  # no task passes through the main address
# The processes of a supervisor that was killed close their shards within this time.
ORPHANS_S: Final = 15.0
_log: Final = logging.getLogger("lodeq.processes")


async def serve_processes(
    path: str, options: ProcessesOptions, on_ready: Callable[[str], object]
) -> bool:
    """Serve the store at ``path`` by several processes, until SIGINT or SIGTERM.

    Args:
        path: the store's folder; created if need be.
        options: how.
        on_ready: called with the main address once all processes serve.

    Returns whether each process has closed its shards: one that was killed at the end has not.

    Raises:
        OpenError, StorageError, UsageError: a process refuses to start, or an address is taken; all
            others are ended.

    Durability: as that of the store. Cancellation: ends all processes.
    """
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    where = address_of(path, options.address)
    check_token(options.token, "serve")
    tokens = None if options.tokens is None else TokensFile(options.tokens)
    where.check(normal_path(path), options.token, is_probed=_is_new(path))
    held = await _prepared(path, options)
    supervisor: Supervisor | None = None
    try:
        async with AsyncExitStack() as stack:
            listener = where.listen(options.token)
            stack.callback(_close, listener, where.path)
            main = _main_url(where, listener, options.advertise)
            listen = _listened(where, listener, options.processes)
            orders = _orders(held, options, main, listen)
            supervisor = Supervisor(orders)
            stack.push_async_callback(supervisor.close)
            if not await _unless(over, supervisor.start()):
                return True
            front = await _lead_on(stack, supervisor, orders, options, where, listener, tokens)
            _leave_note(held.root, main)
            stack.callback(forget_note, held.root)
            fields = {"event": "served", "path": held.root, "address": main}
            _log.info("serving %r at %r", held.root, main, extra=fields)
            on_ready(main)
            await _either(front, asyncio.ensure_future(over.wait()))
            if front.done():
                raise StorageError(f"{main} is not served any more: {front.exception()!r}")
        return supervisor.is_clean
    finally:
        held.lock.release(is_sound=supervisor is None or supervisor.is_clean)


def _is_new(path: str) -> bool:
    return not os.path.lexists(lock_path(normal_path(path)))


def _leave_note(root: str, main: str) -> None:
    try:
        leave_note(root, main)
    except OSError as exc:  # a full disk is no reason not to start
        fields = {"event": "served_note_failed", "path": root}
        _log.warning("%r has no note of its address: %r", root, exc, extra=fields)


async def _prepared(path: str, options: ProcessesOptions) -> Held:
    """The store, with its lock; waits for another owner, or for what is left of one."""
    clock = SystemClock()
    began = clock.mono()
    open_now = partial(
        prepare,
        path,
        options.processes,
        shards=options.shards,
        durability=options.durability,
    )
    while True:
        try:
            return await asyncio.to_thread(open_now)
        except LockedError as exc:
            error = with_address(exc, path)
            wait_s = max(options.lock_wait_s, 0.0 if _is_owned(path) else ORPHANS_S)
            if clock.mono() - began >= wait_s:
                raise error from exc
        await asyncio.sleep(LOCK_POLL_S)


def _is_owned(path: str) -> bool:
    """Whether somebody has the whole store, and not only shards of it."""
    try:
        LockFile.check(lock_path(normal_path(path)))
    except LockedError:
        return True
    return False


async def _unless(over: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Await ``work``; False if it was cut short, because all is to end."""
    doing = asyncio.ensure_future(work)
    ending = asyncio.ensure_future(over.wait())
    try:
        await asyncio.wait((doing, ending), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ending.cancel()
        if not doing.done():
            doing.cancel()
            with suppress(asyncio.CancelledError):
                await doing
    if doing.cancelled():
        return False
    doing.result()
    return True


def _main_url(where: Address, listener: socket.socket, advertise: str | None) -> str:
    """Where clients reach the main address."""
    if where.path is not None:
        if advertise is not None:
            raise UsageError("a socket is reached where it lies: leave out --advertise")
        return f"unix://{where.path}"
    host, port = listener.getsockname()[:2]
    if advertise is None:
        if host in ("0.0.0.0", "::"):
            raise UsageError(f"{host} cannot be reached by others: say --advertise tcp://HOST:PORT")
        return _http(host, port)
    found = address_of("advertised", advertise)
    if found.path is not None or found.port != port:
        raise UsageError(f"expected --advertise as tcp://HOST:{port}, got {advertise!r}")
    return _http(found.host, port)


def _http(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listened(where: Address, listener: socket.socket, processes: int) -> list[str]:
    """Where the processes listen: beside the main address."""
    if where.path is not None:
        return addresses_of(f"unix://{where.path}", [], processes)
    host = f"[{where.host}]" if ":" in where.host else where.host
    port: int = listener.getsockname()[1]
    ports = [port + 1 + n for n in range(processes)]
    if where.port == 0:  # any that is free; so are those of the processes
        ports = _free_ports(where.host, processes)
    if ports[-1] > 65_535:
        raise UsageError(f"port {port} leaves none for {processes} processes: take a lower one")
    return addresses_of(f"tcp://{host}:{port}", ports, processes)


def _free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody has at this moment."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probes = [socket.socket(family, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _orders(held: Held, options: ProcessesOptions, main: str, listen: Sequence[str]) -> list[Order]:
    """What each process is told."""
    urls = list(listen)
    if main.startswith("http://"):  # by the name that clients know
        host = main.removeprefix("http://").rpartition(":")[0]
        urls = [f"tcp://{host}:{one.rpartition(':')[2]}" for one in listen]
    return [
        Order(
            path=held.root,
            number=n,
            shards=held.shards,
            durability=held.durability,
            listen=one,
            urls=tuple(urls),
            front=main,
            block_cache_bytes=CACHE_BYTES // len(urls),
            grace_s=options.grace_s,
            token=options.token,
            tokens=options.tokens,
            hosts=options.hosts,
            checkpoints=options.checkpoints,
        )
        for n, one in enumerate(listen)
    ]


async def _lead_on(
    stack: AsyncExitStack,
    supervisor: Supervisor,
    orders: Sequence[Order],
    options: ProcessesOptions,
    where: Address,
    listener: socket.socket,
    tokens: TokensFile | None,
) -> asyncio.Future[None]:
    """Answer at the main address; returns what runs until that ends.

    Args:
        stack: closes what is begun.
        supervisor: of the processes.
        orders: of the processes.
        options: of the service.
        where: the main address.
        listener: listens there.
        tokens: those that may do a part.
    """
    urls = orders[0].urls
    address = "lodeq://" + ",".join(urls)
    engine = await stack.enter_async_context(connect(address, token=options.token))
    hosts = loopback_hosts | {host_of(name) for name in options.hosts}
    if where.path is None:
        hosts |= {where.host.lower()}
    settings = Settings(
        token=options.token,
        tokens=tokens,
        hosts=frozenset(hosts),
        checkpoints=options.checkpoints,
    )
    refusals = Refusals()
    front = Front(engine, urls, supervisor.statuses, settings, options.dashboard, refusals)
    ready = asyncio.Event()
    server = AppServer(
        front.app,
        front.polls,
        [listener],
        refusals=refusals,
        grace_s=FRONT_GRACE_S,
        on_ready=ready.set,
    )
    running = asyncio.ensure_future(server.run())
    stack.push_async_callback(_stopped, server, running)
    await _either(running, asyncio.ensure_future(ready.wait()), START_S)
    if not ready.is_set():
        raise StorageError("the server of the main address did not start")
    return running


async def _either(
    lasting: asyncio.Future[None], awaited: asyncio.Future[Any], within_s: float | None = None
) -> None:
    """Wait until one of both is done; the second one ends with that."""
    try:
        await asyncio.wait(
            (lasting, awaited), timeout=within_s, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        awaited.cancel()


async def _stopped(server: AppServer, running: asyncio.Future[None]) -> None:
    server.stop()
    with suppress(asyncio.CancelledError):
        await running


def _close(listener: socket.socket, path: str | None) -> None:
    listener.close()
    if path is not None:
        with suppress(OSError):
            os.unlink(path)
