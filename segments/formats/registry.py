"""The foreign formats, each in one line: all that reads, lists, verifies and saves files asks here.

Our own, the journal and ``.sqs``, are not among them.
"""

from __future__ import annotations

from typing import Final

from .foreign import ForeignFormat
from .ledgerq.description import FORMAT as LEDGERQ
from .rdq import FORMAT as RDQ
from .rust_queue.description import FORMAT as RUST_QUEUE

__all__ = ["FOREIGN", "foreign_format"]

FOREIGN: Final[tuple[ForeignFormat, ...]] = (
    RDQ,
    LEDGERQ,
    RUST_QUEUE,
)
_BY_NAME: Final = {format.name: format for format in FOREIGN}


def foreign_format(name: str) -> ForeignFormat | None:
    """The description of this name; None for a format of ours."""
    return _BY_NAME.get(name)
