"""Values of workflows: what users see of one, and of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args, overload

from ....engine.runtime.task_id import TaskId

__all__ = [
    "MEMBERS_MAX",
    "ON_FAILURES",
    "PARTS_MAX",
    "SLICE_BYTES_MAX",
    "SLICE_TASKS_MAX",
    "WORKFLOW_NAME_BYTES_MAX",
    "WORKFLOW_STATES",
    "FailedMember",
    "MemberGroup",
    "OnFailure",
    "WorkflowGraph",
    "WorkflowInfo",
    "WorkflowPage",
]

OnFailure = Literal["run", "wait", "cancel"]
ON_FAILURES: Final[tuple[str, ...]] = get_args(OnFailure)
MEMBERS_MAX: Final = 100_000  # of one workflow
PARTS_MAX: Final = 1024  # of one page
SLICE_TASKS_MAX: Final = 256
WORKFLOW_NAME_BYTES_MAX: Final = 128
SLICE_BYTES_MAX: Final = 3 << 20
WORKFLOW_STATES: Final = ("open", "running", "waiting", "joined", "over", "cancelled")


@dataclass(frozen=True, slots=True)
class WorkflowInfo:
    """A workflow in numbers.

    ``state``: ``open`` (more members may come), ``running``, ``waiting`` (some failed, and
    ``on_failure="wait"``), ``joined`` (all members have ended, the callback was let go), ``over``
    (and the callback has ended), or ``cancelled``.
    """

    id: TaskId
    name: str
    state: str
    on_failure: str
    generation: int
    members: int
    ended: int
    failed: int
    callback: TaskId | None
    callback_state: str | None
    created_at: datetime
    joined_at: datetime | None


@dataclass(frozen=True, slots=True)
class WorkflowPage:
    """Some workflows, the newest first. It iterates over them.

    ``cursor`` is where the list goes on; None: that was all. ``is_short``: it ended before
    ``limit`` was reached, because it had looked at enough rows; there may be more.
    """

    workflows: Sequence[WorkflowInfo]
    cursor: str | None
    is_short: bool

    def __iter__(self) -> Iterator[WorkflowInfo]:
        return iter(self.workflows)

    def __len__(self) -> int:
        return len(self.workflows)

    @overload
    def __getitem__(self, index: int) -> WorkflowInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[WorkflowInfo]: ...
    def __getitem__(self, index: int | slice) -> WorkflowInfo | Sequence[WorkflowInfo]:
        return self.workflows[index]


@dataclass(frozen=True, slots=True)
class MemberGroup:
    """Members of a workflow of one function and queue that are equally far from its beginning.

    ``layer``: 0 for members that wait for none, else one more than the farthest that they wait
    for. ``states``: how many are in each state; one that has ended counts by its first end.
    ``waits_for``: how many times members of another group (by its place in ``groups``) are waited
    for.
    """

    function: str  # empty: not known
    queue: str
    layer: int
    states: Mapping[str, int]
    waits_for: Mapping[int, int] = field(default_factory=dict)

    @property
    def members(self) -> int:
        """How many."""
        return sum(self.states.values())


@dataclass(frozen=True, slots=True)
class FailedMember:
    """A member that has ended and did not complete."""

    number: int
    task_id: TaskId
    status: str
    queue: str
    function: str
    preview: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkflowGraph:
    """A workflow, its members in groups, and the first that failed.

    ``groups``: at most 24, by layer; where there would be more, layers are put together, then the
    smallest groups. ``looked``: members that the groups hold; fewer than ``info.members`` where
    these are very many.
    """

    info: WorkflowInfo
    groups: Sequence[MemberGroup]
    failed: Sequence[FailedMember]
    looked: int

    @property
    def states(self) -> dict[str, int]:
        """How many members are in each state, of those that were looked at."""
        total: dict[str, int] = {}
        for group in self.groups:
            for state, count in group.states.items():
                total[state] = total.get(state, 0) + count
        return total
