"""What a lifecycle journal tells of a store, held against the store itself."""

from __future__ import annotations

from collections.abc import Iterable

from lodeq.segments import lifecycle
from lodeq.segments.lifecycle import Event, EventKind, Reader, RolledBack

K = EventKind
# From what a task may be when an event of the kind is told of it, and what it is then.
LIVES: dict[EventKind, tuple[set[str | None], str | None]] = {
    K.ENQUEUED: ({None}, "ready"),
    K.CLAIMED: ({"ready"}, "leased"),
    K.COMPLETED: (
        {"leased", "dead"},
        None,
    ),  # dead: claimed as that, which is not told
    K.NACKED: ({"leased"}, "ready"),
    K.RELEASED: ({"leased"}, "ready"),
    K.DIED: ({"leased", "ready"}, "dead"),
    K.EXPIRED: ({"leased", "ready"}, None),
    K.CANCELLED: ({"leased", "ready", "dead"}, None),
    K.REDRIVEN: ({"dead"}, "ready"),
    K.FORGOTTEN: ({"dead"}, None),
}


class ToldError(AssertionError):
    """The journal tells what is not so, or not what is."""


def live(states: dict[bytes, str | None], said: Iterable[Event | RolledBack]) -> None:
    """Let tasks live what was said of them. Raises ``ToldError`` where that cannot be."""
    for event in said:
        if isinstance(event, RolledBack):
            raise ToldError(f"nothing was taken back: {event}")
        before = states.get(event.task_id)
        allowed, after = LIVES[event.kind]
        if before not in allowed or (event.kind is K.ENQUEUED and event.task_id in states):
            raise ToldError(f"task {event.task_id}: {event.kind.name} although it is {before}")
        states[event.task_id] = after


async def judge_told(store: str, task_ids: Iterable[str], *, may_have_holes: bool = False) -> int:
    """Read the journal ``tasks`` of a closed store; returns how many events it told.

    Args:
        task_ids: of the tasks that are there now.
        may_have_holes: after power cuts. Where the journal says that something is missing in
            between, a repair has followed, of which it tells nothing: that is not judged. And a
            file that was left shortly before may end in what was not synced. That is a gap, but
            its rows are still in the store and are told behind it, which is judged.
    """
    tailer = lifecycle.open_tailer(store, "tasks")
    reader = Reader()
    said: list[Event | RolledBack] = []
    while records := await tailer.read():
        for record in records:
            said += reader.read(record)
    if tailer.gaps and not may_have_holes:
        raise ToldError(f"the journal has gaps: {list(tailer.gaps)[:3]}")
    tailer.close()
    is_holed = any(isinstance(one, RolledBack) and one.missing for one in said)
    if not (is_holed and may_have_holes):
        states: dict[bytes, str | None] = {}
        live(states, said)
        alive = {bytes(task_id).hex() for task_id, state in states.items() if state is not None}
        if odd := sorted(alive ^ set(task_ids)):
            raise ToldError(f"the journal and the store have other tasks: {odd}")
    return len(said)
