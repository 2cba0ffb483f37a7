"""The benchmarks: ``make bench`` (minutes), ``bench-full``, ``bench-peers``, ``bench-searches``.

Every measure is repeated in rounds beside what it is compared with, in one process, so that a
slow minute hits both: absolute figures are this machine's, the ratios travel. All of it is kept
as JSON; ``--docs`` writes ``docs/benchmarks.md`` and its plots from that.

  --only NAME   one case (repeat it for several)        --repeats N   rounds
  --quick       a third of the work (or --scale 0.1)     --json FILE   where the results go
  --docs        write the documents from FILE            --dir FOLDER  where the stores go; what
  takes long to build stays there and is used again
  --loop NAME   asyncio or uvloop                        --hard        the hard loads, a table
  --estimate    only say how long the hard loads would take
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import hard
from about import about
from results import Bench

import lodeq

HERE = Path(__file__).resolve().parent
# Module and function of each, imported when it is its turn: what a case needs (pandas, grpc) is in
# no other's memory, nor in the collector's passes over it.
CASES: dict[str, str] = {
    "cycles": "cycles.cycles",
    "original": "cycles.original",
    "parts": "parts.parts",
    "fsync-parts": "parts.synced",
    "options": "options.options",
    "faces": "faces.faces",
    "indexes": "indexes.indexes",
    "flow": "flow.flow",
    "payloads": "flow.payloads",
    "mixes": "flow.mixes",
    "dedup": "flow.dedup",
    "mixed-day": "mixed_day.mixed_day",
    "life": "mixed_day.life",
    "herd": "herds.herd",
    "herd-cycles": "herds.herd_cycles",
    "burst": "bursts.burst",
    "grid": "grid.grid",
    "drains": "grid.drains",
    "sqlite": "sqlite.sqlite",
    "group-commit": "steadiness.group_commit",
    "latencies": "keeping.latencies",
    "loop-turns": "steadiness.loop_turns",
    "expiry": "steadiness.expiry",
    "deleted": "deleted.deleted",
    "heartbeats": "keeping.heartbeats",
    "disk": "keeping.disk",
    "payloads-left": "keeping.payloads_left",
    "lifecycle": "journaling.lifecycle",
    "collector": "keeping.collector",
    "served": "served.served",
    "cluster-client": "served.cluster_client",
    "neighbour": "served.neighbour",
    "served-processes": "served_processes.served_processes",
    "processes": "processes.processes",
    "replicated": "replicated.replicated",
    "log-groups": "log_groups.log_groups",
    "moves": "moves.moves",
    "deploys": "deploys.deploys",
    "rates": "rates.rates",
    "shards": "shards.shards",
    "many-queues": "queues.queues",
    "body-writes": "bodies.body_writes",
    "body-puts": "bodies.body_puts",
    "body-space": "body_life.body_space",
    "body-sizes": "body_life.body_sizes",
    "streamed": "streamed.streamed",
    "holes": "holes.holes",
    "ingest": "ingest.ingest",
    "journal-appends": "journals.journal_appends",
    "journal-threads": "journals.journal_threads",
    "journal-reads": "journals.journal_reads",
    "journal-seeks": "journals.journal_seeks",
    "snapshot-reads": "snapshots.reading",
    "snapshot-takes": "snapshots.taking",
    "spark-audit": "pipeline.auditing",
    "spark-scaling": "pipeline.scaling",
    "opening": "backlogs.opening",
    "backlogs": "backlogs.backlogs",
    "two-speeds": "two_speeds.two_speeds",
    "searches": "finished.finished",
    "peers": "peers.peers",
}
ALONE = (
    "indexes",
    "processes",
    "replicated",
    "log-groups",
    "moves",
    "rates",
    "searches",
    "peers",
)  # run when they are asked for: they take long, or need servers
RESULTS = HERE.parent / "build" / "bench.json"


def case_of(name: str) -> Callable[[Bench], Awaitable[None]]:
    """Import a case."""
    module, _, function = CASES[name].partition(".")
    case: Callable[[Bench], Awaitable[None]] = getattr(
        importlib.import_module(f"cases.{module}"), function
    )
    return case


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the loop; None: asyncio's own."""
    if name == "asyncio":
        return None
    import uvloop

    return uvloop.new_event_loop


def tell_durations(names: list[str], scale: float, rounds: int) -> None:
    """Print how long each hard case takes, about, on a quiet machine, and all of them."""
    took = {name: hard.about_s(name, scale, rounds) for name in names}
    for name, seconds in took.items():
        print(f"  {name}: about {seconds:.0f} s")
    print(f"all: about {sum(took.values()) / 60:.0f} minutes ({rounds} rounds, scale {scale:g})\n")


def main() -> int:
    """Run cases, print a line a measure, keep everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(CASES), action="append")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--scale", type=float)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--dir")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--hard", action="store_true")
    parser.add_argument("--estimate", action="store_true")
    args = parser.parse_args()
    repeats = args.repeats or (3 if args.quick else 5)
    scale = args.scale or (0.3 if args.quick else 1.0)
    held = hard.COMPILED_CASES if lodeq.COMPILED else hard.CASES
    names = args.only or (
        list(held) if args.hard else [name for name in CASES if name not in ALONE]
    )
    if args.hard or args.estimate:
        tell_durations(names, scale, repeats)
    if args.estimate:
        return 0
    with tempfile.TemporaryDirectory(prefix="lodeq-bench-", dir=args.dir) as folder:
        bench = Bench(
            Path(folder),
            repeats=repeats,
            scale=scale,
            about=about(Path(folder), args.loop) | {"rounds": repeats, "scale": scale},
            kept=Path(args.dir) / "lodeq-bench-kept" if args.dir else None,
        )
        failed: list[str] = []
        for name, value in bench.about.items():
            print(f"{name}: {value}")
        for number, name in enumerate(names, 1):
            first, began, case = len(bench.results), time.monotonic(), case_of(name)
            print(f"\n[{number}/{len(names)}] {name}: {case.__doc__}", flush=True)
            try:
                with asyncio.Runner(loop_factory=loop_factory(args.loop)) as runner:
                    runner.run(case(bench))
            except Exception:  # noqa: BLE001 - an hour of other cases goes on
                traceback.print_exc()
                failed.append(name)
            bench.about["seconds"] = round(time.monotonic() - began)
            print(f"  {name} took {bench.about['seconds']} s", flush=True)
            # After each: an hour of work may be interrupted. Each hard load has a file:
            # a case that is run again replaces its own figures, and they say their commit.
            path = hard.KEPT / f"{bench.about['build']}-{name}.json" if args.hard else args.json
            path.parent.mkdir(parents=True, exist_ok=True)
            bench.save(path, since=first if args.hard else 0)
    print(f"\nkept in {hard.KEPT if args.hard else args.json}")
    missed = [r for r in bench.results if r.goal is not None and not r.goal.is_met(r)]
    for result in missed:
        print(f"missed: {result.line()}")
    if args.hard:
        print(f"\n{hard.table(bench.results, bench.about['build'])}")
    if args.docs:
        from report import write

        write(sorted(RESULTS.parent.glob("bench*.json")), HERE.parent / "docs")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
