"""A service that is there and does not answer, or not us."""

from contextlib import contextmanager

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from support_cli import first, make, objects, run
from support_http import serving, socket_path

import lodeq
import lodeq.testing
from lodeq.client.engine import RemoteEngine
from lodeq.engine.files.lockfile import LockFile
from lodeq.engine.files.paths import lock_path
from lodeq.engine.files.served_note import leave_note
from lodeq.service.cli import connection
from lodeq.service.http.guard import Settings
from lodeq.service.http.listener import listen_unix

pytestmark = [
    pytest.mark.slow,
    # httpcore leaves a socket that could not connect to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TOKEN = "a token of some length"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT_S", 0.2)
    store = make(tmp_path / "s")
    run("enqueue", store, "mail", "x")
    return store


@contextmanager
def held(store):
    """The store's lock, as the process that serves it has it."""
    lock = LockFile.acquire(lock_path(str(store)))
    yield
    lock.release()


@pytest.fixture
def frozen(store):
    """As under SIGSTOP: connections are taken by the kernel, and nobody reads them."""
    with socket_path() as path, listen_unix(path), held(store):
        leave_note(store, f"unix://{path}")
        yield store


@pytest.fixture
def closed(store):
    """A service that asks for a token."""
    with socket_path() as path, start_blocking_portal() as portal:
        opening = lodeq.testing.open()
        engine = portal.call(opening.__aenter__)
        served = serving(engine, path=path, settings=Settings(token=TOKEN))
        with portal.wrap_async_context_manager(served) as url, held(store):
            leave_note(store, url)
            yield store
        portal.call(opening.__aexit__, None, None, None)


def served_check(store):
    (told,) = objects("doctor", store)
    return next(check for check in told["checks"] if check["name"] == "served")


def test_a_service_that_is_stopped_is_not_waited_for(frozen):
    told = run("stats", frozen)
    assert "process" in told.stderr
    why = "does not answer: the owner's loop has not answered for 0.2 s: looking at the folder"
    assert why in told.stderr
    (mail,) = first("stats", frozen)["queues"]
    assert mail["ready"] == 1
    assert "does not answer" in run("top", frozen, "--count", 1).stdout
    check = served_check(frozen)
    assert (check["verdict"], check["advice"][:18]) == ("warning", "it does not answer")


def test_what_writes_says_whom_it_waits_for(frozen, monkeypatch):
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.5)
    error = run("pause", frozen, "mail", code=2).stderr
    assert "the owner's loop has not answered for 0.2 s; waiting up to 0.5 s" in error
    assert "the owner's loop has not answered for 0.5 s, so nothing was done" in error


def test_nor_one_whose_loop_is_held_once_it_has_answered(closed, monkeypatch):
    monkeypatch.setenv("LODEQ_TOKEN", TOKEN)
    assert first("stats", closed)["served"]
    assert served_check(closed)["verdict"] == "ok"

    async def stats(engine):
        await anyio.sleep_forever()

    monkeypatch.setattr(RemoteEngine, "stats", stats)
    told = run("stats", closed)
    assert "looking at the folder" in told.stderr
    assert "1 leased" not in told.stdout


def test_a_service_that_asks_for_a_token_is_not_passed_over(closed):
    for args in (["stats", closed], ["top", closed, "--count", 1]):
        assert "LODEQ_TOKEN" in run(*args, code=2).stderr
    check = served_check(closed)
    assert check["verdict"] == "warning"
    assert "LODEQ_TOKEN" in check["advice"]
    assert "LODEQ_TOKEN" in run("enqueue", closed, "mail", "x", code=2).stderr
