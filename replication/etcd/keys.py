"""Keys of a cluster in etcd, and what their values hold.

Under ``/lodeq/<cluster>/``; shards have four digits, indices twenty, so that keys sort by number:

    genesis                         written once
    member/<node>                   goes with the node's session
    checkpoint/<node>
    placement/<shard>               nodes that have a copy
    balancer                        name of the node that changes placements; goes with its session
    departure/<node>                a node that is to have no copies
    leader/<shard>                  name of the node; goes with its session. The term is the
                                    revision at which this key was created
    tail/<shard>                    index of the last entry; never deleted
    floor/<shard>                   first index that is still there; absent: the genesis's base + 1
    fence/<shard>                   wall clock in ms until which an ended term may still answer
    log/<shard>/<first>             a record, or the head of one that was cut
    log/<shard>/<first>/<term>/<nonce>/<number>     a fragment of it

Numbers are decimal digits; other values are msgpack maps, whose unknown fields are ignored.
"""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any, Final, NamedTuple, TypeVar

import msgpack

from ...errors import RecordCorruptError
from ..port import PLACEMENTS, Checkpoint, Departure, Genesis, Member, Placement
from ..record import LogRecord

__all__ = [
    "LOG",
    "Keys",
    "LogKey",
    "decode_checkpoint",
    "decode_departure",
    "decode_genesis",
    "decode_member",
    "decode_number",
    "decode_placement",
    "encode",
]

T = TypeVar("T")
LOG: Final = b"log/"
_END: Final = b"~"  # above every digit


class LogKey(NamedTuple):
    """What a key below ``log/`` says; ``fragment`` is None for a record or a head."""

    first: int
    term: int = 0
    nonce: bytes = b""
    fragment: int | None = None


class Keys:
    """The keys of one cluster."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.genesis = prefix + b"genesis"
        self.balancer = prefix + b"balancer"

    def of_shard(self, family: str, shard: int) -> bytes:
        """``leader``, ``tail``, ``hint``, ``floor``, ``fence`` or ``placement`` of a shard."""
        return b"%b%b/%04d" % (self.prefix, family.encode(), shard)

    def of_node(self, family: str, node: str) -> bytes:
        """``member``, ``checkpoint`` or ``departure`` of a node."""
        return b"%b%b/%b" % (self.prefix, family.encode(), node.encode())

    def family(self, family: str) -> tuple[bytes, bytes]:
        """Where the keys of a family begin and end."""
        start = b"%b%b/" % (self.prefix, family.encode())
        return start, start[:-1] + b"0"  # the character after the slash

    def record(self, shard: int, first: int) -> bytes:
        """A record, or its head."""
        return b"%blog/%04d/%020d" % (self.prefix, shard, first)

    def records_end(self, shard: int) -> bytes:
        """The end of all keys of a shard's log."""
        return b"%blog/%04d/%b" % (self.prefix, shard, _END)

    def fragment(self, record: LogRecord, number: int) -> bytes:
        """One fragment of a record that was cut."""
        head = self.record(record.shard, record.first)
        return b"%b/%d/%b/%04d" % (head, record.term, record.nonce.hex().encode(), number)

    def watched(self) -> list[tuple[bytes, bytes]]:
        """The ranges with all keys but those of the log and the tails: hints tell of both."""
        log, tail = self.prefix + LOG, self.prefix + b"tail/"
        end = self.prefix[:-1] + b"0"
        return [(self.prefix, log), (self.prefix + b"log0", tail), (self.prefix + b"tail0", end)]

    def shard_in(self, key: bytes) -> int:
        """The shard that a key is about; -1: a node, or the whole; ``PLACEMENTS``: those."""
        family, _, name = key[len(self.prefix) :].partition(b"/")
        if family in {b"placement", b"departure"}:
            return PLACEMENTS
        is_shard = family in {b"leader", b"tail", b"hint", b"floor", b"fence"} and name.isdigit()
        return int(name) if is_shard else -1

    def hinted_in(self, key: bytes, value: bytes) -> int:
        """The index up to which a hint tells of entries; 0: the key is no hint."""
        is_hint = key.startswith(b"hint/", len(self.prefix)) and value.isdigit()
        return int(value) if is_hint else 0

    def parse_log(self, key: bytes, shard: int) -> LogKey:
        """What a key of a shard's log says; ``RecordCorruptError`` if it is none."""
        start = len(self.record(shard, 0)) - 20
        try:
            first, *rest = key[start:].split(b"/")
            if not rest:
                return LogKey(int(first))
            term, nonce, number = rest
            return LogKey(int(first), int(term), bytes.fromhex(nonce.decode()), int(number))
        except ValueError as error:
            raise RecordCorruptError(f"shard {shard}: {key!r} is no key of its log") from error


def encode(value: Genesis | Member | Checkpoint | Placement | Departure) -> bytes:
    """Bytes of a value: a map of its fields."""
    raw: bytes = msgpack.packb(asdict(value))
    return raw


def decode_genesis(raw: bytes) -> Genesis:
    """The genesis of a cluster; ``RecordCorruptError`` if it is none."""
    return _decode(raw, Genesis, "the genesis")


def decode_member(raw: bytes) -> Member:
    """A member; ``RecordCorruptError`` if it is none."""
    return _decode(raw, Member, "a member")


def decode_checkpoint(raw: bytes) -> Checkpoint:
    """A checkpoint; ``RecordCorruptError`` if it is none."""
    return _decode(raw, Checkpoint, "a checkpoint")


def decode_placement(raw: bytes, version: int) -> Placement:
    """A placement that was last changed at ``version``; ``RecordCorruptError`` if it is none."""
    return replace(_decode(raw, Placement, "a placement"), version=version)


def decode_departure(raw: bytes) -> Departure:
    """A departure; ``RecordCorruptError`` if it is none."""
    return _decode(raw, Departure, "a departure")


def _decode(raw: bytes, kind: type[T], what: str) -> T:
    try:
        found = msgpack.unpackb(raw)
        if not isinstance(found, dict):
            raise TypeError(f"expected a map, got {type(found).__name__}")
        known: dict[str, Any] = {}
        for field in fields(kind):  # type: ignore[arg-type]  # all of them are dataclasses
            value = found.get(field.name)
            if value is not None:
                known[field.name] = tuple(value) if isinstance(value, list) else value
        made = kind(**known)
        shapes = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]
        for name, value in known.items():
            if not _fits(value, shapes[name]):
                raise TypeError(f"{name} is no {shapes[name]}")
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise RecordCorruptError(f"{what} in etcd cannot be read: {error}") from error
    return made


def _fits(value: object, shape: str) -> bool:
    if isinstance(value, tuple):
        return all(shape.startswith(f"tuple[{type(one).__name__}, ") for one in value)
    return type(value).__name__ == shape


def decode_number(raw: bytes, what: str) -> int:
    """Digits as a number; ``RecordCorruptError`` if they are none."""
    if not raw.isdigit() or len(raw) > 20:
        raise RecordCorruptError(f"{what} in etcd is {raw[:40]!r}, not a number")
    return int(raw)
