"""The link's short forms in a cluster: each call over the link of the node that leads.

They are those of one server (``fast_calls``), and so is what they return: None, or False, where the
caller has to go the general way. That reads a map that is old, opens links that are not there, and
follows a leader that has moved; so nothing here does. What several nodes lead is asked of each of
them at once, and put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from ...engine.runtime.ids import SystemRng
from ...errors import CommitUnknownError, LodeqError, NotLeaderError, UnreachableError
from ...repository.model.task_options import CONFLICT_DEFAULT
from ...repository.model.values import NewTask, Receipt
from .. import calls
from ..calls import CLAIM_ID_BYTES, FORM, PackedTask, QueueTemplate, Session, packed_tasks
from ..documents.records import Granted, receipt_of
from ..fast_calls import FastCalls
from ..transport.target import Doubt
from .claims import claim_in_turn, take_back
from .nodes import STALE_S, Nodes
from .target import worse
from .together import Send, gather

__all__ = ["ClusterFastCalls"]

_rng: Final = SystemRng()


def _is_repeatable(task: NewTask) -> bool:
    """Whether the same twice is the same as once.

    Not where a duplicate is refused, since it would be for its own task, nor where it replaces the
    holder of its key: that may be its own task, done by then.
    """
    return task.dedup_key is not None and task.on_conflict == CONFLICT_DEFAULT


class ClusterFastCalls:
    """The short way to the nodes of one cluster.

    Args:
        nodes: of the cluster.
        session: of the client.
        send: sends a call the general way.
    """

    def __init__(self, nodes: Nodes, session: Session, send: Send) -> None:
        self._nodes = nodes
        self._session = session
        self._send = send
        self._by_node: dict[str, FastCalls | None] = {}

    def _at(self, node: str) -> FastCalls | None:
        """The short way to one node; None where only HTTP reaches it."""
        try:
            return self._by_node[node]
        except KeyError:
            found = self._by_node[node] = self._nodes.link(node).fast_calls(self._session)
            return found

    def _leader(self, task_id: bytes) -> str | None:
        """Who leads the shard of a task, if that is known for sure enough."""
        if not self._nodes.is_current:
            return None
        topology = self._nodes.topology
        return topology.leader(topology.shard_of(task_id))

    def _by_leader(self, leases: Iterable[Granted]) -> dict[str, list[int]] | None:
        """The places of leases by who leads their shards; None: of one that is not known."""
        if not self._nodes.is_current:
            return None
        topology = self._nodes.topology
        found: dict[str, list[int]] = {}
        for n, lease in enumerate(leases):
            node = topology.leader(topology.shard_of(lease.task_id))
            if node is None:
                return None
            found.setdefault(node, []).append(n)
        return found

    # -- new tasks ---------------------------------------------------------------------

    async def enqueue(self, template: QueueTemplate, payload: Any) -> Receipt | None:
        """See ``FastCalls.enqueue``: at the leader whose turn it is."""
        nodes = self._nodes
        node = nodes.next_leader() if nodes.is_current else None
        fast = None if node is None else self._at(node)
        if node is None or fast is None:
            return None
        call = object()
        nodes.under_way.add(call)
        try:
            return await fast.enqueue(template, payload)
        except LodeqError as error:
            nodes.note(node, error)
            if not isinstance(error, NotLeaderError | UnreachableError):  # those do nothing
                raise
            return None
        finally:
            nodes.under_way.discard(call)

    async def enqueue_with(self, template: QueueTemplate, task: NewTask) -> Receipt | None:
        """See ``FastCalls.enqueue_with``: at the leader that a key says, else as ``enqueue``."""
        nodes = self._nodes
        if not nodes.is_current:
            return None
        node = self._by_key(template, task) or nodes.next_leader()
        fast = None if node is None else self._at(node)
        if node is None or fast is None:
            return None
        call = object()
        nodes.under_way.add(call)
        try:
            return await fast.enqueue_with(template, task)
        except CommitUnknownError as error:
            nodes.note(node, error)
            if not _is_repeatable(task):
                raise
            with Doubt() as doubt:
                doubt.of(error)
                doc = await self._send(calls.enqueue(self._session, template, task, None))
                return receipt_of(doc["receipts"][0])
        except LodeqError as error:
            nodes.note(node, error)
            if not isinstance(error, NotLeaderError | UnreachableError):  # those do nothing
                raise
            return None
        finally:
            nodes.under_way.discard(call)

    def _by_key(self, template: QueueTemplate, task: NewTask) -> str | None:
        """Who leads the shard that the key of a task says; None: it has none, or nobody known."""
        key: Any = task.dedup_key if task.dedup_key is not None else task.shard_key
        if isinstance(key, str):
            key = key.encode("utf-8", "replace")
        if not isinstance(key, bytes):
            return None
        start = b"" if task.dedup_key is None else template.routing
        topology = self._nodes.topology
        return topology.leader(topology.shard_of_key(start + key))

    async def enqueue_many(
        self, template: QueueTemplate, tasks: Sequence[NewTask]
    ) -> list[Receipt] | None:
        """See ``FastCalls.enqueue_many``: where keys say, tasks without at one leader.

        What these do not take, others do.
        """
        nodes = self._nodes
        groups = self._by_keys(template, tasks) if nodes.is_current else None
        if not groups:
            return None
        packed: Sequence[PackedTask] | None = None
        if len(groups) > 1:  # all are checked before any is sent
            packed = packed_tasks(self._session, template, tasks)
            if packed is None:
                return None
        asks = []
        for node, places in groups.items():
            fast = self._at(node)
            if fast is None:
                return None
            if packed is None:
                asks.append(partial(fast.enqueue_many, template, tasks))
            else:
                asks.append(partial(fast.enqueue_packed, template, [packed[n] for n in places]))
        receipts: list[Receipt | None] = [None] * len(tasks)
        unsure: list[int] = []  # places of those that may be there, and may be sent again
        failure: LodeqError | None = None
        call = object()
        nodes.under_way.add(call)
        try:
            outcomes = await gather(asks)
        finally:
            nodes.under_way.discard(call)
        with Doubt() as doubt:
            for (node, places), got in zip(groups.items(), outcomes, strict=True):
                done = got.receipts if isinstance(got, LodeqError) else got or ()
                for n, one in zip(places, done, strict=False):
                    receipts[n] = one
                if not isinstance(got, LodeqError):
                    continue
                nodes.note(node, got)
                if isinstance(got, NotLeaderError | UnreachableError):  # those do nothing
                    continue
                left = [n for n in places if receipts[n] is None]
                if isinstance(got, CommitUnknownError) and all(
                    _is_repeatable(tasks[n]) for n in left
                ):
                    doubt.of(got)
                    unsure += left
                    continue
                calls.place_among(got, places)
                failure = worse(failure, got)
            if failure is not None:
                await self._enqueue_rest(template, tasks, receipts, sorted(unsure))
                doubt.unknown = None  # there is none left
                failure.receipts = receipts
                raise failure
            if doubt.unknown is None and not any(receipts):
                return None
            left = [n for n, one in enumerate(receipts) if one is None]
            await self._enqueue_rest(template, tasks, receipts, left)
        return receipts  # type: ignore[return-value]  # None of them is None

    def _by_keys(
        self, template: QueueTemplate, tasks: Sequence[NewTask]
    ) -> dict[str, list[int]] | None:
        """The places of tasks by who is asked.

        None: nobody is known; or tasks of several nodes have options that only those can check, and
        all are refused where one is.
        """
        found: dict[str, list[int]] = {}
        other: str | None = None
        is_checked = True
        for n, task in enumerate(tasks):
            if not isinstance(task, NewTask):
                return None
            node: str | None = None
            if task.dedup_key is not None or task.shard_key is not None:
                node = self._by_key(template, task)
            if node is None:
                node = other = other or self._nodes.next_leader()
                if node is None:
                    return None
            found.setdefault(node, []).append(n)
            is_checked = is_checked and (
                task.on_conflict is CONFLICT_DEFAULT
                and task.run_at is None
                and task.shard_key is None
                and (task.dedup_window is None or task.dedup_key is not None)
            )
        return found if is_checked or len(found) == 1 else None

    async def _enqueue_rest(
        self,
        template: QueueTemplate,
        tasks: Sequence[NewTask],
        receipts: list[Receipt | None],
        places: Sequence[int],
    ) -> None:
        """Enqueue the tasks at some places the general way; their receipts go where they belong."""
        if not places:
            return
        rest = [tasks[n] for n in places]
        at = 0
        try:
            for call, n in calls.enqueue_many(self._session, template, rest, None, is_atomic=False):
                try:
                    got = [receipt_of(one) for one in (await self._send(call))["receipts"]]
                except LodeqError as error:
                    calls.place(error, at)
                    for place, one in zip(places[at:], error.receipts, strict=False):
                        receipts[place] = one
                    raise
                for place, receipt in zip(places[at:], got, strict=False):
                    receipts[place] = receipt
                at += n
        except LodeqError as error:
            calls.place_among(error, places)
            error.receipts = receipts
            raise

    # -- claims ------------------------------------------------------------------------

    async def claim(
        self,
        template: QueueTemplate,
        limit: int,
        lease_s: float,
        wait_s: float,
        worker: str,
        begun: Callable[[bytes], object],
    ) -> list[Granted] | None:
        """See ``FastCalls.claim``: leader after leader; all wait at once where none has a task.

        Args:
            template: the queue.
            limit: 1 to 4,096.
            lease_s: seconds.
            wait_s: seconds that this poll may wait.
            worker: at most 256 bytes, checked.
            begun: called with the id of each claim by which it can be taken back.
        """
        nodes = self._nodes
        leading = nodes.topology.leading()
        if not nodes.is_current or not leading:
            return None

        if len(leading) == 1:
            poll_s = min(wait_s, STALE_S)
            try:
                return await self._take(leading[0], template, limit, lease_s, poll_s, worker, begun)
            except (NotLeaderError, UnreachableError):
                pass

        async def take(node: str, limit: int, wait_s: float) -> list[Any]:
            return await self._take(node, template, limit, lease_s, wait_s, worker, begun)

        doc = {"queues": [template.claim_doc], "limit": limit, "wait": wait_s}
        return await claim_in_turn(nodes, doc, take)

    async def _take(
        self,
        node: str,
        template: QueueTemplate,
        limit: int,
        lease_s: float,
        wait_s: float,
        worker: str,
        begun: Callable[[bytes], object],
    ) -> list[Granted]:
        """Claim at one node; what is lost on the way is taken back. Args: as ``claim``."""
        nodes = self._nodes
        claim_id: bytes | None = None

        def note(id: bytes) -> None:
            nonlocal claim_id
            claim_id = id
            begun(id)

        fast = self._at(node)
        found: list[Granted] | None = None
        call_id = object()
        if not wait_s:
            nodes.under_way.add(call_id)
        try:
            if fast is not None:
                found = await fast.claim(template, limit, lease_s, wait_s, worker, note)
            if found is None:  # its link is not open yet
                note(_rng.bytes(CLAIM_ID_BYTES))
                call = calls.claim(
                    self._session,
                    [template],
                    limit=limit,
                    lease=lease_s,
                    wait_s=wait_s,
                    worker=worker,
                    claim_id=claim_id,
                )
                leases = (await nodes.link(node).send(call))["leases"]
                found = [Granted.of(FORM, one) for one in leases]
        except LodeqError as error:
            nodes.note(node, error)
            if isinstance(error, UnreachableError):
                await take_back(nodes, node, claim_id)
            raise
        finally:
            nodes.under_way.discard(call_id)
        return found

    # -- leases ------------------------------------------------------------------------

    async def complete(self, lease: Granted, result: Any, keep: bool, doubt: Doubt) -> bool:
        """See ``FastCalls.complete``: at the leader of its shard."""
        node = self._leader(lease.task_id)
        fast = None if node is None else self._at(node)
        if node is None or fast is None:
            return False
        call = object()
        self._nodes.under_way.add(call)
        try:
            return await fast.complete(lease, result, keep, doubt)
        except LodeqError as error:
            self._nodes.note(node, error)
            if isinstance(error, NotLeaderError | UnreachableError):
                return False
            raise
        finally:
            self._nodes.under_way.discard(call)

    async def heartbeat_many(
        self, leases: Sequence[Granted], seconds: float | None
    ) -> list[datetime | str] | None:
        """See ``FastCalls.heartbeat_many``: each at the leader of its shard, all at once."""
        groups = self._by_leader(leases)
        topology = self._nodes.topology
        if groups is None or any(topology.is_doubted(node) for node in groups):
            return None
        asks = []
        for node, places in groups.items():
            fast = self._at(node)
            if fast is None:
                return None
            part = leases if len(groups) == 1 else [leases[n] for n in places]
            asks.append(partial(fast.heartbeat_many, part, seconds))
        found: list[datetime | str] = [""] * len(leases)
        for (node, places), got in zip(groups.items(), await gather(asks), strict=True):
            if isinstance(got, LodeqError):
                self._nodes.note(node, got)
                if isinstance(got, NotLeaderError | UnreachableError):
                    return None  # the same twice is the same as once
                raise got
            if got is None:
                return None
            for n, one in zip(places, got, strict=True):
                found[n] = one
        return found

    async def complete_many(
        self, pairs: Sequence[tuple[Granted, Any]], doubt: Doubt
    ) -> dict[int, str] | None:
        """See ``FastCalls.complete_many``: each at the leader of its shard, all at once."""
        del doubt  # each part has its own
        groups = self._by_leader(lease for lease, _ in pairs)
        if groups is None:
            return None
        parts = list(groups.items())
        asks = [
            partial(self._complete_part, node, [pairs[n] for n in places]) for node, places in parts
        ]
        lost: dict[int, str] = {}
        failure: LodeqError | None = None
        for (_, places), got in zip(parts, await gather(asks), strict=True):
            if isinstance(got, LodeqError):
                failure = worse(failure, got)
            else:
                lost |= {places[n]: why for n, why in got.items()}
        if failure is not None:
            raise failure
        return lost

    async def _complete_part(
        self, node: str, pairs: Sequence[tuple[Granted, Any]]
    ) -> dict[int, str]:
        """End the leases of one node; the general way, where the short one is closed."""
        fast = self._at(node)
        lost: dict[int, str] | None = None
        with Doubt() as doubt:
            try:
                if fast is not None:
                    lost = await fast.complete_many(pairs, doubt)
            except (NotLeaderError, UnreachableError) as error:
                self._nodes.note(node, error)
            except CommitUnknownError as error:
                self._nodes.note(node, error)
                raise
            if lost is not None:
                return lost
            lost, at = {}, 0
            for call, n in calls.complete_many(self._session, pairs, None):
                answer = (await self._send(call))["lost"]
                lost |= {at + int(place): why for place, why in answer.items()}
                at += n
        return lost
