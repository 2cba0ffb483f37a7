"""Payloads above 3 MiB from files and from stdin, into a folder and through a service."""

import os

import pytest
from anyio.from_thread import start_blocking_portal
from support_cli import first, make, objects, run

import lodeq
import lodeq.sync
from lodeq.repository.model.calls.functions import PublishedFunction

LARGE = os.urandom(5 << 20)


@pytest.fixture(params=["folder", "served"])
def store(request, tmp_path):
    """The store as the command line names it: its folder, or its address."""
    folder = make(tmp_path / "s")
    if request.param == "folder":
        yield folder
        return
    with start_blocking_portal() as portal:
        url = f"unix://{tmp_path / 'k'}"
        opening = lodeq.open(folder, serve=str(tmp_path / "k"))
        portal.call(opening.__aenter__)
        yield url
        portal.call(opening.__aexit__, None, None, None)


def payloads(store):
    """Payloads of the queue, and their headers."""
    if str(store).startswith("unix:"):
        opening = lodeq.sync.connect(store)
    else:
        opening = lodeq.sync.open(store)
    with opening as engine:
        tasks = engine.queue("q").list("ready")
        return [(engine.read_payload(one.id), one.headers) for one in tasks]


def test_a_file_is_a_payload(store, tmp_path):
    for n, data in enumerate((LARGE, b"", b"small")):
        (tmp_path / "f").write_bytes(data)
        run("enqueue", store, "q", "--file", tmp_path / "f", "--header", f"n={n}", "--durable")
    assert payloads(store) == [
        (LARGE, {"n": "0"}),
        (b"", {"n": "1"}),
        (b"small", {"n": "2"}),
    ]


def test_stdin_is_a_payload(store):
    (said,) = objects("enqueue", store, "q", "--dedup-key", "k", "--json", stdin=LARGE)
    (again,) = objects(
        "enqueue", store, "q", "-", "--raw", "--dedup-key", "k", "--json", stdin=LARGE
    )
    assert (said["duplicate"], again["duplicate"], again["id"]) == (False, True, said["id"])
    assert payloads(store) == [(LARGE, {})]


def test_what_cannot_be_is_refused(store, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(LARGE * 13)  # 65 MiB
    for args, text in (
        (["--file", path], "store it elsewhere"),
        (["--file", tmp_path / "none"], "cannot be read: No such file"),
        (["--file", tmp_path], "cannot be read: Is a directory"),
        (["--file", path, "--after", "0" * 32], "waits for no other task"),
        (["--file", path, "text"], "give it alone"),
        (["--file", path, "--parse"], "give it alone"),
        (["--file", path, "--lines"], "give it alone"),
        (["--file", path, "--arg", "a=1"], "give it alone"),
    ):
        assert text in run("enqueue", store, "q", *args, code=2).stderr, args
    assert payloads(store) == []


def test_a_queue_of_functions_takes_one_with_raw(store, tmp_path):
    opening = lodeq.sync.connect if str(store).startswith("unix:") else lodeq.sync.open
    with opening(store) as engine:
        engine.publish_functions([PublishedFunction("q", "f")])
    (tmp_path / "f").write_bytes(LARGE)
    refused = run("enqueue", store, "q", "--file", tmp_path / "f", code=2)
    assert "runs functions, which cannot take this payload" in refused.stderr
    run("enqueue", store, "q", "--file", tmp_path / "f", "--raw")
    assert payloads(store) == [(LARGE, {})]
    assert first("ls", store)["ready"] == 1
