"""The recorder of workflows: its records let ``History`` ask rules 20 to 22.

Members and callbacks go past ``Recorder``, which knows no task that waits: a history has the rules
of tasks (1 to 13) for the tasks that its recorder has numbered, and those of joins for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from ....errors import TaskNotFoundError
from ....repository.api.engine import Engine
from ....repository.model.flows.workflow_handle import Workflow
from ....repository.model.values import AnyId, NewTask
from ....repository.tasks.lease import Lease

__all__ = ["FlowRecorder"]

_ALIVE = frozenset({"ready", "delayed", "waiting", "leased"})


class FlowRecorder:
    """Workflows of an engine, as their users know them: made by ``Recorder``, as its ``flows``.

    ::

        flow = await recorder.flows.open(NewTask(b"sum", "joins"), key="report-42")
        members = await flow.add(tasks)
        await recorder.flows.seal(flow, members)
        for lease in await engine.queue("joins").claim():
            await recorder.flows.delivered(lease)   # before it is completed
        await recorder.flows.drained([flow.id])     # when all work is done

    Args:
        engine: an open engine.
        emit: takes the fields of a record.
    """

    def __init__(self, engine: Engine, emit: Callable[..., None]) -> None:
        self._engine = engine
        self._emit = emit

    async def open(
        self,
        callback: NewTask,
        *,
        key: str | bytes | None = None,
        on_failure: Literal["run", "wait", "cancel"] = "run",
    ) -> Workflow:
        """Call ``engine.workflow``, and record the callback.

        Durability: as ``Engine.workflow``. Cancellation: the workflow may be there, unrecorded.

        Args:
            callback: runs when all members have ended.
            key: names the workflow for whoever opens it again.
            on_failure: ``run``, ``wait`` or ``cancel``.
        """
        flow = await self._engine.workflow(callback, key=key, on_failure=on_failure)
        await self._opened(flow.id)
        return flow

    async def _opened(self, workflow: AnyId) -> None:
        info = await self._engine.workflow_info(workflow)
        if info.callback is not None:
            self._emit("flow", "opened", info.id.hex(), info.callback.hex(), info.on_failure)

    async def seal(self, flow: Workflow, members: Iterable[bytes]) -> bool:
        """Record who the members are, then call ``flow.seal``. Leave no ``async with`` before it.

        Durability: as ``Workflow.seal``. Cancellation: the seal may have happened.
        """
        self._emit("flow", "sealing", flow.id.hex(), [bytes(one).hex() for one in members])
        return await flow.seal()

    async def cancel(self, workflow: AnyId) -> int:
        """Call ``engine.cancel_workflow``.

        Durability: as that. Cancellation: part of it may have happened.
        """
        info = await self._engine.workflow_info(workflow)
        self._emit("flow", "cancelling", info.id.hex())
        return await self._engine.cancel_workflow(workflow)

    async def redrive(self, workflow: AnyId) -> int:
        """Call ``engine.redrive_workflow``; a callback that it makes is recorded.

        Durability: as that. Cancellation: part of it may have happened.
        """
        info = await self._engine.workflow_info(workflow)
        self._emit("flow", "redriving", info.id.hex())
        count = await self._engine.redrive_workflow(workflow)
        await self._opened(workflow)
        return count

    async def delivered(self, lease: Lease) -> None:
        """Record a callback that was claimed, with what it sees of its parts.

        Durability: reads only. Cancellation: nothing is recorded.
        """
        statuses: list[str | None] = []
        alive = 0
        async for part in self._engine.parts(lease.task_id):
            task = await self._engine.get(part.task_id)
            # A dead one that was redriven by hand runs alone.
            alive += part.status != "dead" and task is not None and task.state in _ALIVE
            statuses.append(part.status)
        try:
            info = await self._engine.workflow_info(lease.task_id)
            current = None if info.callback is None else info.callback.hex()
        except TaskNotFoundError:
            current = None
        self._emit(
            "flow", "delivered", lease.task_id.hex(), lease.attempt, statuses, alive, current
        )

    async def drained(self, workflows: Sequence[AnyId]) -> None:
        """Record, when all work is done, how these workflows and their callbacks have ended.

        Durability: reads only. Cancellation: nothing is recorded.
        """
        found = []
        for workflow in workflows:
            info = await self._engine.workflow_info(workflow)
            callback = None if info.callback is None else info.callback.hex()
            found.append([info.id.hex(), info.state, info.failed, callback, info.callback_state])
        self._emit("flow", "drained", found)
