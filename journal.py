"""An append-only log with any number of readers. See docs/journal.md.

::

    from lodeq import journal

    async with journal.open("var/events") as log:
        await log.append(b"...")
        async for record in log.tailer("mailer"):
            ...

Nothing is consumed: every tailer is told every record, in order, from wherever it likes. It is not
a queue (nobody is leased anything); that is the engine.
"""

from .segments.journal import (
    Ack,
    Gap,
    Journal,
    JournalOpening,
    LogFile,
    LogFinding,
    LogRecord,
    Retention,
    Roll,
    Tailer,
    open,
    open_tailer,
)

__all__ = [
    "Ack",
    "Gap",
    "Journal",
    "JournalOpening",
    "LogFile",
    "LogFinding",
    "LogRecord",
    "Retention",
    "Roll",
    "Tailer",
    "open",
    "open_tailer",
]
