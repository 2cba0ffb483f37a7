"""``lodeq serve``: a store for other processes."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import stat
from contextlib import AsyncExitStack, suppress
from typing import Any, Literal

import click

from ....client.transport.transport import Target
from ....engine.files.paths import SHARDS_MAX
from ....errors import InvariantError, StorageError, UsageError
from ....replication.etcd.address import parse_address
from ....repository.api.open import open_engine
from ....repository.api.serve_options import Serve, check_token
from ....repository.api.view import view_of
from ...cluster.node import ClusterNode, node_name
from ...cluster.overview import shards_of_cluster
from ...processes.plan import PROCESSES_MAX, ProcessesOptions
from ...shared.garbage_collector import settle_collector
from ...shared.open_files import allow_files
from ..connection import Folder, run, told_what_to_do
from ..display import print_banner
from ..output import shown

__all__ = ["read_token", "serve"]

PORT = 8765
GRACE_S = 10.0  # that requests have to end


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
@click.option(
    "--tokens", type=click.Path(), help="TOML file of tokens with roles; read again on change."
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
    help="Number of shards of a store, or a cluster, that is created.",
)
@click.option(
    "--durability",
    type=click.Choice(["nosync", "fsync"]),
    help="Default: as the store was created.",
)
@click.option("--journal", help="The name of a lifecycle journal to write.")
@click.option(
    "--processes",
    type=click.IntRange(1, PROCESSES_MAX),
    help="Share the shards out among so many processes of this machine.",
)
@click.option(
    "--lock-wait", type=click.FloatRange(0), default=0.0, help="Seconds to wait for the store."
)
@click.option(
    "--replicate", help="etcd://HOST:PORT,…/NAME?ttl=3: be a node of this cluster (extra etcd)."
)
@click.option("--node", help="Name of this node in the cluster; the host's by default.")
@click.option("--zone", default="", help="Failure domain of this node.")
@click.option(
    "--advertise", help="Where clients and other nodes reach this node; the address by default."
)
@click.option(
    "--checkpoint-every",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    help="Seconds between two checkpoints of a node.",
)
@click.option(
    "--copy-rate",
    type=click.FloatRange(0, min_open=True),
    help="MiB a second that a node reads at most of others' checkpoints; as fast as it comes.",
)
def serve(
    path: str,
    uds: str | None,
    host: str | None,
    port: int | None,
    token_file: str | None,
    tokens: str | None,
    allow_host: tuple[str, ...],
    dashboard: Literal["read", "write", "off"],
    checkpoints: str | None,
    shards: int | None,
    durability: Literal["nosync", "fsync"] | None,
    journal: str | None,
    processes: int | None,
    lock_wait: float,
    replicate: str | None,
    node: str | None,
    zone: str,
    advertise: str | None,
    checkpoint_every: float,
    copy_rate: float | None,
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
        tokens: TOML file of tokens that may do a part, by role, queue and tenant.
        allow_host: further names that the header Host may give.
        dashboard: what its pages may do.
        checkpoints: folder that clients may make checkpoints in; None: nowhere.
        shards: of a store that is created.
        durability: None: as the store is stamped.
        journal: name of a lifecycle journal to write; None: as the store has it.
        processes: that share the shards; None: this one has them all.
        lock_wait: seconds to wait for a store that another process holds.
        replicate: address of the cluster's log; None: no cluster.
        node: name of this node.
        zone: its failure domain.
        advertise: where others reach it; None: the address, which then must not be a wildcard.
        checkpoint_every: seconds between two checkpoints of a node.
        copy_rate: MiB a second that it reads at most of others' checkpoints; None: no bound.
    """
    if uds is not None and (host is not None or port is not None):
        raise UsageError("give --uds, or --host and --port, not both")
    if host is None and port is not None:
        host = "127.0.0.1"
    token = None if token_file is None else read_token(token_file)
    if tokens is not None and token is None and (processes is not None or replicate is not None):
        raise UsageError(
            "with --processes or --replicate give --token-file beside --tokens: the processes, or "
            "the nodes, use that token among themselves"
        )
    allow_files()
    address = _address(uds, host, PORT if port is None else port)
    if processes is not None:
        if replicate is not None or node is not None or zone:
            raise UsageError("a node of a cluster is one process: leave out --processes")
        if journal is not None:
            raise UsageError("several processes write no lifecycle journal: leave out --journal")
        shared = ProcessesOptions(
            processes,
            address=address,
            advertise=advertise,
            token=token,
            tokens=tokens,
            dashboard=dashboard,
            hosts=allow_host,
            checkpoints=checkpoints,
            shards=shards,
            durability=durability,
            lock_wait_s=lock_wait,
            grace_s=GRACE_S,
        )
        _serve_processes(path, shared)
        return
    member: ClusterNode | None = None
    if replicate is None:
        if node is not None or zone or advertise is not None:
            raise UsageError("--node, --zone and --advertise are for a cluster: give --replicate")
    else:
        log, name = parse_address(replicate), node_name(node)
        url = _url_of_node(path, advertise, address)
        shards = run(lambda: shards_of_cluster(log, shards))
        member = ClusterNode(
            path,
            log,
            name=name,
            url=url,
            zone=zone,
            shards=shards,
            token=token,
            copy_bytes_per_s=None if copy_rate is None else copy_rate * (1 << 20),
        )
    served = Serve(
        address=address,
        token=token,
        tokens=tokens,
        dashboard=dashboard,
        hosts=allow_host,
        checkpoints=checkpoints,
        grace=GRACE_S,
        routes=None if member is None else member.routes,
    )
    serving = _serve(
        path,
        served,
        member,
        checkpoint_every,
        shards=shards,
        durability=durability,
        journal=journal,
        lock_wait=lock_wait,
    )
    with told_what_to_do("it can be reached already: {url}"):
        asyncio.run(serving)


def _address(uds: str | None, host: str | None, port: int) -> Literal[True] | str:
    if host is not None:
        name, _, rest = host.partition(":")
        if name and rest.isdecimal():  # no address of IPv6
            raise UsageError(f"{host!r} has a port: give --host {name} --port {rest}")
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
    return True if uds is None else f"unix://{os.path.abspath(uds)}"


def read_token(path: str) -> str:
    """Read the token: the first line of a file that only its owner can read."""
    if not os.path.exists(path):
        raise UsageError(f"there is no token file {path!r}: {_making(path)}")
    if os.path.isdir(path):
        inside = os.path.join(path, "token")
        cure = f"give {inside}" if os.path.isfile(inside) else _making(inside)
        raise UsageError(f"the token file {path!r} is a folder: {cure}")
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.readline(4096).strip()
    except OSError as exc:
        raise UsageError(f"the token file {path!r} cannot be read: {exc.strerror}") from exc
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(f"{path} can be read by others: chmod 600 it")
    check_token(token, path)
    return token


def _making(path: str) -> str:
    return f"make it with '(umask 077; openssl rand -hex 32 > {shlex.quote(path)})'"


def _url_of_node(path: str, advertise: str | None, address: Literal[True] | str) -> str:
    """Where others reach a node."""
    if advertise is not None:
        url = Target(advertise, None, 0.0).url  # refused as whoever is to reach it would refuse it
    elif address is True:
        return f"unix://{os.path.abspath(path)}.sock"
    else:
        url = address
    if url.startswith(("tcp://0.0.0.0:", "tcp://[::]:")) or url.endswith(":0"):
        raise UsageError(f"{url} cannot be reached by others: say --advertise tcp://HOST:PORT")
    return url


async def _serve(
    path: str,
    served: Serve,
    member: ClusterNode | None,
    checkpoint_every_s: float,
    **options: Any,
) -> None:
    loop = asyncio.get_running_loop()
    if member is not None:
        options["replicator"] = member.replicator
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(open_engine(path, serve=served, **options))
        server = view_of(engine).server
        if server is None:
            raise InvariantError("the store is open and not served")
        settle_collector()
        over = asyncio.ensure_future(server.wait())
        running: asyncio.Future[None] | None = None
        if member is not None:
            running = asyncio.ensure_future(member.run(checkpoint_every_s))
            running.add_done_callback(lambda _: over.cancel())
            stack.push_async_callback(_cancelled, running)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, over.cancel)
        _echo_address(server.address)
        with suppress(asyncio.CancelledError):
            await over
        if server.problem is not None:
            raise StorageError(f"{server.address} is not served any more: {server.problem}")
        if running is not None and running.done():
            running.result()  # it raises what has ended the node


def _serve_processes(path: str, options: ProcessesOptions) -> None:
    try:
        from ...processes.serving import serve_processes  # noqa: PLC0415 - an extra
    except ImportError as exc:
        if (exc.name or "").partition(".")[0] == "lodeq":
            raise
        raise UsageError('--processes needs an extra: pip install "lodeq[http]"') from exc
    if not run(lambda: serve_processes(path, options, _echo_address)):
        raise click.exceptions.Exit(1)


def _echo_address(address: str) -> None:
    print_banner(f"serving {shown(address)}")


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
