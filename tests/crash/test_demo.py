"""The demo does what it says, and its numbers agree with each other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
FILES = 200

pytestmark = pytest.mark.crash


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(DEMO), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def numbers(line: str) -> list[int]:
    return [int(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?![\d.])", line)]


@pytest.mark.parametrize("mode", ["nosync", "fsync"])
def test_the_demo_survives_its_kills_and_proves_it(mode: str) -> None:
    done = run(mode, f"--files={FILES}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    lines = done.stdout.splitlines()
    told = {line.partition(" ")[0]: line for line in lines}
    assert numbers(told["proved"])[0] == FILES
    assert numbers(told["tasks"])[0] == FILES
    assert numbers(told["proved"])[1] == 2
    assert sum(line.startswith("life ") and "ended with -9" in line for line in lines) == 2
    commits, calls, *_ = numbers(told["commits"])
    assert (
        sum(int(n.replace(",", "")) for n in re.findall(r": ([\d,]+)(?:, |$)", told["merge"]))
        == commits
    )
    assert calls >= commits > 0
    # The last report of a killed life is a little older than its end.
    assert calls > FILES
    (fsyncs,) = numbers(told["fsyncs"])
    assert fsyncs > 50 if mode == "fsync" else fsyncs < 50
    (percent,) = (line for line in lines if " 100 %" in line)
    assert numbers(percent)[:2] == [FILES, FILES]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [("--files=0", "there is nothing to do"), ("--shards=5000", "life 1 ended with 1 before it")],
)
def test_the_demo_says_what_it_cannot_do(wrong: str, told: str) -> None:
    done = run("--files=3", wrong)
    assert done.returncode in (1, 2)
    assert told in done.stderr.splitlines()[-1]


def test_the_demo_notices_when_work_is_missing(tmp_path: Path) -> None:
    """Its proof can fail: an expected file that was never enqueued, one that was not done."""
    import asyncio
    import importlib.util

    import lodeq

    spec = importlib.util.spec_from_file_location("lodeq_demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    first, second, third = demo.files(3)

    async def half_done() -> list[str]:
        async with lodeq.open(tmp_path / "store") as engine:
            queue = engine.queue("files")
            for name in (first, first, second):
                await queue.enqueue(name)
            for lease in await queue.claim(limit=2):
                await lease.complete(demo.examine(lease.payload))
        _, wrong = await demo.prove(str(tmp_path / "store"), [first, second, third])
        return wrong

    wrong = "\n".join(asyncio.run(half_done()))
    assert f"{first} was completed 2 times" in wrong
    assert f"{second} has no result" in wrong
    assert f"{third} has no result" in wrong
    assert "1 tasks are not completed" in wrong
