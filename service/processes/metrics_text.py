"""The metrics of all processes as one page: every sample gets the label ``process``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from .supervisor import ProcessStatus

__all__ = ["joined"]

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{|[ \t])")
_UP: Final = "lodeq_process_up", "gauge", "1 while the process serves its shards"
_RESTARTS: Final = "lodeq_process_restarts_total", "counter", "How often it was started again"


def joined(pages: Mapping[int, str], statuses: Sequence[ProcessStatus]) -> str:
    """Join pages in the text format of Prometheus.

    Args:
        pages: by process; one that does not answer is left out.
        statuses: of all processes.
    """
    families: dict[str, list[str]] = {}
    heads: dict[str, list[str]] = {}
    for process, page in sorted(pages.items()):
        name = ""
        for line in page.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                name = line.split(" ", 3)[2]
                head = heads.setdefault(name, [])
                if line not in head and len(head) < 2:
                    head.append(line)
                families.setdefault(name, [])
            elif line and not line.startswith("#"):
                families.setdefault(name, []).append(_labelled(line, process))
    lines: list[str] = []
    for name, samples in families.items():
        lines += heads.get(name, [])
        lines += samples
    for (name, kind, text), values in (
        (_UP, [int(one.state == "serving") for one in statuses]),
        (_RESTARTS, [one.restarts for one in statuses]),
    ):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [
            f'{name}{{process="{one.number}"}} {value}'
            for one, value in zip(statuses, values, strict=True)
        ]
    return "\n".join(lines) + "\n"


def _labelled(line: str, process: int) -> str:
    """A sample with one label more."""
    found = _SAMPLE.match(line)
    if found is None:
        return line
    label = f'process="{process}"'
    rest = line[found.end() :]
    if found[2] != "{":
        return f"{found[1]}{{{label}}} {rest}"
    joint = "" if rest.startswith("}") else ","
    return f"{found[1]}{{{label}{joint}{rest}"
