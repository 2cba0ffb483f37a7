"""Enqueues of a cluster's client: in parts, each sent to leaders until one has taken it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ...errors import (
    CommitUnknownError,
    LodeqError,
    NotLeaderError,
    UnreachableError,
    UsageError,
)
from ...repository.model.task_options import CONFLICT_DEFAULT
from ...repository.model.values import Receipt
from ..calls import Call
from ..transport.target import Doubt
from .nodes import Nodes
from .target import Patience
from .together import pause

__all__ = ["enqueue", "is_keyed"]

_AT: Final = re.compile(r"tasks\[(\d{1,9})\](.*)", re.DOTALL)


def is_keyed(task: Mapping[str, Any]) -> bool:
    """Whether a task that is enqueued twice is there once, and neither is refused."""
    is_default = task.get("on_conflict", CONFLICT_DEFAULT) == CONFLICT_DEFAULT
    return task.get("dedup_key") is not None and is_default


async def enqueue(nodes: Nodes, call: Call) -> Any:
    """Enqueue tasks: all at one node, and what it refuses at the leaders that it names.

    Tasks with a key lie where the key says, which only a node can tell. Tasks that wait for others
    are placed by the first of those.

    Where some are refused, those whose answer was lost are still sent until there is one.

    Raises:
        LodeqError: its ``receipts`` are those of the tasks that were enqueued all the same.
    """
    batch = _Batch(call)
    await _Enqueue(nodes, batch).run()
    return {"receipts": [_doc_of(one) for one in batch.receipts]}


class _Batch:
    """The tasks of one enqueue, and what came of them."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.tasks: list[Any] = call.doc["tasks"]
        self.receipts: list[Any] = [None] * len(self.tasks)

    def part(self, places: Sequence[int]) -> Call:
        """The request for some of the tasks."""
        doc = {**self.call.doc, "tasks": [self.tasks[n] for n in places]}
        return self.call._replace(doc=doc)

    def take(self, places: Sequence[int], receipts: Sequence[Any]) -> list[int]:
        """Note what was enqueued; return the places of what was not."""
        for n, receipt in zip(places, receipts, strict=False):
            if receipt is not None:
                self.receipts[n] = receipt
        return [n for n in places if self.receipts[n] is None]

    def is_keyed(self, places: Sequence[int]) -> bool:
        """Whether all of these may be sent twice."""
        return all(is_keyed(self.tasks[n]) for n in places)

    def failed(self, error: LodeqError, places: Sequence[int]) -> LodeqError:
        """The error of a part as that of the whole."""
        self.take(places, error.receipts or ())
        named = _AT.match(str(error))
        if isinstance(error, UsageError) and named is not None and int(named[1]) < len(places):
            error.args = (f"tasks[{places[int(named[1])]}]{named[2]}", *error.args[1:])
        error.receipts = [None if one is None else _receipt_of(one) for one in self.receipts]
        return error


@dataclass(slots=True)
class _Part:
    """Tasks that one node is asked to take.

    Attributes:
        node: whom to ask; None: nobody is known to lead its shard.
        places: of the tasks in their batch.
        shard: where all of them must lie; None: anywhere.
        is_unsure: the answer to an earlier try was lost, so some of them may be there.
    """

    node: str | None
    places: list[int]
    shard: int | None
    is_unsure: bool = False


class _Enqueue:
    """A batch on its way.

    Attributes:
        left: parts that nobody has taken or refused yet, in order.
        failure: why some part was refused: then only those are sent that are unsure.
    """

    def __init__(self, nodes: Nodes, batch: _Batch) -> None:
        self.nodes = nodes
        self.batch = batch
        self.left: list[_Part] = []
        self.failure: LodeqError | None = None
        self.doubt = Doubt()
        self.patience = Patience(nodes.patience_s)

    async def run(self) -> None:
        """Send all of it."""
        node = (await self.nodes.leaders())[0]
        topology = self.nodes.topology
        for shard, places in self._by_shard().items():
            at = node if shard is None else topology.leader(shard)
            self.left.append(_Part(at, places, shard))
        with self.doubt:
            while self.left:
                await self._send(self.left.pop(0))
        if self.failure is not None:
            raise self.batch.failed(self.failure, ())

    def _by_shard(self) -> dict[int | None, list[int]]:
        found: dict[int | None, list[int]] = {}
        for n, task in enumerate(self.batch.tasks):
            after = None if self.batch.call.doc.get("atomic") else task.get("after")
            shard = self.nodes.topology.shard_of(after[0]) if after else None
            found.setdefault(shard, []).append(n)
        return found

    async def _send(self, part: _Part) -> None:
        """Ask a node to take it: it does, or refuses, or what is left of it is sent again."""
        nodes, batch, places = self.nodes, self.batch, part.places
        following: str | None = None
        last: LodeqError
        try:
            node = part.node or (await nodes.leaders())[0]
        except LodeqError as error:
            batch.failed(error, places)
            raise
        try:
            doc = await nodes.ask(node, batch.part(places))
        except NotLeaderError as error:
            following, last = nodes.topology.known(error.leader), error
        except UnreachableError as error:
            last = error
        except CommitUnknownError as error:
            if not batch.is_keyed(batch.take(places, error.receipts or ())):
                batch.failed(error, places)
                raise
            self.doubt.of(error)
            part.is_unsure = True
            last = error
        except LodeqError as error:
            self._refused(part, error)
            return
        else:
            batch.take(places, doc["receipts"])
            return
        rest = batch.take(places, last.receipts or ())
        if rest:
            await self._again(part, rest, following, last)

    def _refused(self, part: _Part, error: LodeqError) -> None:
        self.batch.failed(error, part.places)
        if part.is_unsure and self.doubt.unknown is not None:
            error = self.doubt.unknown  # it may have been taken the first time
        if self.failure is None or part.is_unsure:
            self.failure = error
        self.left = [one for one in self.left if one.is_unsure]

    async def _again(
        self, part: _Part, rest: list[int], following: str | None, last: LodeqError
    ) -> None:
        """Send the rest of a part once more: later, if nothing of it was taken."""
        nodes = self.nodes
        if len(rest) == len(part.places):
            if self.patience.is_over:
                raise self.batch.failed(last, part.places)
            await pause(self.patience.next_s())
        if following is None and part.shard is not None:
            await nodes.refresh()
            following = nodes.topology.leader(part.shard)
        if following is None:
            nodes.pass_on()
        if self.failure is None or part.is_unsure:
            self.left.append(replace(part, node=following, places=rest))


def _receipt_of(one: Any) -> Receipt:
    from ..documents.records import receipt_of  # noqa: PLC0415 - only where something failed

    return one if isinstance(one, Receipt) else receipt_of(one)


def _doc_of(one: Any) -> Any:
    if not isinstance(one, Receipt):
        return one
    replaced = None if one.replaced is None else bytes(one.replaced)
    return {"id": bytes(one.id), "duplicate": one.duplicate, "replaced": replaced}
