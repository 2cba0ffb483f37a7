"""The thread that keeps the leases of a served store alive."""

import asyncio
import threading

import pytest
from support_behaviour import until
from support_http import ServedOpening, serving, socket_path
from support_loop import on_loop

import lodeq
import lodeq.testing
from lodeq.client.lease import RemoteLease
from lodeq.client.queue import RemoteQueue
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.service.worker.run import claimer, run_end
from lodeq.service.worker.run.backend import SyncHeartbeats, backend_of
from lodeq.service.worker.run.lease_thread import ThreadKeepalive
from lodeq.worker import App, current


class Lease:
    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s


class Wire:
    """Notes what is extended, and answers as it is told."""

    def __init__(self) -> None:
        self.beats: list[set[Lease]] = []
        self.lost: set[Lease] = set()
        self.errors: list[Exception] = []
        self.beaten = threading.Event()

    def heartbeat_many(self, leases):
        if self.errors:
            raise self.errors.pop()
        self.beats.append(set(leases))
        if len(self.beats) >= 3:
            self.beaten.set()
        return [lodeq.LeaseLostError("gone") if x in self.lost else None for x in leases]


@on_loop
async def test_it_beats_while_the_loop_is_blocked() -> None:
    wire, lost = Wire(), []
    keeper = ThreadKeepalive(wire, current_spawner(), lost.append)
    one, two = Lease(0.03), Lease(60)
    keeper.hold([one, two])
    assert wire.beaten.wait(30)  # this is the loop's thread
    keeper.drop(two)
    wire.lost = {one}
    await until(lambda: lost)
    assert lost == [one]
    assert all(beat == {one, two} for beat in wire.beats[:3])
    keeper.close()
    keeper._thread.join(30)
    assert not keeper._thread.is_alive()


@on_loop
async def test_a_loop_that_is_held_is_logged_once_while_it_is(caplog) -> None:
    wire = Wire()
    keeper = ThreadKeepalive(wire, current_spawner(), lambda lease: None)
    keeper.hold([Lease(0.03)])

    def held():
        return [one for one in caplog.records if getattr(one, "event", "") == "loop_late"]

    for n in range(1, 3):
        wire.beaten.clear()
        wire.beats.clear()
        while not held()[n - 1 :]:  # this is the loop's thread: it does not run meanwhile
            assert wire.beaten.wait(30)
        wire.beats.clear()
        wire.beaten.clear()
        assert wire.beaten.wait(30)
        assert len(held()) == n
        assert "has been held for" in held()[-1].getMessage()
        await until(lambda: keeper._asked_mono is None)  # it runs again
    keeper.close()
    keeper._thread.join(30)


@on_loop
async def test_a_beat_that_does_not_get_through_is_sent_again() -> None:
    wire = Wire()
    wire.errors = [lodeq.UnreachableError("gone"), OSError("gone"), ValueError("a bug")]
    keeper = ThreadKeepalive(wire, current_spawner(), lambda lease: None)
    keeper.hold([Lease(0.03)])
    assert wire.beaten.wait(30)
    keeper.close()
    keeper._thread.join(30)


@on_loop
async def test_new_leases_all_the_time_do_not_put_the_beat_off() -> None:
    wire = Wire()
    keeper = ThreadKeepalive(wire, current_spawner(), lambda lease: None)
    while not wire.beaten.is_set():
        lease = Lease(0.3)
        keeper.hold([lease])
        await asyncio.sleep(0)
        keeper.drop(lease)
        keeper.hold([Lease(0.3)])
    keeper.close()
    keeper._thread.join(30)


@on_loop
async def test_a_thread_that_cannot_be_started_holds_nothing(monkeypatch) -> None:
    wire = Wire()
    keeper = ThreadKeepalive(wire, current_spawner(), lambda lease: None)
    with monkeypatch.context() as patch:

        def start(_):
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(lodeq.StorageError, match="no thread"):
            keeper.hold([Lease(0.03)])
    kept = Lease(0.03)
    keeper.hold([kept])
    assert wire.beaten.wait(30)
    assert all(beat == {kept} for beat in wire.beats)
    keeper.close()
    keeper._thread.join(30)


@on_loop
async def test_a_worker_that_cannot_keep_leases_alive_gives_them_back(monkeypatch) -> None:
    app, refused = App(), []

    @app.task("one")
    async def one() -> int:
        return current().attempt

    real = ThreadKeepalive.hold

    def hold(self, leases):
        if not refused:
            refused.append(list(leases))
            raise lodeq.StorageError("no thread for heartbeats")
        real(self, leases)

    monkeypatch.setattr(ThreadKeepalive, "hold", hold)
    async with ServedOpening(lodeq.testing.open()) as client, app.use(client):
        receipt = await one.enqueue()
        async with app.work():
            result = await receipt.result(wait=30)
    assert [len(leases) for leases in refused] == [1]
    assert result.value == 1


def poisoned_at_first(monkeypatch, kind, name):
    """The first two calls meet a poisoned store, the others one that was reopened."""
    real, refused = getattr(kind, name), []

    async def call(self, *args, **options):
        if len(refused) < 2:
            refused.append(name)
            raise lodeq.StoragePoisonedError("every shard is poisoned")
        return await real(self, *args, **options)

    monkeypatch.setattr(kind, name, call)
    return refused


@pytest.mark.parametrize(("kind", "name"), [(RemoteQueue, "claim"), (RemoteLease, "complete")])
@on_loop
async def test_a_worker_outlives_a_poisoned_store_that_another_process_reopens(
    monkeypatch, kind, name
) -> None:
    monkeypatch.setattr(claimer, "PAUSE_S", 0.0)
    monkeypatch.setattr(run_end, "PAUSE_S", 0.0)
    app = App()

    @app.task("one")
    async def one() -> int:
        return current().attempt

    async with ServedOpening(lodeq.testing.open()) as client, app.use(client):
        receipt = await one.enqueue()
        refused = poisoned_at_first(monkeypatch, kind, name)
        async with app.work() as worker:
            result = await receipt.result(wait=30)
        assert worker.error is None
    assert refused == [name, name]
    assert (result.status, result.value) == ("completed", 1)


@on_loop
async def test_a_worker_whose_process_has_taken_a_store_over_ends_when_that_is_poisoned(
    monkeypatch,
) -> None:
    app = App()

    @app.task("one")
    async def one() -> None: ...

    async with ServedOpening(lodeq.testing.open()) as client, app.use(client):
        app.backend().owns_store = lambda: True
        poisoned_at_first(monkeypatch, RemoteQueue, "claim")
        async with app.work() as worker:
            await worker.finished.wait()
    assert isinstance(worker.error, lodeq.StoragePoisonedError)


@pytest.mark.slow
@on_loop
async def test_an_app_lives_in_a_served_store_as_in_its_own() -> None:
    with socket_path() as path:
        async with lodeq.testing.open() as engine, serving(engine, path=path) as url:
            app = App(url)

            @app.task("mail", max_inflight_per_tenant=1)
            async def send(to: str) -> list[object]:
                current().then(audit.new(to))
                return [to, current().tenant, current().engine is app.engine]

            @app.task("audit")
            def audit(text: str) -> str:
                return text

            async with app, app.work() as worker:
                tasks = [send.options(tenant=t).new(t) for t in ("a", "b") for _ in range(3)]
                receipts = await send.enqueue_many(tasks)
                results = [await app.engine.result(one.id, wait=30) for one in receipts]
                assert [r.value for r in results] == [[t, t, True] for t in "aaabbb"]
                await until(lambda: worker.outcomes["completed"] == 12)
            assert (await engine.stats()).completed_total == 12


@on_loop
async def test_a_function_that_closes_the_blocking_client_ends_no_heartbeats() -> None:
    with socket_path() as path:
        async with lodeq.testing.open() as engine, serving(engine, path=path) as url:
            async with lodeq.connect(url) as client:
                await client.queue("mail").enqueue(b"x")
                leases = await client.queue("mail").claim()
                keeper = backend_of(client).start_keepalive(lambda lease: None)

                def beat() -> object:
                    return keeper._connection.heartbeat_many(leases)

                def use() -> int:
                    with client.sync as store:
                        return store.queue("mail").stats().leased

                for _ in range(2):
                    assert await asyncio.to_thread(use) == 1
                    assert await asyncio.to_thread(beat) == [None]
            with pytest.raises(lodeq.ClosedError):
                await asyncio.to_thread(beat)
            with pytest.raises(lodeq.ClosedError):
                await asyncio.to_thread(use)
            keeper.close()


@on_loop
async def test_heartbeats_go_on_where_the_blocking_client_is_closed_under_one() -> None:
    class Client:
        """Its first blocking client is closed while a heartbeat is on its way."""

        def __init__(self) -> None:
            self.wires = [Wire(), Wire()]
            self.wires[0].errors.append(lodeq.ClosedError("this client is closed"))

        @property
        def sync(self) -> Wire:
            return self.wires[not self.wires[0].errors]

    client = Client()
    assert SyncHeartbeats(client).heartbeat_many([Lease(1)]) == [None]
    assert len(client.wires[1].beats) == 1


@on_loop
async def test_drain_works_over_a_client_too() -> None:
    app = App()

    @app.task("mail")
    async def send(to: str) -> str:
        return to

    async with ServedOpening(lodeq.testing.open()) as engine, app.use(engine):
        await send.enqueue("a")
        assert (await app.drain()).completed == 1
