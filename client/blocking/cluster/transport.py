# Generated from client/cluster/transport.py by make twins; do not edit.
"""The transport of a cluster's client: each call finds its way to the nodes that lead."""

from __future__ import annotations

from typing import Any

from ....engine.records.task import WHOLE_BYTES_MAX
from ....errors import ClosedError, PayloadTooLargeError, UsageError
from ....repository.model.payload_sources import PayloadSource
from ...calls import CLOSED, Call, Session
from ...cluster.routes import Way, route_of
from ...cluster.target import ClusterTarget, scoped
from .claims import claim
from .enqueues import enqueue
from .fast_calls import SyncClusterFastCalls
from .nodes import STALE_S, SyncNodes
from .spread import act, all_nodes, anywhere, find, redrive, split, whole

__all__ = ["SyncClusterTransport"]


class SyncClusterTransport:
    """Calls to the nodes of a cluster, each to where it belongs; see docs/cluster-client.md."""

    def __init__(self, target: ClusterTarget) -> None:
        self.target = target
        self.nodes = SyncNodes(target)
        self._is_closed = False

    def fast_calls(self, session: Session) -> SyncClusterFastCalls:
        """The short way for the calls a queue lives by, to the nodes that lead."""
        return SyncClusterFastCalls(self.nodes, session, self.send)

    def send(self, call: Call) -> Any:
        """Send a request to where it belongs; return the answer's document or raise the error.

        Cancellation: the servers notice, and the tasks of a claim go back to their queues.
        """
        if self._is_closed:
            raise ClosedError(CLOSED)
        nodes, route = self.nodes, route_of(call)
        nodes.refresh()
        way = route.way
        if way is Way.FIRST and self.target.front is None:
            way = Way.ONE  # every node sees the first shard
        if way is Way.ONE:
            shard = 0 if route.id is None else nodes.topology.shard_of(route.id)
            if "wait" in call.query and call.wait_s > STALE_S:  # ask anew: another may lead by then
                query = {**call.query, "wait": repr(STALE_S)}
                call = call._replace(query=query, wait_s=STALE_S)
            return nodes.follow(scoped(call, [shard]) if route.is_read else call, shard)
        if way in (Way.WHOLE, Way.FIRST) and route.merge is not None:
            return whole(nodes, call, route.merge)
        if way is Way.NODES and route.merge is not None:
            return all_nodes(nodes, call, route.merge)
        if way is Way.NODE:
            return self._of_node(call)
        if way is Way.ANYWHERE:
            first = None if route.id is None else nodes.topology.shard_of(route.id)
            return anywhere(nodes, call, None if first is None else nodes.topology.leader(first))
        do = {
            Way.ENQUEUE: enqueue,
            Way.SPLIT: split,
            Way.CLAIM: claim,
            Way.ACT: act,
            Way.FIND: find,
            Way.REDRIVE: redrive,
        }[way]
        return do(nodes, call)

    def upload(self, call: Call, source: PayloadSource, bytes_max: int) -> Any:
        """Refuse a request whose body is a stream.

        Raises:
            PayloadTooLargeError: always.
        """
        del call, source, bytes_max
        raise PayloadTooLargeError(
            f"no payload is streamed to several nodes or processes: enqueue up to "
            f"{WHOLE_BYTES_MAX} bytes, or store it elsewhere and enqueue a reference",
            limit_bytes=WHOLE_BYTES_MAX,
        )

    def _of_node(self, call: Call) -> Any:
        """A call about one node's files: with several nodes, which one is meant?

        Of several processes with one store, their supervisor knows.
        """
        if self.target.front is not None:
            return self.nodes.ask_front(self.target.front, call)
        known = list(self.nodes.topology.urls)
        if len(known) > 1:
            raise UsageError(
                f"{call.method} {call.path} is about the files of one node, and this cluster has "
                f"{len(known)}: connect to that node by its own address"
            )
        return self.nodes.ask(known[0], call)

    def close(self) -> None:
        """Close the connections. Whoever waits for an answer gets ``ClosedError``."""
        self._is_closed = True
        self.nodes.close()
