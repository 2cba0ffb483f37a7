"""Measure the cost of faces and history beside the commit before they came.

``python bench/faces_before.py --before PATH`` takes a second checkout, at the commit before (``git
worktree add PATH f129c556``). Each round starts a child process for every variant, one after the
other, in an order that turns from round to round; a child makes cycles as ``cases/faces.py`` does
and prints the CPU time and the bytes written of one. Before and after run in this environment, with
the same libraries. All of it is kept as JSON; ``bench/jobs.py`` makes the page of it.

A ratio is the median of the rounds' ratios; its interval is from the second to the second last of
nine, which holds the true median in 96 of 100 cases.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from about import about
from results import Bench, Goal, Result

HERE: Final = Path(__file__).resolve().parent
KEPT: Final = HERE.parent / "build" / "bench-jobs" / "faces.json"
CASE: Final = "faces, beside the commit before"
PAYLOAD: Final = bytes(range(100))
CALLERS: Final = 64
HEADERS: Final = {"headers": {"lodeq.task": "send_mail"}}  # that a worker's task has in any case
FACE: Final = {
    "function": "send_mail",
    "preview": "to='a@example.org', n=3",
    "labels": {"customer": "4711"},
}
BEFORE: Final = "before"
# Each with whether it is of the newer checkout, has a face, and keeps a history.
VARIANTS: Final[Mapping[str, tuple[bool, bool, bool]]] = {
    BEFORE: (False, False, False),
    "faces off, no history": (True, False, False),
    "faces off": (True, False, True),
    "faces on, no history": (True, True, False),
    "faces on": (True, True, True),
}
NO_LOSS: Final = Goal("ratio", most=1.0)
GOALS: Final = {
    "faces off, no history": NO_LOSS,
    "faces off": NO_LOSS,
    "faces on": Goal("ratio", most=1.03),
}


async def child(folder: Path, n: int, *, has_face: bool, history: bool | None) -> dict[str, Any]:
    """Make cycles in a store of its own: what one costs. ``history`` None: it is not known yet."""
    import lodeq

    options: dict[str, Any] = {**HEADERS, **(FACE if has_face else {})}
    more: dict[str, Any] = {}
    if history is False:
        more["limits"] = lodeq.Limits(history_s=0)

    async def cycles(count: int) -> None:
        async def one() -> None:
            for _ in range(count // CALLERS):
                await queue.enqueue(PAYLOAD, **options)
                (lease,) = await queue.claim()
                await lease.complete(b"ok")

        await asyncio.gather(*(one() for _ in range(CALLERS)))

    async with lodeq.open(folder, **more) as engine:
        queue = engine.queue("faces")
        await cycles(max(CALLERS, n // 10))
        written, begun = written_bytes(), time.process_time()
        await cycles(n)
        cpu_s, written = time.process_time() - begun, written_bytes() - written
    return {"cpu_us": cpu_s / n * 1e6, "bytes": written / n, "package": lodeq.__file__}


def written_bytes() -> int:
    """Bytes that this process has written to files so far: of a store mostly its log."""
    with open("/proc/self/io", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def run_child(checkout: Path, links: Path, stores: Path, n: int, name: str) -> dict[str, Any]:
    """One variant, in a process that imports lodeq from this checkout and from no other."""
    is_after, has_face, has_history = VARIANTS[name]
    link = links / ("after" if is_after else "before")
    link.mkdir(exist_ok=True)
    if not (link / "lodeq").is_symlink():
        (link / "lodeq").symlink_to(checkout, target_is_directory=True)
    with tempfile.TemporaryDirectory(dir=stores) as folder:
        order = {
            "folder": str(Path(folder, "store")),
            "n": n,
            "has_face": has_face,
            "history": has_history if is_after else None,
        }
        done = subprocess.run(
            [sys.executable, __file__, "--child", json.dumps(order)],
            env={**os.environ, "PYTHONPATH": str(link), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            check=True,
        )
    found: dict[str, Any] = json.loads(done.stdout)
    if Path(found["package"]).resolve().parent != checkout.resolve():
        raise RuntimeError(f"measured {found['package']}, not {checkout}")
    return found


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The values from the second to the second last; of fewer than five all of them."""
    ranked = sorted(ratios)
    return (ranked[1], ranked[-2]) if len(ranked) >= 5 else (ranked[0], ranked[-1])


def commit_of(checkout: Path) -> str:
    told = subprocess.run(
        ["git", "-C", str(checkout), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or "unknown"


def add_results(bench: Bench, runs: Mapping[str, Sequence[Mapping[str, Any]]], than: str) -> None:
    """A line a variant and unit, beside the commit before."""
    for key, unit in (("cpu_us", "CPU µs/cycle"), ("bytes", "bytes/cycle")):
        base = [one[key] for one in runs[BEFORE]]
        for name in list(VARIANTS)[1:]:
            ours = [one[key] for one in runs[name]]
            low, high = interval([a / b for a, b in zip(ours, base, strict=True)])
            bench.add(
                Result(
                    f"{CASE}: {unit}",
                    {"with": name, "callers": CALLERS},
                    unit,
                    ours,
                    than,
                    base,
                    more={"interval of the ratio": f"{low:.3f} to {high:.3f}"},
                    goal=GOALS.get(name) if key == "cpu_us" else None,
                )
            )


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="a checkout at the commit before")
    parser.add_argument("--after", type=Path, default=HERE.parent, help="this one, by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cycles", type=int, default=64_000, help="of one run")
    parser.add_argument("--dir", type=Path, help="where the stores go")
    parser.add_argument("--json", type=Path, default=KEPT)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    if args.child:
        order = json.loads(args.child)
        print(json.dumps(asyncio.run(child(Path(order.pop("folder")), **order))))
        return 0
    if args.before is None or not (args.before / "engine").is_dir():
        parser.error("--before names a checkout: git worktree add PATH ad17f8cf")
    n = max(CALLERS, args.cycles // CALLERS * CALLERS)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory(prefix="lodeq-bench-", dir=args.dir) as folder:
        stores = Path(folder)
        facts = about(stores) | {"rounds": args.rounds, "scale": 1.0}
        bench = Bench(stores, repeats=args.rounds, scale=1.0, about=facts)
        names = list(VARIANTS)
        for at in range(args.rounds):
            turn = at % len(names)
            for name in names[turn:] + names[:turn]:
                checkout = args.after if VARIANTS[name][0] else args.before
                runs[name].append(run_child(checkout, stores, stores, n, name))
        add_results(bench, runs, commit_of(args.before))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    bench.save(args.json)
    print(f"kept in {args.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
