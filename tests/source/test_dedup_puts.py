"""Every dedup entry that is put is known to the filter (ADR dedup-filter)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PUT = re.compile(r"\(GHOST \+ [\w.]+, (?!None\b)")
KNOWN = {"repository/state/queue_state.py", "repository/tasks/option_path.py"}


def test_entries_are_put_in_two_places():
    sources = {
        str(path.relative_to(ROOT)): path.read_text("utf-8")
        for folder in ("repository", "coalescer", "client", "service")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name, text in sources.items() if PUT.search(text)} == KNOWN


def test_the_pattern_finds_what_it_is_for():
    assert PUT.search("group.ops.append((GHOST + encoded.ghost, value))")
    assert not PUT.search("group.ops.append((GHOST + ghost, None))")
    assert not PUT.search("overlay.get(GHOST + ghost)")
