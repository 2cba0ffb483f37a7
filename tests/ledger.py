"""Adds up what long gates have covered, so that they can be run in pieces.

One JSON line a piece, appended and fsynced: which gate, from where to where, how many failed, how
long it took, at which commit. A gate of 100,000 seeds is run as often as it takes; the next piece
starts where the last one ended::

    ledger = Ledger.default()
    start = ledger.next_start("sim")
    ...
    ledger.add("sim", start=start, done=1000, failed=0, seconds=61.0)

The lines stay in the checkout that ran them (``.proof-ledger.jsonl``, ignored by git). What is
committed is ``docs/proof-ledger.md``, a table with one row per gate and commit: ``make ledger``
writes it from the lines. A fresh clone goes on where the table ends.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEAD = """\
# Ledger of the proofs

Runs of the long gates ([proof.md](proof.md)), added up per gate and commit. `make ledger` writes
this page; the next run of a gate goes on behind its last row. A `+` behind a commit: the working
tree differed from it.

| gate | commit | from | to | done | failed | minutes |
|---|---|---:|---:|---:|---:|---:|
"""


class Ledger:
    """The pieces that were run, in a file that only grows, on top of a committed table."""

    def __init__(
        self, path: str | os.PathLike[str], table: str | os.PathLike[str] | None = None
    ) -> None:
        self.path = Path(path)
        self.table = None if table is None else Path(table)

    @classmethod
    def default(cls) -> Ledger:
        """``LODEQ_LEDGER`` alone, or the ledger of this checkout with its table."""
        if path := os.environ.get("LODEQ_LEDGER"):
            return cls(path)
        return cls(ROOT / ".proof-ledger.jsonl", ROOT / "docs" / "proof-ledger.md")

    def pieces(self, gate: str | None = None) -> list[dict[str, Any]]:
        """Pieces in the order they were added, behind the table's rows that they do not cover.

        A line that a crash cut off does not count.
        """
        found = []
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        here: dict[tuple[str, str], int] = defaultdict(int)
        for piece in found:
            here[piece["gate"], piece["commit"]] += piece["done"]
        rows = {(row["gate"], row["commit"]): row for row in self._rows()}
        # A step without tests has done nothing, here or elsewhere.
        known = {key: row for key, row in rows.items() if row["done"] > here.get(key, -1)}
        found = [*known.values()] + [p for p in found if (p["gate"], p["commit"]) not in known]
        return [piece for piece in found if gate is None or piece["gate"] == gate]

    def next_start(self, gate: str) -> int:
        """The first seed or index that no piece has covered."""
        return max(map(_end, self.pieces(gate)), default=0)

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
        """Add one piece; it is on disk on return."""
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

    def write_table(self) -> None:
        """Write the committed table anew: one row per gate and commit."""
        by_row: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for piece in sorted(self.pieces(), key=lambda p: (p["gate"], p["start"])):
            by_row.setdefault((piece["gate"], piece["commit"]), []).append(piece)
        lines = [
            f"| {gate} | {at} | {min(p['start'] for p in pieces)} | {max(map(_end, pieces))} | "
            f"{sum(p['done'] for p in pieces)} | {sum(p['failed'] for p in pieces)} | "
            f"{sum(p['seconds'] for p in pieces) / 60:.1f} |\n"
            for (gate, at), pieces in by_row.items()
        ]
        assert self.table is not None
        self.table.write_text(HEAD + "".join(lines))

    def _rows(self) -> list[dict[str, Any]]:
        if self.table is None or not self.table.exists():
            return []
        rows = []
        for line in self.table.read_text().removeprefix(HEAD).splitlines():
            gate, at, start, end, done, failed, minutes = line.strip("| ").split(" | ")
            rows.append(
                {
                    "gate": gate,
                    "commit": at,
                    "start": int(start),
                    "end": int(end),
                    "done": int(done),
                    "failed": int(failed),
                    "seconds": float(minutes) * 60,
                }
            )
        return rows


def commit() -> str:
    """The commit that is checked out, with a ``+`` if anything differs from it."""
    try:
        shown = subprocess.run(
            ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return shown.stdout.strip()


def _end(piece: dict[str, Any]) -> int:
    return int(piece.get("end", piece["start"] + piece["done"]))


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


if __name__ == "__main__":
    of_checkout = Ledger.default()
    print(of_checkout.report() or "nothing has been run")
    if of_checkout.table is not None:
        of_checkout.write_table()
