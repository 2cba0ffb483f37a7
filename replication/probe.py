"""A leader whose process is gone is replaced before its session runs out.

A process that has ended refuses connections at once; one that is frozen, or a network that is cut,
does not. So the few nodes that watch a leader open fresh connections to its address now and then.
Three refusals within a moment are a *suspicion*, which goes to the others with the node's report.
Two members that suspect the same one are enough: its terms are ended (``SharedLog.depose``).

If the process lives after all, the log fences its writes, but not what it answers from memory: for
the length of a session the new leaders end no lease that they inherit. And who was wrong once,
because the deposed process reports again, probes no more for ten such lengths. A process that was
started in its place may be there before anybody has seen the dead one's session end.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from ..engine.runtime.event_loop import Spawner
from ..errors import LodeqError
from .members import in_line
from .node import Node
from .port import Member
from .shard_replica import ShardReplica

__all__ = ["Connector", "Probe", "SocketConnector"]

REFUSALS: Final = 3
WITHIN_S: Final = 1.0  # rounds are as long as leaders that do not answer make them
EVERY_S: Final = 0.25  # while connections are accepted
AGAIN_S: Final = 0.1  # after a refusal
CONNECT_S: Final = 0.1
WATCHERS: Final = 3  # so many nodes watch one leader
OFF_TTLS: Final = 10
_PORTS: Final = {"http": 80, "https": 443, "tcp": 8765}


class Connector(Protocol):
    """Tells whether a process listens at an address."""

    async def is_refused(self, url: str, spawner: Spawner) -> bool:
        """Whether a fresh connection to ``url`` is refused, within about a tenth of a second.

        False as well where that cannot be told: no answer, no such name.
        """


class SocketConnector:
    """Opens connections over TCP, or to a socket's file, and closes them."""

    async def is_refused(self, url: str, spawner: Spawner) -> bool:
        """See ``Connector.is_refused``."""
        is_refused: bool = await spawner.run_in_thread(partial(_is_refused, url))
        return is_refused


def _is_refused(url: str) -> bool:
    try:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return _is_file_refused(parts.path)
        port = parts.port or _PORTS.get(parts.scheme)
        if parts.hostname is None or port is None:
            return False
        socket.create_connection((parts.hostname, port), CONNECT_S).close()
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    except ValueError:
        return False
    return False


def _is_file_refused(path: str) -> bool:
    """Whether nobody listens behind a socket's file. One that is gone tells nothing."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


class Probe:
    """The probe of one node.

    Args:
        node: whose it is.
        shards: all of them, by index.
        connector: how connections are opened.
        report: says to the other nodes whom this one suspects.
    """

    def __init__(
        self,
        node: Node,
        shards: Sequence[ShardReplica],
        connector: Connector,
        report: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._node = node
        self._shards = shards
        self._connector = connector
        self._report = report
        self._refused: dict[str, list[float]] = {}  # by node: when, the latest last
        self._deposed: dict[str, Member] = {}  # by node: its last report before
        self._off_until = 0.0

    async def run(self) -> None:
        """Watch the leaders, until the task is cancelled or the log is given up."""
        node = self._node
        while node.stopped is None:
            await node.waiting.pause(AGAIN_S if self._refused else EVERY_S)
            try:
                await self._look()
            except LodeqError:
                continue  # others see to it, or the session's end does

    async def _look(self) -> None:
        node, before = self._node, self._node.suspects
        self._see_false_alarms()
        if node.mono() < self._off_until or node.is_closing or not node.has_session():
            self._refused.clear()
            node.suspects = frozenset()
            return
        leaders = self._watched()
        for name in set(self._refused) - set(leaders):
            del self._refused[name]
        for name, url in leaders.items():
            await self._connect(name, url)
        node.suspects = frozenset(name for name in self._refused if self._is_suspect(name))
        if node.suspects != before:
            await self._report()
        if node.suspects:
            node.members.see(await node.log.members())
        for name in node.suspects:
            if self._is_agreed(name):
                await self._depose(name)

    def _watched(self) -> dict[str, str]:
        """The leaders that this node watches, and where they are reached."""
        node, found = self._node, {}
        for shard in self._shards:
            leader = shard.seen.leader
            if shard.holds_term or leader is None or leader == node.name or leader in found:
                continue
            url = node.members.url(leader)
            others = {*node.members.by_name, node.name} - {leader}
            if url is not None and node.name in in_line(shard.shard, others)[:WATCHERS]:
                found[leader] = url
        return found

    async def _connect(self, name: str, url: str) -> None:
        node = self._node
        if await self._connector.is_refused(url, node.waiting.spawner):
            times = self._refused.setdefault(name, [])
            times.append(node.mono())
            del times[:-REFUSALS]
        else:
            self._refused.pop(name, None)

    def _is_suspect(self, name: str) -> bool:
        times = self._refused[name]
        return len(times) == REFUSALS and times[-1] - times[0] <= WITHIN_S

    def _is_agreed(self, name: str) -> bool:
        """Whether another member that is there suspects ``name`` as well."""
        members = self._node.members.by_name.items()
        return any(
            name in one.suspects for other, one in members if other not in {name, self._node.name}
        )

    async def _depose(self, name: str) -> None:
        """End the terms of ``name``."""
        node = self._node
        self._deposed[name] = node.members.by_name.get(name) or Member(name)
        for state in await node.states():
            if state.leader == name:
                await node.log.depose(state.shard, state.term, fenced_s=node.log.session_s)
                self._shards[state.shard].wake.set()

    def _see_false_alarms(self) -> None:
        node = self._node
        for name, before in list(self._deposed.items()):
            member = node.members.by_name.get(name)
            if member is None or member.began_ms != before.began_ms:
                del self._deposed[name]  # its session has ended: it was dead
            elif member.clock_ms != before.clock_ms:
                del self._deposed[name]
                self._off_until = node.mono() + OFF_TTLS * node.log.session_s
                node.problems["probe"] = (
                    f"node {name} refused connections and was deposed, but lives: leaders are not "
                    f"probed for {OFF_TTLS * node.log.session_s:.0f} s; look at what it listens on"
                )
        if node.mono() >= self._off_until:
            node.problems.pop("probe", None)
