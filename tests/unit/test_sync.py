"""``lodeq.sync.open``: a script without an event loop of its own."""

import signal
import subprocess
import sys
import threading

import pytest

import lodeq
import lodeq.sync
from lodeq.repository.api.threads.thread_calls import ThreadCalls

CACHE_BYTES = 8 << 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


def open_(path, **options):
    return lodeq.sync.open(path, block_cache_bytes=CACHE_BYTES, **options)


def host_threads():
    return [thread for thread in threading.enumerate() if thread.name == "lodeq-loop"]


def test_a_script(path):
    with open_(path, shards=2, durability="fsync") as engine:
        assert (engine.shards, engine.durability, engine.path) == (2, "fsync", str(path))
        queue = engine.queue("mail")
        receipts = queue.enqueue_many([lodeq.NewTask(n) for n in range(5)])
        for lease in queue.leases(limit=2):
            with lease:
                lease.complete(lease.payload * 2)
            if lease.payload == 3:
                break
        assert [engine.result(r.id).value for r in receipts[:4]] == [0, 2, 4, 6]
        assert engine.verify().ok
    with open_(path) as engine:
        assert engine.queue("mail").stats().ready == 1
    assert not host_threads()


def test_closing_is_idempotent_and_final(path):
    engine = open_(path)
    engine.queue("mail").enqueue(b"x")
    engine.close()
    engine.close()
    with engine:
        pass
    assert not host_threads()
    for call in (engine.stats, engine.queue("mail").claim):
        with pytest.raises(lodeq.ClosedError):
            call()


def test_closing_what_another_thread_closes_meanwhile(path, monkeypatch):
    real = ThreadCalls.__call__

    def overtaken(self, fn, *args, **options):
        monkeypatch.undo()
        other = threading.Thread(target=engine.close)
        other.start()
        other.join()
        return real(self, fn, *args, **options)

    engine = open_(path)
    monkeypatch.setattr(ThreadCalls, "__call__", overtaken)
    engine.close()
    assert not host_threads()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_way_out_over_a_closed_engine_stays_what_it_is(path, error):
    engine = open_(path)
    engine.queue("mail").enqueue(b"x")
    lease = engine.queue("mail").claim_one()

    def work():
        with lease:
            engine.close()
            raise error

    with pytest.raises(error):
        work()
    with pytest.raises(lodeq.ClosedError), lease:
        pass


def test_an_error_in_the_block_closes_all_the_same(path):
    with pytest.raises(KeyError), open_(path):
        raise KeyError("k")
    open_(path).close()


def test_errors_of_opening_arrive(path, tmp_path):
    with open_(path, shards=2), pytest.raises(lodeq.LockedError):
        open_(path)
    with pytest.raises(lodeq.ShardCountError):
        open_(path, shards=3)
    with pytest.raises(lodeq.UsageError):
        open_(path, commit_batch_max=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(lodeq.StorePathError):
        open_(tmp_path / "file")
    assert not host_threads()


def test_several_threads_share_it(path):
    def work(n):
        queue = engine.queue("mail")
        queue.enqueue(n)
        with queue.claim_one(wait=10):
            pass

    with open_(path) as engine:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert engine.stats().completed_total == 8


def test_closing_ends_the_calls_of_other_threads(path):
    found = []

    def wait():
        try:
            queue.claim(wait=60)
        except lodeq.ClosedError:
            found.append("closed")

    with open_(path) as engine:
        queue = engine.queue("mail")
        thread = threading.Thread(target=wait)
        thread.start()
        while not engine._twin._state.waiters.by_tenant_queue:
            engine.stats()
    thread.join()
    assert found == ["closed"]


def interrupt_when(condition):
    """Ctrl-C, as soon as the main thread waits."""

    def run():
        while not condition():
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.fixture
def heeds_interrupts():
    """Whatever the suite was started from: a shell ignores them for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
def test_an_interrupt_ends_a_wait_and_the_engine_goes_on(path):
    with open_(path) as engine:
        queue = engine.queue("mail")
        by_tenant_queue = engine._twin._state.waiters.by_tenant_queue
        thread = interrupt_when(lambda: by_tenant_queue)
        with pytest.raises(KeyboardInterrupt):
            queue.claim(wait=60)
        thread.join()
        queue.enqueue(b"x")
        assert queue.claim_one().attempt == 1  # the interrupted claim took nothing
        assert not by_tenant_queue


def test_an_interrupt_in_a_loop_over_leases_gives_back(path):
    with open_(path) as engine:
        queue = engine.queue("mail")
        queue.enqueue_many([lodeq.NewTask(n) for n in range(3)])

        def work():
            for lease in queue.leases():
                with lease:
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            work()
        assert queue.stats().ready == 3


SCRIPT = """
import sys, lodeq, lodeq.sync
engine = lodeq.sync.open(sys.argv[1])
engine.queue("mail").enqueue(b"x", durable=True)
{end}
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "raise KeyError", "sys.exit(3)"])
def test_a_script_that_forgets_to_close_ends(path, end):
    code = SCRIPT.format(end=end)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == {"": 0, "raise KeyError": 1, "sys.exit(3)": 3}[end]
    assert end == "raise KeyError" or run.stderr == ""
    with open_(path) as engine:
        assert engine.queue("mail").stats().ready == 1
