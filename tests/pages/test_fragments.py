"""Blocks that are no whole script run in the middle of one: ``<!-- runs in: NAME -->``.

``tests/support_fragments.py`` has those frames.
"""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import anyio
import pytest
from support_fragments import FRAMES

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(
    r"^<!-- runs in: (?P<frame>[^>]+) -->\n```(?P<kind>python|sh)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
WHOLE = ("cli.md", "http.md", "operations.md", "worker.md")  # of these every block runs
PYTHON = re.compile(r"^(?P<before>.*)\n```python\n(?P<first>.*)$", re.MULTILINE)


def fragments() -> Iterator[object]:
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text("utf-8")
        for found in BLOCK.finditer(text):
            line = text.count("\n", 0, found.start("text")) + 1
            yield pytest.param(
                found["frame"], found["kind"], found["text"], id=f"{page.name}:{line}"
            )


@pytest.mark.parametrize(("frame", "kind", "text"), list(fragments()))
def test_it_runs(
    frame: str,
    kind: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    async def run(names: dict[str, Any]) -> str:
        if kind == "sh":
            done = await anyio.run_process(["bash", "-ec", text])
            return done.stdout.decode()
        names["lodeq_worker"] = request.getfixturevalue("lodeq_worker")
        body = f"async def block():\n{indent(text, '    ')}    return locals()\n"
        await anyio.Path("block.py").write_text(body, "utf-8")
        names.update(await runpy.run_path("block.py", names)["block"]())
        return ""

    monkeypatch.chdir(tmp_path)
    anyio.run(FRAMES[frame], run)


def test_every_frame_is_used() -> None:
    text = "".join(page.read_text("utf-8") for page in DOCS.rglob("*.md"))
    assert {found["frame"] for found in BLOCK.finditer(text)} == set(FRAMES)


def test_every_python_block_of_these_pages_runs() -> None:
    for name in WHOLE:
        for block in PYTHON.finditer((DOCS / name).read_text("utf-8")):
            runs = block["before"].startswith("<!-- runs") or block["first"] == "# runs"
            assert runs, f"{name}: {block[0]}"
