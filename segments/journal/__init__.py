"""An append-only log with any number of readers: ``lodeq.journal.open`` (the root's face).

::

    async with lodeq.journal.open("var/events") as journal:
        await journal.append(b"...")
        async for record in journal.tailer("mailer"):
            ...

Nothing is consumed: every tailer gets every record, in order, from wherever it likes. It is not
a queue (nobody is leased anything); that is the engine. ``docs/journal.md`` is the guide,
``docs/formats/journal.md`` has the files byte by byte.
"""

from .cursor import Gap
from .journal import Appender, Journal, ThreadJournal
from .layout import LogFile
from .log_format import LogRecord
from .open import JournalOpening, open_tailer
from .open import open_journal as open
from .recovery import LogFinding
from .retention import Retention
from .roll import Roll
from .tailer import Tailer
from .threads.tailer import ThreadTailer
from .waits import Ack

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
