"""``App(…, serve=True, join=True)``: several processes, one of which owns the store."""

import contextlib
import signal
import subprocess
import sys

import anyio
import pytest
from support_http import socket_path

import lodeq
import lodeq.sync
from lodeq.client.engine import RemoteEngine
from lodeq.engine.files.served_note import find_served
from lodeq.worker import App

CACHE_BYTES = 8 << 20

SCRIPT = """
import asyncio, logging, sys
from lodeq.worker import App

class Print(logging.Handler):
    def emit(self, record):
        event = getattr(record, "event", "")
        if event.startswith(("store_", "take_")):
            print(event, flush=True)

logging.getLogger("lodeq").addHandler(Print())
logging.getLogger("lodeq").setLevel(logging.INFO)
app = App(sys.argv[1], serve=True, join=True, block_cache_bytes=8 << 20)

@app.task("mail")
async def send(n):
    print("ran", n, flush=True)

async def main():
    async with app, app.work():
        print("open", type(app.engine).__name__, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            await send.enqueue(int(line))

asyncio.run(main())
print("over", flush=True)
"""


class Member:
    """One process of the service."""

    def __init__(self, store):
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SCRIPT, str(store)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def until(self, line):
        """Read lines up to this one; return those before."""
        before = []
        for found in self.process.stdout:
            if found.strip() == line:
                return before
            before.append(found.strip())
        raise AssertionError(f"{line!r} never came: {before}")

    def enqueue(self, n):
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()


@pytest.fixture
def store():
    with socket_path() as path:
        yield path


@pytest.fixture
def start(store):
    members = []

    def start():
        members.append(Member(store))
        return members[-1]

    yield start
    for one in members:
        one.process.kill()
        one.process.wait()
        one.process.stdout.close()
        with contextlib.suppress(OSError):
            one.process.stdin.close()


@pytest.mark.crash
def test_a_joined_process_takes_the_place_of_one_that_died(store, start):
    owner = start()
    owner.until("open Engine")
    joined = start()
    assert "store_joined" in joined.until("open RemoteEngine")
    assert find_served(store).pid == owner.process.pid

    owner.process.send_signal(signal.SIGSTOP)  # what is enqueued now is for the other
    owner.process.send_signal(signal.SIGCONT)
    owner.process.kill()
    owner.process.wait()
    joined.until("store_taken_over")
    joined.enqueue(7)  # through its own socket
    joined.until("ran 7")
    note = find_served(store)
    assert (note.pid, note.url) == (joined.process.pid, f"unix://{store}.sock")
    with lodeq.sync.connect(note.url) as client:
        assert client.queue("mail").stats().ready == 0

    third = start()
    assert "store_joined" in third.until("open RemoteEngine")
    third.enqueue(8)
    joined.process.stdin.close()  # it ends as it should
    joined.until("over")
    assert joined.process.wait(30) == 0
    third.until("store_taken_over")
    third.enqueue(9)
    third.until("ran 9")
    third.process.stdin.close()
    third.until("over")
    assert find_served(store) is None
    with lodeq.sync.open(store, block_cache_bytes=CACHE_BYTES) as engine:
        assert engine.queue("mail").stats().leased == 0
        assert engine.verify().ok


@pytest.mark.crash
def test_of_several_one_becomes_the_owner(store, start):
    owner = start()
    owner.until("open Engine")
    others = [start(), start()]
    for one in others:
        one.until("open RemoteEngine")
    owner.process.kill()
    owner.process.wait()
    pids = [one.process.pid for one in others]
    while (note := find_served(store)) is None or note.pid not in pids:
        assert [one.process.poll() for one in others] == [None, None]
    winner = others[pids.index(note.pid)]
    winner.until("store_taken_over")
    (loser,) = [one for one in others if one is not winner]
    with lodeq.sync.connect(note.url) as client:  # what both of them say is stored and done
        for n, one in enumerate((loser, winner)):
            one.enqueue(n)
        while client.queue("mail").stats().results < 2:
            assert [one.process.poll() for one in others] == [None, None]
    assert find_served(store).pid == winner.process.pid


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
class TestInOneProcess:
    async def test_the_second_is_a_client(self, store):
        first = App(store, serve=True, join=True, block_cache_bytes=CACHE_BYTES)
        second = App(store, serve=True, join=True, block_cache_bytes=CACHE_BYTES)
        async with first, second:
            assert isinstance(first.engine, lodeq.Engine)
            assert isinstance(second.engine, RemoteEngine)
            receipt = await second.engine.queue("mail").enqueue(b"x")
            assert (await first.engine.get(receipt.id)).state == "ready"

    async def test_it_serves_where_it_joined_whatever_it_was_given(self, store):
        """Or its own client, and those of the others, would look in vain."""
        token = "a token of some length"
        first = App(store, serve=lodeq.Serve("127.0.0.1:0", token=token), join=True)
        second = App(store, serve=lodeq.Serve("127.0.0.1:0", token=token), join=True)
        await first.__aenter__()
        async with second:
            url = find_served(store).url
            await first.__aexit__(None, None, None)
            with anyio.fail_after(60):
                while (note := find_served(store)) is None or note.url != url:
                    await anyio.lowlevel.checkpoint()
            await second.engine.queue("mail").enqueue(b"x")

    async def test_one_that_serves_nothing_cannot_be_joined(self, store, monkeypatch):
        monkeypatch.setattr("lodeq.service.worker.shared_store.JOIN_WAIT_S", 0.0)
        monkeypatch.setattr("lodeq.repository.api.open.NOTE_WAIT_S", 0.0)
        async with lodeq.open(store, block_cache_bytes=CACHE_BYTES):
            with pytest.raises(lodeq.LockedError, match="in this process"):
                await App(store, serve=True, join=True).__aenter__()


@pytest.mark.slow
def test_without_an_event_loop(store):
    """The second one is a client as well; it does not take over."""
    with App(store, serve=True, block_cache_bytes=CACHE_BYTES) as first:
        with App(store, serve=True, join=True) as second:
            receipt = second.sync_engine().queue("mail").enqueue(b"x")
        assert first.sync_engine().get(receipt.id).state == "ready"
        with pytest.raises(lodeq.LockedError), App(store, serve=True):
            pass
    assert find_served(store) is None


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr("lodeq.service.worker.app_store.RETRY_S", 0.0)


class Held:
    """Stands for an open store."""

    def close(self):
        """Nothing to close."""


def locked(address=None):
    return lodeq.LockedError("open already", pid=1, address=address)


def in_turn(monkeypatch, name, *answers):
    """Each call of ``lodeq.sync.<name>`` gets the next of these; returns the calls."""
    calls = []

    def call(*args, **options):
        calls.append(args)
        answer = answers[min(len(calls), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(lodeq.sync, name, call)
    return calls


def test_without_an_event_loop_it_waits_for_an_owner_that_opens(store, monkeypatch, no_pauses):
    """A store that was not closed takes its time to open, and all processes start at once."""
    client = Held()
    opened = in_turn(monkeypatch, "open", locked(), locked(), locked("unix:///run/x.sock"))
    joined = in_turn(monkeypatch, "connect", lodeq.UnreachableError("it has just died"), client)
    with App(store, serve=True, join=True) as app:
        assert app.sync_engine() is client
    assert len(opened) == 4
    assert joined == [("unix:///run/x.sock",)] * 2


def test_without_an_event_loop_it_becomes_the_owner_where_that_has_died(
    store, monkeypatch, no_pauses
):
    own = Held()
    in_turn(monkeypatch, "open", locked("unix:///run/x.sock"), own)
    in_turn(monkeypatch, "connect", lodeq.UnreachableError("it has just died"))
    with App(store, serve=True, join=True) as app:
        assert app.sync_engine() is own


@pytest.mark.parametrize("address", [None, "unix:///run/x.sock"])
def test_without_an_event_loop_it_gives_up_in_time(store, monkeypatch, no_pauses, address):
    monkeypatch.setattr("lodeq.service.worker.app_store.JOIN_WAIT_S", 0.0)
    in_turn(monkeypatch, "open", locked(address))
    in_turn(monkeypatch, "connect", lodeq.UnreachableError("nobody answers"))
    with pytest.raises(lodeq.LodeqError, match="nobody answers" if address else "open already"):
        App(store, serve=True, join=True).__enter__()


def test_without_joining_it_does_not_wait(store, monkeypatch):
    opened = in_turn(monkeypatch, "open", locked())
    with pytest.raises(lodeq.LockedError):
        App(store, serve=True).__enter__()
    assert len(opened) == 1


def test_what_makes_no_sense_is_refused():
    for wrong in (
        lambda: App("jobs", join=True),
        lambda: App("unix:///run/x.sock", serve=True),
        lambda: App("unix:///run/x.sock", serve=True, join=True),
        lambda: App(lambda: None, serve=True),
    ):
        with pytest.raises(lodeq.UsageError, match="serve="):
            wrong()
