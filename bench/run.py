"""The benchmarks: ``make bench`` (minutes), ``make bench-full``, ``make bench-peers``.

Every measure is repeated in rounds beside what it is compared with, in one process, so that a
slow minute hits both: absolute figures are this machine's, the ratios travel. All of it is kept
as JSON; ``--docs`` writes ``docs/benchmarks.md`` and its plots from that.

  --only NAME   one case (repeat it for several)        --repeats N   rounds
  --quick       a third of the work (or --scale 0.1)     --json FILE   where the results go
  --docs        write the documents from FILE            --dir FOLDER  where the stores go
  --loop NAME   asyncio or uvloop
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from about import about
from cases import (
    backlogs,
    bodies,
    body_life,
    cycles,
    deleted,
    deploys,
    flow,
    herds,
    holes,
    ingest,
    journaling,
    journals,
    keeping,
    options,
    parts,
    pipeline,
    served,
    shards,
    snapshots,
    steadiness,
)
from cases.peers import peers
from results import Bench

HERE = Path(__file__).resolve().parent
CASES: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "cycles": cycles.cycles,
    "original": cycles.original,
    "parts": parts.parts,
    "fsync-parts": parts.synced,
    "options": options.options,
    "flow": flow.flow,
    "payloads": flow.payloads,
    "mixes": flow.mixes,
    "dedup": flow.dedup,
    "herd": herds.herd,
    "group-commit": steadiness.group_commit,
    "latencies": keeping.latencies,
    "loop-turns": steadiness.loop_turns,
    "expiry": steadiness.expiry,
    "deleted": deleted.deleted,
    "heartbeats": keeping.heartbeats,
    "disk": keeping.disk,
    "payloads-left": keeping.payloads_left,
    "lifecycle": journaling.lifecycle,
    "collector": keeping.collector,
    "served": served.served,
    "deploys": deploys.deploys,
    "shards": shards.shards,
    "body-writes": bodies.body_writes,
    "body-puts": bodies.body_puts,
    "body-space": body_life.body_space,
    "body-sizes": body_life.body_sizes,
    "holes": holes.holes,
    "ingest": ingest.ingest,
    "journal-appends": journals.journal_appends,
    "journal-reads": journals.journal_reads,
    "journal-seeks": journals.journal_seeks,
    "snapshot-reads": snapshots.reading,
    "snapshot-takes": snapshots.taking,
    "spark-audit": pipeline.auditing,
    "spark-scaling": pipeline.scaling,
    "opening": backlogs.opening,
    "backlogs": backlogs.backlogs,
    "peers": peers,
}
RESULTS = HERE.parent / "build" / "bench.json"


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop; None: asyncio's own."""
    if name == "asyncio":
        return None
    import uvloop

    return uvloop.new_event_loop


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
    args = parser.parse_args()
    names = args.only or [name for name in CASES if name != "peers"]
    with tempfile.TemporaryDirectory(prefix="lodeq-bench-", dir=args.dir) as folder:
        bench = Bench(
            Path(folder),
            repeats=args.repeats or (3 if args.quick else 5),
            scale=args.scale or (0.3 if args.quick else 1.0),
            about=about(Path(folder), args.loop),
        )
        for name, value in bench.about.items():
            print(f"{name}: {value}")
        for number, name in enumerate(names, 1):
            print(f"\n[{number}/{len(names)}] {name}: {CASES[name].__doc__}", flush=True)
            with asyncio.Runner(loop_factory=loop_factory(args.loop)) as runner:
                runner.run(CASES[name](bench))
            args.json.parent.mkdir(parents=True, exist_ok=True)
            bench.save(args.json)  # after each: an hour of work may be interrupted
    print(f"\nkept in {args.json}")
    missed = [r for r in bench.results if r.goal is not None and not r.goal.is_met(r)]
    for result in missed:
        print(f"missed: {result.line()}")
    if args.docs:
        from report import write

        write(sorted(RESULTS.parent.glob("bench*.json")), HERE.parent / "docs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
