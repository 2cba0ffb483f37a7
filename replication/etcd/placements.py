"""Placements in etcd: which nodes have which shards, who may change that, and who is leaving."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeAlias

from ..port import Departure, FencedError, Placement, SessionLostError, check_node
from . import rpc_pb2 as pb
from .endpoints import Endpoints, RefusedError
from .keys import Keys, decode_departure, decode_placement, encode
from .rpc import Rpc
from .session import Session
from .txn import created_at, delete, get, held_by, kvs, modified_at, only, put, scan, txn

__all__ = ["Placements"]

_OF_A_NODE: Final = ("departure", "checkpoint")
Call: TypeAlias = Callable[[pb.TxnRequest], Awaitable[pb.TxnResponse]]


class Placements:
    """The placements of one cluster, for one connection.

    Args:
        endpoints: the members of etcd.
        keys: of the cluster.
        session: of this node.
        call: sends a transaction that does not go with the session.
    """

    def __init__(self, endpoints: Endpoints, keys: Keys, session: Session, call: Call) -> None:
        self._endpoints = endpoints
        self._keys = keys
        self._session = session
        self._call = call

    async def read(self) -> list[Placement]:
        """Those that are there, by shard."""
        answer = await self._call(txn([], [scan(*self._keys.family("placement"))]))
        return [decode_placement(kv.value, kv.mod_revision) for kv in kvs(answer, 0)]

    async def become_balancer(self) -> bool:
        """Be the balancer, unless another session is."""
        lease, key = self._session.lease(), self._keys.balancer
        request = txn(
            [created_at(key, 0)], [put(key, self._session.node.encode(), lease)], [get(key)]
        )
        try:
            answer = await self._endpoints.call(Rpc.TXN, request, self._session.left_s())
        except RefusedError as error:
            self._session.refused(error, lease)
        holder = None if answer.succeeded else only(answer, 0)
        self._session.lease()
        return bool(answer.succeeded) or (holder is not None and holder.lease == lease)

    async def place(self, placement: Placement, *, is_wish: bool) -> bool:
        """Replace a placement of the version that is given."""
        try:
            lease = self._session.lease()
        except SessionLostError as error:
            raise FencedError(f"nothing was sent: {error}") from error
        node = self._session.node
        right = self._keys.of_node("member", node) if is_wish else self._keys.balancer
        key = self._keys.of_shard("placement", placement.shard)
        answer = await self._call(
            txn(
                [held_by(right, lease), modified_at(key, placement.version)],
                [put(key, encode(replace(placement, version=0)))],
                [get(right), get(key)],
            )
        )
        if answer.succeeded:
            return True
        holder, found = only(answer, 0), only(answer, 1)
        if holder is None or holder.lease != lease:
            raise FencedError("this session may not change placements: another is the balancer")
        # By an earlier try, whose answer was lost.
        return found is not None and found.value == encode(replace(placement, version=0))

    async def departures(self) -> list[Departure]:
        """By name of the node."""
        answer = await self._call(txn([], [scan(*self._keys.family("departure"))]))
        return [decode_departure(kv.value) for kv in kvs(answer, 0)]

    async def depart(self, departure: Departure) -> None:
        """Say that a node is to have no copies."""
        key = self._keys.of_node("departure", check_node(departure.node))
        await self._call(txn([], [put(key, encode(departure))]))

    async def stay(self, node: str) -> None:
        """Take that back."""
        await self._call(txn([], [delete(self._keys.of_node("departure", check_node(node)))]))

    async def forget(self, node: str) -> None:
        """Remove what there is of a node beside its member."""
        keys = [self._keys.of_node(family, check_node(node)) for family in _OF_A_NODE]
        await self._call(txn([], [delete(key) for key in keys]))
