"""Where a client of a cluster goes, and how long it tries."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final

from ...engine.runtime.clock import SystemClock
from ...errors import CommitUnknownError, LodeqError, UnreachableError
from ..calls import Call
from ..transport.transport import Target
from .address import node_addresses

__all__ = ["ClusterTarget", "Patience", "scoped", "worse"]

_PAUSES_S: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
_mono = SystemClock.mono


class ClusterTarget:
    """The address of a cluster, its token, and how long to wait for an answer.

    Attributes:
        front: address of the supervisor, where the nodes are processes that have one store between
            them (docs/how-to/many-cores.md); None: they are a cluster.
    """

    def __init__(
        self, url: str, token: str | None, timeout_s: float, *, pid: int | None = None
    ) -> None:
        self.pid = pid  # of the process whose event loop connects; None: any
        self.url = url
        self.front: str | None = None
        self.token = token
        self.timeout_s = timeout_s
        self.given = node_addresses(url)
        for one in self.given:
            Target(one, token, timeout_s)  # it is checked before anything is sent

    def nobody(self, shard: int | None = None) -> UnreachableError:
        """The error where nobody leads a shard, or anything at all."""
        if self.front is None:
            what = "no node of the cluster leads anything"
            if shard is not None:
                what = f"nobody leads shard {shard}"
            return UnreachableError(f"{self.url}: {what}: is its log there?")
        what = "no process has any shard open"
        if shard is not None:
            what = f"no process has shard {shard} open"
        return UnreachableError(
            f"{self.front}: {what} now: does the service stop, or is a process just started "
            "again? Its health names processes that are down"
        )

    def node(self, url: str, timeout_s: float | None = None, *, connect_s: float = inf) -> Target:
        """The target of one node.

        Args:
            url: its address.
            timeout_s: seconds, if it is to be given up sooner than the cluster.
            connect_s: seconds until it is where it does not even say hello.
        """
        least_s = min(self.timeout_s, timeout_s or self.timeout_s)
        return Target(url, self.token, least_s, connect_s=connect_s, pid=self.pid)


class Patience:
    """The pauses between tries of one call, and when it is given up.

    After its time, and seven tries: they may all have met the same moment. Tries that are slow
    themselves get no more than twice that time.
    """

    def __init__(self, seconds: float) -> None:
        began = _mono()
        self._until = began + seconds
        self._at_last = began + max(1.0, 2 * seconds)
        self._n = 0

    @property
    def is_over(self) -> bool:
        """Whether it was long enough."""
        now = _mono()
        return now >= (self._until if self._n >= len(_PAUSES_S) else self._at_last)

    def next_s(self) -> float:
        """Seconds until the next try; the first follows at once."""
        self._n += 1
        return _PAUSES_S[min(self._n, len(_PAUSES_S)) - 1]


def scoped(call: Call, shards: Collection[int]) -> Call:
    """The same call about these shards alone."""
    return call._replace(query={**call.query, "shards": ",".join(map(str, sorted(shards)))})


def worse(had: LodeqError | None, error: LodeqError) -> LodeqError:
    """Which of the errors of two parts is raised: the first, but rather one that is unknown.

    Who is refused has nothing to look for.
    """
    return error if had is None or isinstance(error, CommitUnknownError) else had
