"""The code map: every module of the package with the first sentence of its docstring.

``make code-map`` writes ``docs/code-map.md``; a test says when it is out of date.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "code-map.md"
ROOMS = [
    "engine",
    "replication",
    "coalescer",
    "segments",
    "repository",
    "client",
    "service",
    "pipeline",
    "testing",
]
HEAD = """\
# Code map

Every module, from the bottom up, with the first sentence of its docstring. `make code-map` writes
this page; [ARCHITECTURE.md](../ARCHITECTURE.md) says how the parts work together.
"""


def first_sentence(file: Path) -> str:
    """The first sentence of a module's docstring, as Markdown."""
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:])\s+(?=[A-Z`])", paragraph, maxsplit=1)[0].rstrip(":.")
    return sentence.replace("``", "`").replace("|", "\\|")


def page() -> str:
    """The whole page."""
    parts = [HEAD, "\n## The root\n\n", *_rows(ROOT)]
    for room in ROOMS:
        for folder in [ROOT / room, *sorted(p for p in (ROOT / room).rglob("*") if p.is_dir())]:
            if (folder / "__init__.py").exists():
                name = folder.relative_to(ROOT).as_posix()
                depth = "##" if name == room else "###"
                parts.append(f"\n{depth} {name}/\n\n{first_sentence(folder / '__init__.py')}.\n\n")
                parts += _rows(folder)
    return "".join(parts).replace("\n\n\n", "\n\n")


def _rows(folder: Path) -> list[str]:
    files = [f for f in sorted(folder.glob("*.py")) if f.name not in ("__init__.py", "setup.py")]
    rows = [f"| `{file.stem}` | {first_sentence(file)} |\n" for file in files]
    return ["| module | |\n|---|---|\n", *rows] if rows else []


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
