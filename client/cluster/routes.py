"""Where each call of a client goes in a cluster. Nothing here waits or uses a connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from ...engine.runtime.task_id import TaskId
from ..calls import Call
from . import merge

__all__ = ["Route", "Way", "route_of"]

Merge = Callable[[Call, Sequence[Mapping[str, Any]]], dict[str, Any]]
_ID: Final = re.compile(r"^/(?:tasks|workflows)/([0-9a-f-]{36})(?:/|$)")
_QUEUE: Final = re.compile(r"^/queues/[^/]+/(\w+)$")
_LEASE_ENDS: Final = (
    "heartbeat",
    "progress",
    "complete",
    "nack",
    "release",
    "bury",
    "redrive",
    "cancel",
)


class Way(Enum):
    """How a call gets its answer."""

    ONE = 0  # from the leader of one shard
    ANYWHERE = 1  # from a node that leads something; it, or a refusal, says where a key belongs
    ENQUEUE = 2  # the same, task by task
    SPLIT = 3  # by parts, each from the leader of its shard
    CLAIM = 4  # from all leaders in turn
    WHOLE = 5  # from all leaders, put together
    NODES = 6  # from all nodes, whatever they lead
    ACT = 7  # shard by shard, as its cursor says
    REDRIVE = 8  # ids by shard
    FIND = 9  # from all leaders, from one place on
    NODE = 10  # of a node of its own: refused where there are several
    FIRST = 11  # from the leader of the first shard; of several processes from all


class Route(NamedTuple):
    """The way of a call.

    Attributes:
        way: how it gets its answer.
        id: of the task or workflow whose shard is meant (``ONE``; None: the first shard), or whose
            leader is asked first (``ANYWHERE``).
        is_read: whether a follower would answer, too, with what it has: the shard is named then.
        merge: puts answers together (``WHOLE``, ``NODES``, ``FIRST``).
    """

    way: Way
    id: bytes | None = None
    is_read: bool = False
    merge: Merge | None = None


_OF_NODES: Final[Mapping[tuple[str, str], Merge]] = {
    ("GET", "/health"): merge.health,
    ("POST", "/verify"): merge.findings,
    ("POST", "/fsync"): merge.nothing,
    ("POST", "/leases/cancel_claim"): merge.released,
}
_OF_ALL: Final[Mapping[tuple[str, str], Merge]] = {
    ("GET", "/stats"): merge.stats,
    ("GET", "/queues"): merge.queues,
    ("GET", "/history"): merge.history,
    ("GET", "/workflows"): merge.workflows,
    ("POST", "/tasks/count"): merge.counted,
}
_OF_QUEUES: Final[Mapping[tuple[str, str], Merge]] = {
    ("GET", "stats"): merge.queue_stats,
    ("GET", "tasks"): merge.listed,
    ("POST", "purge"): merge.summed,
    ("POST", "cancel_all"): merge.summed,
    ("POST", "redrive"): merge.summed,
}
_PLAIN: Final[Mapping[tuple[str, str], Route]] = {
    ("GET", "/engine"): Route(Way.ANYWHERE),
    ("POST", "/tasks"): Route(Way.ENQUEUE),
    ("POST", "/tasks/act"): Route(Way.ACT),
    ("POST", "/tasks/find"): Route(Way.FIND),
    ("POST", "/workflows"): Route(Way.ANYWHERE),
    ("POST", "/functions/enqueue"): Route(Way.ANYWHERE),
    ("POST", "/leases/claim"): Route(Way.CLAIM),
    ("POST", "/leases/complete_many"): Route(Way.SPLIT),
    ("POST", "/leases/heartbeat_many"): Route(Way.SPLIT),
    ("GET", "/functions"): Route(Way.ONE, is_read=True),
    ("POST", "/functions/publish"): Route(Way.FIRST, is_read=True, merge=merge.of_first),
    ("POST", "/functions/forget"): Route(Way.FIRST, is_read=True, merge=merge.of_first),
    # Beats are kept in memory, where they were sent.
    ("GET", "/workers"): Route(Way.ONE, is_read=True),
    ("POST", "/workers/beat"): Route(Way.ONE, is_read=True),
}


def route_of(call: Call) -> Route:
    """The way of a call."""
    key = call.method, call.path
    found = _PLAIN.get(key)
    if found is not None:
        return found
    if key in _OF_ALL:
        return Route(Way.WHOLE, merge=_OF_ALL[key])
    if key in _OF_NODES:
        return Route(Way.NODES, merge=_OF_NODES[key])
    if call.path == "/tasks/after":
        # Where its key says, or else where the first of these is: a refusal says which.
        return Route(Way.ANYWHERE, bytes(call.doc["after"][0]) if call.doc["after"] else None)
    if call.path.startswith("/leases/") and call.path[8:] in _LEASE_ENDS:
        return Route(Way.ONE, call.doc["task_id"])
    named = _ID.match(call.path)
    if named is not None:
        return Route(Way.ONE, TaskId(named[1]), is_read=call.method == "GET")
    of_queue = _QUEUE.match(call.path)
    if of_queue is not None:
        if of_queue[1] == "redrive" and "ids" in call.doc:
            return Route(Way.REDRIVE)
        combine = _OF_QUEUES.get((call.method, of_queue[1]))
        if combine is not None:
            return Route(Way.WHOLE, merge=combine)
        if call.method == "GET":
            return Route(Way.ONE, is_read=True)
        return Route(Way.FIRST, is_read=True, merge=merge.of_first)  # pauses and settings
    return Route(Way.NODE)
