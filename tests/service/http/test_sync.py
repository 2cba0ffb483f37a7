"""Threads: one script, over a store of its own and over a served one."""

import threading

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio.from_thread import start_blocking_portal
from support_http import serving, socket_path

import lodeq
import lodeq.sync
import lodeq.testing
from lodeq.client.blocking import leases
from lodeq.client.blocking.cluster import together
from lodeq.client.transport.transport import SyncTransport


@pytest.fixture(scope="module")
def url():
    """A server whose loop is in another thread."""
    with socket_path() as path, start_blocking_portal() as portal:
        opening = lodeq.testing.open()
        engine = portal.call(opening.__aenter__)
        with portal.wrap_async_context_manager(serving(engine, path=path)) as url:
            yield url
        portal.call(opening.__aexit__, None, None, None)


@pytest.fixture(params=["embedded", "served"])
def engine(request, tmp_path):
    if request.param == "embedded":
        opened = lodeq.sync.open(tmp_path / "s", block_cache_bytes=8 << 20)
    else:
        opened = lodeq.sync.connect(request.getfixturevalue("url"))
    with opened as engine:
        yield engine


@pytest.fixture
def queue(engine, request):
    """Of its own for each test: they share a server."""
    name = request.node.name.partition("[")[0].replace("test_", "")[:60].strip("_")
    return engine.queue(name)


def test_a_life(engine, queue):
    receipt = queue.enqueue({"to": "a"}, headers={"trace": "1"}, priority=7)
    (lease,) = queue.claim(worker="w1")
    assert (lease.task_id, lease.payload, lease.headers) == (
        receipt.id,
        {"to": "a"},
        {"trace": "1"},
    )
    assert (lease.priority, lease.attempt, lease.queue, lease.tenant) == (7, 1, queue.name, "")
    before = lease.deadline
    assert lease.heartbeat(600) > before
    assert lease.deadline > before
    lease.complete({"ok": True}, then=[lodeq.NewTask(b"next")])
    result = engine.result(receipt.id, wait=5)
    assert (result.status, result.value, result.worker) == ("completed", {"ok": True}, "w1")
    assert engine.get(receipt.id).state == "completed"
    assert queue.claim_one().payload == b"next"
    assert queue.claim_one() is None


def test_what_can_be_done_with_a_lease(engine, queue):
    queue.enqueue_many([lodeq.NewTask(n) for n in range(5)])
    one, two, three, four, five = queue.claim(limit=5)
    one.nack(delay=0, reason="no luck")
    two.release()
    three.bury("poison")
    four.complete(durable=True)
    five.cancel()
    assert engine.result(five.task_id).status == "cancelled"
    with pytest.raises(lodeq.LeaseLostError):
        five.cancel()
    with pytest.raises(lodeq.LeaseLostError) as caught:
        three.complete()
    assert caught.value.task_id == three.task_id
    assert [(task.payload, task.attempts) for task in queue.peek()] == [(1, 0), (0, 1)]
    assert [(task.payload, task.reason) for task in queue.dead_letters()] == [(2, "poison")]
    assert queue.redrive([three.task_id]) == 1
    assert engine.cancel(three.task_id)
    assert not engine.cancel(three.task_id)
    assert queue.purge() == 2


def test_batches(engine, queue):
    receipts = engine.enqueue_many([lodeq.NewTask(n, queue=queue.name) for n in range(10)])
    leases = engine.claim([queue], limit=64)
    assert engine.heartbeat_many(leases, 60) == [None] * 10
    leases[3].release()
    outcomes = engine.complete_many([(lease, lease.payload) for lease in leases])
    assert [n for n, one in enumerate(outcomes) if one is not None] == [3]
    assert isinstance(outcomes[3], lodeq.LeaseLostError)
    assert engine.result(receipts[7].id).value == 7


def test_a_block_ends_its_lease(engine, queue):
    queue.enqueue_many([lodeq.NewTask(n, max_attempts=1) for n in range(4)])
    one, two, three, four = queue.claim(limit=4)
    with one:
        pass
    with pytest.raises(KeyError), two:
        raise KeyError("k")
    with pytest.raises(KeyboardInterrupt), three:
        raise KeyboardInterrupt
    with four:
        four.complete("already")
    assert engine.result(four.task_id).value == "already"
    assert engine.get(one.task_id).state == "completed"
    assert [task.reason for task in queue.dead_letters()] == ["KeyError('k')"]
    assert [(task.payload, task.attempts) for task in queue.peek()] == [(2, 0)]


def test_a_stream(engine, queue):
    queue.enqueue_many([lodeq.NewTask(n) for n in range(5)])
    seen = []
    for lease in queue.leases(limit=4):
        with lease:
            seen.append(lease.payload)
        if len(seen) == 2:
            break
    with queue.leases(limit=2, keepalive=False) as stream:
        for lease in stream:
            with lease:
                seen.append(lease.payload)
            if len(seen) == 4:
                break
        assert next(iter(stream)).payload == 4
    assert seen == [0, 1, 2, 3]


def test_operating(engine, queue):
    queue.enqueue(b"x", dedup_key="k")
    with pytest.raises(lodeq.DuplicateTaskError):
        queue.enqueue(b"y", dedup_key="k", on_conflict="raise")
    queue.pause()
    assert queue.stats().is_paused
    assert queue.claim() == []
    queue.resume()
    (task,) = queue.list("ready")
    assert queue.list("ready", after=task) == []
    engine.fsync()
    assert engine.health().ok
    assert engine.verify().ok
    assert engine.migrate_bodies().files == 0
    assert engine.stats().ready >= 1
    assert engine.shards == 1
    assert engine.durability == "nosync"
    assert queue.purge("ready") == 1


def test_wrong_calls(engine, queue):
    for wrong in (
        lambda: engine.claim(queue),
        lambda: engine.claim([]),
        lambda: engine.complete_many([(5, None)]),
        lambda: engine.heartbeat_many([5]),
        lambda: engine.queue("UPPER"),
        lambda: engine.get("no id"),
        lambda: queue.list("lost"),
        lambda: queue.list("ready", limit=0),
        lambda: queue.list("ready", after="x"),
        lambda: queue.claim(limit=0),
        lambda: queue.claim(wait=-1),
        lambda: queue.enqueue_many(5),
        lambda: queue.enqueue_many([5]),
        lambda: engine.enqueue_many([lodeq.NewTask(1)]),
        lambda: engine.queue("q", tenant=lodeq.ALL_TENANTS).enqueue(1),
        lambda: engine.queue("q", max_attempts=0),
        lambda: engine.queue("q", backoff=5),
    ):
        with pytest.raises(lodeq.UsageError):
            wrong()
    with pytest.raises(lodeq.TaskNotFoundError):
        engine.result(lodeq.TaskId(bytes(16)))
    assert engine.get(lodeq.TaskId(bytes(16))) is None


def test_many_threads(engine, queue):
    def work(n):
        queue.enqueue(n)
        with queue.claim_one(wait=10) as lease:
            done.append(lease.payload)

    done = []
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(8))


def test_a_closed_client(url):
    client = lodeq.sync.connect(url)
    queue = client.queue("mail")
    client.close()
    client.close()
    for call in (client.stats, queue.claim):
        with pytest.raises(lodeq.ClosedError):
            call()


class Hurried(threading.Event):
    """Its waits are over at once, until it has been asked for three."""

    def __init__(self):
        super().__init__()
        self.waits = []
        self.begun = threading.Event()
        self.beaten = threading.Event()

    def wait(self, timeout=None):
        self.begun.wait(30)
        self.waits.append(timeout)
        if len(self.waits) < 3:
            return self.is_set()
        self.beaten.set()
        return super().wait()


def test_a_thread_of_its_own_keeps_leases_alive(url, monkeypatch):
    with lodeq.sync.connect(url) as client:
        queue = client.queue("beats", lease=60)
        queue.enqueue_many([lodeq.NewTask(n) for n in range(2)])
        monkeypatch.setattr(leases, "Event", Hurried)
        with queue.leases() as stream:
            lease = next(iter(stream))
            before = lease.deadline
            stream._over.begun.set()
            assert stream._over.beaten.wait(30)  # while this thread does nothing for it
            assert lease.deadline > before
            lease.complete()
        assert stream._over.waits[:3] == [20.0] * 3
        assert queue.stats().ready == 1


def no_thread(self):
    raise RuntimeError("can't start new thread")


def test_without_a_thread_for_heartbeats_what_was_claimed_goes_back(url, monkeypatch):
    with lodeq.sync.connect(url) as client:
        queue = client.queue("threadless")
        queue.enqueue_many([lodeq.NewTask(n) for n in range(3)])
        with monkeypatch.context() as patch:
            patch.setattr(leases.Thread, "start", no_thread)
            with pytest.raises(lodeq.StorageError, match="no thread"):
                next(queue.leases(limit=3).__iter__())
        assert [(task.payload, task.attempts) for task in queue.list("ready")] == [
            (0, 0),
            (1, 0),
            (2, 0),
        ]


def test_without_threads_several_nodes_are_asked_one_after_another(monkeypatch):
    monkeypatch.setattr(together.Thread, "start", no_thread)
    assert together.gather([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]
    stopped = []
    assert together.first_true([lambda: True, lambda: True], stopped.append) == 0
    assert together.first_true([lambda: False, lambda: True], stopped.append) is None
    assert stopped == []


def test_who_gets_no_thread_is_not_asked_and_the_others_are(monkeypatch):
    real, started = threading.Thread.start, []

    def start(self):
        started.append(self)
        if len(started) % 2:
            no_thread(self)
        real(self)

    monkeypatch.setattr(together.Thread, "start", start)
    assert together.gather([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]
    started.clear()
    assert together.first_true([lambda: True, lambda: True], lambda n: None) == 1
    started.clear()
    assert together.first_true([lambda: True, lambda: False], lambda n: None) is None


@pytest.fixture
def own():
    """(portal, engine, address) of a server for one test."""
    with socket_path() as path, start_blocking_portal() as portal:
        opening = lodeq.testing.open()
        engine = portal.call(opening.__aenter__)
        with portal.wrap_async_context_manager(serving(engine, path=path)) as url:
            yield portal, engine, url
        portal.call(opening.__aexit__, None, None, None)


def waiting(engine):
    """How many claims wait."""
    return sum(map(len, engine._state.waiters.by_tenant_queue.values()))


def claiming(client, outcome, wait=3600):
    def claim():
        try:
            outcome.append(client.queue("mail").claim(wait=wait))
        except lodeq.LodeqError as error:
            outcome.append(error)

    thread = threading.Thread(target=claim, daemon=True)
    thread.start()
    return thread


def test_a_claim_that_waits_ends_when_another_thread_closes(own):
    portal, engine, url = own
    client, outcome = lodeq.sync.connect(url), []
    threads = [claiming(client, outcome) for _ in range(3)]
    while portal.call(waiting, engine) < 3:
        pass
    client.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert [type(one) for one in outcome] == [lodeq.ClosedError] * 3
    portal.call(engine.queue("mail").enqueue, b"x")
    assert portal.call(engine.queue("mail").stats).ready == 1


class HeldLink(SyncTransport):
    """The answer of a claim is there, but not read yet."""

    def __init__(self, target):
        super().__init__(target)
        self.granted, self.goes_on = threading.Event(), threading.Event()

    def send(self, call):
        doc = super().send(call)
        if call.path == "/leases/claim":
            self.granted.set()
            assert self.goes_on.wait(30)
        return doc


def test_what_is_granted_while_another_thread_closes_goes_back(own):
    portal, engine, url = own
    portal.call(engine.queue("mail").enqueue, b"x")
    client, outcome = lodeq.sync.connect(url), []
    client._transport.close()
    link = client._transport = HeldLink(client._transport.target)
    thread = claiming(client, outcome)
    assert link.granted.wait(30)
    assert portal.call(engine.queue("mail").stats).leased == 1
    client.close()
    link.goes_on.set()
    thread.join(30)
    assert [type(one) for one in outcome] == [lodeq.ClosedError]
    assert portal.call(engine.queue("mail").stats).ready == 1


def test_what_was_claimed_before_the_end_is_the_callers(own):
    portal, engine, url = own
    portal.call(engine.queue("mail").enqueue, b"x")
    with lodeq.sync.connect(url) as client:
        (lease,) = client.queue("mail").claim()
    assert portal.call(engine.queue("mail").stats).leased == 1
    with pytest.raises(lodeq.ClosedError):
        lease.complete()


def test_a_client_that_closes_asks_a_server_that_is_gone_once(own):
    _, _, url = own
    client = lodeq.sync.connect(url)
    link = client._transport
    calls, client._claims._ids = [], {bytes([n]) * 16 for n in range(9)}

    def send(call):
        calls.append(call)
        raise lodeq.UnreachableError("gone")

    link.send = send
    client.close()
    assert len(calls) == 1


def test_a_client_on_a_loop_closes_its_twin_for_threads_too(own):
    portal, engine, url = own

    async def life():
        async with lodeq.connect(url) as client:
            twin, outcome = client.sync, []
            thread = claiming(twin, outcome)
            while not waiting(engine):
                await anyio.lowlevel.checkpoint()
        await anyio.to_thread.run_sync(thread.join, 30)
        return outcome

    assert [type(one) for one in portal.call(life)] == [lodeq.ClosedError]


def test_functions_and_workers(engine, queue):
    """Blocking: published, called by name, and reported; the suite has the details."""
    function = lodeq.PublishedFunction(
        queue.name, "send", max_attempts=2, parameters=(lodeq.FunctionParameter("to"),)
    )
    assert engine.publish_functions([function]) == 1
    (found,) = engine.functions(queue.name)
    assert (found.name, found.max_attempts, found.parameters) == ("send", 2, function.parameters)
    receipt = engine.enqueue_function(queue.name, "send", {"to": "a"}, headers={"x": 1})
    assert engine.get(receipt.id).max_attempts == 2
    with pytest.raises(lodeq.UsageError, match="needs the argument 'to'"):
        engine.enqueue_function(queue.name, "send", {})
    with pytest.raises(lodeq.UsageError, match="did you mean 'send'"):
        engine.enqueue_function(queue.name, "sent", {})
    engine.beat(lodeq.WorkerReport(queue.name, (queue.name,)))
    assert queue.name in [one.name for one in engine.workers()]
    engine.beat(lodeq.WorkerReport(queue.name, is_over=True))
    assert queue.name not in [one.name for one in engine.workers()]
    assert engine.forget_function(queue.name, "send")
    engine.enqueue_many([lodeq.NewTask(b"", queue.name, retry=lodeq.Backoff("fixed", base=5.0))])


def test_progress_of_a_run(engine, queue):
    receipt = queue.enqueue(b"x")
    (lease,) = queue.claim()
    lease.progress(0.5, "halfway")
    assert engine.get(receipt.id).progress[:2] == (0.5, "halfway")
    lease.complete()
    assert engine.get(receipt.id).progress is None
    with pytest.raises(lodeq.LeaseLostError):
        lease.progress(1)
