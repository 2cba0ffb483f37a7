"""Two releases of an app in a rolling deploy, in both orders, with real worker processes."""

import json
import logging
import runpy
import signal
from collections import Counter, defaultdict

import anyio
import pytest
from anyio.to_thread import run_sync
from support_http import socket_path
from support_worker import APPS, processes

import lodeq

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MAKE = runpy.run_path(str(APPS / "release_app.py"))["make"]
WORKERS = 3
PAUSE_S = 0.05  # between two rounds of the load
ROUNDS = 20  # between two steps of the deploy
log = logging.getLogger(__name__)


class Producer:
    """Enqueues each function of its release, steadily; it may become the new release."""

    def __init__(self, engine, folder) -> None:
        self._apps = {name: MAKE(name, folder / "runs") for name in ("old", "new")}
        self._engine = engine
        self._round = anyio.Event()
        self._count = 0
        self.release = "old"
        self.receipts: dict[int, tuple[str, lodeq.Receipt]] = {}

    async def run(self) -> None:
        while True:
            if self.release == "old":
                calls = [("same", {}), ("changed", {}), ("removed", {})]
            else:
                calls = [("same", {}), ("changed", {"copies": 2}), ("added", {})]
            app, first = self._apps[self.release], self._count
            self._count += len(calls)
            tasks = [
                app.function("mail", name).new(n, **more)
                for n, (name, more) in enumerate(calls, first)
            ]
            receipts = await self._engine.enqueue_many(tasks)
            for n, receipt in enumerate(receipts, first):
                self.receipts[n] = calls[n - first][0], receipt
            self._round.set()
            await anyio.sleep(PAUSE_S)  # the load is steady

    async def rounds(self, count: int = ROUNDS) -> None:
        for _ in range(count):
            self._round = anyio.Event()
            await self._round.wait()

    async def done(self, function: str | None = None) -> list[tuple[str, lodeq.Result]]:
        """Wait for the end of all tasks until now, or of those of one function."""
        ended = []
        with anyio.fail_after(300):  # a task waits for as long as it has been there
            for name, receipt in list(self.receipts.values()):
                result = None
                while result is None and function in (None, name):
                    result = await self._engine.result(receipt.id, wait=30)
                ended += [(name, result)] if result else []
        return ended


@pytest.mark.parametrize("order", ["workers first", "producers first"])
async def test_two_releases_run_every_task_once_in_a_rolling_deploy(tmp_path, order):
    with socket_path() as path, processes(tmp_path, f"unix://{path}") as crew:
        server = crew.start("server", "serve", tmp_path / "store", "--uds", path)
        assert "serving" in await run_sync(server.line)
        async with lodeq.connect(crew.store) as engine:
            producer = Producer(engine, tmp_path)
            async with anyio.create_task_group() as group:
                group.start_soon(producer.run)
                await deploy(crew, producer, order)
                group.cancel_scope.cancel()
            results = await producer.done()
            assert (await engine.stats()).dead_total == 0
    assert {(result.status, result.attempts) for _, result in results} == {("completed", 1)}
    runs = [line.split() for line in (tmp_path / "runs").read_text().splitlines()]
    assert Counter(int(n) for _, n, *_ in runs) == Counter(list(producer.receipts))
    delays = defaultdict(list)
    for name, result in results:
        delays[name].append((result.leased_at - result.enqueued_at).total_seconds())
    log.info("%s: delays in s: %s", order, json.dumps(delays))  # no speed is asserted


async def deploy(crew, producer, order):
    """Replace old workers by new ones, one by one; the producer becomes new first or last."""
    old = [start(crew, f"old{i}") for i in range(WORKERS)]
    await producer.rounds()
    await producer.done()  # they are up
    if order == "producers first":
        producer.release = "new"
    for worker in old:
        await producer.rounds()
        if worker is old[-1]:
            producer.release = "new"
            await producer.rounds(1)  # what the old one began is through
            await producer.done("removed")  # nobody will know it any more
        new = start(crew, worker.name.replace("old", "new"))
        await run_sync(new.line)  # it has run something
        worker.signal(signal.SIGTERM)
        assert await run_sync(worker.wait) == 0
        assert "Traceback" not in worker.log
    await producer.rounds()


def start(crew, name):
    return crew.start(name, "worker", "release_app:app")
