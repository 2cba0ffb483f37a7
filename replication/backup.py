"""A backup of a cluster: of every shard the most advanced copy in the checkpoints of its nodes.

::

    <dir>/backup.json      of which cluster it is, and which shard is from which node
    <dir>/nodes/<node>/    what is taken of that node's checkpoint: manifest, note, shards

``assemble`` makes a store of it. Each shard is of a moment of its own: the one at which its node
took the checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..engine.files.disk_errors import disk_error
from ..engine.files.durable_files import replace_file
from ..engine.recovery.checkpoint import check_files, read_manifest
from ..errors import CorruptionError, LodeqError, UsageError
from .bootstrap import manifest_digest, position_of
from .port import Checkpoint, check_node, index_of
from .replica_note import read_note

__all__ = ["BACKUP", "NODES", "Backup", "check_part", "choose", "parts_of", "write_backup"]

BACKUP = "backup.json"
NODES = "nodes"
_FORMAT, _VERSION = "lodeq-cluster-backup", 1
_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Backup:
    """The contents of a backup.

    Attributes:
        cluster: name of the cluster.
        shards: by index, from whose checkpoint each is; ``applied`` says up to which entry.
        lasts: by shard, the last entry of its log that a node knew of when it began.
        unreached: nodes that were left out, and why.
    """

    cluster: str
    shards: tuple[Checkpoint, ...]
    lasts: tuple[int, ...]
    unreached: Mapping[str, str]

    def parts(self) -> dict[Checkpoint, list[int]]:
        """The checkpoints that something is taken of, and which shards."""
        found: dict[Checkpoint, list[int]] = {}
        for shard, checkpoint in enumerate(self.shards):
            found.setdefault(checkpoint, []).append(shard)
        return found

    def lacks(self) -> dict[int, int]:
        """How many of the last entries are missing, by shard: their copies did not answer."""
        missing = (
            last - one.applied[shard]
            for shard, (one, last) in enumerate(zip(self.shards, self.lasts, strict=True))
        )
        return {shard: count for shard, count in enumerate(missing) if count > 0}


def choose(
    checkpoints: Sequence[Checkpoint], shards: int, unreached: Mapping[str, str]
) -> tuple[Checkpoint, ...]:
    """From which checkpoint each shard is taken: the most advanced; of equal ones, of few nodes.

    Args:
        checkpoints: at most one of each node.
        shards: how many the cluster has.
        unreached: nodes of which there is none, and why.

    Raises:
        UsageError: none of them has some shard.
    """
    found: list[Checkpoint] = []
    for shard in range(shards):
        there = [one for one in checkpoints if index_of(one.applied, shard) >= 0]
        if not there:
            why = "".join(f"; {node}: {text}" for node, text in sorted(unreached.items()))
            raise UsageError(
                f"no node that answers has a copy of shard {shard}: start those that have, or name "
                f"a node from where they are reached{why}"
            )
        found.append(max(there, key=lambda one: (index_of(one.applied, shard), one in found)))
    return tuple(found)


def check_part(folder: str, checkpoint: Checkpoint, shards: Sequence[int], cluster: str) -> None:
    """Check what was taken of a checkpoint: manifest, note, and files of these shards. Blocks.

    Raises:
        CorruptionError: it is not what its node said.
    """
    what = f"the checkpoint of node {checkpoint.node}"
    found, digest = manifest_digest(folder), checkpoint.digest
    if found != digest:
        raise CorruptionError(f"{what}: its manifest has the digest {found}, not {digest}")
    if lacking := {*shards} - {mark.shard for mark in read_manifest(folder).shards}:
        raise CorruptionError(f"{what} has no shards {sorted(lacking)}, which it was to have")
    note = read_note(folder)
    if note is None or (note.cluster, note.node) != (cluster, checkpoint.node):
        raise CorruptionError(f"{what} does not say that it is of the cluster {cluster!r}")
    for _, why in check_files(folder, shards):
        raise CorruptionError(f"{what}: {why}")
    for shard in shards:
        try:
            entry, said = position_of(folder, shard), checkpoint.applied[shard]
        except LodeqError as error:
            raise CorruptionError(f"{what}: shard {shard} cannot be read: {error}") from error
        if entry < said:
            raise CorruptionError(f"{what}: shard {shard} goes to {entry}, and it says {said}")


def write_backup(folder: str, backup: Backup) -> None:
    """Write what is in a backup, as the last of its files. Blocks."""
    body = {
        "format": _FORMAT,
        "version": _VERSION,
        "cluster": backup.cluster,
        "shards": [
            {
                "shard": shard,
                "node": one.node,
                "entry": one.applied[shard],
                "last": backup.lasts[shard],
                "taken_ms": one.created_ms,
            }
            for shard, one in enumerate(backup.shards)
        ],
        "unreached": dict(backup.unreached),
    }
    replace_file(os.path.join(folder, BACKUP), json.dumps(body, indent=2).encode() + b"\n")


def parts_of(folder: str) -> list[str] | None:
    """The folders in a backup that ``assemble`` takes; None: it is none. Blocks.

    Raises:
        CorruptionError: it is damaged.
    """
    path = os.path.join(folder, BACKUP)
    try:
        with open(path, "rb") as file:
            body = json.loads(file.read(_BYTES_MAX))
        if (body["format"], body["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"{body['format']!r}, version {body['version']!r}")
        nodes = dict.fromkeys(check_node(one["node"]) for one in body["shards"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise disk_error(error, path) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"{path} cannot be read ({error}): name the folders in {NODES}/ beside it instead"
        ) from error
    return [os.path.join(folder, NODES, node) for node in nodes]
