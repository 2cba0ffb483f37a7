"""``docs/benchmarks-cluster.md``: what replication costs, and a model of larger clusters.

``python bench/cluster.py PAGE FILE …`` of the files that ``make bench-cluster`` has left in
``build/bench-cluster/``.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cases.replicated import CASE, CLUSTER, LEADER, THROUGH
from report import load, tables
from results import Result

HEAD: Final = """\
# Benchmarks: a store on several machines

Written by `make bench-cluster`; do not edit. Three members of etcd, the nodes and the load share
this machine's two cores and its disk, so rates are far below what three machines reach; what
travels is CPU a cycle (an enqueue, a claim and a complete with a result) and the ratio to what is
measured in the same rounds: the same load on an unreplicated store with `durability="fsync"`, and
bare appends of records of the same size to the same etcd, one under way at a time. Nodes run in
`nosync`, the mode for a cluster: what is acknowledged has been synced by a majority of etcd's
members. With *fsync* the leader waits for its own disk as well. Payloads have 100 bytes: *alike*
the same in every task, *random* such as nothing packs. Of *12 shards* the two nodes lead five to
seven each; with *keys* each task has a dedup key, which says its shard. Of two log groups it is the
CPU a cycle of the busier etcd.
"""

MODEL: Final = """\
## A model of larger clusters

Machines of {cores} cores; one node a core on {nodes} of them, the rest is for the system. Three
copies of each shard. From the rounds of 256 callers with random payloads above: a cycle takes
{leader:.0f} us of CPU of its leader, {follower:.0f} of each follower, {etcd:.0f} of the members of
etcd together, and {bytes:.0f} bytes of the log. A log (three members, machines of their own)
carries in each second as many bytes as bare appends carried here, {mb:.1f} MB. What can be written
is the lesser of what the nodes and the logs carry.

{table}

The knee with {copies} copies: {knees}. Beyond it machines add memory, disks and reads, and logs
add writes.

It is checked against this machine, where everything shares two cores: the CPU above allows
{allowed:,.0f} cycles/s, and a client of the cluster had {measured:,.0f} ({share:.0%}; the rest is
waiting for the disk).

It assumes that shards are spread evenly, that a node leads as many as it follows copies of
others, that no queue is hotter than a node, that clients have machines of their own, and that a
log's bytes bound it before its CPU does. None of these machines was measured.
"""

CORES: Final = 16
NODES: Final = 14  # of a machine's cores
COPIES: Final = 3
MACHINES: Final = (3, 9, 30)
LOGS: Final = (1, 3, 9)
CALLERS: Final = 256


@dataclass(frozen=True)
class Costs:
    """The cost of one cycle.

    Attributes:
        leader_us: CPU microseconds of the leading node.
        follower_us: of each follower.
        etcd_us: of all members of etcd together.
        load_us: of the client.
        log_bytes: bytes of the log.
        carried: cycles a second that bare appends carried.
        measured: cycles a second through a client of a cluster of two nodes.
    """

    leader_us: float
    follower_us: float
    etcd_us: float
    load_us: float
    log_bytes: float
    carried: float
    measured: float

    def nodes_carry(self, machines: int) -> float:
        """Cycles a second that the nodes of so many machines carry."""
        return machines * NODES * 1e6 / (self.leader_us + (COPIES - 1) * self.follower_us)

    def logs_carry(self, logs: int) -> float:
        """Cycles a second that so many logs carry."""
        return logs * self.carried


def costs(results: Sequence[Result]) -> Costs | None:
    """Read the cost of a cycle of 256 single callers. None: it is not in these results.

    With payloads that do not pack: of others a log carries more.
    """
    rows = {
        result.params["through"]: result
        for result in results
        if result.case == CASE
        and result.params["callers"] == CALLERS
        and result.params["payload"] == "random"
    }
    if not {LEADER, CLUSTER} <= rows.keys():
        return None
    leader, cluster = rows[LEADER], rows[CLUSTER]
    (beside,) = (row for name, row in rows.items() if name not in THROUGH)
    follower_us = float(leader.more["nodes_us_a_cycle"])
    return Costs(
        leader_us=float(cluster.more["nodes_us_a_cycle"]) - follower_us,
        follower_us=follower_us,
        etcd_us=float(cluster.more["etcd_us_a_cycle"]),
        load_us=float(cluster.more["load_us_a_cycle"]),
        log_bytes=float(leader.more["bytes_a_cycle"]),
        carried=statistics.median(beside.than_runs),
        measured=statistics.median(cluster.runs),
    )


def model(found: Costs) -> str:
    """Write the part of the page about clusters that nobody has measured."""
    lines = ["machines | " + " | ".join(_logs(logs) for logs in LOGS)]
    lines.append(" | ".join(["---"] * (1 + len(LOGS))))
    for machines in MACHINES:
        cells = [_cell(found, machines, logs) for logs in LOGS]
        lines.append(" | ".join([str(machines), *cells]))
    knees = [
        f"{found.logs_carry(logs) / found.nodes_carry(1):.1f} machines with {_logs(logs)}"
        for logs in LOGS
    ]
    nodes_us = found.leader_us + found.follower_us  # two copies here
    allowed = 2e6 / (nodes_us + found.etcd_us + found.load_us)
    return MODEL.format(
        cores=CORES,
        nodes=NODES,
        copies=COPIES,
        leader=found.leader_us,
        follower=found.follower_us,
        etcd=found.etcd_us,
        bytes=found.log_bytes,
        mb=found.carried * found.log_bytes / 1e6,
        table="\n".join(f"| {line} |" for line in lines),
        knees=", ".join(knees),
        allowed=allowed,
        measured=found.measured,
        share=found.measured / allowed,
    )


def _logs(n: int) -> str:
    return "1 log" if n == 1 else f"{n} logs"


def _cell(found: Costs, machines: int, logs: int) -> str:
    nodes, log = found.nodes_carry(machines), found.logs_carry(logs)
    bound = "nodes" if nodes < log else "logs"
    return f"{min(nodes, log):,.0f} ({bound})"


def page(paths: Sequence[Path]) -> str:
    """Write the page of these runs."""
    runs: list[tuple[dict[str, Any], list[Result]]] = [load(path) for path in paths]
    parts = [HEAD, *(tables(runs, {}) or ["Not measured yet.\n"])]
    parts.extend(_models(runs))
    return "\n".join(parts)


def _models(runs: Sequence[tuple[dict[str, Any], list[Result]]]) -> Iterator[str]:
    for _, results in runs:
        found = costs(results)
        if found is not None:
            yield model(found)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page([Path(name) for name in sys.argv[2:]]), "utf-8")
