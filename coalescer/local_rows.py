"""Rows that a replica keeps in a way of its own, beside what the entries of its log say.

An entry has whole records, and the events of its commit. Where a large payload lies, and which
events are in a journal already, is a matter of one replica: such rows are made, moved and deleted
here and are in no entry. Two things follow:

- What is committed is *rewritten* before it is written: see ``EntryRewriter``. Rewriting happens
  in the order of the log, each group once, when it has been committed.
- A *local group* (``Coalescer.begin_local``) has rows of these families alone. It takes its place
  behind all that is committed, and before what is yet to be: whatever is rewritten later finds it
  done. On a store without a log it is a group like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..engine.records.keyspace import EVENTS, FAMILY
from ..engine.store.port import Op
from .group import Group

__all__ = ["EntryRewriter", "event_rows", "without_events"]


class EntryRewriter(Protocol):
    """Gives committed groups the form in which this replica keeps them."""

    def rewrite(self, group: Group) -> bool:
        """Replace the operations of a group that is committed; whether any has changed.

        Groups come in the order in which they are written, local ones as well. Files may be
        written; with ``Group.has_bodies`` set they are synced before the group is written.

        Raises:
            StorageFullError: nothing has changed; the same group comes again.
            LodeqError: the disk failed.
        """

    def written(self) -> None:
        """The first of the groups that were rewritten is in the store."""

    def check_proposal(self, ops: Sequence[Op]) -> None:
        """``InvariantError`` if a batch that is to enter the log says where a payload lies here."""


def event_rows(ops: Sequence[Op]) -> list[tuple[bytes, bytes]]:
    """The rows among ``ops`` that are to go to the lifecycle journal."""
    return [
        (key, value)
        for key, value in ops
        if value is not None and key[FAMILY] == EVENTS  # a slice: no call an operation
    ]


def without_events(ops: Sequence[Op]) -> list[Op]:
    """``ops`` without them: a replica that has no journal keeps none."""
    return [op for op in ops if op[0][FAMILY] != EVENTS]
