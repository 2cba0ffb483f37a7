"""``lodeq cluster``: look after a cluster and its nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import anyio
import click

from ....engine.runtime.current_loop import current_spawner
from ....engine.runtime.ids import SystemRng
from ....replication.assemble import assemble as assemble_store
from ....replication.backup import Backup
from ....replication.begin import begin_cluster
from ....replication.etcd.address import parse_address
from ....replication.port import NO_COPY, Genesis
from ....repository.maintenance.detach import detach as detach_store
from ...cluster.backup import back_up
from ...cluster.fetch import HttpCheckpoints, ask_node
from ...cluster.node import etcd_log, node_name
from ...cluster.overview import Overview, overview
from ..connection import Folder, run
from ..output import shown
from .serve import read_token

__all__ = [
    "add",
    "assemble",
    "backup",
    "begin",
    "checkpoint",
    "cluster",
    "detach",
    "drain",
    "forget",
    "move",
    "remove",
    "status",
    "truncate",
]

LOOK_S: Final = 0.5

_node = click.argument("node")
_token = click.option(
    "--token-file", type=click.Path(), help="File with the node's token; else LODEQ_TOKEN is used."
)

_wait = click.option(
    "--wait",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    help="Seconds to wait until it is done.",
)


def _token_of(token_file: str | None) -> str | None:
    return os.environ.get("LODEQ_TOKEN") if token_file is None else read_token(token_file)


def _ask(node: str, method: str, path: str, token_file: str | None, document: Any = None) -> Any:
    token = _token_of(token_file)
    return run(lambda: ask_node(node, method, path, token=token, document=document))


@click.group()
def cluster() -> None:
    """Look after a cluster: several nodes with the same store.

    NODE is the address of one of its nodes (tcp://HOST:PORT, http://HOST:PORT or unix://FILE).
    """


@cluster.command()
@click.argument("where")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_token
def status(where: str, as_json: bool, token_file: str | None) -> None:
    """Show nodes, leaders and logs. WHERE is a node, or etcd://…/NAME.

    Of a node: its own positions and problems, too. Exit code 1: something is wrong.

    Args:
        where: address of a node, or of the log.
        as_json: print one JSON document.
        token_file: file with the node's token.
    """
    if where.lower().startswith("etcd://"):
        address = parse_address(where)
        found = run(lambda: overview(address))
        _show_overview(found, as_json=as_json)
        is_well = all(one.leader is not None for one in found.shards) and not found.problem
    else:
        document = _ask(where, "GET", "/cluster/status", token_file)
        if as_json:
            click.echo(json.dumps(document, indent=2))
        else:
            _show_node(document)
        is_led = all(one["leader"] is not None for one in document["shards"])
        is_well = is_led and not document["problems"]
    if not is_well:
        raise click.exceptions.Exit(1)


@cluster.command()
@_node
@_token
def checkpoint(node: str, token_file: str | None) -> None:
    """Let NODE take a checkpoint now, and publish it.

    Args:
        node: its address.
        token_file: file with its token.
    """
    found = _ask(node, "POST", "/cluster/checkpoint", token_file)
    positions = ", ".join(map(str, found["applied"]))
    click.echo(f"checkpoint {found['digest']} of {shown(found['node'])}: entries {positions}")


@cluster.command()
@_node
@_token
def truncate(node: str, token_file: str | None) -> None:
    """Remove from the logs that NODE leads what no node and no restore needs any more.

    Leaders do so by themselves every ten seconds; this shows how far it goes.

    Args:
        node: its address.
        token_file: file with its token.
    """
    found = _ask(node, "POST", "/cluster/truncate", token_file)
    click.echo(f"logs begin at entries {', '.join(map(str, found['floors']))}")


@cluster.command()
@_node
@click.option("--undo", is_flag=True, help="Let it lead again.")
@_token
def drain(node: str, undo: bool, token_file: str | None) -> None:
    """Let other nodes lead what NODE leads, before it is stopped or upgraded.

    It goes on following and answering reads. Running tasks keep their leases, and no attempt is
    counted. It holds until the node starts again, or --undo.

    Args:
        node: its address.
        undo: let it lead again.
        token_file: file with its token.
    """
    found = _ask(node, "POST", "/cluster/drain", token_file, {"drain": not undo})
    if undo:
        click.echo("it takes part in elections again")
    elif found["leads"]:
        click.echo(f"it still leads shards {', '.join(map(str, found['leads']))}: run it again")
        raise click.exceptions.Exit(1)
    else:
        click.echo("it leads nothing")


@cluster.command()
@_node
@_token
def add(node: str, token_file: str | None) -> None:
    """Let NODE have copies of shards, after a 'remove'.

    A node that is new needs no more than to be started: it gets its share by itself.

    Args:
        node: its address.
        token_file: file with its token.
    """
    found = _ask(node, "POST", "/cluster/add", token_file)
    click.echo(f"node {shown(found['node'])} gets its share: 'lodeq cluster status' shows it")


@cluster.command()
@_node
@_wait
@_token
def remove(node: str, wait: float, token_file: str | None) -> None:
    """Let other nodes have the copies of NODE, and wait until they do.

    Stop it afterwards: then it is forgotten. Its tasks are served all the while, and no attempt is
    counted. Exit code 1: it has copies still; it goes on, look at the status.

    Args:
        node: its address.
        wait: seconds to wait at most.
        token_file: file with its token.
    """
    name = _ask(node, "POST", "/cluster/remove", token_file)["node"]

    def left(document: dict[str, Any]) -> str | None:
        if not all(one["copies"] for one in document["shards"]):
            return "the node has not read yet where all copies are"
        shards = [one["shard"] for one in document["shards"] if name in one["copies"]]
        return f"it has copies of shards {', '.join(map(str, shards))}" if shards else None

    _wait_until(node, token_file, wait, left)
    click.echo(f"node {shown(name)} has no copies any more: stop it")


@cluster.command()
@_node
@click.argument("name")
@_token
def forget(node: str, name: str, token_file: str | None) -> None:
    """Say that the node called NAME has ended and will not come back; NODE is any live one.

    Its copies are made elsewhere at once, and its checkpoint leaves the list.

    Args:
        node: address of a live node.
        name: of the node that is gone.
        token_file: file with the node's token.
    """
    found = _ask(node, "POST", "/cluster/forget", token_file, {"node": name})
    click.echo(f"node {shown(found['node'])} is forgotten")


@cluster.command()
@_node
@click.argument("shard", type=click.IntRange(0))
@click.option("--to", "target", required=True, help="Name of the node that gets the copy.")
@click.option(
    "--from",
    "source",
    help="Name of the node that loses its own; the one with the most by default.",
)
@_wait
@_token
def move(
    node: str, shard: int, target: str, source: str | None, wait: float, token_file: str | None
) -> None:
    """Move a copy of SHARD from one node to another, and wait until it is there.

    NODE is the address of any node. The shard is served all the while. Exit code 1: it is not there
    yet; it goes on.

    Args:
        node: address of a node.
        shard: index of the shard.
        target: name of the node that gets the copy.
        source: name of the node that loses its own; None: the one with the most copies.
        wait: seconds to wait at most.
        token_file: file with the node's token.
    """
    wanted = {"shard": shard, "to": target, "from": source}
    leaving = _ask(node, "POST", "/cluster/move", token_file, wanted)["leaving"]

    def left(document: dict[str, Any]) -> str | None:
        one = document["shards"][shard]
        is_there = target in one["copies"] and not {*one["copies"]} & {*leaving}
        return None if is_there else f"shard {shard} is on {', '.join(one['copies'])}"

    _wait_until(node, token_file, wait, left)
    click.echo(f"shard {shard} is on node {shown(target)}")


def _wait_until(
    node: str,
    token_file: str | None,
    wait_s: float,
    left: Callable[[dict[str, Any]], str | None],
) -> None:
    """Wait until ``left`` finds nothing in the status; exit with 1 if it does after so long."""
    token = _token_of(token_file)

    async def look() -> str | None:
        said: str | None = "nothing is known yet"
        with anyio.move_on_after(wait_s):
            while said is not None:
                said = left(await ask_node(node, "GET", "/cluster/status", token=token))
                await anyio.sleep(LOOK_S if said is not None else 0)
        return said

    said = run(look)
    if said is not None:
        click.echo(f"not done yet: {said}; it goes on")
        raise click.exceptions.Exit(1)


@cluster.command()
@_node
@click.argument("path", type=click.Path())
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="MiB a second to read at most; as fast as it comes by default.",
)
@_token
def backup(node: str, path: str, rate: float | None, token_file: str | None) -> None:
    """Back up the whole cluster of NODE into the new folder PATH.

    Every node takes a checkpoint, and of each shard the most advanced one is fetched and checked.
    The other nodes are reached where NODE says they are, with the same token. 'lodeq cluster
    assemble STORE PATH' makes a store of it, with which a cluster of another name can begin. Exit
    code 1: it is there, and the last entries of a shard are missing, because no node that has them
    answered.

    Args:
        node: address of any node.
        path: where the backup is to be; it does not exist yet.
        rate: MiB a second at most; None: as fast as it comes.
        token_file: file with the nodes' token.
    """
    token = _token_of(token_file)
    source = HttpCheckpoints(token, bytes_per_s=None if rate is None else rate * (1 << 20))

    async def run_it() -> Backup:
        return await back_up(
            node,
            path,
            token=token,
            source=source,
            spawner=current_spawner(),
            report=lambda line: click.echo(shown(line), err=True),
        )

    found = run(run_it)
    lacks = found.lacks()
    for shard, one in enumerate(found.shards):
        less = f"; the last {lacks[shard]} are missing" if shard in lacks else ""
        click.echo(f"shard {shard}: entry {one.applied[shard]} of node {shown(one.node)}{less}")
    click.echo(f"{shown(path)} is a backup of {shown(found.cluster)}")
    if lacks:
        raise click.exceptions.Exit(1)


@cluster.command()
@click.argument("path", type=Folder())
def detach(path: str) -> None:
    """Make the closed replica at PATH a store of its own, for good.

    For when the cluster is gone: what this replica has applied is served by 'lodeq serve PATH'
    afterwards. It cannot join its cluster any more.

    Args:
        path: the store's folder.
    """
    detach_store(path)
    click.echo(f"{shown(path)} is a store of its own")


@cluster.command()
@click.argument("path", type=Folder())
@click.option("--replicate", required=True, help="etcd://HOST:PORT,…/NAME of the new cluster.")
@click.option("--node", help="Name of the node that PATH is to be; the host's by default.")
def begin(path: str, replicate: str, node: str | None) -> None:
    """Begin a new cluster with the closed store at PATH.

    PATH becomes the replica of the first node: serve it as that, then start the others on empty
    folders. All tasks, results and settings are there. 'lodeq cluster detach' undoes it.

    Args:
        path: the store's folder.
        replicate: address of the log; no cluster of that name may be there.
        node: the name of the first node.
    """
    address, name = parse_address(replicate), node_name(node)

    async def run_it() -> Genesis:
        log = etcd_log(address)
        try:
            return await begin_cluster(
                log,
                path,
                node=name,
                cluster=address.cluster,
                copies=address.copies,
                rng=SystemRng(),
                spawner=current_spawner(),
            )
        finally:
            await log.close()

    found = run(run_it)
    click.echo(
        f"cluster {shown(found.cluster)}: {found.shards} shards, begun with {shown(path)}: serve "
        f"it with --node {shown(name)}, then start the other nodes on empty folders"
    )


@cluster.command()
@click.argument("path", type=click.Path())
@click.argument("stores", nargs=-1, required=True, type=Folder())
def assemble(path: str, stores: tuple[str, ...]) -> None:
    """Make a store at PATH of what is left of a cluster whose etcd is gone.

    STORES are the closed stores of its nodes, checkpoints, or backups, as many as there are. Of
    each shard the copy is taken that is most advanced. It is a store of its own: serve it, or begin
    a new cluster with it.

    Args:
        path: of the new store, which does not exist yet.
        stores: those of the nodes, their checkpoints, or backups.
    """
    for one in assemble_store(path, stores):
        others = ", ".join(f"{shown(folder)} {index}" for folder, index in one.behind)
        beside = f"; {others}" if others else ""
        click.echo(f"shard {one.shard}: entry {one.entry} of {shown(one.folder)}{beside}")
        for folder, why in one.damaged:
            click.echo(
                f"shard {one.shard} of {shown(folder)} cannot be read: {shown(why)}", err=True
            )
    click.echo(f"{shown(path)} is a store of its own")


def _show_overview(found: Overview, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found.document(), indent=2))
        return
    click.echo(f"cluster {shown(found.cluster)}: {len(found.shards)} shards")
    for one in found.members:
        where = f"  {shown(one.url)}" if one.url else ""
        drained = "  drained" if one.is_drained else ""
        click.echo(f"node {shown(one.node)}  lodeq {shown(one.version)}{where}{drained}")
    for shard in found.shards:
        leader = shown(shard.leader) if shard.leader is not None else "nobody"
        lags = ", ".join(
            f"{shown(one.node)} {max(0, shard.last - one.applied[shard.shard])}"
            for one in found.members
            if shard.shard < len(one.applied) and one.applied[shard.shard] != NO_COPY
        )
        click.echo(
            f"shard {shard.shard}: led by {leader}, entries {shard.floor} to {shard.last}; "
            f"behind: {lags or 'not known'}{_placed(found, shard.shard)}"
        )
    for checkpoint in found.checkpoints:
        click.echo(f"checkpoint of {shown(checkpoint.node)}: entries {checkpoint.applied}")
    if found.problem:
        click.echo(f"problem: {found.problem}")


def _placed(found: Overview, shard: int) -> str:
    placed = next((one for one in found.placements if one.shard == shard), None)
    return "" if placed is None else _copies(placed.copies, placed.leaving)


def _copies(copies: Sequence[str], leaving: Sequence[str]) -> str:
    """Where a shard has its copies; nothing where every node has one."""
    if not copies:
        return ""
    names = (f"{shown(one)} (leaving)" if one in leaving else shown(one) for one in copies)
    return f"; copies on {', '.join(names)}"


def _show_node(found: dict[str, Any]) -> None:
    click.echo(
        f"node {shown(found['node'])} of cluster {shown(found['cluster'])}: session holds "
        f"{found['session_s']:.1f} s more, clock {found['skew_ms']:+.0f} ms off"
    )
    for one in found["members"]:
        click.echo(f"member {shown(one['node'])}  {shown(one['url'])}")
    for one in found["shards"]:
        leader = shown(one["leader"]) if one["leader"] is not None else "nobody"
        click.echo(
            f"shard {one['shard']}: {one['role']}, led by {leader}, {one['lag']} entries behind, "
            f"log from {one['floor']} to {one['last']}{_copies(one['copies'], one['leaving'])}"
        )
    for problem in found["problems"]:
        click.echo(f"problem: {shown(problem)}")
