"""``docs/benchmarks-jobs.md``: what jobs that people can see cost; written from what was kept.

``python bench/jobs.py PAGE FILE …`` of the files that ``make bench-faces`` and ``make
bench-searches`` have left in ``build/bench-jobs/``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from report import load, tables

HEAD = """\
# Benchmarks: what it costs to see jobs

Written by `make bench-faces BEFORE=PATH`, `make bench-searches` and `make bench-jobs-docs`; do not
edit. What function, preview, labels and history of a job cost a cycle (an enqueue, a claim and a
complete with a result, each awaited by itself, by 64 callers), beside the commit before they came:
a process for each run, alternating. A ratio is the median of the rounds' ratios, its interval
reaches from the second to the second last of nine. And what ten million finished jobs take that are
all kept, with the time of six searches over them.
"""


def page(paths: Sequence[Path]) -> str:
    """Write the page of these runs."""
    found = tables([load(path) for path in paths], {})
    return "\n".join([HEAD, *(found or ["Not measured yet.\n"])])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page([Path(name) for name in sys.argv[2:]]), "utf-8")
