"""A replicated log within one process: commits at once, or when a test says so.

``Cluster`` is the log of every shard and the elections; a ``Node`` is what one engine has of it. A
node that is *cut* hears nothing and may still believe that it leads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import lodeq
from lodeq.coalescer.replicator import Done, Entry, Replica
from lodeq.engine.records.frame import seal
from lodeq.engine.records.task import has_body
from lodeq.engine.runtime.clock import Clock
from lodeq.engine.runtime.event_loop import Spawner
from lodeq.engine.runtime.ids import SeededRng
from lodeq.engine.store.port import Op
from lodeq.repository.api.open import OpenHandle, open_in_memory

__all__ = [
    "OWN",
    "OWN_FAMILIES",
    "Cluster",
    "Node",
    "Proposal",
    "names_of_bodies",
    "rows",
    "whole_pairs",
    "whole_rows",
]

# Rows that a replica has for itself.
OWN = {b"m/stamp", b"m/applied", b"m/files", b"m/health", b"m/journal"}
OWN_FAMILIES = (b"b/", b"o/", b"j/")


class Node:
    """One replica's side of the log: its ``Replicator``."""

    entry_bytes_max = 1 << 30
    definite_s = 0.0

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.replica: Replica | None = None
        self.is_cut = False
        self.has_session = True
        self.life: list[str] = []  # the calls that open and close it
        self.believes: dict[int, str | None] = {}  # what a cut node takes for the leader
        self.elected: dict[int, int] = {}  # the term in which it was elected last

    async def prepare(self, path: str | None) -> None:
        self.life.append("prepare")

    async def start(self, replica: Replica, spawner: Spawner, clock: Clock) -> None:
        self.life.append("start")
        self.replica = replica

    async def closing(self) -> None:
        self.life.append("closing")

    async def closed(self) -> None:
        self.life.append("closed")

    def holds_session(self, shard: int) -> bool:
        return self.has_session and not self.is_cut

    def leader(self, shard: int) -> str | None:
        return (self.believes if self.is_cut else self.cluster.leaders).get(shard)

    def is_leader(self, shard: int) -> bool:
        return self.leader(shard) == self.name

    def propose(self, shard: int, commit_seq: int, ops: tuple[Op, ...], done: Done) -> None:
        cluster = self.cluster
        proposal = Proposal(self, self.elected.get(shard, 0), shard, commit_seq, ops, done)
        if self.is_cut or cluster.is_held or any(p.node is self for p in cluster.waiting):
            cluster.waiting.append(proposal)
        else:
            cluster.commit(proposal)

    def cut(self) -> None:
        """It hears nothing any more, and believes what it believed."""
        self.believes = dict(self.cluster.leaders)
        self.is_cut = True

    def hear(self, entry: Entry) -> None:
        """Somebody else's entry was committed."""
        if self.replica is not None and not self.is_cut:
            self.replica.apply(entry)

    def heal(self) -> None:
        """It hears again: who leads, and what it has missed."""
        self.is_cut = False
        assert self.replica is not None
        for shard in self.cluster.leaders:
            if not self.is_leader(shard):
                self.replica.follow(shard)
        self.catch_up()

    def catch_up(self) -> None:
        """Deliver what the logs have beyond its rows."""
        assert self.replica is not None
        for shard, log in self.cluster.logs.items():
            for entry in log[self.replica.applied(shard).index :]:
                self.replica.apply(entry)


class Proposal(NamedTuple):
    """Made in a term; later terms refuse it."""

    node: Node
    term: int
    shard: int
    commit_seq: int
    ops: tuple[Op, ...]
    done: Done


class Cluster:
    """The logs, and who leads."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.logs: dict[int, list[Entry]] = defaultdict(list)
        self.leaders: dict[int, str | None] = {}
        self.terms: dict[int, int] = defaultdict(int)
        self.is_held = False
        self.waiting: list[Proposal] = []

    def node(self, name: str) -> Node:
        node = self.nodes[name] = Node(self, name)
        return node

    def open(self, name: str, **options: Any) -> OpenHandle:
        """An engine in memory whose replicator is a new node of this name."""
        options.setdefault("rng", SeededRng(sum(name.encode())))
        return open_in_memory(replicator=self.node(name), **options)

    def commit(self, proposal: Proposal) -> None:
        """Into the log and to everybody who hears; refused unless its leader still leads."""
        node, term, shard, commit_seq, ops, done = proposal
        leader = self.leaders.get(shard)
        if leader != node.name or term != self.terms[shard]:
            done(lodeq.NotLeaderError("not the leader", leader=leader))
            return
        log = self.logs[shard]
        entry = Entry(shard, self.terms[shard], len(log) + 1, commit_seq, ops)
        log.append(entry)
        done(entry)
        for other in self.nodes.values():
            if other is not node:
                other.hear(entry)

    def release(self) -> None:
        """Commit what was held, in order, or refuse it. What a cut node proposes stays there."""
        self.is_held = False
        for proposal in [p for p in self.waiting if not p.node.is_cut]:
            self.waiting.remove(proposal)
            self.commit(proposal)

    def drop(self, error: BaseException) -> None:
        """Answer what was held with ``error``."""
        waiting, self.waiting = self.waiting, []
        for *_, done in waiting:
            done(error)

    async def elect(self, name: str, shard: int = 0) -> None:
        """``name`` leads ``shard`` from now on; everybody who hears knows."""
        if self.nodes[name].is_cut:
            raise lodeq.NotLeaderError(f"{name} hears of no election", leader=self.leaders[shard])
        self.terms[shard] += 1
        self.leaders[shard] = name
        for other in self.nodes.values():
            if other.replica is not None and not other.is_cut:
                other.replica.follow(shard)
        node = self.nodes[name]
        node.elected[shard] = self.terms[shard]
        node.catch_up()
        assert node.replica is not None
        await node.replica.lead(shard)


def rows(engine: lodeq.Engine) -> list[dict[bytes, bytes]]:
    """Every row of every shard, but for the stamp: that names the store, not its contents."""
    found = []
    for shard in engine._state.shards:
        pairs = dict(shard.store.scan(b"", b"\xff", 1 << 30))
        del pairs[b"m/stamp"]
        found.append(pairs)
    return found


def whole_rows(engine: lodeq.Engine) -> list[dict[bytes, bytes]]:
    """Every row of every shard that replicas have in common: bodies put back in."""
    return [
        whole_pairs(dict(shard.store.scan(b"", b"\xff", 1 << 30)), shard.whole_record)
        for shard in engine._state.shards
    ]


def whole_pairs(
    pairs: Mapping[bytes, bytes], whole: Callable[[bytes, bytes], bytes | None]
) -> dict[bytes, bytes]:
    """``pairs`` without a replica's own; ``whole`` gives a record with its payload in it."""
    found = {}
    for key, value in pairs.items():
        if key in OWN or key[:2] in OWN_FAMILIES:
            continue
        if key[:2] == b"t/" and has_body(value):
            record = whole(key[2:], value)
            assert record is not None, f"the payload of {key[2:].hex()} is lost"
            value = seal(record[:-8])
        found[key] = value
    return found


def names_of_bodies(log: Sequence[Entry]) -> list[bytes]:
    """Keys in the entries of a log that say where a payload lies; there are to be none."""
    return [
        key
        for entry in log
        for key, value in entry.ops
        if key[:2] in (b"b/", b"o/") or key == b"m/files" or (key[:2] == b"t/" and has_body(value))
    ]
