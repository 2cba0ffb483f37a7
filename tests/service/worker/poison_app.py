"""An app whose functions end the loop of their worker, each in its own way."""

import argparse
import asyncio
import os
import sys

import anyio

from lodeq import Backoff
from lodeq.worker import App, current

app = App(os.environ["LODEQ_STORE"], lease=2.0, grace=10.0)
once_more = {"max_attempts": 2, "retry": Backoff("fixed", base=0.001)}


@app.task("work", **once_more)
async def gathers(argv: list) -> list:
    """A child task parses arguments that are wrong."""

    async def parse(one: str) -> object:
        parser = argparse.ArgumentParser()
        parser.add_argument("--n", type=int)
        return parser.parse_args([one])

    return await asyncio.gather(*(parse(one) for one in argv))


@app.task("work", **once_more)
async def calls_back() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await anyio.sleep_forever()


@app.task("work", **once_more)
async def stops() -> None:
    asyncio.get_running_loop().stop()
    await anyio.sleep_forever()


@app.task("work", **once_more)
async def cancels() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await anyio.sleep_forever()


@app.task("work", **once_more)
async def cancels_others() -> None:
    """Waits for them, too: some of them wait for this run."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@app.task("watch")
async def watches(of: str) -> None:
    """Say how another task has ended."""
    result = await current().engine.result(of, wait=60)
    sys.stdout.write(f"{result and result.status}\n")
    sys.stdout.flush()
