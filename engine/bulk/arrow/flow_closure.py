"""The rules of ``engine/recovery/row_checks/flow_rows.py``, asked of a whole shard at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from ...records.queues.key_waits import KEY_WAIT_MS
from ...records.result import Status
from ...records.workflow import (
    CANCELLED_FLAG,
    HELD_MS,
    ON_FAILURE,
    REDRIVING,
    SEALED,
    WAITS,
)
from .facts import Keys, Table, slots_of
from .flow_facts import FlowFacts
from .page import Numbers

__all__ = ["FlowClosure"]

_DELAYED, _DEAD = b"dx"
_KIND: Final = "workflow"
Add = Callable[[str, Keys, Numbers, "str | Callable[[int], str]"], None]


class FlowClosure:
    """Workflows of one shard, against its tasks.

    Args:
        flows: rows of workflows.
        tasks: ids of all tasks.
        index: rows of ``q/``.
        leases: rows of ``l/``.
        results: rows of ``r/``.
        add: called with a kind, a table's ids, places in it, and words.
    """

    def __init__(
        self, flows: FlowFacts, tasks: Keys, index: Table, leases: Table, results: Table, add: Add
    ) -> None:
        self._flows = flows
        self._tasks = tasks
        self._index = index
        self._leases = leases
        self._results = results
        self._add = add

    def run(self) -> None:
        """Ask every rule."""
        flows = self._flows
        self._parts(flows.joins.ids.find(flows.joins_of_parts))
        self._joins(flows.joins.ids.find(flows.joins_of_parts))
        self._waiting()
        self._flags()
        self._outbox()

    def _parts(self, at: Numbers) -> None:
        flows = self._flows
        joins, parts = flows.joins, flows.parts
        if not len(parts):
            return
        self._add(_KIND, flows.joins_of_parts, at < 0, "part of a join that is not there")
        if not len(joins):
            return
        there = (at >= 0) & (slots_of(parts.ids) == slots_of(flows.joins_of_parts))
        is_under_way = parts["status"] == 0
        is_workflow = joins["in_workflow"][at] != 0
        has_edge = flows.part_edges.find(flows.pairs_of_parts) >= 0
        missing = there & (is_under_way | is_workflow) & ~has_edge

        def words(place: int) -> str:
            return f"has no edge to the join {flows.joins_of_parts.bytes(place).hex()}"

        self._add(_KIND, parts.ids, missing, words)
        is_gone = (self._tasks.find(parts.ids) < 0) & ~parts["was_sent"]
        waits = joins["state"][at] == WAITS

        def uncounted(place: int) -> str:
            join = flows.joins_of_parts.bytes(place).hex()
            return f"has ended, and the join {join} has not counted it"

        self._add(_KIND, parts.ids, there & is_under_way & is_gone & waits & ~missing, uncounted)

    def _joins(self, at: Numbers) -> None:
        """Counters against parts, and what has to have fired."""
        flows = self._flows
        joins, parts = flows.joins, flows.parts
        n = len(joins)
        if not n:
            return
        counts = np.zeros((3, n), np.int64)
        if len(parts):
            for row, mask in enumerate((at >= 0, parts["status"] > 0, parts["status"] > 1)):
                counts[row] = np.bincount(at[mask & (at >= 0)], minlength=n)
        said = np.stack([joins["parts"], joins["ended"], joins["failed"]])
        wrong = (said != counts).any(axis=0)

        def words(place: int) -> str:
            ours, theirs = said[:, place].tolist(), counts[:, place].tolist()
            return f"its join says {tuple(ours)} parts, ended and failed, there are {tuple(theirs)}"

        self._add(_KIND, joins.ids, wrong, words)
        flags, waits = joins["flags"], joins["state"] == WAITS
        is_complete = (flags & (SEALED | REDRIVING) == SEALED) & (said[1] >= said[0])
        may_wait = (said[2] > 0) & (joins["on_failure"] == ON_FAILURE["wait"])
        late = waits & is_complete & ~may_wait & (flags & CANCELLED_FLAG == 0) & ~wrong
        self._add(
            _KIND, joins.ids, late, "all that its join waits for has ended, and it has not fired"
        )
        if len(self._index):
            held = self._held(flows.targets)
            self._add(
                _KIND,
                joins.ids,
                ~waits & held & ~wrong,
                "its join has fired, and its target waits",
            )

    def _held(self, ids: Keys) -> Numbers:
        """Which of these tasks wait."""
        index = self._index
        at = index.ids.find(ids)
        found: Numbers = (at >= 0) & _waits(index["kind"][at], index["at"][at])
        return found

    def _waiting(self) -> None:
        """Whatever waits is the target of a join."""
        index, flows = self._index, self._flows
        if not len(index):
            return
        waits = _waits(index["kind"], index["at"])
        if not waits.any():
            return
        is_led = np.zeros(len(index), bool)
        if len(flows.targets_of):
            alive = flows.joins.ids.find(flows.target_joins) >= 0
            places = index.ids.find(flows.targets_of)
            is_led[places[alive & (places >= 0)]] = True
        self._add(_KIND, index.ids, waits & ~is_led, "waits, and there is no join to let it go")

    def _flags(self) -> None:
        """Where a task with edges is, or how it ended: it says so."""
        edges = self._flows.edges
        for table, what in (
            (self._results, "its result does not say that a join may read it"),
            (self._leases, "its place does not say that a join counts its end"),
            (self._index, "its place does not say that a join counts its end"),
        ):
            if len(table):
                unflagged = (edges.find(table.ids) >= 0) & ~table["is_member"]
                self._add(_KIND, table.ids, unflagged, what)

    def _outbox(self) -> None:
        flows = self._flows
        if not len(flows.sent):
            return
        ended = self._results.ids.find(flows.sent) >= 0
        if len(self._results):
            ended &= self._results["status"][self._results.ids.find(flows.sent)] >= Status.COMPLETED
        has_edge = flows.part_edges.find(flows.pairs_of_sent) >= 0
        early = (self._tasks.find(flows.sent) >= 0) & ~ended & ~has_edge

        def join(place: int) -> str:
            return flows.joins_of_sent.bytes(place).hex()

        self._add(
            _KIND,
            flows.sent,
            early,
            lambda place: f"an outbox row of it for {join(place)}, and it is under way",
        )
        is_here = flows.joins.ids.find(flows.joins_of_sent) >= 0
        same_slot = slots_of(flows.sent) == slots_of(flows.joins_of_sent)
        self._add(
            _KIND,
            flows.sent,
            same_slot & ~is_here & ~early,
            lambda place: f"an outbox row for {join(place)}, no join",
        )
        has_part = flows.pairs_of_parts.find(flows.pairs_of_sent) >= 0
        self._add(
            _KIND,
            flows.sent,
            is_here & ~has_part & ~early,
            lambda place: f"an outbox row for {join(place)}, which does not wait for it",
        )


def _waits(kind: Numbers, at: Numbers) -> Numbers:
    """Which rows wait for other tasks."""
    found: Numbers = (kind == _DELAYED) & (at >= HELD_MS) & (at < KEY_WAIT_MS)
    return found
