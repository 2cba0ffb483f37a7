"""The rules of ``verify``, asked of all rows of a shard at once.

Each rule is a comparison of arrays; what it finds is named by the same words as ``verify`` uses, so
both can be held together. Nothing is written, and nothing decided: that is for a repair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ...records.result import Status
from ...records.rows import Counters
from ...records.workflow import HELD_MS
from ...recovery.verify import bucket_of
from ...runtime.ids import SLOTS
from .facts import Facts, Keys, Report, Table, slots_of
from .flow_closure import FlowClosure
from .flow_facts import read_flows
from .page import Numbers

__all__ = ["Closure"]

_READY, _DELAYED, _DEAD = b"rdx"
_BUCKET_MAX: Final = 1 << 62


class Closure:
    """One shard.

    After ``run``: ``counters`` by (queue, tenant), ``oldest_lease_us`` (0: none), and how many
    ``rows`` there are of what.
    """

    def __init__(self, facts: Facts, shard: int, shards: int, report: Report) -> None:
        self._facts = facts
        self._shard = shard
        self._shards = shards
        self._report = report
        self.counters: dict[tuple[bytes, bytes], Counters] = {}
        self.oldest_lease_us = 0
        self.rows: dict[str, int] = {}

    def run(self) -> None:
        """Read everything, then ask."""
        facts = self._facts
        self.tasks = facts.tasks(b"t/", b"t0")
        self.index = facts.index()
        self.leases = facts.leases()
        self.results = facts.results()
        self.moved = facts.moved()
        self.attempts = facts.attempts()
        self.ghosts, self.hashes = facts.ghosts()
        self.bodies, self.places = facts.bodies(), facts.body_places()
        self.expiries = facts.expiries()
        self.flows = read_flows(facts)
        self._count()
        self._routes()
        if not facts.is_whole:
            return  # half of the rows would be orphans of the other half
        at = {name: self.tasks.ids.find(table.ids) for name, table in self._tables().items()}
        self._settled(at)
        self._orphans(at)
        self._moves(at["index"], at["leases"])
        self._dedup(at)
        self._outside(at["bodies"], at["places"])
        self._expiry(at["ghosts"])
        flows = FlowClosure(
            self.flows, self.tasks.ids, self.index, self.leases, self.results, self._add_findings
        )
        flows.run()

    def _tables(self) -> dict[str, Table]:
        return {
            "index": self.index,
            "leases": self.leases,
            "results": self.results,
            "moved": self.moved,
            "attempts": self.attempts,
            "ghosts": self.ghosts,
            "bodies": self.bodies,
            "places": self.places,
        }

    def _add_findings(
        self, kind: str, ids: Keys, places: Numbers, detail: str | Callable[[int], str]
    ) -> None:
        """Add a finding for each row of a table at these positions (numbers, or a mask)."""
        if places.dtype == np.bool_:
            places = np.flatnonzero(places)
        for place in places.tolist():
            words = detail if isinstance(detail, str) else detail(place)
            self._report(kind, words, ids.bytes(place))

    # -- counts ------------------------------------------------------------------------

    def _count(self) -> None:
        names, total = (
            self._facts.tenant_queues.names,
            np.zeros((len(self._facts.tenant_queues.names), 6), int),
        )
        if len(self.index):
            for column, kind in ((0, _READY), (1, _DELAYED), (3, _DEAD)):
                tenant_queues = self.index["tenant_queue"][self.index["kind"] == kind]
                total[:, column] += np.bincount(tenant_queues, minlength=len(names))
            waits = (self.index["kind"] == _DELAYED) & (self.index["at"] >= HELD_MS)
            total[:, 5] += np.bincount(self.index["tenant_queue"][waits], minlength=len(names))
        for column, table in ((2, self.leases), (4, self.results)):
            if len(table):
                total[:, column] += np.bincount(table["tenant_queue"], minlength=len(names))
        self.counters = {
            name: Counters(*row)
            for name, row in zip(names, total.tolist(), strict=True)
            if any(row)
        }
        if len(self.leases):
            self.oldest_lease_us = int(self.leases["leased"].min())
        self.rows = {name: len(table) for name, table in self._tables().items()}
        self.rows |= {"tasks": len(self.tasks)}
        self.rows |= {"joins": len(self.flows.joins), "outbox": len(self.flows.sent)}
        self.rows["expiries"] = sum(map(len, self.expiries.values()))

    def _routes(self) -> None:
        named: list[tuple[str, Keys]] = list(
            {
                "t/": self.tasks.ids,
                "q/": self.index.ids,
                "l/": self.leases.ids,
                "r/": self.results.ids,
                "s/": self.moved.ids,
                "a/": self.attempts.ids,
                "g/": self.ghosts.ids,
                "b/": self.bodies.ids,
                "o/": self.places.ids,
            }.items()
        )
        named += self.flows.routed.items()
        named += [("e/", one.ids) for kind, one in self.expiries.items() if kind not in b"gbB"]
        for family, ids in named:
            shards = slots_of(ids) * self._shards // SLOTS
            strange = shards != self._shard
            if strange.any():
                self._add_findings("wrong_shard", ids, strange, f"{family} row of another shard")

    # -- places ------------------------------------------------------------------------

    def _settled(self, at: dict[str, Numbers]) -> None:
        tasks, n = self.tasks, len(self.tasks)
        in_index = _counted(at["index"], n)
        leased = _counted(at["leases"], n)
        self._add_findings(
            "no_place", tasks.ids, in_index + leased == 0, "not ready, delayed, dead or leased"
        )
        self._add_findings(
            "double_place", tasks.ids, in_index + leased > 1, "in more than one place"
        )
        found = at["index"] >= 0
        if len(self.index):
            strange = found & (
                _tasks_at(tasks, "tenant_queue", at["index"]) != self.index["tenant_queue"]
            )
            self._add_findings(
                "misplaced", self.index.ids, strange, "its index row lies under another queue"
            )
        if len(self.results):
            found = at["results"] >= 0
            is_dead = np.zeros(n, bool)
            if len(self.index):
                is_dead[at["index"][(self.index["kind"] == _DEAD) & (at["index"] >= 0)]] = True
            if len(self.leases):
                is_dead[at["leases"][self.leases["is_dead"] & (at["leases"] >= 0)]] = True
            final = found & (self.results["status"] != Status.DEAD)
            self._add_findings(
                "finished", self.results.ids, final, "has a final result and is still there"
            )
            alive = found & ~final
            alive[found] &= ~is_dead[at["results"][found]]
            self._add_findings(
                "revived", self.results.ids, alive, "has the result of a dead letter and is none"
            )

    def _orphans(self, at: dict[str, Numbers]) -> None:
        for name, kind, what in (
            ("index", "orphan_index", "index row"),
            ("leases", "orphan_lease", "lease"),
            ("moved", "orphan_moved", "moved row"),
        ):
            self._add_findings(
                kind, self._tables()[name].ids, at[name] < 0, f"{what} without a task"
            )
        attempts, gone = self.attempts.ids, self.moved.ids.find(self.attempts.ids) < 0
        if len(self.results):
            where = self.results.ids.find(attempts)
            gone &= (where < 0) | ~self.results["has_attempts"][where]
        self._add_findings("orphan_attempts", attempts, gone, "attempts without a task")

    def _moves(self, at: Numbers, leased_at: Numbers) -> None:
        """The ``s/`` row, and the flags that say it is there."""
        moved, tasks = self.moved, self.tasks
        if len(self.index):
            table, n = self.index, len(self.index)
            one = at >= 0
            kind = table["kind"]
            first = {
                name: _tasks_at(tasks, name, at)
                for name in ("is_ready", "priority", "seq", "due", "tenant_queue")
            }
            is_first = (first["tenant_queue"] == table["tenant_queue"]) & (
                first["seq"] == table["seq"]
            )
            is_first &= np.where(
                kind == _READY,
                first["is_ready"].astype(bool) & (first["priority"] == table["priority"]),
                (kind == _DELAYED)
                & ~first["is_ready"].astype(bool)
                & (first["due"] == table["at"]),
            )
            where = moved.ids.find(table.ids)
            has = where >= 0
            says = np.zeros(n, bool)
            if len(moved):
                same = np.ones(n, bool)
                for name in ("tenant_queue", "kind"):
                    same &= moved[name][where] == table[name]
                same &= np.where(kind == _READY, True, moved["at"][where] == table["at"])
                same &= np.where(kind == _DEAD, True, moved["seq"][where] == table["seq"])
                same &= np.where(
                    kind == _READY, moved["priority"][where] == table["priority"], True
                )
                says = has & same
            wrong = one & np.where(is_first, has, ~says)
            self._add_findings("moved", table.ids, wrong, "the s/ row does not say where it is")
            self._add_findings(
                "moved",
                table.ids,
                one & (table["is_moved"] == is_first),
                "the row's moved flag is wrong",
            )
        if len(self.leases):
            has = moved.ids.find(self.leases.ids) >= 0
            wrong = (leased_at >= 0) & (has != self.leases["is_moved"])
            self._add_findings("moved", self.leases.ids, wrong, "the lease and the s/ row disagree")

    # -- dedup keys --------------------------------------------------------------------

    def _dedup(self, at: dict[str, Numbers]) -> None:
        tasks, n = self.tasks, len(self.tasks)
        if n:
            high, low = tasks["ghost_high"], tasks["ghost_low"]
            wanted = _keys_of(high, low)
            is_held = self.hashes.find(wanted) >= 0
            is_dead = np.zeros(n, bool)
            if len(self.index):
                mask = (self.index["kind"] == _DEAD) & (at["index"] >= 0)
                is_dead[at["index"][mask]] = True
            if len(self.leases):
                is_dead[at["leases"][self.leases["is_dead"] & (at["leases"] >= 0)]] = True
            missing = ((high | low) != 0) & ~is_held & ~is_dead
            self._add_findings("ghost", tasks.ids, missing, "does not hold its dedup key")
        if len(self.ghosts):
            gone = (at["ghosts"] < 0) & (self.ghosts["expires"] == 0)
            self._add_findings("ghost", self.ghosts.ids, gone, "dedup key of a task that is gone")

    # -- payloads outside --------------------------------------------------------------

    def _outside(self, at: Numbers, placed_at: Numbers) -> None:
        tasks, bodies, places = self.tasks, self.bodies, self.places
        where = bodies.ids.find(tasks.ids)
        if len(tasks):
            needs = tasks["has_body"]
            self._add_findings(
                "body", tasks.ids, needs & (where < 0), "no row says where its payload lies"
            )
            if len(bodies):
                other = needs & (where >= 0) & (bodies["record"][where] != tasks["record"])
                self._add_findings("body", tasks.ids, other, "its row leads to another's payload")
        if len(bodies):
            used = (at >= 0) & _tasks_at(tasks, "has_body", at).astype(bool)
            self._add_findings("body", bodies.ids, ~used, "row without use: b/")
            twin = places.ids.find(bodies.ids)
            same = np.zeros(len(bodies), bool)
            if len(places):
                same = (twin >= 0) & (places["place"][twin] == bodies["place"])
            self._add_findings(
                "body", bodies.ids, used & (bodies["place"] != 0) & ~same, "no row by place"
            )
        if len(places):
            back = bodies.ids.find(places.ids)
            same = np.zeros(len(places), bool)
            if len(bodies):
                same = (back >= 0) & (bodies["place"][back] == places["place"])
            self._add_findings("body", places.ids, ~same | (placed_at < 0), "row without use: o/")

    # -- what is to be forgotten -------------------------------------------------------

    def _expiry(self, ghosts_at: Numbers) -> None:
        filed = self._filed
        if len(self.results):
            filed("r", self.results.ids, self.results["due"], self.results.ids)
        if len(self.ghosts):
            due = np.where(ghosts_at >= 0, 0, self.ghosts["expires"])  # of those who live: theirs
            filed("g", self.hashes, due, self.ghosts.ids)
        if len(self.index):
            is_dead = self.index["kind"] == _DEAD
            due = self.index["expires"]
            filed("x", self.index.ids, np.where(is_dead, due, 0), self.index.ids)
            filed("t", self.index.ids, np.where(is_dead, 0, due), self.index.ids)

    def _filed(self, kind: str, refs: Keys, due_ms: Numbers, ids: Keys) -> None:
        wanted = due_ms > 0
        if not wanted.any():
            return
        buckets = -(-np.minimum(due_ms, bucket_of(_BUCKET_MAX)) // 1000) * 1000
        late = wanted.copy()
        table = self.expiries.get(ord(kind))
        if table is not None:
            where = table.ids.find(refs)
            late &= (where < 0) | (table["bucket"][where] > buckets)

        def words(place: int) -> str:
            return f"no {kind!r} entry at or before {int(due_ms[place])} ms"

        self._add_findings("expiry", ids, late, words)


def _counted(at: Numbers, n: int) -> Numbers:
    return np.bincount(at[at >= 0], minlength=n) if len(at) else np.zeros(n, np.int64)


def _tasks_at(tasks: Table, name: str, at: Numbers) -> Numbers:
    """A field of the tasks at these places; whatever, where there is none (-1)."""
    if not len(tasks):
        return np.zeros(len(at), np.int64)
    found: Any = tasks[name][at]
    return found


def _keys_of(high: Numbers, low: Numbers) -> Keys:
    """Keys made of their two halves, as unsigned numbers."""
    raw = np.empty(2 * len(high), ">u8")
    raw[::2], raw[1::2] = high, low
    return Keys(raw.tobytes())
