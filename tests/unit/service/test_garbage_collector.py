"""The collector of a process of ours is set once, and nobody else's is touched."""

import subprocess
import sys
from pathlib import Path

import pytest

SETTLE = """
import gc
from lodeq.service.shared.garbage_collector import THRESHOLDS, settle_collector
{app}
was = gc.get_threshold(), gc.isenabled()
print(settle_collector(), gc.get_freeze_count() > 1000, gc.get_threshold() == THRESHOLDS)
assert gc.get_threshold() == THRESHOLDS or (gc.get_threshold(), gc.isenabled()) == was
print(settle_collector())
"""
OPEN = """
import asyncio, gc
was = gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()
import lodeq, lodeq.testing, lodeq.service.worker.app
async def main():
    async with lodeq.testing.open() as engine:
        await engine.queue("mail").enqueue(b"x")
asyncio.run(main())
assert was == (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count())
print("as it was")
"""
COMMAND = """
import sys
from lodeq.errors import UsageError
from lodeq.service.cli.commands import serve, worker
def settle():
    raise UsageError("the collector is settled here")
serve.settle_collector = worker.settle_collector = settle
from lodeq.service.cli.entry import main
sys.argv = ["lodeq", *sys.argv[1:]]
raise SystemExit(main())
"""
APP = """
import sys
from lodeq.worker import App
app = App(sys.argv[-1])
@app.task("mail")
def send() -> None: ...
"""


def python(code: str, *args: object, **options: object) -> subprocess.CompletedProcess[str]:
    """A process of its own: what is frozen stays so."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("", "True True True\nFalse\n"),
        ("gc.set_threshold(900)", "False False False\nFalse\n"),
        ("gc.disable()", "False False False\nFalse\n"),
    ],
    ids=["as Python starts", "thresholds set by an app", "off"],
)
def test_it_is_settled_once_unless_somebody_has_set_it(app: str, told: str) -> None:
    done = python(SETTLE.format(app=app))
    assert (done.stdout, done.stderr) == (told, "")


def test_an_engine_in_somebodys_process_leaves_the_collector_alone() -> None:
    done = python(OPEN)
    assert (done.stdout, done.stderr) == ("as it was\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "worker"])
def test_the_commands_that_own_their_process_settle_it_once_the_store_is_open(
    command: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(APP)
    args = {
        "serve": ["serve", "store"],
        "worker": ["worker", "jobs:app", "--store", "store", "--create"],
    }[command]
    done = python(COMMAND, *args, cwd=tmp_path)
    assert "the collector is settled here" in done.stderr
    assert done.returncode != 0
    assert (tmp_path / "store").is_dir()
