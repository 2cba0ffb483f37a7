"""Begin a cluster with a store that is there: one that had no cluster, or has lost it.

The store becomes the first node's replica. The logs of its shards begin behind an entry that they
never had (``Genesis.base``), so nobody can make the rows anew from the log: other nodes start from
a checkpoint of the first.

The steps are in an order in which a kill leaves what can be begun again: the store's note, then
its rows, then the genesis. Until that is written there is no cluster.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Final

from ..engine.files.paths import normal_path
from ..engine.runtime.event_loop import Spawner
from ..engine.runtime.ids import Rng
from ..errors import UsageError
from ..repository.maintenance.attach import attach
from ..repository.maintenance.detach import detach
from .groups import check_groups
from .port import FORMAT, Genesis, SharedLog, check_node
from .record import LEVEL
from .replica_note import ReplicaNote, read_note, write_note

__all__ = ["BASE", "begin_cluster"]

BASE: Final = 1  # the entry that stands for all that the store has
_NONCE_BYTES: Final = 16


async def begin_cluster(
    log: SharedLog,
    path: str | os.PathLike[str],
    *,
    node: str,
    cluster: str,
    copies: int | None,
    rng: Rng,
    spawner: Spawner,
) -> Genesis:
    """Begin ``cluster`` with the closed store at ``path``, as the replica of ``node``.

    Repeated after a kill it goes on; repeated after it was done it changes nothing.

    Args:
        log: not connected yet.
        path: the store's folder. A replica of another cluster has to be detached before.
        node: the name of the node that it is to be.
        cluster: of the new cluster, 1 to 64 characters.
        copies: of each shard; None: every node has one.
        rng: draws the nonce.
        spawner: the event loop.

    Raises:
        UsageError: there is a cluster of that name, the store is a replica of another one or one
            that has had its log, or ``node`` is no name; nothing was changed.
        OpenError: there is no store, it is open, or it cannot be read.
        LogUnavailableError: the log did not answer. Call it again.
        StorageError: the disk failed. Call it again.

    Durability: on return the cluster and its first replica survive a power cut.
    """
    check_node(node)
    root = normal_path(path)
    held = await log.look()
    note: ReplicaNote | None = await spawner.run_in_thread(partial(read_note, root))
    _check_note(root, note, cluster, node)
    if held is not None:
        check_groups(log, held)
        if note is None or note.nonce != held.nonce or not held.base:
            raise UsageError(
                f"there is a cluster {held.cluster!r} in this log already: begin one of another "
                "name"
            )
        return await log.connect(held)  # a run that was stopped may not have reached all groups
    if note is not None:
        _check_unserved(root, note)
        await spawner.run_in_thread(partial(detach, root))
    # The run that wrote the note may still go on: both begin the same cluster.
    nonce = rng.bytes(_NONCE_BYTES) if note is None else note.nonce
    fresh = ReplicaNote(cluster, node, 0, nonce)
    shards = await spawner.run_in_thread(partial(_attach, root, fresh, has_copies=bool(copies)))
    ours = Genesis(
        cluster, shards, nonce, format=FORMAT, copies=copies or 0, level=LEVEL, base=BASE
    )
    found = await log.connect(ours)
    if found.nonce != nonce:
        raise UsageError(
            f"another node has begun the cluster {cluster!r} meanwhile: make {root} a store of its "
            "own again ('lodeq cluster detach')"
        )
    return found


def _check_note(root: str, note: ReplicaNote | None, cluster: str, node: str) -> None:
    if note is not None and (note.cluster, note.node) != (cluster, node):
        raise UsageError(
            f"{root} is the replica of node {note.node!r} in the cluster {note.cluster!r}: make it "
            "a store of its own first ('lodeq cluster detach')"
        )


def _check_unserved(root: str, note: ReplicaNote) -> None:
    """Check that a note without a cluster is of a run that was stopped: it has seen no log."""
    if note.revision or note.service_id:
        raise UsageError(
            f"{root} is a replica of the cluster {note.cluster!r}, and this log holds no cluster: "
            "another service was named, or it was set up anew. To begin a cluster of another name "
            "with it, make it a store of its own first ('lodeq cluster detach', or 'assemble' with "
            "those of the other nodes)"
        )


def _attach(root: str, note: ReplicaNote, *, has_copies: bool) -> int:
    """Make the store a replica; returns the number of its shards. Blocks."""

    def write(shards: int) -> None:
        hosted = tuple(range(shards)) if has_copies else ()
        write_note(root, replace(note, shards=shards, hosted=hosted))

    return attach(root, BASE, note=write)
