"""All workflows of a store, the newest first, page by page.

Ids begin with the time they were drawn, so the order of the joins' rows is that of the workflows.
Each shard is read from its end; the joins of members that wait lie between and are passed over, so
a call looks at a bounded number of rows and hands back where it ended.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ...engine.records.frame import attempt
from ...engine.records.workflow import JOIN, WORKFLOW_FLAG, JoinRecord, decode_join
from ...engine.runtime.task_id import TaskId
from ...engine.values import spelled
from ...errors import UsageError
from ..model.flows.workflows import WORKFLOW_STATES, WorkflowInfo, WorkflowPage
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..state.shard_scope import shards_meant
from ..state.turns import Turns
from .joins import range_end
from .views import info_of, state_of

__all__ = ["LOOKS_MAX", "PAGE_MAX", "list_workflows"]

PAGE_MAX: Final = 256  # workflows
LOOKS_MAX: Final = 10_000  # joins that one call looks at
_SLICE: Final = 128

_Found = tuple[bytes, JoinRecord]


async def list_workflows(
    engine_state: EngineState, *, state: object, limit: object, cursor: object
) -> WorkflowPage:
    """See ``Engine.workflows``.

    Args:
        state: of the engine.
        state: one of ``WORKFLOW_STATES``; None for all.
        limit: workflows, 1 to 256.
        cursor: of the page before; None begins with the newest.
    """
    if state is not None and state not in WORKFLOW_STATES:
        raise UsageError(f"state {spelled(state)} is not one of {', '.join(WORKFLOW_STATES)}")
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise UsageError(f"limit {spelled(limit)} is not between 1 and {PAGE_MAX}")
    upper = range_end(JOIN) if cursor is None else JOIN + _position(cursor)
    search = _Search(engine_state, state, limit + 1)
    found: list[_Found] = []
    bound = b""  # down to which all shards were looked at
    for shard in shards_meant(engine_state.hosted):
        await engine_state.commit_barrier(shard)
        some, reached = await search.newest(shard, upper)
        found += some
        bound = max(bound, reached)
    found = sorted((one for one in found if one[0] >= bound), reverse=True)
    page = found[:limit]
    infos: list[WorkflowInfo] = []
    for workflow, record in page:
        infos.append(await info_of(engine_state, workflow, record))
        await search.turns.give()
    if len(found) > limit:
        return WorkflowPage(tuple(infos), str(TaskId(page[-1][0])), False)
    return WorkflowPage(tuple(infos), str(TaskId(bound)) if bound else None, bool(bound))


def _position(cursor: object) -> bytes:
    if not isinstance(cursor, str):
        raise UsageError(f"cursor {spelled(cursor):.80} is not one: take it from the page before")
    return TaskId(cursor)


class _Search:
    """Looks for workflows in one shard after the other; counts what it looks at."""

    def __init__(self, engine_state: EngineState, state: object, wanted: int) -> None:
        self._engine_state, self._state, self._wanted = engine_state, state, wanted
        self.turns = Turns(engine_state)

    async def newest(self, shard: Shard, upper: bytes) -> tuple[list[_Found], bytes]:
        """The newest below ``upper``, and the id down to which all were looked at; empty: to all.

        Args:
            shard: where to look.
            upper: a key; later ones are not meant.
        """
        looks = max(_SLICE, LOOKS_MAX // len(self._engine_state.shards))
        found: list[_Found] = []
        while looks > 0:
            rows = shard.store.scan_back(JOIN, upper, _SLICE)
            if not rows:  # it was the first row, or the way back is full of deleted ones
                return await self._forward(shard, upper, found)
            for key, raw in rows:
                self._take(found, key, raw)
                upper, looks = key, looks - 1
                if len(found) >= self._wanted:
                    return found, found[-1][0]
            await self.turns.give()
            self._engine_state.check()
        return found, upper[len(JOIN) :]

    async def _forward(
        self, shard: Shard, upper: bytes, found: list[_Found]
    ) -> tuple[list[_Found], bytes]:
        """The newest of what is left, from the first row on."""
        last: deque[_Found] = deque(maxlen=self._wanted - len(found))
        is_all = True
        lower: bytes | None = JOIN
        while lower is not None:
            rows, lower = shard.overlay.scan_readable(lower, upper, _SLICE)
            some: list[_Found] = []
            for key, raw in rows:
                self._take(some, key, raw)
            is_all = is_all and len(last) + len(some) <= self._wanted - len(found)
            last.extend(some)
            await self.turns.give()
            self._engine_state.check()
        found += reversed(last)
        return found, b"" if is_all else found[-1][0]

    def _take(self, found: list[_Found], key: bytes, raw: bytes) -> None:
        record = attempt(decode_join, raw)
        if record is None or not record.flags & WORKFLOW_FLAG:
            return
        if self._state is None or state_of(record) == self._state:
            found.append((key[len(JOIN) :], record))
