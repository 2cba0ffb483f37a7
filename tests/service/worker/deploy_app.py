"""An app for workers that are processes of their own, and say what they begin on stdout."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio

from lodeq.worker import App, current

app = App(os.environ["LODEQ_STORE"], name=os.environ.get("LODEQ_NAME"), lease=2.0, grace=10.0)
FIFO = Path(os.environ["LODEQ_FIFO"])


def begin() -> int:
    """Tell who watches; which attempt it is."""
    ctx = current()
    sys.stdout.write(f"{ctx.name} {ctx.attempt}\n")
    sys.stdout.flush()
    return ctx.attempt


@app.task("work", concurrency=8)
async def work(n: int) -> int:
    await anyio.lowlevel.checkpoint()
    return n


@app.task("paced", rate="10/s", queue_concurrency=4)
async def paced(n: int) -> int:
    await anyio.lowlevel.checkpoint()
    return n


@app.task(
    "limited",
    rate="20/s",
    queue_concurrency=4,
    key_concurrency="1/customer",
    limit_by="n",
    max_attempts=50,
)
async def limited(n: int) -> int:
    begin()
    await anyio.sleep(0.05)
    return n


@app.task("hold", max_attempts=3)
async def hold(name: str) -> str | None:
    """Stays until it is cancelled, but for a worker that is new."""
    begin()
    if app.name.startswith("new"):
        return app.name
    return await anyio.sleep_forever()


@app.task("stuck")
def stuck() -> None:
    """A thread that nobody can stop."""
    begin()
    FIFO.read_bytes()


LEFT: list[object] = []


async def swallow() -> None:
    """A loop task that nobody can cancel."""
    while True:
        with suppress(asyncio.CancelledError):
            await anyio.sleep_forever()


async def waiting() -> AsyncIterator[int]:
    """A generator that does not end."""
    try:
        yield 1
    finally:
        await swallow()


@app.task("leaving", max_attempts=1)
async def leave(what: str) -> None:
    """Leaves something behind that goes on, and whose run is over."""
    if what == "task":
        LEFT.append(asyncio.create_task(swallow()))
        await asyncio.sleep(0)
    elif what == "generator":
        LEFT.append(numbers := waiting())
        await anext(numbers)
    elif what == "executor":
        LEFT.append(asyncio.get_running_loop().run_in_executor(None, FIFO.read_bytes))
    elif what == "thread":
        LEFT.append(thread := threading.Thread(target=FIFO.read_bytes))
        thread.start()
    begin()


@app.task("compute")
async def compute() -> int:
    """Blocks the event loop until there is something to read."""
    attempt = begin()
    FIFO.read_bytes()  # noqa: ASYNC240 - that is the point
    return attempt


@app.task("interrupted", max_attempts=1)
async def interrupt(thread: int) -> None:
    """What a library may raise that stops by Ctrl-C."""
    begin()
    raise KeyboardInterrupt


@app.task("interrupted", max_attempts=1)
def interrupt_thread(thread: int) -> None:
    """The same in a thread."""
    begin()
    raise KeyboardInterrupt


@app.task("parts", concurrency=8, max_attempts=5)
async def part(n: int) -> int:
    if n % 100 == 50:
        begin()  # who watches may kill this process now
    await anyio.sleep(0.001)
    return n * n


@app.task("totals")
async def total() -> int:
    begin()
    numbers = [one.value async for one in current().parts() if one.status == "completed"]
    return sum(numbers)


@app.task("reports")
async def report(count: int) -> str:
    async with await current().workflow(total.new()) as flow:
        await flow.add([part.new(n) for n in range(count)])
    return str(flow.id)
