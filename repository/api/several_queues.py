"""Requests to claim from several queues: made once for each combination of arguments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from ...engine.records.keyspace import check_name
from ...errors import UsageError
from ..model.arguments import check_limit, check_worker, duration_s, length_s
from ..model.values import Duration
from ..state.caches.claim_sets import TenantQueueKey
from ..state.engine_state import EngineState
from ..state.long_polls import ClaimRequest
from .queue import LEASE_S, Queue, boosts_of, lease_s_of, tenant_queue_of

__all__ = ["SeveralQueues"]

REQUESTS_MAX: Final = 256
QUEUES_MAX: Final = 1 << 16  # of all requests that are kept
SEEN_MAX: Final = 256
_KINDS: Final = frozenset((str, Queue))


class SeveralQueues:
    """The requests of an engine's claims over several queues.

    Workers repeat the same call: its arguments are validated once. A call with the arguments of
    the last one costs one comparison of the queues, which are the same objects as a rule.
    """

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._requests: OrderedDict[tuple[Any, ...], ClaimRequest] = OrderedDict()
        self._queues = 0
        self._seen: OrderedDict[int, None] = OrderedDict()  # hashes of queues claimed from once
        self._last: tuple[Any, ...] = (object(),) * 8

    def request(
        self,
        queues: Sequence[str | Queue],
        limit: int,
        lease: Duration | None,
        wait: Duration,
        worker: str,
        exported: bool,
    ) -> tuple[ClaimRequest, float]:
        """The request of a claim, and how long it waits in seconds.

        Args:
            queues: names (default tenant) or ``Queue`` objects.
            limit: 1 to 4,096 tasks at most.
            lease: seconds until a lease may be reaped; None uses the shortest of the queues' own.
            wait: seconds.
            worker: a name kept with the lease and the result, at most 256 bytes.
            exported: the worker is another process: the lease outlives this one.

        Raises:
            UsageError, InvalidNameError: an argument is wrong.
        """
        last = self._last
        if (
            limit is last[1]
            and lease is last[2]
            and wait is last[3]
            and worker is last[4]
            and exported is last[5]
            and (queues is last[0] or (type(queues) is list and queues == last[0]))
        ):
            request: ClaimRequest = last[6]
            if len(request.keys) == 1 or request.is_set_kept:
                return request, last[7]
        wait_s = 0.0 if wait == 0 else duration_s(wait, "wait")
        request = self._known(queues, limit, lease, worker, exported)
        if type(queues) is tuple:
            self._last = (queues, limit, lease, wait, worker, exported, request, wait_s)
        elif type(queues) is list:  # which the caller may change
            self._last = (list(queues), limit, lease, wait, worker, exported, request, wait_s)
        return request, wait_s

    def _known(
        self,
        queues: Sequence[str | Queue],
        limit: int,
        lease: Duration | None,
        worker: str,
        exported: bool,
    ) -> ClaimRequest:
        kind = type(queues)
        if (
            (kind is not list and kind is not tuple)
            or not _KINDS.issuperset(map(type, queues))
            or type(limit) is not int
            or not (lease is None or type(lease) is float or type(lease) is int)
            or type(worker) is not str
            or type(exported) is not bool
        ):
            request = _request(queues, limit, lease, worker, exported)
            return self._with_set(request) if self._is_known((), request) else request
        names = tuple(queues)
        known = (names, limit, lease, worker, exported)
        found = self._requests.get(known)
        if found is not None:
            self._requests.move_to_end(known)
            if len(found.keys) == 1 or found.is_set_kept:
                return found
            request = found
        else:
            request = _request(queues, limit, lease, worker, exported)
            if not self._is_known(names, request) or len(names) > QUEUES_MAX:
                return request
            self._queues += len(names)
        request = self._requests[known] = self._with_set(request)
        while len(self._requests) > REQUESTS_MAX or self._queues > QUEUES_MAX:
            (gone, *_), _ = self._requests.popitem(last=False)
            self._queues -= len(gone)
        return request

    def _is_known(self, names: tuple[str | Queue, ...], request: ClaimRequest) -> bool:
        """Whether the same queues were claimed from a moment ago. A caller may never repeat its."""
        if len(request.keys) == 1:
            return True
        is_named = names and Queue not in set(map(type, names))
        mark = hash(names if is_named else tuple(request.keys))
        if mark in self._seen:
            return True
        self._seen[mark] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        return False

    def _with_set(self, request: ClaimRequest) -> ClaimRequest:
        if len(request.keys) == 1:
            return request
        claim_set = self._state.claim_sets.admit(request.keys)
        if claim_set is None and request.claim_set is None:
            return request
        return ClaimRequest(
            request.keys,
            limit=request.limit,
            lease_s=request.lease_s,
            worker=request.worker,
            is_exported=request.is_exported,
            boosts=request.boosts,
            claim_set=claim_set,
        )


def _request(
    queues: Sequence[str | Queue],
    limit: int,
    lease: Duration | None,
    worker: str,
    exported: bool,
) -> ClaimRequest:
    if isinstance(queues, str | Queue) or not queues:
        raise UsageError("queues must be a non-empty list of names or Queue objects")
    keys: list[TenantQueueKey] = [
        tenant_queue_of(queue) if isinstance(queue, Queue) else (check_name(queue, "queue"), b"")
        for queue in queues
    ]
    if lease is None:
        lease = min(lease_s_of(queue) if isinstance(queue, Queue) else LEASE_S for queue in queues)
    return ClaimRequest(
        list(dict.fromkeys(keys)),
        limit=check_limit(limit),
        lease_s=length_s(lease),
        worker=check_worker(worker),
        is_exported=exported,
        boosts=boosts_of([queue for queue in queues if isinstance(queue, Queue)]),
    )
