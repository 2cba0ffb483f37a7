"""``lodeq dashboard``: a browser's way to a store that is served on a unix socket."""

import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from support_cli import RUN, make, run
from support_http import socket_path

import lodeq.sync

pytestmark = pytest.mark.slow


@pytest.fixture
def store():
    with socket_path() as path:
        yield Path(path).parent / "jobs"


@pytest.fixture
def shown(store):
    """Starts the command; returns the process and the address that it prints."""
    children = []

    def shown(*args):
        command = [*RUN, "dashboard", str(store), "--port", "0", *args]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        children.append(child)
        line = child.stdout.readline().split()
        assert line[:2] == [f"unix://{store}.sock", "on"]
        return child, line[2]

    yield shown
    for child in children:
        child.kill()
        child.communicate()


def test_the_pages_of_a_running_service(store, shown):
    with lodeq.sync.open(store, serve=True, block_cache_bytes=8 << 20) as engine:
        engine.queue("mail").enqueue(b"x")
        child, url = shown()
        with httpx.Client(base_url=url) as browser:
            assert "mail" in browser.get("/").text
            assert "/queues/mail" in browser.get("/").text
            assert "seen through a client: no rates of single queues" in browser.get("/").text
            assert browser.get("/v1/engine").status_code == 404  # the pages alone
            assert browser.get("/", headers={"host": "evil.example"}).status_code == 403
            page = browser.get("/queues/mail")
            assert page.status_code == 200
            assert "purge" not in page.text
            assert browser.post("/queues/mail/purge").status_code == 403
        assert engine.queue("mail").stats().ready == 1
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == -signal.SIGTERM


def test_to_act_it_must_be_asked_to(store, shown):
    with lodeq.sync.open(store, serve=True, block_cache_bytes=8 << 20) as engine:
        engine.queue("mail").enqueue(b"x")
        _, url = shown("--access", "write")
        with httpx.Client(base_url=url) as browser:
            assert "purge" in browser.get("/queues/mail").text
            forged = browser.post("/queues/mail/purge", data={"form_token": "x"})
            assert forged.status_code == 403
        assert engine.queue("mail").stats().ready == 1


def test_a_store_that_nobody_serves(tmp_path):
    store = make(tmp_path / "s")
    error = run("dashboard", store, code=2).stderr
    assert "nobody serves" in error
    assert "serve=True" in error
    assert "holds no store" in run("dashboard", tmp_path / "none", code=2).stderr
