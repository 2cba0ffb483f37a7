"""What stands around a block of a page that is no whole script: it runs in the middle of this.

``<!-- runs in: NAME -->`` before a block names one of these. Each makes what the reader has by
then, has the block run with the names that it uses, and looks at what has become of it.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import httpx

import lodeq
from lodeq.service.http.listener import listen_unix
from lodeq.service.http.server import Server
from lodeq.worker import App

__all__ = ["FRAMES"]

Run = Callable[[dict[str, Any]], Awaitable[str]]


@asynccontextmanager
async def served() -> AsyncIterator[lodeq.Engine]:
    await anyio.Path("var").mkdir()
    ready = anyio.Event()
    async with lodeq.open("var/jobs") as engine, anyio.create_task_group() as group:
        server = Server(engine, [listen_unix("var/jobs.sock")], on_ready=ready.set)
        group.start_soon(server.run)
        await ready.wait()
        yield engine
        server.stop()


async def a_served_store(run: Run) -> None:
    sent = []

    async def send(payload: object) -> None:
        sent.append(payload)

    async with served() as engine:
        await run({"lodeq": lodeq, "send": send})
        stats = await engine.queue("mail").stats()
        assert (sent, stats.leased, stats.results) == ([{"to": "a@example.org"}], 0, 1)


async def a_shell_beside_a_served_store(run: Run) -> None:
    async with served() as engine:
        assert '"id":' in await run({})
        (task,) = await engine.queue("mail").list("delayed")
        assert (task.payload, task.priority) == ({"to": "a@example.org"}, 7)


async def a_store(run: Run) -> None:
    async with lodeq.open("jobs") as engine:
        receipt = await engine.queue("mail").enqueue(b"hello")
        await run({"lodeq": lodeq, "engine": engine})
    async with lodeq.open("var/jobs") as restored:
        assert await restored.get(receipt.id) is not None


async def an_open_engine(run: Run) -> None:
    """Three dead letters, one of them of the customer and with the reason that the page has."""
    async with lodeq.open("jobs") as engine:
        queue = engine.queue("mail")
        for customer, reason in (("7", "Timeout after 30 s"), ("8", "timeout"), ("7", "refused")):
            await queue.enqueue(b"", function="send", labels={"customer": customer})
            (lease,) = await queue.claim()
            await lease.bury(reason)
        names: dict[str, Any] = {"engine": engine}
        await run(names)
        assert (names["report"].done, names["task"].reason) == (1, "Timeout after 30 s")
        (again,) = await queue.list("ready")
        assert again.labels == {"customer": "7"}
        assert len(await queue.dead_letters()) == 2


async def an_engine_with_a_filter(run: Run) -> None:
    async with lodeq.open("jobs") as engine:
        queue = engine.queue("mail")
        for reason in ("timeout", "refused"):
            await queue.enqueue(b"", function="send")
            (lease,) = await queue.claim()
            await lease.bury(reason)
        names = {"engine": engine, "failed": lodeq.TaskFilter(state="dead", reason="timeout")}
        await run(names)
        assert names["task"].reason == "timeout"


async def an_engine_with_ended_tasks(run: Run) -> None:
    async with lodeq.open("jobs") as engine:
        queue = engine.queue("mail")
        ids = []  # within a millisecond in any order
        for n in range(3):
            receipt = await queue.enqueue(n)
            (lease,) = await queue.claim()
            await lease.complete(n)
            ids.append(receipt.id)
        names: dict[str, Any] = {"engine": engine}
        await run(names)
        assert names["last"] == max(ids)


def an_app() -> tuple[App, dict[str, Any]]:
    app = App("jobs")

    @app.task("mail", timeout=60)
    async def send(to: str, subject: str = "Hello") -> str:
        return f"sent {subject!r} to {to}"

    @app.task("audit")
    async def audit(what: str) -> None: ...

    return app, {"app": app, "send": send, "audit": audit}


async def an_open_app(run: Run) -> None:
    app, names = an_app()
    async with app:
        await run(names)
        queues: Mapping[tuple[str, str], lodeq.QueueStats] = await app.engine.queues()
    assert (queues["mail", ""].ready, queues["mail", ""].delayed) == (2, 1)
    assert queues["mail", "acme"].delayed == 1


async def a_task_function(run: Run) -> None:
    app, names = an_app()

    @app.task("outer")
    async def outer() -> None:
        await run(names)

    async with app:
        await outer.enqueue()
        assert (await app.drain()).completed == 2  # and what it added in the same batch
    assert names["ctx"].attempt == 1


async def a_module_with_an_app(run: Run) -> None:
    """Middleware: of one run."""
    app, names = an_app()
    seen: list[tuple[str, float]] = []

    def labels(name: str) -> SimpleNamespace:
        return SimpleNamespace(observe=lambda span: seen.append((name, span)))

    seconds = SimpleNamespace(labels=labels)
    await run({**names, "perf_counter": time.perf_counter, "seconds": seconds})
    async with app:
        await names["send"].enqueue("a@example.org")
        assert (await app.drain()).completed == 1
    assert [name for name, span in seen if span >= 0] == ["send"]


async def an_app_that_fans_out(run: Run) -> None:
    app, names = an_app()
    await run(names)
    async with app:
        await names["report"].enqueue(5)
        assert (await app.drain()).completed == 7
        (total,) = await app.engine.history("totals")
        result = await app.engine.result(total.task_id)
    assert result is not None
    assert result.value == 0 + 1 + 4 + 9 + 16


async def an_app_with_time(run: Run) -> None:
    """Cron: of ten minutes."""
    app, names = an_app()
    await run(names)
    async with lodeq.testing.worker(app) as bench:
        bench.clock.advance(600)
        assert (await app.drain()).completed >= 1


async def a_web_service(run: Run) -> None:
    from fastapi import FastAPI

    app, names = an_app()
    names["FastAPI"] = FastAPI
    await run(names)
    web = names["web"]
    async with web.router.lifespan_context(web):
        transport = httpx.ASGITransport(web)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
            answer = await browser.post("/signup", params={"to": "a@example.org"})
        result = await app.engine.result(answer.json(), wait=10)
    assert result is not None
    assert result.value == "sent 'Hello' to a@example.org"


async def a_test_module(run: Run) -> None:
    _, names = an_app()
    await run(names)
    await names["test_signup"](names["lodeq_worker"])


async def a_bench(run: Run) -> None:
    app = App()
    begun = anyio.Event()

    @app.task("mail", timeout=60, max_attempts=1)
    async def send() -> None:
        begun.set()
        await anyio.sleep_forever()

    async with lodeq.testing.worker(app) as bench:
        await send.enqueue()
        names = {"anyio": anyio, "app": app, "begun": begun, "bench": bench, "partial": partial}
        await run(names)
        (dead,) = await bench.engine.queue("mail").dead_letters()
    assert dead.reason.startswith("timed out")


FRAMES: Mapping[str, Callable[[Run], Awaitable[None]]] = {
    frame.__name__.replace("_", " "): frame
    for frame in (
        a_bench,
        a_module_with_an_app,
        a_served_store,
        a_shell_beside_a_served_store,
        a_store,
        a_task_function,
        a_test_module,
        a_web_service,
        an_app_that_fans_out,
        an_app_with_time,
        an_engine_with_a_filter,
        an_engine_with_ended_tasks,
        an_open_app,
        an_open_engine,
    )
}
