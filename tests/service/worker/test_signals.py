"""Signals while what surrounds a worker does not come to its end."""

import os
import signal
from contextlib import asynccontextmanager

import anyio
import pytest

import lodeq.testing
from lodeq.worker import App


async def signalled(*numbers):
    for number in numbers:
        os.kill(os.getpid(), number)
        await anyio.wait_all_tasks_blocked()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("where", ["start", "end"])
def test_a_setup_that_does_not_end_is_given_up(backend, where):
    said = []

    @asynccontextmanager
    async def setup(app):
        try:
            said.append("begins")
            if where == "start":
                await signalled(signal.SIGTERM)
                await anyio.sleep_forever()
            yield
            said.append("ends")
            await signalled(signal.SIGINT)  # from a terminal, beside the supervisor's SIGTERM
            said.append("goes on")
            await signalled(signal.SIGTERM)
            await anyio.sleep_forever()
        finally:
            said.append("cleans up")

    app = App(setup=setup)

    @app.task("mail")
    async def send() -> None:
        await signalled(signal.SIGTERM)

    async def main():
        async with lodeq.testing.open() as engine, app.use(engine):
            await send.enqueue()
            with anyio.fail_after(30):
                await app.run()
            assert (await engine.stats()).ready == (1 if where == "start" else 0)

    anyio.run(main, backend=backend)
    between = [] if where == "start" else ["ends", "goes on"]
    assert said == ["begins", *between, "cleans up"]
