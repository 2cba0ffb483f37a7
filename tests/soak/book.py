"""What is known of each task of a soak, and what must therefore be there.

A task is *maybe* there from the call that enqueues it, *there* once that is acknowledged, *ending*
from the call that completes it, and gone from the book once that is acknowledged. A look at the
store settles what a kill or a cancellation has left open. So the book stays as small as the queue,
however long the soak is.
"""

from __future__ import annotations

from collections.abc import Iterable

MAYBE, THERE, ENDING = "maybe", "there", "ending"


class BrokenError(Exception):
    """A promise was not kept."""


class Book:
    """By number. ``take`` is told everything, in order, as ``(what, number)``."""

    def __init__(self) -> None:
        self.state: dict[int, str] = {}
        self.acked = self.ended = self.delivered = self.looks = 0

    def take(self, what: str, number: int) -> None:
        """One thing that happened to one task."""
        getattr(self, what)(number)

    def invoked(self, number: int) -> None:
        self.state[number] = MAYBE

    def enqueued(self, number: int) -> None:
        self.acked += 1
        if self.state.get(number) == MAYBE:  # else a worker was quicker than its producer
            self.state[number] = THERE

    def refused(self, number: int) -> None:
        """A duplicate of another: it must never be seen."""
        self.state.pop(number, None)

    def claimed(self, number: int) -> None:
        self.delivered += 1
        if number not in self.state:
            raise BrokenError(f"task {number} was delivered: completed before, or never enqueued")
        self.state[number] = THERE

    def ending(self, number: int) -> None:
        self.state[number] = ENDING

    def completed(self, number: int) -> None:
        self.ended += 1
        if self.state.pop(number, None) is None:
            raise BrokenError(f"task {number} was completed twice")

    def kept(self, number: int) -> None:
        """Its complete was refused: the lease was lost, somebody else has it."""
        if number in self.state:
            self.state[number] = THERE

    def look(self, found: Iterable[int]) -> None:
        """All that the store holds, with nothing under way."""
        self.looks += 1
        there = set(found)
        lost = sorted(n for n, state in self.state.items() if state == THERE and n not in there)
        if lost:
            raise BrokenError(f"{len(lost)} acknowledged tasks are lost, among them {lost[:5]}")
        strange = sorted(there - self.state.keys())
        if strange:
            raise BrokenError(f"{len(strange)} tasks are there that are over: {strange[:5]}")
        self.state = dict.fromkeys(there, THERE)
