"""A node of a cluster: what ``lodeq serve --replicate`` adds to a store that is served.

::

    node = ClusterNode(path, parse_address(url), name="n1", url="tcp://10.0.0.1:8765")
    served = Serve(routes=node.routes)
    async with lodeq.open(path, replicator=node.replicator, serve=served):
        await node.run(checkpoint_every_s=600)
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from anyio import CancelScope

from ...engine.files.paths import normal_path
from ...engine.runtime.clock import SystemClock
from ...engine.runtime.current_loop import current_spawner
from ...engine.runtime.ids import SystemRng
from ...errors import UsageError
from ...replication.checkpoints import Checkpoints
from ...replication.etcd.address import EtcdAddress
from ...replication.groups import LogGroups
from ...replication.options import LogOptions
from ...replication.port import check_node
from ...replication.probe import SocketConnector
from ...replication.replicator import LogReplicator
from ...repository.api.engine import Engine
from ...repository.api.view import view_of
from .fetch import HttpCheckpoints
from .leader_calls import NodeLeaderCalls
from .routes import node_routes

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from ...replication.port import SharedLog

__all__ = ["ClusterNode", "etcd_log", "node_name"]

REFUSAL_LOOK_S: Final = 0.5


def etcd_log(address: EtcdAddress) -> SharedLog:
    """A connection to etcd, or to all of its groups. Raises ``UsageError`` without the extra."""
    try:
        from ...replication.etcd.log import EtcdLog  # noqa: PLC0415 - an extra
    except ImportError as exc:
        raise UsageError('a cluster needs an extra: pip install "lodeq[etcd]"') from exc
    first, *others = [
        EtcdLog(one, clock=SystemClock(), rng=SystemRng()) for one in address.of_groups
    ]
    return LogGroups([first, *others]) if others else first


def node_name(given: str | None) -> str:
    """The name of this node: the host's, where none is given."""
    return check_node(given if given is not None else socket.gethostname().split(".")[0])


class ClusterNode:
    """One node.

    Args:
        path: of its store.
        address: of the log.
        name: of the node, unique in the cluster, 1 to 64 characters.
        url: where clients and other nodes reach it.
        zone: its failure domain.
        shards: of a cluster that is new.
        token: that nodes give one another; None: none.
        copy_bytes_per_s: how much of others' checkpoints it reads at most; None: no bound.
        options: of the replication layer; None: the defaults.
    """

    def __init__(
        self,
        path: str,
        address: EtcdAddress,
        *,
        name: str,
        url: str,
        zone: str = "",
        shards: int = 1,
        token: str | None = None,
        copy_bytes_per_s: float | None = None,
        options: LogOptions | None = None,
    ) -> None:
        self._root = normal_path(path)
        self._name = name
        self._url = url
        self.replicator = LogReplicator(
            etcd_log(address),
            node=name,
            url=url,
            zone=zone,
            cluster=address.cluster,
            shards=shards,
            copies=address.copies,
            options=options,
            source=HttpCheckpoints(token, bytes_per_s=copy_bytes_per_s),
            connector=SocketConnector(),
        )
        self._checkpoints: Checkpoints | None = None
        self._leader_calls = NodeLeaderCalls(token)

    def routes(self, engine: Engine) -> Sequence[BaseRoute]:
        """Make the routes for other nodes and operators; for ``Serve(routes=)``."""
        view = view_of(engine)
        view.reach_leaders(self._leader_calls)
        checkpoints = self._checkpoints = Checkpoints(
            self._root,
            engine.checkpoint,
            self.replicator,
            node=self._name,
            url=self._url,
            spawner=current_spawner(),
            clock=SystemClock(),
        )
        return node_routes(self.replicator, checkpoints, view.take_joins)

    async def run(self, checkpoint_every_s: float) -> None:
        """Take checkpoints, until cancelled.

        Raises:
            UsageError: another live node has the name of this one and keeps it.
        """
        if self._checkpoints is None:
            raise UsageError("a node is served before it runs: give its routes to Serve")
        taking = asyncio.ensure_future(self._checkpoints.run(checkpoint_every_s))
        try:
            while self.replicator.refusal is None:
                await asyncio.wait([taking], timeout=REFUSAL_LOOK_S)
                if taking.done():
                    taking.result()
            raise self.replicator.refusal
        finally:
            taking.cancel()
            with CancelScope(shield=True):
                await self._leader_calls.close()
