"""A worker that starts while its store's server is down waits for it; a refusal ends it."""

import os
import signal
import ssl

import anyio
import anyio.lowlevel
import pytest
from support_http import serving, socket_path
from support_loop import on_loop

import lodeq
import lodeq.testing
from lodeq.errors import AccessDeniedError, CommitUnknownError, UnreachableError
from lodeq.service.http.guard import Settings
from lodeq.service.worker import app as module
from lodeq.service.worker import store_wait
from lodeq.worker import App


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(store_wait, "PAUSE_S", 0.0)


def app_of(store, **options) -> App:
    app = App(store, **options)

    @app.task("mail", queue_concurrency=5)
    async def send(to: str) -> str:
        return to

    return app


def waits(caplog) -> list[str]:
    return [
        one.getMessage() for one in caplog.records if getattr(one, "event", "") == "store_awaited"
    ]


async def logged(caplog, count: int) -> None:
    while len(waits(caplog)) < count:
        await anyio.lowlevel.checkpoint()


@pytest.mark.slow
@on_loop
async def test_a_worker_that_starts_before_its_server_works_once_that_is_there(caplog):
    with socket_path() as path:
        app = app_of(f"unix://{path}")
        async with anyio.create_task_group() as group:
            group.start_soon(app.run)
            await logged(caplog, 3)
            async with lodeq.testing.open() as engine, serving(engine, path=path):
                receipt = await engine.enqueue_many([app.function("mail", "send").new("a")])
                result = await engine.result(receipt[0].id, wait=60)
                assert (result.status, result.value) == ("completed", "a")
                os.kill(os.getpid(), signal.SIGTERM)
    assert "is the server running?" in waits(caplog)[0]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_ends_the_wait(backend, caplog):
    async def main(path: str) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(app_of(f"unix://{path}").run)
            await logged(caplog, 2)
            os.kill(os.getpid(), signal.SIGTERM)

    with socket_path() as path:
        anyio.run(main, path, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_ends_a_try_that_a_server_never_answers(backend, caplog):
    async def main(path: str) -> None:
        async with await anyio.create_unix_listener(path) as listener:
            asked = anyio.Event()

            async def mute(stream: anyio.abc.SocketStream) -> None:
                async with stream:
                    asked.set()
                    await anyio.sleep_forever()

            async with anyio.create_task_group() as servers:
                servers.start_soon(listener.serve, mute)
                async with anyio.create_task_group() as group:
                    group.start_soon(app_of(f"unix://{path}", timeout=3600).run)
                    await asked.wait()
                    os.kill(os.getpid(), signal.SIGTERM)
                servers.cancel_scope.cancel()

    with socket_path() as path:
        anyio.run(main, path, backend=backend)
    assert waits(caplog) == []


def test_a_wrong_token_ends_it_at_once(caplog):
    async def main(path: str) -> None:
        settings = Settings(token="right")
        async with (
            lodeq.testing.open() as engine,
            serving(engine, path=path, settings=settings) as url,
        ):
            with pytest.raises(AccessDeniedError):
                await app_of(url, token="wrong").run()

    with socket_path() as path:
        anyio.run(main, path)
    assert waits(caplog) == []


@pytest.mark.parametrize(
    "cause", [PermissionError(13, "no"), ssl.SSLCertVerificationError(1, "self-signed")]
)
@on_loop
async def test_what_no_waiting_helps_against_ends_it_at_once(cause, caplog, monkeypatch):
    async def refuses(self) -> None:
        raise UnreachableError("no way") from cause

    monkeypatch.setattr(App, "__aenter__", refuses)
    with pytest.raises(UnreachableError):
        await app_of("https://jobs.example").run()
    assert waits(caplog) == []


def test_a_server_that_goes_between_its_open_and_its_first_write_is_waited_for(caplog, monkeypatch):
    publish, failures = (
        module.publish_limits,
        [CommitUnknownError("lost"), UnreachableError("gone")],
    )

    async def fails(*arguments) -> None:
        if failures:
            raise failures.pop()
        await publish(*arguments)

    monkeypatch.setattr(module, "publish_limits", fails)

    async def main() -> None:
        async with lodeq.testing.open() as engine, app_of(None).use(engine) as app:

            async def use() -> None:
                while (await engine.settings("mail")).concurrency != 5:
                    await anyio.lowlevel.checkpoint()
                os.kill(os.getpid(), signal.SIGTERM)

            async with anyio.create_task_group() as group:
                group.start_soon(use)
                await app.run()

    anyio.run(main)
    assert len(waits(caplog)) == 2


def test_pauses_grow_up_to_a_bound(monkeypatch, caplog):
    monkeypatch.setattr(store_wait, "PAUSE_S", 0.25)
    paused: list[float] = []
    tries = iter(range(12))

    async def no_pause(seconds: float) -> None:
        paused.append(seconds)

    async def step() -> None:
        if next(tries) < 10:
            raise UnreachableError("not yet")

    async def no_signals():
        await anyio.Event().wait()
        yield signal.SIGTERM

    async def main() -> None:
        monkeypatch.setattr(store_wait.anyio, "sleep", no_pause)
        assert await store_wait.until_reached(step, no_signals())

    anyio.run(main)
    assert paused == [0.25, 0.5, 1, 2, 4, 8, 15, 15, 15, 15]
