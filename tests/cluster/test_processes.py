"""One store, several processes: what docs/how-to/many-cores.md promises, fault by fault."""

import asyncio
import contextlib
import json
import os
import signal

import pytest
from support_processes import Served, is_gone, looked, served
from support_roles import entry, token_of, write_tokens

import lodeq
from lodeq.engine.recovery.checkpoint import restore
from lodeq.worker import App

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

TASKS = 60


def payloads(*bounds: int) -> list[lodeq.NewTask]:
    return [lodeq.NewTask(b"%d" % n) for n in range(*bounds)]


async def drained(queue) -> list[bytes]:
    """Complete what there is; the payloads."""
    found = []
    while leases := await queue.claim(limit=20):
        for lease in leases:
            await lease.complete(lease.payload)
            found.append(lease.payload)
    return found


async def ended(engine):
    """Ids of all tasks that have a result."""
    cursor = None
    while True:
        page = await engine.history("mail", limit=100, cursor=cursor)
        for result in page:
            yield result.task_id
        cursor = page.cursor
        if cursor is None:
            return


async def by_shard(engine) -> list[int]:
    return [one.shard for one in (await engine.stats()).shards]


async def test_tasks_spread_over_all_processes_and_the_folder_is_a_store_like_any_other():
    async with served() as one:
        async with one.connect() as engine:
            assert (engine.shards, await by_shard(engine)) == (4, [0, 1, 2, 3])
            queue = engine.queue("mail")
            single = [await queue.enqueue(b"%d" % n) for n in range(TASKS)]
            batch = await queue.enqueue_many(payloads(TASKS, 2 * TASKS))
            ids = [receipt.id for receipt in (*single, *batch)]
            assert (await queue.stats()).ready == len(ids)
            twice = [await queue.enqueue(b"x", dedup_key=f"k{n}") for n in range(8) for _ in (0, 1)]
            assert [receipt.duplicate for receipt in twice] == [False, True] * 8
            done = await drained(queue)
            assert len(done) == len(ids) + 8
            results = [await engine.result(task_id) for task_id in ids]
            assert [result.value for result in results] == [b"%d" % n for n in range(2 * TASKS)]
            left = await queue.enqueue(b"left")
        assert await one.stop() == 0
        async with lodeq.open(one.path) as engine:  # the same files
            queue = engine.queue("mail")
            assert (await engine.result(ids[0])).value == b"0"
            (lease,) = await queue.claim(limit=10)
            assert (lease.task_id, lease.attempt) == (left.id, 1)
            assert (await engine.verify()).ok


async def test_tokens_with_roles_count_at_every_process_and_at_the_main_address(tmp_path):
    everything = tmp_path / "token"
    everything.write_text(token_of("all"))
    everything.chmod(0o600)
    web, reader = entry("web", "producer", queues=["mail"]), entry("look", "reader")
    some = entry("some", "reader", "worker", queues=["mail"])
    file = write_tokens(tmp_path / "t", web, reader, some, entry("boss", "admin"))
    async with served(
        "--token-file", str(everything), "--tokens", str(file), token=token_of("all")
    ) as one:
        async with one.connect(token=token_of("web")) as engine:
            await engine.queue("mail").enqueue_many(payloads(TASKS))
            with pytest.raises(lodeq.AccessDeniedError, match="needs the scope worker"):
                await engine.queue("mail").claim()
            with pytest.raises(lodeq.AccessDeniedError, match="scope producer:other"):
                await engine.queue("other").enqueue(b"x")
        async with one.connect(token=token_of("some")) as engine:
            assert len(await drained(engine.queue("mail"))) == TASKS
            assert [name for name, _ in await engine.queues()] == ["mail"]
            with pytest.raises(lodeq.AccessDeniedError, match="for all queues"):
                await engine.stats()
        wanted = {  # at the main address, where the supervisor itself asks with the one token
            "/v1/health": {"look", "boss", "all"},
            "/v1/stats": {"look", "boss", "all"},
            "/v1/processes": {"look", "boss", "all"},
            "/metrics": {"look", "boss", "all"},
            "/v1/engine": {"web", "look", "some", "boss", "all"},
            "/v1/cluster": {"web", "look", "some", "boss", "all"},
            "/": {"all"},
        }
        for path, names in wanted.items():
            for name in ("web", "look", "some", "boss", "all"):
                status = (await one.get(path, token_of(name))).status_code
                assert status == (200 if name in names else 403), (path, name)
            assert (await one.get(path, "no such token")).status_code in (401, 303)
        assert (await one.get("/v1/queues", token_of("look"))).status_code == 200
        assert (await one.get("/v1/queues", token_of("some"))).status_code == 421
        assert (await one.get("/v1/queues", token_of("web"))).status_code == 403
        assert (await one.post("/v1/fsync", token_of("look"))).status_code == 403
        assert (await one.post("/v1/fsync", token_of("boss"))).status_code == 200
        write_tokens(tmp_path / "t", reader, some)  # ``web`` has left

        async def is_gone() -> bool:
            return (await one.get("/v1/engine", token_of("web"))).status_code == 401

        await looked(is_gone)
        with pytest.raises(lodeq.AccessDeniedError):
            async with one.connect(token=token_of("web")) as engine:
                await engine.queue("mail").enqueue(b"x")


async def test_a_folder_that_is_served_is_refused_and_leads_to_all_of_it():
    async with served() as one:
        with pytest.raises(lodeq.LockedError) as caught:
            await lodeq.open(one.path)
        assert caught.value.address == one.url
        assert caught.value.pid == one.pid
        said = await one.cli("reshard", str(one.path), "--shards", "8", code=2)
        assert "is open already" in said

        await one.cli("enqueue", str(one.path), "mail", "by folder")
        await one.cli("enqueue", one.url, "mail", "by address")
        for where in (str(one.path), one.url):  # busy, a folder is read without its service
            told = json.loads((await one.cli("stats", where, "--json")).splitlines()[0])
            assert [one["ready"] for one in told["queues"]] == [2]
        assert len(told["engine"]["shards"]) == 4
        async with App(one.path, join=True, serve=True) as app:
            assert sorted(await drained(app.engine.queue("mail"))) == [b"by address", b"by folder"]

        def blocking() -> tuple[int, int]:
            with lodeq.sync.connect(one.url) as engine:
                engine.queue("mail").enqueue(b"blocking")
                return engine.shards, len(engine.stats().shards)

        assert await asyncio.to_thread(blocking) == (4, 4)
        processes = await one.processes()
        async with lodeq.connect(processes[1]["url"]) as engine:  # a process leads on as well
            assert [lease.payload for lease in await engine.queue("mail").claim()] == [b"blocking"]


async def test_a_killed_process_comes_back_and_nothing_is_lost_or_done_twice():
    async with served() as one, one.connect() as engine:
        queue = engine.queue("mail", lease=60)
        ends: list[bytes] = []
        stop = asyncio.Event()

        async def work() -> None:
            while not stop.is_set():
                with contextlib.suppress(lodeq.LodeqError):
                    for lease in await queue.claim(limit=4, wait=0.2):
                        with contextlib.suppress(lodeq.LeaseLostError):
                            await lease.complete(lease.payload)
                            ends.append(lease.payload)

        workers = [asyncio.ensure_future(work()) for _ in range(4)]
        wanted = []
        for n in range(200):
            if n in (60, 130):
                await one.kill(n % 2)
            payload = b"%d" % n
            while True:  # a key: an answer that was lost is asked for again
                try:
                    await queue.enqueue(payload, dedup_key=f"k{n}")
                    break
                except lodeq.CommitUnknownError:
                    continue
            wanted.append(payload)

        async def all_done() -> bool:
            counted = await queue.stats()
            return not counted.ready and not counted.leased

        await one.restarted(0, 2)
        await looked(all_done)
        stop.set()
        await asyncio.gather(*workers)
        assert (await engine.stats()).reaped_total == 0  # no lease has run out
        missing = set(wanted) - set(ends)
        found = [one async for one in ended(engine)]
        assert len(found) == len(set(found)) == len(wanted)
        assert len(ends) == len(set(ends)), "completed twice"
        assert len(missing) <= 2  # ends whose answer was lost with the process
        assert (await engine.verify()).ok


async def test_leases_of_a_process_that_died_start_again_and_no_attempt_is_counted():
    async with served() as one, one.connect() as engine:
        queue = engine.queue("mail", lease=30)
        await queue.enqueue_many(payloads(40))
        leases = [lease for _ in range(8) for lease in await queue.claim(limit=5)]
        assert len(leases) == 40
        pid = await one.kill(1)
        found = await one.restarted(1)
        assert found["pid"] != pid
        assert "SIGKILL" in found["why"] or found["why"] == ""
        assert await engine.heartbeat_many(leases) == [None] * 40
        assert not await queue.claim(limit=1)
        tasks = [await engine.get(lease.task_id) for lease in leases]
        assert {task.attempts for task in tasks} == {1}
        assert await engine.complete_many([(lease, b"") for lease in leases]) == [None] * 40


async def test_health_and_pages_name_the_process_that_is_down():
    async with served("--dashboard", "write") as one, one.connect() as engine:
        assert (await engine.health()).ok
        assert (await one.get("/v1/health")).json() == {"ok": True, "reasons": []}
        assert len((await one.get("/v1/stats")).json()["shards"]) == 4
        assert (await one.get("/v1/queues")).json()["queues"] == []
        urls = [found["url"] for found in await one.processes()]
        told = (await one.get("/v1/cluster")).json()
        assert (told["led"], told["leaders"], told["members"]) == ([], urls * 2, urls)
        refused = await one.get("/v1/snapshots")
        assert refused.status_code == 421
        assert "lodeq.connect" in refused.json()["detail"]
        for _ in range(4):  # each time it waits longer
            await one.kill(1)

            async def is_down() -> bool:
                return not (await one.get("/v1/health")).json()["ok"]

            await looked(is_down)
            said = (await one.get("/v1/health")).json()["reasons"]
            assert any(text.startswith("process 1 is ") and "shards 1, 3" in text for text in said)
            page = (await one.get("/nodes")).text
            assert "Processes" in page
            await one.restarted(1, (await one.processes())[1]["restarts"])
        assert "is down" in one.output
        metrics = (await one.get("/metrics")).text
        assert 'lodeq_process_up{process="1"} 1' in metrics
        assert 'lodeq_process_restarts_total{process="1"} 4' in metrics
        assert 'lodeq_up{process="0"} 1' in metrics
        for shard in range(4):
            assert f'process="{shard % 2}",shard="{shard}"' in metrics
        assert metrics.count("# TYPE lodeq_up ") == 1


async def test_processes_end_with_a_supervisor_that_was_killed():
    async with served() as one:
        async with one.connect() as engine:
            await engine.queue("mail").enqueue_many(payloads(TASKS))
        pids = [found["pid"] for found in await one.processes()]
        one.kill_supervisor()

        async def are_gone() -> bool:
            return all(map(is_gone, pids))

        await looked(are_gone)
        async with lodeq.open(one.path) as engine:
            assert (await engine.queue("mail").stats()).ready == TASKS
            assert (await engine.verify()).ok
        one.start()  # and again, with another number of shares of the same shards
        await one.ready()
        async with one.connect() as engine:
            assert (await engine.queue("mail").stats()).ready == TASKS


async def test_the_next_supervisor_waits_for_what_is_left_of_the_one_before():
    async with served() as one:
        one.kill_supervisor()
        one.start()
        await one.ready()
        async with one.connect() as engine:
            await engine.queue("mail").enqueue(b"here")
            assert len(await drained(engine.queue("mail"))) == 1


async def test_what_is_set_for_a_queue_holds_in_all_processes_and_outlives_them():
    async with served() as one:
        async with one.connect() as engine:
            queue = engine.queue("mail")
            await queue.enqueue_many(payloads(TASKS))
            await queue.pause()
            await engine.configure("mail", history=60, by="test")
            assert await queue.claim(limit=5) == []
            await one.kill(1)
            await one.restarted(1)
            assert await queue.claim(limit=5) == []
            assert (await queue.stats()).is_paused
        assert await one.stop() == 0
        async with lodeq.open(one.path) as engine:
            queue = engine.queue("mail")
            assert (await queue.stats()).is_paused
            await queue.resume()
        one.start()
        await one.ready()
        async with one.connect() as engine:  # no process remembers the pause
            assert len(await drained(engine.queue("mail"))) == TASKS
            assert (await engine.settings("mail")).history == 60


async def test_a_checkpoint_has_the_shards_of_all(tmp_path):
    async with served("--checkpoints", str(tmp_path)) as one:
        async with one.connect() as engine:
            await engine.queue("mail").enqueue_many(payloads(TASKS))
            await engine.fsync()
            await engine.checkpoint("first")
            with pytest.raises(lodeq.UsageError, match="one process serves"):
                await engine.snapshot()
        await one.cli("verify", str(tmp_path / "first"))
    restore(tmp_path / "first", tmp_path / "restored")
    async with lodeq.open(tmp_path / "restored") as engine:
        assert len(await drained(engine.queue("mail"))) == TASKS


async def test_over_tcp_with_a_token(tmp_path):
    token = tmp_path / "token"
    token.write_text("a token that nobody guesses")
    token.chmod(0o600)
    flags = ("--host", "127.0.0.1", "--port", "0", "--token-file", str(token))
    one = Served(tmp_path, ["--processes", "2", *flags])
    one.start()
    try:

        async def is_said() -> bool:
            return "serving http://" in one.output

        await looked(is_said)
        url = one.output.split()[1]
        with pytest.raises(lodeq.AccessDeniedError):
            await lodeq.connect(url)
        async with lodeq.connect(url, token="a token that nobody guesses") as engine:
            assert engine.shards == 8  # four a process
            await engine.queue("mail").enqueue_many(payloads(TASKS))
            assert len(await drained(engine.queue("mail"))) == TASKS
        assert await one.stop() == 0
    finally:
        one.end()


async def test_too_few_shards_are_refused_with_the_way_out(tmp_path):
    one = Served(tmp_path, [])
    await one.cli("init", str(one.path), "--shards", "2")
    said = await one.cli("serve", str(one.path), "--processes", "4", code=2)
    assert "2 shards, fewer than 4 processes" in said
    assert "lodeq reshard" in said
    said = await one.cli("serve", str(one.path), "--processes", "2", "--journal", "j", code=2)
    assert "leave out --journal" in said
    async with lodeq.open(one.path) as engine:  # nothing is left of the try
        assert engine.shards == 2


async def test_a_stop_in_which_a_process_had_to_be_killed_says_so():
    """It has not closed its shards: the next open replays them, as after any kill."""
    async with served() as one:
        async with one.connect() as engine:
            await engine.queue("mail").enqueue_many(payloads(TASKS))
        first, other = (found["pid"] for found in await one.processes())
        os.kill(other, signal.SIGSTOP)
        stopping = asyncio.ensure_future(one.stop())

        async def is_stopping() -> bool:
            return is_gone(first)

        await looked(is_stopping)
        os.kill(other, signal.SIGKILL)
        assert await stopping == 1
        async with lodeq.open(one.path) as engine:
            assert (await engine.queue("mail").stats()).ready == TASKS
