"""``replica.json``: what a store remembers of the cluster it belongs to.

It lies in the store's folder and is replaced as a whole. By its nonce a store recognises another
cluster of the same name, by the service's id another etcd, and by the revision one that was
restored from an older copy.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

import xxhash

from ..engine.files.disk_errors import disk_error
from ..engine.files.durable_files import replace_file
from ..errors import CorruptionError

__all__ = ["NOTE", "ReplicaNote", "read_note", "write_note"]

NOTE = "replica.json"
_FORMAT = "lodeq-replica"
_VERSION = 1
_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ReplicaNote:
    """What is remembered.

    Attributes:
        cluster: name of the cluster.
        node: name of this node in it.
        shards: how many there are.
        nonce: of the genesis.
        revision: the highest of the log service that was seen.
        service_id: which service that is; 0: not noted, as by an older release.
        hosted: the shards that are here, where a node need not have every one.
        later: (service_id, revision) of each log group but the first; empty: not noted.
    """

    cluster: str
    node: str
    shards: int
    nonce: bytes
    revision: int = 0
    service_id: int = 0
    hosted: tuple[int, ...] = ()
    later: tuple[tuple[int, int], ...] = ()


def read_note(root: str) -> ReplicaNote | None:
    """The note of the store at ``root``; None: it has none. Blocks.

    Raises:
        CorruptionError: it is damaged.
    """
    path = os.path.join(root, NOTE)
    try:
        with open(path, "rb") as file:
            raw = file.read(_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise disk_error(error, path) from error
    try:
        body = json.loads(raw)
        claimed = body.pop("xxh3_128")
        if body.pop("format") != _FORMAT or claimed != _digest(body):
            raise ValueError("checksum mismatch")
        if body["version"] != _VERSION:
            raise ValueError(f"version {body['version']!r}")
        return ReplicaNote(
            str(body["cluster"]),
            str(body["node"]),
            int(body["shards"]),
            bytes.fromhex(body["nonce"]),
            int(body["revision"]),
            int(body.get("service_id", 0)),
            tuple(map(int, body.get("hosted", ()))),
            tuple((int(service), int(at)) for service, at in body.get("later", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptionError(
            f"{path} is damaged ({error}): move the store's folder away, and this node starts as a "
            "new replica"
        ) from error


def write_note(root: str, note: ReplicaNote) -> None:
    """Replace the note; durable when it returns. Blocks."""
    body: dict[str, object] = {
        "version": _VERSION,
        "cluster": note.cluster,
        "node": note.node,
        "shards": note.shards,
        "nonce": note.nonce.hex(),
        "revision": note.revision,
        "service_id": note.service_id,
    }
    if note.hosted:
        body["hosted"] = list(note.hosted)
    if note.later:
        body["later"] = [list(one) for one in note.later]
    whole = {**body, "format": _FORMAT, "xxh3_128": _digest(body)}
    path = os.path.join(root, NOTE)
    try:
        replace_file(path, json.dumps(whole, indent=1, sort_keys=True).encode() + b"\n")
    except OSError as error:
        raise disk_error(error, path) from error


def _digest(body: dict[str, object]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())
