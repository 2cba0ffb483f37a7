"""A program that ends by an exception, its engine unclosed, ends with its traceback and status 1.

Also where a sync is in flight: its thread comes back from native code while the interpreter goes
down. And what was acknowledged is there.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from support_loop import on_loop

import lodeq

CHILD = Path(__file__).with_name("unclosed_child.py")
TIMES = 3  # the same ending was an abort in every second run or so


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["asyncio", "trio", "thread"])
def test_an_unclosed_engine_does_not_hide_what_the_program_died_of(
    kind: str, tmp_path: Path
) -> None:
    for time in range(TIMES):
        store = tmp_path / str(time)
        child = subprocess.run(
            [sys.executable, CHILD, kind, store],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert child.returncode == 1, child.stderr
        assert "raise OwnError" in child.stderr, child.stderr
        assert "FATAL" not in child.stderr, child.stderr
        look(store, bytes.fromhex(child.stdout.strip()))


LATE = """
import asyncio, atexit, sys, threading
loop = asyncio.new_event_loop()
ask = lambda asked: asyncio.run_coroutine_threadsafe(asked, loop).result(30)
atexit.register(lambda: ask(end()))  # before lodeq registers anything: it runs behind that
import lodeq

async def begin():
    global engine
    engine = await lodeq.open(sys.argv[1], durability="fsync")
    await engine.queue("mail").enqueue(b"early")

async def end():
    late = await engine.queue("mail").enqueue(b"late")
    await engine.close()
    sys.stdout.write(late.id.hex())

threading.Thread(target=loop.run_forever, daemon=True).start()
ask(begin())
"""


@pytest.mark.crash
def test_an_engine_can_be_closed_by_whatever_runs_last_at_exit(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", LATE, tmp_path / "store"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, "")
    look(tmp_path / "store", bytes.fromhex(child.stdout))


@on_loop
async def look(store: Path, acknowledged: bytes) -> None:
    async with lodeq.open(store) as engine:
        assert await engine.get(acknowledged.hex()) is not None
        assert (await engine.verify()).ok
