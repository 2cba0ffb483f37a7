"""Function, preview and labels of tasks, as commands show them."""

import asyncio

import pytest
from support_cli import first, make, objects, run

import lodeq

pytestmark = pytest.mark.slow
FACE = {"function": "send", "preview": "to='a@example.org'", "labels": {"customer": "7"}}


@pytest.fixture
def store(tmp_path):
    path = make(tmp_path / "s")

    async def main():
        async with lodeq.open(path) as engine:
            mail = engine.queue("mail", max_attempts=1)
            await mail.enqueue(b"1", **FACE)
            await mail.enqueue(b"2", **{**FACE, "preview": "to='\x1b[2J'"})
            (lease,) = await mail.claim()
            await lease.nack(reason="no luck")
            await mail.claim(exported=True, worker="w1")

    asyncio.run(main())
    return path


def test_lists_show_what_a_job_is(store):
    (letter,) = objects("dead", store, "mail")
    assert {name: letter[name] for name in FACE} == FACE
    text = run("dead", store, "mail").stdout
    assert "send(to='a@example.org')" in text
    assert "customer=7" in text
    assert "\x1b" not in run("ls", store, "mail").stdout
    shown = run("show", store, letter["id"]).stdout
    assert "send" in shown
    assert "to='a@example.org'" in shown
    assert first("show", store, letter["id"])["result"]["labels"] == {"customer": "7"}


def test_top_shows_what_runs(store):
    text = run("top", store, "--count", 1).stdout
    assert "working on send(to='" in text
    assert "of mail, attempt 1 by w1" in text
    assert "\x1b[2J" not in text


def test_what_a_run_reports_stands_in_lists_and_top_and_labels_in_the_history(tmp_path):
    path = make(tmp_path / "s")

    async def main():
        async with lodeq.open(path) as engine:
            mail = engine.queue("mail")
            await mail.enqueue(b"1", **FACE)
            await (await mail.claim_one()).complete(b"ok")
            await mail.enqueue(b"1", **FACE)
            (lease,) = await mail.claim(exported=True, worker="w1")
            await lease.progress(0.4, "page 3 \x1b[2J")

    asyncio.run(main())
    for args in (("ls", path, "mail", "--state", "leased"), ("find", path, "--state", "leased")):
        head, row = run(*args).stdout.splitlines()
        assert "progress" in head.split()
        assert "40 % page 3" in row
        assert "\x1b" not in row
    top = run("top", path, "--count", 1).stdout
    assert "attempt 1 by w1: 40 % page 3" in top
    head, row = run("history", path, "mail").stdout.splitlines()
    assert "labels" in head.split()
    assert "customer=7" in row
