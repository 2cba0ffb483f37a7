"""Adds up what long gates have covered, so that they can be run in pieces.

One JSON line a piece, appended and fsynced: which gate, from where to where, how many failed, how
long it took, at which commit. A gate of 100,000 seeds is run as often as it takes; the next piece
starts where the last one ended::

    ledger = Ledger.default()
    start = ledger.next_start("sim")
    ...
    ledger.add("sim", start=start, done=1000, failed=0, seconds=61.0)
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Ledger:
    """The pieces that were run, in a file that only grows."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def default(cls) -> Ledger:
        """``LODEQ_LEDGER``, or ``proof-ledger.jsonl`` of this checkout."""
        return cls(os.environ.get("LODEQ_LEDGER", ROOT / "proof-ledger.jsonl"))

    def pieces(self, gate: str | None = None) -> list[dict[str, Any]]:
        """What was added, oldest first. A line that a crash cut off does not count."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text().splitlines():
            try:
                piece = json.loads(line)
            except ValueError:
                continue
            if gate is None or piece["gate"] == gate:
                found.append(piece)
        return found

    def next_start(self, gate: str) -> int:
        """The first seed or index that no piece has covered."""
        return max((p["start"] + p["done"] for p in self.pieces(gate)), default=0)

    def total(self, gate: str) -> int:
        """How many have been done, all pieces together."""
        return sum(piece["done"] for piece in self.pieces(gate))

    def add(
        self,
        gate: str,
        *,
        done: int,
        failed: int,
        seconds: float,
        start: int | None = None,
        **detail: Any,
    ) -> None:
        """One piece more; on disk on return."""
        piece = {
            "gate": gate,
            "start": self.next_start(gate) if start is None else start,
            "done": done,
            "failed": failed,
            "seconds": round(seconds, 1),
            "commit": commit(),
            **detail,
        }
        with self.path.open("a+b") as file:
            if file.tell() and not _ends_a_line(self.path):
                file.write(b"\n")
            file.write(json.dumps(piece).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def report(self) -> str:
        """One line a gate: done, failed, minutes, commits."""
        by_gate: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for piece in self.pieces():
            by_gate[piece["gate"]].append(piece)
        lines = []
        for gate, pieces in sorted(by_gate.items()):
            done, failed = (sum(p[name] for p in pieces) for name in ("done", "failed"))
            minutes = sum(p["seconds"] for p in pieces) / 60
            commits = list(dict.fromkeys(p["commit"] for p in pieces))
            lines.append(
                f"{gate:<28}{done:>12,} done {failed:>4} failed {minutes:>8.1f} min  "
                f"{', '.join(commits)}"
            )
        return "\n".join(lines)


def commit() -> str:
    """The commit that is checked out, with a ``+`` if anything differs from it."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return told.stdout.strip()


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


if __name__ == "__main__":
    print(Ledger.default().report() or "nothing has been run")
