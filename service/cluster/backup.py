"""Taking a backup of a cluster, from any machine that reaches its nodes.

Every node takes a checkpoint now; of each shard the most advanced one is fetched, file by file, and
checked against the manifest that its node published. A node that does not answer is left out, as
long as others have its shards. Nodes keep a checkpoint that is asked for now and then, so all that
are to be fetched are asked for until they are.

::

    <dir>.partial/    until all of it is there
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from ...engine.files.disk_errors import disk_error
from ...engine.files.paths import fsync_dir, normal_path
from ...errors import (
    BusyError,
    CorruptionError,
    LodeqError,
    StorePathError,
    UnreachableError,
    UsageError,
)
from ...replication.backup import NODES, Backup, check_part, choose, write_backup
from ...replication.port import Checkpoint, check_node
from .fetch import TAKES_S, HttpCheckpoints, ask_node

if TYPE_CHECKING:
    from ...engine.runtime.event_loop import Spawner

__all__ = ["back_up"]

LOOK_S: Final = 10.0  # for what a node says of itself
RETRY_S: Final = 1.0
TRIES_MAX: Final = 5  # to fetch files
KEEP_S: Final = 60.0  # between two questions for a checkpoint that is to be fetched
SHARDS_MAX: Final = 4096
SAID_MAX: Final = 300  # characters of what a node says


@dataclass(slots=True)
class _Cluster:
    """A cluster as its nodes describe it."""

    name: str
    lasts: list[int]  # the last entry of each log, as far as somebody knows
    urls: dict[str, str] = field(default_factory=dict)  # of members
    unreached: dict[str, str] = field(default_factory=dict)  # those that are left out, and why


async def back_up(
    url: str,
    folder: str | os.PathLike[str],
    *,
    token: str | None,
    source: HttpCheckpoints,
    spawner: Spawner,
    report: Callable[[str], None] = lambda _: None,
) -> Backup:
    """Back up the cluster of the node at ``url`` into a new folder.

    All entries are in it that a node which answers knew of at the call, unless their only copies do
    not answer: ``Backup.lacks`` says how many are missing. Shards are of different moments: tasks
    that wait for one another are put right when a store of the backup is opened.

    Args:
        url: address of any node; the others are those that it names, and get the same token.
        folder: where the backup is to be; there is nothing, and there is what it is to lie in.
        token: of the nodes; None: none.
        source: fetches checkpoints.
        spawner: the event loop.
        report: called with a line for each step.

    Raises:
        StorePathError: there is something at ``folder`` or beside it. Nothing was asked.
        UnreachableError: the node does not answer.
        UsageError: a shard has no copy at a node that answers, or the node refuses.
        CorruptionError: what a node sent is not what it published.
        StorageError: the disk failed or is full.

    Durability: on return the backup survives a power cut. Else nothing is at ``folder``.
    """
    root = normal_path(folder)
    work: str = await spawner.run_in_thread(partial(_begin, root))
    try:
        cluster = await _look(url, token)
        report(f"checkpoints of nodes {', '.join(sorted(cluster.urls))}")
        taken = await _take_all(cluster, token)
        backup = await _fetch_all(cluster, taken, work, source, spawner, report)
        await spawner.run_in_thread(partial(_finish, work, root, backup))
    finally:
        with anyio.CancelScope(shield=True):
            await spawner.run_in_thread(partial(shutil.rmtree, work, ignore_errors=True))
    return backup


# -- what there is -----------------------------------------------------------------------


async def _look(url: str, token: str | None) -> _Cluster:
    """Ask a node who there is, and these how far the logs are."""
    status = await ask_node(url, "GET", "/cluster/status", token=token, timeout_s=LOOK_S)
    found = _read(url, status)
    urls = found.urls
    found.urls = {}

    async def ask(node: str, where: str) -> None:
        try:
            if not where:
                raise UsageError("it says no address")
            told = await ask_node(where, "GET", "/cluster/status", token=token, timeout_s=LOOK_S)
            theirs = _read(where, told)
            if (told.get("node"), theirs.name) != (node, found.name):
                raise UsageError(f"{where} is another node, or of another cluster")
            if len(theirs.lasts) != len(found.lasts):
                raise UsageError(f"{where} has another number of shards")
        except LodeqError as error:
            found.unreached[node] = str(error)[:SAID_MAX]
        else:
            found.urls[node] = where
            found.lasts[:] = map(max, found.lasts, theirs.lasts)

    async with anyio.create_task_group() as tasks:
        for node, where in urls.items():
            tasks.start_soon(ask, node, where)
    return found


def _read(url: str, status: Any) -> _Cluster:
    """Read the status of one node.

    Raises:
        UnreachableError: this is no status.
        UsageError: it has lost its log, and knows nothing new.
    """
    try:
        found = _Cluster(
            str(status["cluster"]),
            [int(one["last"]) for one in status["shards"]],
            {check_node(one["node"]): str(one["url"]) for one in status["members"]},
        )
        has_session = float(status["session_s"]) > 0
    except (KeyError, TypeError, ValueError, OverflowError) as exc:
        raise UnreachableError(f"{url}: this is not what a node says: {exc!r:.100}") from exc
    if not 1 <= len(found.lasts) <= SHARDS_MAX:
        raise UnreachableError(f"{url}: it says that there are {len(found.lasts)} shards")
    if not has_session:
        raise UsageError(f"{url} does not reach its log now, and knows nothing new: name another")
    return found


# -- checkpoints -------------------------------------------------------------------------


async def _take_all(cluster: _Cluster, token: str | None) -> list[Checkpoint]:
    """Have all nodes take a checkpoint."""
    taken: list[Checkpoint] = []

    async def take(node: str, url: str) -> None:
        try:
            taken.append(await _take(node, url, len(cluster.lasts), token))
        except LodeqError as error:
            cluster.unreached[node] = str(error)[:SAID_MAX]

    async with anyio.create_task_group() as tasks:
        for node, url in cluster.urls.items():
            tasks.start_soon(take, node, url)
    return sorted(taken, key=lambda one: one.node)


async def _take(node: str, url: str, shards: int, token: str | None) -> Checkpoint:
    """Have one node take a checkpoint; one that takes one already is waited for."""
    give_up = anyio.current_time() + TAKES_S
    while True:
        try:
            found = await ask_node(url, "POST", "/cluster/checkpoint", token=token)
            break
        except BusyError:
            if anyio.current_time() > give_up:
                raise
        await anyio.sleep(RETRY_S)
    try:
        applied = tuple(int(found["applied"][shard]) for shard in range(shards))
        digest, at_ms = str(found["digest"]), int(found["created_ms"])
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as exc:
        raise UnreachableError(f"{url}: this is not what a node says: {exc!r:.100}") from exc
    return Checkpoint(node, url, digest, applied, at_ms)


async def _fetch_all(
    cluster: _Cluster,
    taken: list[Checkpoint],
    work: str,
    source: HttpCheckpoints,
    spawner: Spawner,
    report: Callable[[str], None],
) -> Backup:
    """Fetch of each shard the most advanced copy; where that cannot be had, the next one."""
    done: dict[Checkpoint, list[int]] = {}

    async def keep() -> None:
        while True:
            for one in list(taken):
                with suppress(LodeqError, OSError):
                    await source.keep(one)
            await anyio.sleep(KEEP_S)

    keeping = spawner.spawn(keep, "lodeq-backup")
    try:
        while True:
            chosen = choose(taken, len(cluster.lasts), cluster.unreached)
            backup = Backup(cluster.name, chosen, tuple(cluster.lasts), dict(cluster.unreached))
            missing = {
                one: left
                for one, shards in backup.parts().items()
                if (left := [shard for shard in shards if shard not in done.get(one, ())])
            }
            if not missing:
                break
            one, shards = next(iter(missing.items()))
            report(f"shards {', '.join(map(str, shards))} from node {one.node}")
            place = os.path.join(work, NODES, one.node)
            try:
                await _fetch(source, one, place, shards, spawner)
            except UnreachableError as error:
                taken.remove(one)
                cluster.unreached[one.node] = str(error)[:SAID_MAX]
                await spawner.run_in_thread(partial(shutil.rmtree, place, ignore_errors=True))
                continue
            await spawner.run_in_thread(partial(check_part, place, one, shards, cluster.name))
            done.setdefault(one, []).extend(shards)
    finally:
        keeping.cancel()
        with anyio.CancelScope(shield=True):
            await keeping.join()
    for node, why in sorted(cluster.unreached.items()):
        report(f"node {node} is left out: {why}")
    return backup


async def _fetch(
    source: HttpCheckpoints,
    checkpoint: Checkpoint,
    place: str,
    shards: Sequence[int],
    spawner: Spawner,
) -> None:
    failed: OSError | None = None
    for n in range(TRIES_MAX):
        await anyio.sleep(RETRY_S if n else 0)
        try:
            await source.fetch(checkpoint, place, spawner, shards=shards)
        except ConnectionError as error:
            failed = error
        except UsageError as error:  # a file that would lie elsewhere
            raise CorruptionError(f"node {checkpoint.node}: {error}") from error
        except OSError as error:
            raise disk_error(error, place) from error
        else:
            return
    raise UnreachableError(f"its checkpoint was not to be had: {failed}") from failed


# -- the folder --------------------------------------------------------------------------


def _begin(root: str) -> str:
    """Make the folder in which it is put together, which nobody else has; returns its path."""
    work, parent = f"{root}.partial", os.path.dirname(root)
    if os.path.lexists(root):
        raise StorePathError(f"{root} exists: a backup never overwrites, choose another path")
    try:
        os.mkdir(work, 0o700)
        os.mkdir(os.path.join(work, NODES), 0o700)
    except FileExistsError as error:
        raise StorePathError(
            f"{work} is there: another backup is under way, or it is left from one that was "
            "interrupted; remove it, or choose another path"
        ) from error
    except FileNotFoundError as error:
        raise StorePathError(f"{parent} does not exist: make it first") from error
    except OSError as error:
        raise disk_error(error, work) from error
    return work


def _finish(work: str, root: str, backup: Backup) -> None:
    try:
        write_backup(work, backup)
        fsync_dir(os.path.join(work, NODES))
        fsync_dir(work)
        if os.path.lexists(root):
            raise StorePathError(f"{root} exists by now: choose another path")
        os.rename(work, root)
    except OSError as error:
        raise disk_error(error, root) from error
    try:
        fsync_dir(os.path.dirname(root))
    except OSError as error:
        shutil.rmtree(root, ignore_errors=True)
        raise disk_error(error, root) from error
