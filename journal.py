"""An append-only log with any number of readers. See docs/journal.md.

::

    from lodeq import journal

    async with journal.open("var/events") as log:
        await log.append(b"...")
        async for record in log.tailer("mailer"):
            ...

Nothing is consumed: every tailer reads every record, in order, from any position. It is not a queue
(there are no leases); the engine is.
"""

from .segments.journal import (
    Ack,
    Appender,
    Gap,
    Journal,
    JournalOpening,
    LogFile,
    LogFinding,
    LogRecord,
    Retention,
    Roll,
    Tailer,
    ThreadJournal,
    ThreadTailer,
    open,
    open_tailer,
)

__all__ = [
    "Ack",
    "Appender",
    "Gap",
    "Journal",
    "JournalOpening",
    "LogFile",
    "LogFinding",
    "LogRecord",
    "Retention",
    "Roll",
    "Tailer",
    "ThreadJournal",
    "ThreadTailer",
    "open",
    "open_tailer",
]
