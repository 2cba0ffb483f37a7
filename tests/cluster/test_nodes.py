"""Three processes and a real etcd: what the pages promise of a cluster, fault by fault."""

import asyncio
import shutil
import time

import pytest
from support_etcd import looked, until
from support_nodes import TTL, nodes_of, report, rows_of

import lodeq
from lodeq.replication.replica_note import NOTE
from lodeq.worker import App

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

LOADED_S = 3.0  # a machine that does other things, too
FAILOVER_S = TTL + 0.5


def other(nodes, *names):
    return next(name for name in nodes.names if name not in names)


async def next_write(queue, began: float) -> float:
    """Seconds until a write is acknowledged."""
    n = 0
    while True:
        n += 1
        try:
            await asyncio.wait_for(queue.enqueue(b"next", dedup_key=f"next{began}{n}"), 30)
        except (lodeq.BusyError, lodeq.NotLeaderError, lodeq.CommitUnknownError):
            assert time.monotonic() - began < 30
            continue
        return time.monotonic() - began


async def equal(nodes) -> None:
    """All nodes have the same rows."""
    await nodes.level()
    nodes.end()  # at once: nobody takes over meanwhile, which would be an entry
    first, *others = [rows_of(nodes.path(name)) for name in nodes.names]
    assert sum(map(len, first))
    assert all(rows == first for rows in others)


async def drained(queue) -> list[bytes]:
    """Complete what there is; the payloads."""
    found = []
    while leases := await queue.claim(limit=50):
        for lease in leases:
            await lease.complete()
            found.append(lease.payload)
    return found


async def test_a_first_cluster_answers_and_all_nodes_have_the_rows(servers):
    async with nodes_of(servers) as nodes, nodes.connect() as engine:
        queue = engine.queue("mail")
        receipts = [await queue.enqueue(b"%d" % n) for n in range(20)]
        assert len({receipt.id for receipt in receipts}) == 20
        assert sorted(await drained(queue), key=int) == [b"%d" % n for n in range(20)]
        await equal(nodes)


async def test_a_killed_leader_gives_way_within_its_ttl(servers):
    async with nodes_of(servers, shards=1) as nodes, nodes.connect() as engine:
        queue = engine.queue("mail")
        receipts = [await queue.enqueue(b"before") for _ in range(20)]
        (leader,) = await nodes.led()
        nodes.kill(leader)
        took_s = await next_write(queue, time.monotonic())
        report(f"killed leader: {took_s:.2f} s without a write, TTL {TTL:g} s")
        assert took_s < FAILOVER_S + LOADED_S
        assert len(await drained(queue)) == len(receipts) + 1

        nodes.start(leader)  # restarted, it catches up
        await equal(nodes)


async def test_a_frozen_leader_acknowledges_nothing_and_is_refused_on_its_return(servers):
    async with nodes_of(servers, shards=1) as nodes, nodes.connect(timeout=1) as engine:
        queue = engine.queue("mail", max_attempts=100)
        await queue.enqueue(b"held")
        (leader,) = await nodes.led()
        async with nodes.connect_to(leader, timeout=60) as direct:
            (lease,) = await direct.queue("mail").claim(lease=3600)
            nodes.freeze(leader)
            calls = [
                asyncio.ensure_future(call)
                for call in (
                    direct.queue("mail").enqueue(b"frozen 1"),
                    direct.queue("mail").enqueue(b"frozen 2", dedup_key="frozen"),
                    lease.heartbeat(),
                    lease.complete(),
                )
            ]
            took_s = await next_write(queue, time.monotonic())
            report(f"frozen leader: {took_s:.2f} s without a write, TTL {TTL:g} s")
            assert took_s < FAILOVER_S + LOADED_S
            assert not any(call.done() for call in calls)
            nodes.thaw(leader)
            found = await asyncio.gather(*calls, return_exceptions=True)
            refused = (lodeq.NotLeaderError, lodeq.CommitUnknownError, lodeq.BusyError)
            assert all(isinstance(one, refused) for one in found), found
            with pytest.raises(lodeq.NotLeaderError):
                await direct.queue("mail").enqueue(b"later")
            with pytest.raises(lodeq.NotLeaderError):
                await lease.heartbeat()
        payloads = await drained(queue)
        assert not {b"frozen 1", b"frozen 2", b"later"} & set(payloads)
        await nodes.level()


async def truncated(nodes, engine) -> None:
    """Two checkpoints each on two nodes, and a log that begins behind the first."""
    queue = engine.queue("mail")
    for turn in range(2):
        for n in range(30):
            large = bytes(40_000) if n % 10 == 0 else b""  # to a body file
            await queue.enqueue(b"%d" % (30 * turn + n) + large)
        await nodes.level()
        for name in nodes.names[:2]:
            await nodes.post(name, "/cluster/checkpoint")
        await nodes.post(nodes.names[2], "/cluster/checkpoint")

    async def floors_are_up():
        for name in nodes.names:
            await nodes.post(name, "/cluster/truncate")
        return all(shard["floor"] > 1 for shard in (await nodes.position())["shards"])

    end = time.monotonic() + 30
    while not await floors_are_up():
        assert time.monotonic() < end, await nodes.position()


async def test_a_new_node_starts_from_a_checkpoint_once_the_log_was_truncated(servers):
    async with nodes_of(servers) as nodes, nodes.connect() as engine:
        await truncated(nodes, engine)
        nodes.start("d")
        await equal(nodes)
        assert list(nodes.path("d").glob("bodies*/*.sqs"))


async def test_a_damaged_checkpoint_gives_way_to_another_nodes(servers):
    async with nodes_of(servers) as nodes, nodes.connect() as engine:
        await truncated(nodes, engine)
        newest = max(
            (await nodes.position())["checkpoints"],
            key=lambda one: (one["applied"], one["created_ms"]),
        )
        folder = max((nodes.folder / f"{newest['node']}.checkpoints").iterdir())
        tables = [path for path in folder.rglob("*.sst") if path.stat().st_size]
        tables += [path for path in folder.rglob("*.log") if path.stat().st_size]
        assert tables
        for path in tables:  # hard links: the bytes are the store's as well
            raw = bytearray(path.read_bytes())
            raw[len(raw) // 2] ^= 1
            path.unlink()
            path.write_bytes(raw)
        nodes.start("d")
        await equal(nodes)


async def test_planned_moves_count_no_attempt_and_lose_no_lease(servers):
    async with nodes_of(servers) as nodes, nodes.connect() as engine:
        queue = engine.queue("mail")
        for _ in range(20):
            await queue.enqueue_many([lodeq.NewTask(b"%d" % n) for n in range(50)])
        held = []
        while len(held) < 1000:
            held += await queue.claim(limit=50, lease=120)
        moves = 0
        for _ in range(3):
            (leader, *_) = await nodes.led()
            led = await nodes.leaders()
            assert not await nodes.drain(leader)
            after = await nodes.led()
            assert leader not in after
            moves += sum(a != b for a, b in zip(led, after, strict=True))
            await nodes.drain(leader, undo=True)
            await engine.heartbeat_many(held)
        assert moves >= 3
        for lease in held:
            task = await engine.get(lease.task_id)
            assert (task.state, task.attempts) == ("leased", 1)
        await asyncio.gather(*(lease.complete() for lease in held))
        assert not await queue.claim(limit=50)
        for lease in held:
            assert (await engine.result(lease.task_id)).status == "completed"


async def test_a_drained_node_leads_nothing_until_it_is_undone(servers):
    async with nodes_of(servers) as nodes, nodes.connect() as engine:
        queue = engine.queue("mail")
        leader = (await nodes.led())[0]
        code, said = await nodes.cli("cluster", "drain", nodes.node_url(leader))
        assert (code, said) == (0, "it leads nothing\n")
        assert leader not in await nodes.led()
        code, said = await nodes.cli("cluster", "status", nodes.url)
        assert code == 0
        assert said.count("drained") == 1
        await queue.enqueue(b"x")
        code, said = await nodes.cli("cluster", "drain", "--undo", nodes.node_url(leader))
        assert (code, said) == (0, "it takes part in elections again\n")
        for name in nodes.names:
            if name != leader:
                assert not await nodes.drain(name)
        assert set(await nodes.led()) == {leader}
        await queue.enqueue(b"y")


async def test_a_new_folder_under_the_name_of_a_live_node_is_not_made(servers):
    async with nodes_of(servers, ("a", "b")) as nodes:
        nodes.start("twin", "--node", "a")
        assert await nodes.ended("twin", 3 * TTL + 20) == 2
        assert "keeps it: end that one, or give this one" in nodes.output("twin")
        assert not nodes.path("twin").exists()
        nodes.names.remove("twin")


async def test_a_second_process_of_one_name_is_refused(servers):
    async with nodes_of(servers, ("a", "b")) as nodes, nodes.connect() as engine:
        nodes.path("twin").mkdir(0o700)  # as what is left of a store of this name
        shutil.copy(nodes.path("a") / NOTE, nodes.path("twin") / NOTE)
        nodes.start("twin", "--node", "a")

        def is_refused(status):
            return status is not None and "is there: give each node" in str(status["problems"])

        status = await looked(lambda: nodes.status("twin"), is_refused, 30)
        assert status["session_s"] == 0
        assert not [one for one in status["shards"] if one["role"] != "following"]
        await engine.queue("mail").enqueue(b"x")
        assert "twin" not in await nodes.led()
        assert await nodes.ended("twin", 3 * TTL + 20) == 2
        assert "keeps it: end that one, or give this one" in nodes.output("twin")
        assert "Traceback" not in nodes.output("twin")
        nodes.names.remove("twin")
        assert nodes.is_running("a")
        await engine.queue("mail").enqueue(b"y")


async def test_a_wrong_token_reaches_nothing(servers, tmp_path):
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    for path, text in ((token, "0123456789abcdef"), (wrong, "fedcba9876543210")):
        path.write_text(text)
        path.chmod(0o600)
    flags = ("--token-file", str(token))
    async with nodes_of(servers, (), flags=flags) as nodes:
        for name in ("a", "b"):
            nodes.start(name)
        for given, is_let_in in (("0123456789abcdef", True), ("fedcba9876543210", False)):
            await until(lambda: all((nodes.folder / f"{n}.sock").exists() for n in "ab"), 30)
            if is_let_in:
                async with nodes.connect(token=given) as engine:
                    await engine.queue("mail").enqueue(b"x")
            else:
                with pytest.raises(lodeq.AccessDeniedError):
                    async with nodes.connect(token=given):
                        pass
        for path, code in ((token, 0), (wrong, 2)):
            found, said = await nodes.cli(
                "cluster", "status", nodes.node_url("a"), "--token-file", str(path)
            )
            assert (found == 0) is (code == 0), said
            assert "Traceback" not in said
        async with nodes.http("a") as client:
            assert (await client.get("/cluster/status")).status_code == 401
            assert (await client.post("/cluster/drain", json={"drain": True})).status_code == 401


async def test_a_folder_of_a_node_is_opened_alone_only_after_a_detach(servers):
    async with nodes_of(servers) as nodes:
        async with nodes.connect() as engine:
            for n in range(10):
                await engine.queue("mail").enqueue(b"%d" % n)
        await nodes.level()
        path = nodes.path("a")
        with pytest.raises(lodeq.LockedError):
            async with lodeq.open(path):
                pass
        code, said = await nodes.cli("cluster", "detach", str(path))
        assert code != 0
        assert "Traceback" not in said
        assert [await nodes.stop(name) for name in nodes.names] == [0, 0, 0]
        with pytest.raises(lodeq.ReplicaStoreError):
            async with lodeq.open(path):
                pass
        code, said = await nodes.cli("cluster", "detach", str(path))
        assert code == 0, said
        async with lodeq.open(path) as engine:
            assert len(await drained(engine.queue("mail"))) == 10
        code, said = await nodes.cli(*nodes.command("a")[3:])  # and is no node any more
        assert code != 0
        assert "store of its own" in said
        assert "Traceback" not in said


async def test_the_exit_code_of_status_says_whether_all_is_well(servers):
    async with nodes_of(servers) as nodes:
        for where in (nodes.url, nodes.node_url("a")):
            code, said = await nodes.cli("cluster", "status", where)
            assert code == 0, said
        for name in nodes.names:
            nodes.kill(name)

        async def all_gone():
            return not (await nodes.position())["members"]

        end = time.monotonic() + TTL + 10
        while not await all_gone():
            assert time.monotonic() < end
        code, said = await nodes.cli("cluster", "status", nodes.url)
        assert code == 1
        assert "led by nobody" in said
        code, said = await nodes.cli("cluster", "status", nodes.node_url("a"))
        assert code not in (0, 1)
        assert "Traceback" not in said
        code, said = await nodes.cli("cluster", "status", servers.url("nobody-made-this"))
        assert code not in (0, 1)
        assert "Traceback" not in said


async def test_dedup_holds_over_a_killed_leader(servers):
    async with nodes_of(servers) as nodes, nodes.connect() as engine:
        queue = engine.queue("mail")
        first = [await queue.enqueue(b"x", dedup_key=f"k{n}") for n in range(20)]
        nodes.kill((await nodes.led())[0])
        await next_write(queue, time.monotonic())
        again = [await queue.enqueue(b"x", dedup_key=f"k{n}") for n in range(20)]
        assert [one.id for one in again] == [one.id for one in first]
        assert all(one.duplicate for one in again)


async def test_one_claim_spans_the_nodes(servers):
    async with nodes_of(servers, shards=6) as nodes, nodes.connect() as engine:
        await nodes.drain((await nodes.led())[0])  # the others divide what the first had
        led = await nodes.led()
        assert len(set(led)) > 1, led
        queue = engine.queue("mail")
        ids = {(await queue.enqueue(b"x")).id for _ in range(60)}
        leases = await queue.claim(limit=60)
        assert {lease.task_id for lease in leases} == ids
        assert not await queue.claim(limit=60)
        await engine.complete_many([(lease, b"") for lease in leases])
        assert not (await queue.stats()).leased


async def test_a_worker_ends_every_task_once_over_moves_and_a_kill(servers):
    async with nodes_of(servers) as nodes:
        app = App(nodes.address(), lease=30)
        ended: dict[int, int] = {}

        @app.task(queue="mail", retry=lodeq.Backoff(base=0.1), max_attempts=50)
        async def send(n: int) -> int:
            ended[n] = ended.get(n, 0) + 1
            return n

        async with app, app.work(concurrency=8):
            receipts = [await send.enqueue(n) for n in range(40)]
            leader = (await nodes.led())[0]
            await nodes.drain(leader)
            receipts += [await send.enqueue(n) for n in range(40, 80)]
            await nodes.drain(leader, undo=True)
            nodes.kill((await nodes.led())[0])
            await next_write(app.engine.queue("other"), time.monotonic())
            receipts += [await send.enqueue(n) for n in range(80, 120)]
            results = [await app.engine.result(one.id, wait=60) for one in receipts]
        assert [one.status for one in results] == ["completed"] * 120
        assert [one.value for one in results] == [*range(120)]
        assert sorted(ended) == [*range(120)]
        # At most what was under way at the kill has run twice.
        assert sum(ended.values()) <= 120 + 8


async def test_a_client_gives_a_frozen_leader_up_when_another_leads(servers):
    async with nodes_of(servers, shards=1) as nodes, nodes.connect(timeout=120) as engine:
        queue = engine.queue("mail")
        receipts = await queue.enqueue_many([lodeq.NewTask(b"%d" % n) for n in range(8)])
        leases = await queue.claim(limit=6, lease=3600)
        (leader,) = await nodes.led()
        nodes.freeze(leader)
        began = time.monotonic()
        calls = {
            "read": engine.get(receipts[0].id),
            "complete": leases[0].complete(b"done"),
            "nack": leases[1].nack(),
            "beat": leases[2].heartbeat(),
            "beats": engine.heartbeat_many(leases[3:]),
            "new": queue.enqueue(b"plain"),
            "keyed": queue.enqueue(b"keyed", dedup_key="k"),
            "claim": queue.claim(limit=2, wait=20),
        }
        found = await asyncio.gather(*calls.values(), return_exceptions=True)
        took_s, said = time.monotonic() - began, dict(zip(calls, found, strict=True))
        report(f"frozen leader: all calls answered in {took_s:.2f} s, TTL {TTL:g} s")
        assert took_s < FAILOVER_S + LOADED_S + 3
        assert said["read"].id == receipts[0].id
        assert said["complete"] is None
        assert isinstance(said["nack"], lodeq.CommitUnknownError)
        assert isinstance(said["new"], lodeq.CommitUnknownError)
        assert said["beats"] == [None] * 3
        assert not isinstance(said["beat"], Exception)
        assert not said["keyed"].duplicate
        assert len(said["claim"]) == 2
        assert all(one.is_live for one in leases[2:])
        nodes.thaw(leader)
        await nodes.level()


async def test_a_task_waits_for_tasks_of_several_leaders_over_a_kill(servers):
    async with nodes_of(servers, shards=6) as nodes, nodes.connect() as engine:
        await nodes.drain((await nodes.led())[0])  # the others divide what the first had
        led = await nodes.led()
        assert len(set(led)) > 1, led
        parts, joins = engine.queue("parts"), engine.queue("joins")
        ids = [(await parts.enqueue(n)).id for n in range(12)]
        assert len({led[one.slot * 6 >> 12] for one in ids}) > 1
        late = await joins.enqueue("all", after=ids, dedup_key="late")
        halves = [await joins.enqueue("some", after=ids[n::2]) for n in range(2)]
        waits = {one.id for one in (late, *halves)}
        first = await parts.claim(limit=6)
        await engine.complete_many([(one, one.payload) for one in first])
        nodes.kill(led[late.id.slot * 6 >> 12])  # the leader of the join
        await next_write(engine.queue("other"), time.monotonic())
        left = len(ids) - len(first)
        while left:
            leases = await parts.claim(limit=6, wait=1)
            await engine.complete_many([(one, one.payload) for one in leases])
            left -= len(leases)
        ran, end = {}, time.monotonic() + 30
        while ran.keys() != waits:
            assert time.monotonic() < end, (ran, waits)
            for lease in await joins.claim(limit=8, wait=1):
                ran[lease.task_id] = [one.value async for one in engine.parts(lease.task_id)]
                await lease.complete()
        assert ran[late.id] == [*range(12)]
        assert not await joins.claim(limit=8)
