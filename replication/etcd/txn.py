"""Transactions: their parts as short calls, and the keys that an answer brought."""

from __future__ import annotations

from collections.abc import Sequence

from . import rpc_pb2 as pb

__all__ = [
    "created_at",
    "delete",
    "get",
    "held_by",
    "kvs",
    "modified_at",
    "only",
    "put",
    "scan",
    "txn",
]


def created_at(key: bytes, revision: int) -> pb.Compare:
    """The key was created at this revision; 0: it is not there."""
    target = pb.Compare.CREATE
    return pb.Compare(key=key, target=target, result=pb.Compare.EQUAL, create_revision=revision)


def modified_at(key: bytes, revision: int) -> pb.Compare:
    """The key was last written at this revision; 0: it is not there."""
    target = pb.Compare.MOD
    return pb.Compare(key=key, target=target, result=pb.Compare.EQUAL, mod_revision=revision)


def held_by(key: bytes, lease: int) -> pb.Compare:
    """The key goes with this lease."""
    return pb.Compare(key=key, target=pb.Compare.LEASE, result=pb.Compare.EQUAL, lease=lease)


def put(key: bytes, value: bytes, lease: int = 0) -> pb.RequestOp:
    """Write one key."""
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes, end: bytes = b"") -> pb.RequestOp:
    """Delete one key, or all from ``key`` up to ``end``."""
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key, range_end=end))


def get(key: bytes, *, is_near: bool = False) -> pb.RequestOp:
    """Read one key; ``is_near``: as the member that is asked has it, which may lag."""
    return pb.RequestOp(request_range=pb.RangeRequest(key=key, serializable=is_near))


def scan(
    key: bytes,
    end: bytes,
    *,
    limit: int = 0,
    is_keys_only: bool = False,
    is_reversed: bool = False,
    is_near: bool = False,
) -> pb.RequestOp:
    """Read the keys from ``key`` up to ``end``.

    Args:
        key: the first.
        end: the one behind the last.
        limit: how many at most; 0: all.
        is_keys_only: without their values.
        is_reversed: the last first.
        is_near: as the member that is asked has them, which may lag.
    """
    order = pb.RangeRequest.DESCEND if is_reversed else pb.RangeRequest.NONE
    return pb.RequestOp(
        request_range=pb.RangeRequest(
            key=key,
            range_end=end,
            limit=limit,
            keys_only=is_keys_only,
            sort_order=order,
            serializable=is_near,
        )
    )


def txn(
    compare: Sequence[pb.Compare],
    success: Sequence[pb.RequestOp],
    failure: Sequence[pb.RequestOp] = (),
) -> pb.TxnRequest:
    """All of ``success`` if everything holds, else all of ``failure``."""
    return pb.TxnRequest(compare=compare, success=success, failure=failure)


def kvs(answer: pb.TxnResponse, number: int) -> Sequence[pb.KeyValue]:
    """The keys that read number ``number`` of a transaction found."""
    found: Sequence[pb.KeyValue] = answer.responses[number].response_range.kvs
    return found


def only(answer: pb.TxnResponse, number: int) -> pb.KeyValue | None:
    """The key that read number ``number`` asked for, if it is there."""
    found = kvs(answer, number)
    return found[0] if found else None
