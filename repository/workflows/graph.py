"""A workflow as a small drawing: its members in groups by function and layer, and who failed.

A thousand members are a handful of groups. Members are looked at by number, in turns of the loop:
each reads its part, its task or result, and what it waits for. Whoever waits has a higher number
than what it waits for, so one pass knows every layer.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from ...engine.records.frame import attempt
from ...engine.records.result import Status
from ...engine.records.workflow import JOIN, PART, PART_NUMBER, JoinRecord, PartRecord, decode_part
from ...engine.runtime.task_id import TaskId
from ...errors import LodeqError
from ..model.flows.workflows import FailedMember, MemberGroup, WorkflowGraph
from ..model.values import Task
from ..state.engine_state import EngineState
from ..state.queue_state import Shard
from ..state.turns import Turns
from ..tasks.lookup import find_task
from .joins import range_end
from .views import info_of, workflow_for

__all__ = ["FAILED_MAX", "GROUPS_MAX", "MEMBERS_LOOKED_MAX", "workflow_graph"]

MEMBERS_LOOKED_MAX: Final = 2000
EDGES_LOOKED_MAX: Final = 20_000
GROUPS_MAX: Final = 24
LAYERS_MAX: Final = 8
FAILED_MAX: Final = 20  # that are named
_SLICE: Final = 64
_FAILED_SLICE: Final = 256


class _Member(NamedTuple):
    function: str
    queue: str
    layer: int
    state: str
    sources: tuple[int, ...]  # numbers of members that it waits for


_Name = tuple[str, str, int]


async def workflow_graph(state: EngineState, named: bytes) -> WorkflowGraph:
    """See ``Engine.workflow_graph``.

    Args:
        state: of the engine.
        named: of a workflow, or a task of one.
    """
    shard, workflow, record = workflow_for(state, named)
    turns = Turns(state)
    members = await _Members(state, shard, workflow, turns).look()
    failed = await _failed(state, shard, workflow, record, turns)
    info = await info_of(state, workflow, record)
    return WorkflowGraph(info, _groups(members), failed, len(members))


class _Members:
    """The first members of a workflow, by number."""

    def __init__(self, state: EngineState, shard: Shard, workflow: bytes, turns: Turns) -> None:
        self._state, self._shard, self._turns = state, shard, turns
        self._range = PART + workflow
        self._found: list[_Member] = []
        self._places: dict[bytes, int] = {}
        self._edges_left = EDGES_LOOKED_MAX

    async def look(self) -> list[_Member]:
        """Look at them, in turns."""
        lower: bytes | None = self._range
        while lower is not None and len(self._found) < MEMBERS_LOOKED_MAX:
            rows, lower = self._shard.overlay.scan_readable(
                lower, range_end(self._range), min(_SLICE, MEMBERS_LOOKED_MAX - len(self._found))
            )
            for _, raw in rows:
                part = attempt(decode_part, raw)
                if part is not None:
                    self._add(part)
                await self._turns.give()
            self._state.check()
        return self._found

    def _add(self, part: PartRecord) -> None:
        task = _task(self._state, self._shard, part.source)
        sources = self._sources(part.source)
        layer = 1 + max((self._found[one].layer for one in sources), default=-1)
        state = Status(part.status).name.lower() if part.status else ""
        self._places[part.source] = len(self._found)
        if task is None:
            self._found.append(_Member("", "", layer, state or "unknown", sources))
        else:
            named = task.function, task.queue
            self._found.append(_Member(*named, layer, state or task.state, sources))

    def _sources(self, member: bytes) -> tuple[int, ...]:
        if self._edges_left <= 0 or not self._shard.overlay.has(JOIN + member):
            return ()
        lower = PART + member
        rows, _ = self._shard.overlay.scan_readable(lower, range_end(lower), 256)
        self._edges_left -= len(rows)
        parts = [attempt(decode_part, raw) for _, raw in rows]
        places = [self._places.get(part.source) for part in parts if part is not None]
        return tuple(one for one in places if one is not None)


def _task(state: EngineState, shard: Shard, task_id: bytes) -> Task | None:
    try:
        return find_task(state, shard, task_id, "none")
    except LodeqError:  # damaged: the others are shown all the same
        return None


def _groups(members: list[_Member]) -> tuple[MemberGroup, ...]:
    names = _named(members)
    order = {name: n for n, name in enumerate(sorted(set(names), key=lambda one: (one[2], one)))}
    states: list[Counter[str]] = [Counter() for _ in order]
    waits: list[Counter[int]] = [Counter() for _ in order]
    for name, member in zip(names, members, strict=True):
        at = order[name]
        states[at][member.state] += 1
        waits[at].update(order[names[one]] for one in member.sources)
    return tuple(
        MemberGroup(*name, dict(states[at]), dict(waits[at])) for name, at in order.items()
    )


def _named(members: list[_Member]) -> list[_Name]:
    """Each member's group: by layer; too many layers or groups are put together."""
    names = [(one.function, one.queue, one.layer) for one in members]
    if len(set(names)) > GROUPS_MAX or any(one.layer >= LAYERS_MAX for one in members):
        first: dict[tuple[str, str], int] = {}
        for one in members:
            key = one.function, one.queue
            first[key] = min(one.layer, first.get(key, LAYERS_MAX - 1))
        names = [(*name[:2], first[name[:2]]) for name in names]
    sizes = Counter(names)
    if len(sizes) > GROUPS_MAX:
        kept = {name for name, _ in sizes.most_common(GROUPS_MAX - 1)}
        names = [name if name in kept else ("(others)", "", 0) for name in names]
    return names


async def _failed(
    state: EngineState, shard: Shard, workflow: bytes, record: JoinRecord, turns: Turns
) -> tuple[FailedMember, ...]:
    """The first that failed; parts are passed over until as many are found as the join counts."""
    found: list[FailedMember] = []
    lower: bytes | None = PART + workflow
    wanted = min(FAILED_MAX, record.failed)
    while lower is not None and len(found) < wanted:
        rows, lower = shard.overlay.scan_readable(lower, range_end(PART + workflow), _FAILED_SLICE)
        for key, raw in rows:
            part = attempt(decode_part, raw)
            if part is None or part.status in (0, Status.COMPLETED) or len(found) >= wanted:
                continue
            found.append(_failed_one(state, shard, int.from_bytes(key[PART_NUMBER], "big"), part))
        await turns.give()
        state.check()
    return tuple(found)


def _failed_one(state: EngineState, shard: Shard, number: int, part: PartRecord) -> FailedMember:
    task = _task(state, shard, part.source)
    status = Status(part.status).name.lower()
    if task is None:
        return FailedMember(number, TaskId(part.source), status, "", "", "", "")
    return FailedMember(
        number,
        task.id,
        status,
        task.queue,
        task.function,
        task.preview,
        task.reason,
    )
