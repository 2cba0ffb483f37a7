"""The nodes of a cluster, as a client reaches them: connections, the map, and who to ask.

What has *not begun* (a refusal, a connection that was never made) is sent again: to the leader that
the refusal names, if it is known, else to the one that the map names once it is read anew. While a
shard has no leader the client waits, for ``PATIENCE_S`` at most.

A node may be silent: a frozen process still has its socket. Its links then ask here whether they
shall give it up. It is asked for the map over another connection, and others beside it; if it does
not answer, and another says that it leads nothing any more, whoever waits for it gets an error at
once, and what may be repeated goes to the new leader.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from ...engine.runtime.clock import SystemClock
from ...errors import (
    BusyError,
    ClosedError,
    CommitUnknownError,
    LodeqError,
    NotLeaderError,
    UnreachableError,
    UsageError,
)
from ...repository.model.tally import Tally
from ..calls import CLOSED, Call
from ..transport.target import Doubt
from ..transport.transport import Transport
from .merge import with_done
from .target import ClusterTarget, Patience
from .together import closed, gather, pause
from .topology import Topology

__all__ = ["MAP", "STALE_S", "Nodes"]

PATIENCE_S: Final = 10.0  # an election takes less; see docs/cluster-client.md
STALE_S: Final = 5.0  # a map is read anew after so long
MAP_S: Final = 2.0  # until a node that is asked for the map, or for a connection, is given up
PING_S: Final = 1.0  # the same of one that is silent
ASKED_MAX: Final = 3  # others, about a node that is silent
DOUBT_S: Final = 5.0  # for which a silent node is passed over where another will do
STAY_S: Final = 0.25  # with one leader, for what any of them can do
MAP: Final = Call("GET", "/cluster")
_PING: Final = MAP._replace(timeout_s=PING_S)
_mono = SystemClock.mono


class Nodes:
    """The connections of one client to the nodes of its cluster.

    Attributes:
        topology: what is known of them.
        under_way: an object for each short call that has been sent and does not wait for a task.
    """

    def __init__(self, target: ClusterTarget) -> None:
        self.target = target
        self.topology = Topology(target.given)
        self.patience_s = min(PATIENCE_S, target.timeout_s)
        self._links: dict[str, Transport] = {}
        self._askers: dict[str, Transport] = {}  # for the map: a node that hangs is given up soon
        self._front: Transport | None = None
        self._turn = 0
        self._stays_until = float("-inf")
        self.under_way: set[object] = set()
        self._is_closed = False

    def link(self, node: str) -> Transport:
        """The connections to one known node."""
        found = self._links.get(node)
        if found is None:
            target = self.target.node(self.topology.urls[node], connect_s=MAP_S)
            made = Transport(target, is_given_up=partial(self.is_given_up, node))
            found = self._links.setdefault(node, made)
        return found

    def _asker(self, node: str) -> Transport:
        found = self._askers.get(node)
        if found is None:
            made = Transport(self.target.node(self.topology.urls[node], MAP_S))
            found = self._askers.setdefault(node, made)
        return found

    async def ask(self, node: str, call: Call) -> Any:
        """Send a call to one known node, and note who leads by what it answers.

        Raises:
            LodeqError: its own, or that it was not reached.
        """
        if self._is_closed:
            raise ClosedError(CLOSED)
        try:
            return await self.link(node).send(call)
        except LodeqError as error:
            self.note(node, error)
            raise

    def note(self, node: str, error: LodeqError) -> None:
        """Learn from what a node has answered, or that it has not."""
        if isinstance(error, UnreachableError):
            self.topology.lost(node)
        elif isinstance(error, NotLeaderError | CommitUnknownError):
            self.topology.is_stale = True

    async def is_given_up(self, node: str) -> bool:
        """Whether a silent node is to be given up, and not to be waited for.

        It is, once it does not answer on another connection either, and another node says that it
        leads nothing any more. Until then it may be slow, or nobody has its place yet.
        """
        topology = self.topology
        others = [one for one in topology.tellers() if one != node][:ASKED_MAX]
        asked = others if topology.is_doubted(node) else [*others, node]
        if self._is_closed or not others:
            return False
        maps = await gather([partial(self._asker(one).send, _PING) for one in asked])
        told = {
            one: doc
            for one, doc in zip(asked, maps, strict=True)
            if not isinstance(doc, LodeqError) and doc["shards"] == topology.shards
        }
        if node in told:
            return False
        if node in asked:
            topology.doubt(node, _mono() + DOUBT_S)
        is_over = any(topology.is_superseded(node, doc, one) for one, doc in told.items())
        if is_over:
            topology.lost(node)
        for one, doc in told.items():
            topology.take(doc, one)
        return is_over

    async def ask_front(self, front: str, call: Call) -> Any:
        """Send a call to the supervisor of several processes with one store.

        Args:
            front: its address.
            call: about the whole store.
        """
        if self._is_closed:
            raise ClosedError(CLOSED)
        if self._front is None:
            self._front = Transport(self.target.node(front))
        return await self._front.send(call)

    # -- the map -----------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether the map is new, and nothing has shown that it is wrong."""
        topology = self.topology
        return not topology.is_stale and _mono() - topology.read_at < STALE_S

    def next_leader(self) -> str | None:
        """A node that leads something, for new tasks; None: none is known.

        It stays the same for ``STAY_S``: what callers do at one node shares its records of the log.
        Who calls alone shares nothing, and is sent to another one each time.
        """
        if not self.under_way:
            self._stays_until = float("-inf")
        found = self._in_turn()
        return found[0] if found else None

    def pass_on(self) -> None:
        """The node whose turn it is has not taken a call: another one is next."""
        self._stays_until = float("-inf")

    def _in_turn(self) -> list[str]:
        """The nodes that lead something, the one whose turn it is first."""
        found = self.topology.leading()
        if len(found) < 2:
            return found
        now = _mono()
        if now >= self._stays_until:
            self._turn += 1
            self._stays_until = now + STAY_S
        at = self._turn % len(found)
        return found[at:] + found[:at]

    async def refresh(self, *, is_needed: bool = False) -> None:
        """Read the map, if it is old or something has shown that it is wrong.

        Args:
            is_needed: raise if no node tells it, although an old one is there.

        Raises:
            BusyError: no node answers, and there is no map yet.
            AccessDeniedError: the token is wrong. UsageError: these are no nodes of one cluster.
        """
        topology, now = self.topology, _mono()
        if self.is_current:
            return
        topology.end_doubts(now)
        if topology.shards:  # others go on with the old one meanwhile
            topology.read_at = now
        failure: LodeqError | None = None
        is_told = False
        topology.is_stale = False  # what is found out meanwhile makes it so again
        for node in topology.tellers():
            if is_told and topology.is_whole():
                break
            if self._is_closed:
                raise ClosedError(CLOSED)
            try:
                topology.take(await self._asker(node).send(MAP), node)
                is_told = True
            except BusyError as error:  # it has too many callers, or is not there
                if isinstance(error, UnreachableError):
                    topology.doubt(node, _mono() + DOUBT_S)
                failure = failure or error
            except UsageError as error:
                if topology.shards:
                    raise
                raise UsageError(
                    f"{topology.urls[node]} tells no map of a cluster: {error}; is it a server of "
                    "an older lodeq? Connect to it by its own address"
                ) from error
        topology.read_at = _mono()
        if not is_told:
            topology.is_stale = True
            if failure is not None and (is_needed or not topology.shards):
                raise failure

    async def leaders(self) -> list[str]:
        """The nodes that lead something, another one first every ``STAY_S``.

        Raises:
            UnreachableError: nobody is known to lead anything.
        """
        patience = Patience(self.patience_s)
        while True:
            await self.refresh()
            found = self._in_turn()
            if found:
                return found
            if patience.is_over:
                raise self.target.nobody()
            self.topology.is_stale = True
            await pause(patience.next_s())

    # -- one shard ---------------------------------------------------------------------

    async def follow(self, call: Call, shard: int, *, patience_s: float | None = None) -> Any:
        """Send a call to the leader of a shard, wherever that goes meanwhile.

        Args:
            call: about that shard.
            shard: its index.
            patience_s: seconds to wait for a leader; None: those of the client.

        Raises:
            NotLeaderError, UnreachableError: no leader was found in time; nothing was done.
            CommitUnknownError: its answer was lost, and it must not be sent twice, or nobody was
                found to send it to again.
        """
        patience = Patience(self.patience_s if patience_s is None else patience_s)
        last: LodeqError | None = None
        with Tally() as tally, Doubt() as doubt:
            while True:
                await self.refresh()
                node = self.topology.leader(shard)
                if node is not None:
                    try:
                        return with_done(call, await self.ask(node, call), tally.count)
                    except NotLeaderError as error:
                        tally.take(error)  # it led when it began
                        self.topology.refused(node, [shard], error.leader)
                        last = error
                    except UnreachableError as error:
                        last = error
                    except CommitUnknownError as error:
                        if not call.is_repeatable:
                            raise
                        doubt.of(error)
                        last = error
                if patience.is_over:
                    raise last or self.target.nobody(shard)
                self.topology.is_stale = True
                await pause(patience.next_s())

    async def close(self) -> None:
        """Close the connections. Whoever waits for an answer gets ``ClosedError``."""
        self._is_closed = True
        front = () if self._front is None else (self._front,)
        links = (*self._links.values(), *self._askers.values(), *front)
        await closed([link.aclose for link in links])
