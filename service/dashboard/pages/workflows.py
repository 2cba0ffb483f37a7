"""Pages of workflows: the list of them, and one with its drawing, failed members and tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ....engine.runtime.task_id import TaskId
from ....errors import LodeqError, TaskNotFoundError, UsageError
from ....repository.model.flows.workflows import (
    WORKFLOW_STATES,
    MemberGroup,
    WorkflowGraph,
    WorkflowInfo,
)
from ....repository.model.values import Part, Task
from ..source import AnyEngine, source_of
from ..text import visible

__all__ = [
    "Box",
    "Drawing",
    "Segment",
    "Ties",
    "drawing_of",
    "ties_of",
    "workflow_page",
    "workflows_page",
]

PAGE: Final = 25
BOX_WIDTH: Final = 190
BOX_HEIGHT: Final = 62
COLUMN: Final = 262  # from one layer to the next
ROW: Final = 78
BAR_WIDTH: Final = BOX_WIDTH - 20
_TITLE_CHARS: Final = 24
# How each state is drawn, in the order of the bar; the style sheet has the colours.
TONES: Final = {
    "completed": "good",
    "leased": "runs",
    "ready": "ready",
    "delayed": "ready",
    "waiting": "waits",
    "dead": "bad",
    "expired": "warn",
    "cancelled": "warn",
}


class Segment(NamedTuple):
    """One state in the bar of a box."""

    x: float
    width: float
    tone: str
    text: str


class Box(NamedTuple):
    """A group of members, or the callback; ``link``: the id of the callback, else empty."""

    x: int
    y: int
    title: str
    note: str
    segments: list[Segment]
    link: str
    text: str


class Drawing(NamedTuple):
    """Boxes in layers from left to right, and the lines between them as paths of SVG."""

    width: int
    height: int
    boxes: list[Box]
    lines: list[str]


def drawing_of(graph: WorkflowGraph) -> Drawing:
    """Draw a workflow's groups: one column a layer, the callback in a column of its own."""
    layers = sorted({group.layer for group in graph.groups})
    rows = dict.fromkeys(layers, 0)
    boxes: list[Box] = []
    for group in graph.groups:
        column, row = layers.index(group.layer), rows[group.layer]
        rows[group.layer] += 1
        boxes.append(_box(group, len(boxes), column * COLUMN, row * ROW))
    lines = [
        _line(boxes[source], boxes[target])
        for target, group in enumerate(graph.groups)
        for source in group.waits_for
        if source != target
    ]
    height = max([*rows.values(), 1]) * ROW
    callback = graph.info.callback
    if callback is not None:
        state = graph.info.callback_state or "forgotten"
        y = (height - ROW) // 2
        segment = Segment(10, BAR_WIDTH, TONES.get(state, ""), state)
        box = Box(
            len(layers) * COLUMN,
            y,
            "callback",
            state,
            [segment],
            str(callback),
            f"callback: {state}",
        )
        ends = _last(graph.groups)
        lines += [_line(one, box) for n, one in enumerate(boxes) if n in ends]
        boxes.append(box)
    columns = len(layers) + (callback is not None)
    width = max(0, columns - 1) * COLUMN + BOX_WIDTH if columns else 0
    return Drawing(width, height, boxes, lines)


def _last(groups: Sequence[MemberGroup]) -> set[int]:
    """Groups that no other group waits for."""
    awaited = {source for at, one in enumerate(groups) for source in one.waits_for if source != at}
    return set(range(len(groups))) - awaited


def _box(group: MemberGroup, at: int, x: int, y: int) -> Box:
    segments: list[Segment] = []
    left, total = 10.0, group.members
    for state in sorted(
        group.states, key=lambda one: list(TONES).index(one) if one in TONES else 9
    ):
        width = BAR_WIDTH * group.states[state] / total
        segments.append(
            Segment(left, width, TONES.get(state, ""), f"{group.states[state]:,} {state}")
        )
        left += width
    title = _cut(group.function or "(no function)")
    note = f"{total:,} in {group.queue}" if group.queue else f"{total:,}"
    if at in group.waits_for:
        note += ", one after another"
    counts = ", ".join(segment.text for segment in segments)
    return Box(x, y, title, _cut(note, _TITLE_CHARS + 4), segments, "", f"{title}: {counts}")


def _cut(text: str, most: int = _TITLE_CHARS) -> str:
    shown = visible(text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _line(source: Box, target: Box) -> str:
    x, y = source.x + BOX_WIDTH, source.y + BOX_HEIGHT // 2
    to_x, to_y = target.x, target.y + BOX_HEIGHT // 2
    bend = max(30, (to_x - x) // 2)
    return f"M{x},{y} C{x + bend},{y} {to_x - bend},{to_y} {to_x},{to_y}"


# -- the pages --------------------------------------------------------------------------


async def workflows_page(engine: AnyEngine, query: Mapping[str, str]) -> dict[str, Any]:
    """The context of the list of workflows.

    Args:
        engine: an open one.
        query: of the request: ``state`` and ``after``, the cursor of the page before.
    """
    state, after = query.get("state", ""), query.get("after", "")
    page = await engine.workflows(state=state or None, limit=PAGE, cursor=after or None)
    return {
        "workflows": page.workflows,
        "more": page.cursor or "",
        "is_short": page.is_short,
        "state": state,
        "states": WORKFLOW_STATES,
        "after": after,
        "now": source_of(engine).clock.wall_us() / 1e6,
    }


async def workflow_page(engine: AnyEngine, text: str, query: Mapping[str, str]) -> dict[str, Any]:
    """The context of the page of one workflow.

    Args:
        engine: an open one.
        text: the id of the workflow, or of a task of one.
        query: of the request: ``after``, the number of a member.

    Raises:
        TaskNotFoundError: there is no such workflow.
    """
    graph = await engine.workflow_graph(TaskId(text))
    after = _number(query.get("after", ""))
    members: list[Part] = await engine.parts_page(graph.info.id, after=after, limit=PAGE)
    info = graph.info
    return {
        "info": info,
        "graph": graph,
        "drawing": drawing_of(graph),
        "states": _ordered(graph.states),
        "share": 100 * info.ended / info.members if info.members else 0.0,
        "members": members,
        "after": after,
        "more": members[-1].number if members and members[-1].number + 1 < info.members else -1,
        "may_cancel": info.state not in ("over", "cancelled"),
        "may_redrive": info.state != "open" and (info.failed or info.callback_state == "dead"),
        "now": source_of(engine).clock.wall_us() / 1e6,
    }


def _ordered(states: Mapping[str, int]) -> list[tuple[str, int]]:
    known = [(state, states[state]) for state in TONES if state in states]
    return known + [(state, n) for state, n in states.items() if state not in TONES]


def _number(text: str) -> int:
    if not text:
        return -1
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise UsageError(f"after={text:.40} is not the number of a member")
    return int(text)


class Ties(NamedTuple):
    """A task's workflow, and what it waits for itself."""

    workflow: WorkflowInfo | None
    waits_for: Sequence[Part]


async def ties_of(engine: AnyEngine, task: Task) -> Ties:
    """A task's workflow, for its page; nothing where that cannot be read."""
    workflow: WorkflowInfo | None = None
    waits_for: Sequence[Part] = ()
    try:
        workflow = await engine.workflow_info(task.id)
    except (TaskNotFoundError, UsageError):  # of none, or an older server
        pass
    is_callback = workflow is not None and workflow.callback == task.id
    if task.state == "waiting" and not is_callback:
        try:
            waits_for = await engine.parts_page(task.id, limit=PAGE)
        except LodeqError:  # it was let go meanwhile
            pass
    return Ties(workflow, waits_for)
