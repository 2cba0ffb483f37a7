"""Filters: which tasks a search means, and what a search or an act on what it found returns."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, overload

import msgpack

from ...engine.records.keyspace import check_name
from ...engine.records.patterns import has_parts
from ...engine.runtime.ids import is_task_id
from ...engine.runtime.task_id import TaskId
from ...engine.values import spelled
from ...errors import UsageError
from .arguments import check_unicode, duration_s, task_ids
from .preview_arguments import arguments_fit
from .preview_cuts import is_cut
from .values import AnyId, Duration, Task

__all__ = [
    "ACTS",
    "COUNT_LOOKS_MAX",
    "FILTER_STATES",
    "FOUND_MAX",
    "TEXT_MAX",
    "Act",
    "ActReport",
    "Cursor",
    "FoundCount",
    "FoundTasks",
    "TaskFilter",
    "check_found",
    "check_looks",
    "check_start",
    "discard_filter",
    "discarded",
    "filter_doc",
    "filter_of",
    "has_text",
    "id_range",
    "ordered",
    "position_of",
    "start_of",
]

Act = Literal["redrive", "cancel", "delete", "reprioritise"]
PENDING: Final = ("ready", "delayed", "waiting")
FINAL: Final = ("completed", "expired", "cancelled")
FILTER_STATES: Final = (*PENDING, "leased", "dead", *FINAL)
_AGES: Final = ("older_than", "newer_than", "finished_older_than", "finished_newer_than")
# The states that each act applies to.
ACTS: Final[Mapping[str, tuple[str, ...]]] = {
    "redrive": ("dead",),
    "cancel": (*PENDING, "leased"),
    "delete": ("dead", *FINAL),
    "reprioritise": PENDING,
}
COUNT_LOOKS_MAX: Final = 1_000_000
FOUND_MAX: Final = 1000  # tasks that one call returns, or acts on
TEXT_MAX: Final = 256  # characters of what a filter looks for
_HEX: Final = frozenset("0123456789abcdef")
_FIRST: Final = bytes(16)  # no task has this id: all are behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """The tasks that a search means: those for which all that is given holds.

    Args:
        queue: its name; None for all queues.
        tenant: its name, empty for the default one; None for all.
        state: one of ready, delayed, waiting (for other tasks, or for its key), leased, dead,
            completed, expired, cancelled, or several of them; None for all.
        function: name of the task function.
        labels: labels that a task has, each with this value.
        arguments: arguments of its call by name, each with its value as a text, in any case;
            ``*`` stands for any characters. It is held against the preview, of a text without
            the quotes: ``{"to": "*@example.org"}``. What was cut from a preview is not found.
        older_than: seconds since it was enqueued, at least.
        newer_than: seconds since it was enqueued, at most.
        finished_older_than: seconds since it became dead, completed, expired or cancelled, at
            least. A task that has not ended is not meant.
        finished_newer_than: seconds since then, at most.
        reason: part of the reason why it failed or ended, in any case; ``*`` stands for any
            characters.
        id_prefix: the first hex digits of its id, dashes or not.
        ids: these tasks only, 1 to 1,000, each looked up by itself; None for all.
        text: part of its function, preview, reason or of a label as ``key=value``, in any case.

    Raises:
        UsageError: a field is wrong; the text says which.
        InvalidNameError: a name cannot be one.
    """

    queue: str | None = None
    tenant: str | None = None
    state: str | Sequence[str] | None = None
    function: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    older_than: Duration | None = None
    newer_than: Duration | None = None
    finished_older_than: Duration | None = None
    finished_newer_than: Duration | None = None
    reason: str | None = None
    id_prefix: str | None = None
    ids: Sequence[AnyId] | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        if self.queue is not None:
            check_name(self.queue, "queue")
        if self.tenant is not None and self.tenant != "":
            check_name(self.tenant, "tenant")
        given = self.state
        if given is not None and not isinstance(given, str | list | tuple | set | frozenset):
            raise UsageError(f"state must be a str or a list of them, not {type(given).__name__}")
        for state in (given,) if isinstance(given, str) else given or ():
            if state not in FILTER_STATES:
                raise UsageError(f"state {spelled(state)} is not one of {', '.join(FILTER_STATES)}")
        for name in ("function", "reason", "id_prefix", "text"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not 0 < len(value) <= TEXT_MAX):
                raise UsageError(
                    f"{name} must be a str of 1 to {TEXT_MAX} characters: {value!r:.80}"
                )
            check_unicode(name, value or "")
        if not isinstance(self.labels, Mapping) or not all(
            isinstance(part, str) for pair in self.labels.items() for part in pair
        ):
            raise UsageError(f"labels must map str to str, not {self.labels!r:.80}")
        if not isinstance(self.arguments, Mapping) or not all(
            isinstance(part, str) and len(part) <= TEXT_MAX
            for pair in self.arguments.items()
            for part in pair
        ):
            raise UsageError(
                f"arguments must map str to str of at most {TEXT_MAX} characters, "
                f"not {self.arguments!r:.80}"
            )
        for name, pairs in (("labels", self.labels), ("arguments", self.arguments)):
            check_unicode(name, *pairs, *pairs.values())
        for name in self.arguments:
            if not name.isidentifier():
                raise UsageError(f"arguments: {name!r:.80} cannot be the name of one")
        for name in _AGES:
            value = getattr(self, name)
            if value is not None:
                duration_s(value, name)
        if self.id_prefix is not None and not _HEX.issuperset(self.digits):
            raise UsageError(f"id_prefix {self.id_prefix!r} has more than hex digits and dashes")

        if self.ids is not None:
            chosen = task_ids(self.ids, "ids=")
            if not 0 < len(chosen) <= FOUND_MAX:
                raise UsageError(f"ids= takes 1 to {FOUND_MAX} task ids, not {len(chosen)}")
            object.__setattr__(self, "ids", tuple(sorted(set(chosen), reverse=True)))

    @property
    def chosen(self) -> tuple[TaskId, ...]:
        """The ids, the newest first; none if any will do."""
        return tuple([TaskId(one) for one in self.ids or ()])

    @property
    def states(self) -> tuple[str, ...]:
        """The states that are meant, each once, in the order in which they are searched."""
        given = self.state
        if given is None:
            return FILTER_STATES if self.is_of_any_end else ("dead", *FINAL)
        if isinstance(given, str):
            return (given,)
        return tuple(state for state in FILTER_STATES if state in given)

    @property
    def is_of_any_end(self) -> bool:
        """Whether tasks are meant whenever they ended, and those that have not."""
        return self.finished_older_than is None and self.finished_newer_than is None

    @property
    def digits(self) -> str:
        """The hex digits that the id begins with, in lower case."""
        return (self.id_prefix or "").replace("-", "").lower()

    def matches(self, task: Task, now: datetime) -> bool:
        """Whether it means this task; ids, queue, tenant and state were looked at by the search."""
        if not self.is_of_any_end and not self._has_ended_then(task, now):
            return False
        age = (now - task.enqueued_at).total_seconds()
        return (
            (self.function is None or task.function == self.function)
            and all(task.labels.get(name) == value for name, value in self.labels.items())
            and (self.older_than is None or age >= duration_s(self.older_than, "older_than"))
            and (self.newer_than is None or age <= duration_s(self.newer_than, "newer_than"))
            and (self.reason is None or has_parts(self.reason.casefold(), task.reason.casefold()))
            and (self.id_prefix is None or bytes(task.id).hex().startswith(self.digits))
            and (self.text is None or has_text(self.text, _texts_of(task)))
            and (not self.arguments or arguments_fit(self.arguments, task.preview) is True)
        )

    def _has_ended_then(self, task: Task, now: datetime) -> bool:
        if task.finished_at is None:
            return False
        age = (now - task.finished_at).total_seconds()
        least, most = self.finished_older_than, self.finished_newer_than
        return (least is None or age >= duration_s(least, "finished_older_than")) and (
            most is None or age <= duration_s(most, "finished_newer_than")
        )

    def may_match(self, task: Task, now: datetime) -> bool:
        """Whether only what was cut from its preview keeps a task from being meant."""
        if (self.text is None and not self.arguments) or not is_cut(task.preview):
            return False
        if arguments_fit(self.arguments, task.preview) is False:
            return False
        return replace(self, text=None, arguments={}).matches(task, now)


def _texts_of(task: Task) -> Iterator[str]:
    yield from (task.function, task.preview, task.reason)
    yield from (f"{key}={value}" for key, value in task.labels.items())


def has_text(wanted: str, texts: Iterable[str]) -> bool:
    """Whether one of the texts has this part, in any case."""
    part = wanted.casefold()
    return any(part in text.casefold() for text in texts)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a search goes on, and the moment it began: later tasks are not meant.

    Args:
        queue: the queue that is searched.
        state: the state that is searched.
        position: of the last task that was looked at; empty before the first.
        started_us: wall microseconds at which the search began.
        seq: the latest sequence number of that moment.
        start: of a search that goes the oldest first, the id behind which it began (zeros: with the
            first); else empty.
    """

    queue: str
    state: str
    position: bytes
    started_us: int
    seq: int
    start: bytes = b""

    def text(self) -> str:
        """The cursor as users hand it back."""
        parts: tuple[object, ...] = self.queue, self.state, self.position, self.started_us, self.seq
        if self.start:  # else as servers of before there was another order read it
            parts += (self.start,)
        return base64.urlsafe_b64encode(msgpack.packb(parts)).decode()

    @classmethod
    def of(cls, text: object) -> Cursor:
        """The inverse; ``UsageError`` for what is no cursor."""
        try:
            parts = msgpack.unpackb(base64.urlsafe_b64decode(text))  # type: ignore[arg-type]
            queue, state, position, started_us, seq, *rest = parts
            (start,) = rest or (b"",)
        except (TypeError, ValueError, binascii.Error, msgpack.UnpackException):
            queue, state, position, started_us, seq, start = ("",) * 6
        if not (
            isinstance(queue, str)
            and state in FILTER_STATES
            and isinstance(position, bytes)
            and type(started_us) is int
            and type(seq) is int
            and 0 <= seq < 1 << 63
            and isinstance(start, bytes)
            and len(start) in (0, len(_FIRST))
        ):
            raise UsageError(f"cursor {text!r:.80} is not one: take it from the page before")
        return cls(queue, state, position, started_us, seq, start)


def check_start(had: bytes, start: bytes) -> None:
    """Refuse the cursor of a page in another order, or of one that began elsewhere."""
    if had != start:
        raise UsageError(
            f"the cursor is of a search {_order_text(had)}, this one is {_order_text(start)}: give "
            "what that page was asked with, or leave the cursor out"
        )


def _order_text(start: bytes) -> str:
    if not start:
        return "without oldest_first="
    return "with oldest_first=" + (f" and after={TaskId(start)}" if start != _FIRST else "")


def position_of(after: object) -> bytes:
    """The place of the task behind which a page of a list begins; empty for None.

    Raises:
        UsageError: it is not a task of a list.
    """
    if after is None:
        return b""
    if not isinstance(after, Task) or not after.position:
        raise UsageError(
            "after= takes the last Task of the previous page; ended tasks behind an id are listed "
            "by engine.find(…, oldest_first=True, after=ID)"
        )
    return after.position


def start_of(after: object, oldest_first: object) -> bytes:
    """The id behind which a page of the oldest first begins; empty if that is not its order.

    Args:
        after: a task's id in any form, or None; that task need not be there any more.
        oldest_first: whether that is the order.

    Raises:
        UsageError: one of them is wrong, or they do not go together.
    """
    if not isinstance(oldest_first, bool):
        raise UsageError(f"oldest_first must be a bool, not {type(oldest_first).__name__}")
    if after is None:
        return _FIRST if oldest_first else b""
    if not oldest_first:
        raise UsageError(
            "after= goes with oldest_first=True: what was enqueued after a task; to go on behind "
            "a page, give its cursor"
        )
    task_id = TaskId(after)  # type: ignore[arg-type]  # it checks what it is given
    if not is_task_id(task_id):
        raise UsageError(f"after= {task_id} is no id of a task: those are UUIDs of version 7")
    return bytes(task_id)


def ordered(meant: TaskFilter, start: bytes) -> TaskFilter:
    """The filter as a page in this order takes it: the oldest first are tasks that have ended.

    Args:
        meant: the filter.
        start: from ``start_of``.

    Raises:
        UsageError: it means tasks that have another order.
    """
    if not start:
        return meant
    if meant.ids is not None:
        raise UsageError("oldest_first= is no order of ids=: those come the newest first")
    if meant.state is None:
        return replace(meant, state=FINAL)
    others = [state for state in meant.states if state not in FINAL]
    if others:
        raise UsageError(
            f"oldest_first= is an order of tasks that are {', '.join(FINAL)}, not of those that "
            f"are {', '.join(others)}: list these by themselves"
            + (", or with the other ends in history(oldest_first=True)" if "dead" in others else "")
        )
    return meant


@dataclass(frozen=True, slots=True)
class FoundTasks:
    """Some tasks that a filter means. It iterates over them.

    ``cursor`` is where the search goes on; None: that was all. ``is_short``: the search ended
    before ``limit`` was reached, because it had looked at enough tasks; there may be more.
    ``has_cut_previews``: others had a cut preview, in which what was looked for may have been.
    """

    tasks: Sequence[Task]
    cursor: str | None
    is_short: bool
    has_cut_previews: bool = False

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        return self.tasks[index]


@dataclass(frozen=True, slots=True)
class FoundCount:
    """How many tasks a filter means. ``is_exact`` False: at least so many, the search was cut.

    ``has_cut_previews``: others had a cut preview, in which what was looked for may have been.
    """

    count: int
    is_exact: bool
    has_cut_previews: bool = False

    def __str__(self) -> str:
        return f"{self.count:,}" if self.is_exact else f"at least {self.count:,}"


@dataclass(frozen=True, slots=True)
class ActReport:
    """One slice of an act: how many tasks it changed, and how many had changed before it came.

    ``refused``: tasks that could not be acted on, with the reason; a slice ends where there are 100
    of them. ``cursor`` is where the next slice begins; None: that was all.
    """

    done: int
    skipped: int
    refused: Mapping[str, str]
    cursor: str | None


def discard_filter(task_id: AnyId) -> TaskFilter:
    """One dead letter."""
    return TaskFilter(ids=[task_id], state="dead")


def discarded(report: ActReport) -> bool:
    """Whether the delete of one dead letter has found it; a refusal is raised."""
    for task_id, why in report.refused.items():
        raise UsageError(f"task {task_id}: {why}")
    return report.done == 1


def check_found(limit: object) -> int:
    """How many tasks one call returns or acts on: 1 to 1,000."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= FOUND_MAX:
        raise UsageError(f"limit {spelled(limit)} is not between 1 and {FOUND_MAX}")
    return limit


def check_looks(looks: object) -> int:
    """How many rows a count looks at: 1 to 1,000,000."""
    if isinstance(looks, bool) or not isinstance(looks, int) or not 1 <= looks <= COUNT_LOOKS_MAX:
        raise UsageError(f"looks {spelled(looks)} is not between 1 and {COUNT_LOOKS_MAX}")
    return looks


def id_range(digits: str) -> tuple[int, int]:
    """The ids that begin with these hex digits: the first, and above the last."""
    if len(digits) > 32:
        return 0, 0
    bits = 128 - 4 * len(digits)
    first = int(digits or "0", 16) << bits
    return first, first + (1 << bits)


def filter_doc(meant: TaskFilter) -> dict[str, Any]:
    """A filter for the wire: what is given, durations in seconds."""
    doc: dict[str, Any] = {
        name: getattr(meant, name)
        for name in ("queue", "tenant", "function", "reason", "id_prefix", "text")
        if getattr(meant, name) is not None
    }
    if meant.state is not None:
        doc["states"] = list(meant.states)
    if meant.ids is not None:
        doc["ids"] = [str(one) for one in meant.ids]
    for name in ("labels", "arguments"):
        if getattr(meant, name):
            doc[name] = dict(getattr(meant, name))
    for name in _AGES:
        if getattr(meant, name) is not None:
            doc[name] = duration_s(getattr(meant, name), name)
    return doc


def filter_of(doc: Mapping[str, Any]) -> TaskFilter:
    """The inverse. ``UsageError`` for what no filter has."""
    given = dict(doc)
    states = given.pop("states", None)
    unknown = set(given) - {
        "queue",
        "tenant",
        "function",
        "reason",
        "id_prefix",
        "ids",
        "text",
        "labels",
        "arguments",
        *_AGES,
    }
    if unknown:
        raise UsageError(f"a filter has no {', '.join(sorted(unknown))}")
    return TaskFilter(state=states, **given)
