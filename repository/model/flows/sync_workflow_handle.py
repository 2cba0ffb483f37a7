"""The blocking handle of one workflow: as ``workflow_handle``, word for word, without ``await``.

It works on whatever has the calls by id: an engine, or a client of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

from ....engine.runtime.task_id import TaskId
from ....errors import LimitError
from ..values import AnyId, NewTask, Part
from .workflows import SLICE_TASKS_MAX, WorkflowInfo

__all__ = ["SyncWorkflow", "SyncWorkflowCalls"]


class SyncWorkflowCalls(Protocol):
    """The calls by id that a handle is made of."""

    def add_members(
        self,
        workflow: AnyId,
        tasks: Sequence[NewTask],
        *,
        first: int | None = None,
        after: Sequence[AnyId] = (),
        chain: bool = False,
    ) -> list[TaskId]:
        """Add a slice of members.

        Args:
            workflow: its id.
            tasks: at most 256 and 3 MiB.
            first: number of the first one; None takes the next free number.
            after: members that each of these waits for, 255 at most.
            chain: each of these waits for the one before it.
        """

    def seal_workflow(self, workflow: AnyId) -> bool:
        """No more members."""

    def workflow_info(self, workflow: AnyId) -> WorkflowInfo:
        """The workflow in numbers."""

    def parts(self, id: AnyId, *, failed: bool = False) -> Iterator[Part]:
        """All of its parts."""

    def parts_page(
        self, id: AnyId, *, after: int = -1, limit: int = 256, failed: bool = False
    ) -> list[Part]:
        """A page of its parts.

        Args:
            id: of a workflow, of its callback, or of a member that waits for others.
            after: number of the last part of the page before; -1 for the first page.
            limit: parts at most, 1 to 1,024.
            failed: only those that have ended and did not complete.
        """

    def cancel_workflow(self, workflow: AnyId) -> int:
        """Cancel all of it."""

    def redrive_workflow(self, workflow: AnyId) -> int:
        """Redrive its dead members."""


class SyncWorkflow:
    """One workflow. ``with`` seals it on the way out, unless an exception is on its way.

    Members are numbered in the order in which this handle adds them, from 0. So a producer that is
    killed and runs again, with the same ``key``, adds nothing twice: a number that is taken is a
    member that is there.
    """

    __slots__ = ("_engine", "_next", "callback", "id", "is_new")

    def __init__(
        self, engine: SyncWorkflowCalls, id: TaskId, callback: TaskId | None, *, is_new: bool
    ) -> None:
        self._engine = engine
        self._next = 0
        self.id = id
        self.callback = callback  # the task that runs when all members have ended
        self.is_new = is_new  # False: the key was held, and this is the holder

    def __repr__(self) -> str:
        return f"<Workflow {self.id}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.seal()

    def add(
        self, tasks: Sequence[NewTask], *, after: Sequence[AnyId] = (), chain: bool = False
    ) -> list[TaskId]:
        """Add members: any number, in slices of at most 256 tasks and 3 MiB, each one batch.

        Args:
            tasks: each names its ``queue``; none has a key.
            after: members that each of these waits for; 255 at most.
            chain: each of these waits for the one before it instead, the first for ``after``.

        Returns: their ids, in order.

        Raises:
            UsageError, LimitError: a task is wrong, or the workflow is sealed or cancelled.
            UnknownDependencyError: an id of ``after`` is no member.

        Durability: as ``Queue.enqueue``. Cancellation: slices already queued happen; run it again.
        """
        ids: list[TaskId] = []
        given = list(tasks)
        size = SLICE_TASKS_MAX
        while len(ids) < len(given):
            at = len(ids)
            then = [ids[-1]] if chain and ids else after
            try:
                ids += self._engine.add_members(
                    self.id,
                    given[at : at + size],
                    first=self._next + at,
                    after=then,
                    chain=chain,
                )
            except LimitError:
                if size == 1 or len(given) - at == 1:
                    raise
                size = max(1, min(size, len(given) - at) // 2)  # too many bytes
        self._next += len(given)
        return ids

    def seal(self) -> bool:
        """No more members: the callback runs as soon as all have ended. Returns if it was open.

        Durability: as ``Queue.enqueue``. Cancellation: in the last wait it happens.
        """
        return self._engine.seal_workflow(self.id)

    def info(self) -> WorkflowInfo:
        """The workflow in numbers.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        return self._engine.workflow_info(self.id)

    def parts(self, *, failed: bool = False) -> Iterator[Part]:
        """Go through all its members, by number, with results: ``for``, as ``Engine.parts``.

        Args:
            failed: only those that have ended and did not complete.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        return self._engine.parts(self.id, failed=failed)

    def parts_page(self, *, after: int = -1, limit: int = 256, failed: bool = False) -> list[Part]:
        """One page of ``parts``: not all of them. The last page is followed by an empty one.

        Args:
            after: the number of the last one of the page before; -1 for the first page.
            limit: parts at most, 1 to 1,024; fewer where their values are large.
            failed: only those that have ended and did not complete.

        Durability: what it shows is committed. Cancellation: changes nothing.
        """
        return self._engine.parts_page(self.id, after=after, limit=limit, failed=failed)

    def cancel(self) -> int:
        """Cancel every task of it that has not ended. Returns how many members were.

        Durability: as ``Queue.enqueue``. Cancellation: it goes on at the next open, or next call.
        """
        return self._engine.cancel_workflow(self.id)

    def redrive(self) -> int:
        """Redrive its dead members, and have the callback wait for them. Returns how many were.

        Durability: as ``Queue.enqueue``. Cancellation: it goes on at the next open, or next call.
        """
        return self._engine.redrive_workflow(self.id)
