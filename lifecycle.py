"""Events of tasks, read from a lifecycle journal. See docs/lifecycle.md.

::

    from lodeq import lifecycle

    tailer = lifecycle.open_tailer("var/jobs", "tasks", name="audit")
    reader = lifecycle.Reader()
    async for record in tailer:
        for event in reader.read(record):
            ...

An engine that was opened with ``journal="tasks"`` writes one record for each commit that changed
tasks. Every durable transition arrives at least once; a ``Reader`` drops repeats.
"""

from .segments.lifecycle import (
    Event,
    EventKind,
    Missed,
    Reader,
    RolledBack,
    events,
    open_tailer,
)

__all__ = ["Event", "EventKind", "Missed", "Reader", "RolledBack", "events", "open_tailer"]
