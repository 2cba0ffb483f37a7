"""Answers of one link: gathered for one turn of the loop, written in one frame."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Any

from ....client.documents.problems import problem_of
from ....client.transport.layout import OWN_FRAME_BYTES, Status, frames_of
from ....errors import LodeqError

__all__ = ["AnswerWriter"]

_log = logging.getLogger("lodeq.http")


class AnswerWriter(ABC):
    """The writing half of a connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.transport: asyncio.Transport | None = None
        self.cost = 0  # of what this slice has done, see ``connection.SLICE_COST``
        self._loop = loop
        self._n_open = 0
        self._out: list[Any] = []
        self._out_bytes = 0  # of its larger answers
        self._unsent: list[Any] = []  # leases of claims whose answers are in ``_out``
        self._is_slicing = False
        self._is_flush_due = False
        self._is_ended = False

    @abstractmethod
    def _settle(self) -> None:
        """Called when answers have left."""

    @abstractmethod
    def _give_back(self, leases: list[Any]) -> None:
        """Called with leases of claims whose answers nobody reads."""

    @property
    def _is_over(self) -> bool:
        """Whether nothing that is written now arrives."""
        return self._is_ended or self.transport is None or self.transport.is_closing()

    def answer(self, id: int, value: Any) -> None:
        """Answer a request."""
        self._n_open -= 1
        self._out.append((id, 0, value))
        if not self._is_slicing and not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def answer_claim(self, id: int, value: Any, leases: Any, size: int) -> None:
        """Answer a claim: until the answer is written, its leases can still go back.

        Args:
            id: of the request.
            value: the leases as they are written.
            leases: the leases.
            size: of their payloads, in bytes.
        """
        if size > OWN_FRAME_BYTES:
            self._flush()
        self._unsent += leases
        self.answer_sized(id, value, size)

    def answer_sized(self, id: int, value: Any, size: int) -> None:
        """Answer a request with about so many bytes: many of them do not wait for one another."""
        if size > OWN_FRAME_BYTES:
            self._flush()
        self._out_bytes += size
        self.answer(id, value)
        if self._out_bytes > OWN_FRAME_BYTES:
            self._flush()

    def answer_parts(self, id: int, parts: list[bytes]) -> None:
        """Answer a call with bytes that come in frames of their own."""
        self._flush()
        self._n_open -= 1
        for part in parts[:-1]:
            self._write(frames_of([(id, Status.PART, part)]))
        self._write(frames_of([(id, Status.DONE, parts[-1])]))
        self._settle()

    def fail(self, id: int, error: LodeqError, status: int | None = None) -> None:
        """Answer a request with an error."""
        self.fail_with(id, problem_of(error, status))

    def fail_with(self, id: int, problem: Any) -> None:
        """Answer a request with a problem document."""
        self._n_open -= 1
        self._out.append((id, Status.PROBLEM, problem))
        if not self._is_slicing and not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write all answers there are in one frame."""
        self._is_flush_due = False
        out = self._out
        if out:
            self._out = []
            self._out_bytes = 0
            unsent = self._unsent
            if unsent:
                self._unsent = []
            if self._is_over:
                self._give_back(unsent)
            else:
                self._write_entries(out, unsent)
        self._settle()

    def _write_entries(self, entries: list[Any], leases: list[Any]) -> None:
        try:
            data = frames_of(entries)
        except Exception as error:  # noqa: BLE001 - a bug of ours: the loop sees no other end
            self.break_off(error)
            self._give_back(leases)
        else:
            self._write(data)

    def break_off(self, error: Exception) -> None:
        """Close the connection for a bug of ours, which leaves a request without an answer."""
        fields = {"event": "request_failed", "method": "link", "path": "answers"}
        _log.error("a request over the link cannot be answered", exc_info=error, extra=fields)
        self._abort()

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self._is_ended:
            self.transport.write(data)

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
