"""Hazards around a cluster: disks, clocks, networks, certificates, releases, an old etcd."""

import asyncio
import contextlib
import os
import resource
import subprocess
import time

import pytest
from cluster.test_nodes import drained, equal, next_write
from support_etcd import EtcdServers, Raw, free_ports, looked
from support_network import lossy_path
from support_nodes import TTL, nodes_of, report
from support_tls import make_certificates, tls_front

import lodeq
from lodeq.replication.fragments import read_stored

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
SOON_S = 20.0
HOUR_S = 3600


async def enqueued(queue, count: int, start: int = 0) -> list[bytes]:
    """So many tasks, each repeated until it is acknowledged; their payloads."""
    payloads = [b"%d" % n for n in range(start, start + count)]
    end = time.monotonic() + SOON_S
    for payload in payloads:
        while True:
            try:
                await queue.enqueue(payload, dedup_key=payload.decode(), dedup_window=3600)
            except (lodeq.BusyError, lodeq.StorageError, lodeq.NotLeaderError):
                assert time.monotonic() < end
                await asyncio.sleep(0.1)
            else:
                break
    return payloads


# -- a full disk -----------------------------------------------------------------------------


@contextlib.contextmanager
def volume(path, mebibytes: int):
    """A small file system of its own at ``path``; skips where none can be mounted."""
    path.mkdir()
    size = f"size={mebibytes}m,mode=0700"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "lodeq-test", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        why = f"no tmpfs can be mounted here: NO DISK OF A NODE WAS FILLED ({done.stderr.strip()})"
        pytest.skip(why)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path) -> None:
    """Leave no byte free."""
    with open(path / "ballast-of-others", "wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
            file.flush()


async def test_a_node_whose_disk_is_full_takes_nothing_and_the_others_go_on(servers):
    async with nodes_of(servers, ("a", "b"), shards=1) as nodes:
        with volume(nodes.path("c"), 256) as path:
            nodes.start("c")
            await nodes.level()
            for name in ("a", "b"):
                await nodes.drain(name)
            assert await nodes.led() == ["c"]
            for name in ("a", "b"):
                await nodes.drain(name, undo=True)
            async with nodes.connect(timeout=5) as engine:
                queue = engine.queue("mail", max_attempts=100)
                expected = await enqueued(queue, 20)
                fill(path)
                began = time.monotonic()
                expected += await enqueued(queue, 200, 20)
                report(
                    f"full disk of the leader: 200 writes within {time.monotonic() - began:.1f} s"
                )
                assert nodes.is_running("c")
                (path / "ballast-of-others").unlink()
                await nodes.level()
                assert sorted(await drained(queue), key=int) == expected
            await equal(nodes)


async def test_a_leader_that_can_write_no_file_any_more_gives_its_shards_up(servers):
    async with nodes_of(servers, shards=1) as nodes, nodes.connect(timeout=5) as engine:
        queue = engine.queue("mail", max_attempts=100)
        expected = await enqueued(queue, 20)
        (leader,) = await nodes.led()
        resource.prlimit(nodes.pid(leader), resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        expected += await enqueued(queue, 50, 20)

        def is_another(found) -> bool:
            return found is not None and found != [leader]

        await looked(nodes.leaders, is_another, SOON_S)
        status = await nodes.status(leader)
        assert status["problems"], status
        nodes.kill(leader)
        nodes.start(leader)
        await nodes.level()
        assert sorted(await drained(queue), key=int) == expected
        await equal(nodes)


# -- clocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
async def test_a_node_whose_clock_is_an_hour_off_leads_nothing(servers, ahead_s):
    altered = {"a": ("--clock-off", str(ahead_s))}
    async with nodes_of(servers, altered=altered) as nodes, nodes.connect() as engine:

        def is_without_a(found) -> bool:
            return found is not None and "a" not in found

        def is_said(status) -> bool:
            return any("clock of this node differs" in text for text in status["problems"])

        await looked(nodes.leaders, is_without_a, SOON_S)
        await looked(lambda: nodes.status("a"), is_said, SOON_S)
        queue = engine.queue("mail")
        expected = await enqueued(queue, 30)
        began = time.monotonic()
        await queue.enqueue(b"30", delay=1)
        (lease,) = await queue.claim(limit=1, lease=5)
        await lease.heartbeat()
        await lease.release()
        other = next(name for name in await nodes.led() if name != "a")
        nodes.kill(other)
        await next_write(engine.queue("other"), time.monotonic())
        nodes.start(other)  # of two clocks nobody knew which one is wrong
        await looked(nodes.leaders, is_without_a, SOON_S)
        found: list[bytes] = []
        while len(found) < len(expected) + 1:
            for one in await queue.claim(limit=50, wait=5):
                assert one.payload != b"30" or time.monotonic() > began + 0.4  # the stated skew
                await one.complete()
                found.append(one.payload)
            assert time.monotonic() < began + 60
        assert sorted(found, key=int) == [*expected, b"30"]
        await equal(nodes)


# -- networks --------------------------------------------------------------------------------


async def test_a_node_behind_a_path_that_loses_packets_does_no_harm(servers):
    async with nodes_of(servers, ("b", "c")) as nodes, lossy_path(servers.ports, 20) as path:
        nodes.urls["a"] = servers.url(nodes.cluster).replace(
            ",".join(servers.endpoints), ",".join(path.endpoints)
        )
        nodes.prefixes["a"] = path.command
        nodes.start("a")
        async with nodes.connect(timeout=5) as engine:
            queue = engine.queue("mail", max_attempts=1000)
            await enqueued(queue, 100)
            report(f"{path.how}: {await nodes.leaders()}")
            for name in ("b", "c"):
                await nodes.drain(name)  # node a leads, as far as its session holds
            for at in range(100, 120, 10):
                with contextlib.suppress(AssertionError):  # nobody may lead for long
                    await enqueued(queue, 10, at)
            for name in ("b", "c"):
                await nodes.drain(name, undo=True)
            expected = [b"%d" % n for n in range(120)]
            await enqueued(queue, 120)  # what had not been acknowledged: once, by its key
            path.heal()
            await nodes.level(seconds=60)
            found = await drained(queue)
            assert sorted(found, key=int) == expected
        await equal(nodes)


# -- certificates ----------------------------------------------------------------------------


async def test_a_cluster_works_over_tls_from_the_client_to_etcd(one_server, tmp_path, monkeypatch):
    """Nodes speak TLS to etcd with certificates of their own; proxies stand before the nodes."""
    folder = make_certificates(tmp_path, ("server", "node"))
    flags = (
        f"--trusted-ca-file={folder / 'ca.pem'}",
        f"--cert-file={folder / 'server.pem'}",
        f"--key-file={folder / 'server.key'}",
        "--client-cert-auth",
    )
    server = one_server(scheme="https", flags=flags)
    names, ports = ("a", "b", "c", "d"), free_ports(4)
    fronts = dict(zip(names, ports, strict=True))
    more = "".join(
        f"&{word}={folder / name}"
        for word, name in (("ca", "ca.pem"), ("cert", "node.pem"), ("key", "node.key"))
    )
    async with (
        nodes_of(server, (), more=more, env={"SSL_CERT_FILE": str(folder / "ca.pem")}) as nodes,
        contextlib.AsyncExitStack() as stack,
    ):
        for name, port in fronts.items():
            await stack.enter_async_context(tls_front(folder, "server", nodes.socket(name), port))
        for name in names[:3]:
            nodes.start(name, "--advertise", f"https://127.0.0.1:{fronts[name]}")
        await nodes.led()
        address = f"lodeq://https://127.0.0.1:{fronts['a']}"
        with pytest.raises(lodeq.UnreachableError, match=r"(?i)certificate"):
            async with lodeq.connect(address):
                pass
        monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
        async with lodeq.connect(address) as engine:
            queue = engine.queue("mail")
            expected = await enqueued(queue, 40)
            nodes.kill((await nodes.led())[0])
            await next_write(engine.queue("other"), time.monotonic())
            expected += await enqueued(queue, 40, 40)
            for name in names[:3]:
                if nodes.is_running(name):
                    await nodes.post(name, "/cluster/checkpoint")

            async def is_truncated() -> bool:
                for name in names[:3]:
                    if nodes.is_running(name):
                        await nodes.post(name, "/cluster/truncate")
                shards = (await nodes.position())["shards"]
                return all(one["floor"] > 1 for one in shards)

            await looked(is_truncated, bool, SOON_S)
            nodes.names = [name for name in names[:3] if nodes.is_running(name)]
            nodes.start("d", "--advertise", f"https://127.0.0.1:{fronts['d']}")
            await nodes.level()  # it has fetched a checkpoint over TLS
            assert sorted(await drained(queue), key=int) == expected
        await equal(nodes)


# -- an old etcd -----------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [None, 2])
async def test_an_etcd_restored_from_a_snapshot_is_refused_and_a_new_name_begun(tmp_path, copies):
    server = EtcdServers(tmp_path)
    try:
        server.control_program()  # without it there is nothing to test
        async with nodes_of(server, name="orders", shards=4, copies=copies) as nodes:
            acknowledged = await until_restored(nodes, server, tmp_path / "snapshot.db")
            for name in nodes.names:
                status = await nodes.status(name)
                assert any(
                    "older copy" in text or "cluster id" in text for text in status["problems"]
                ), status
                assert {one["role"] for one in status["shards"]} <= {"stopped", "absent"}
            async with nodes.connect(timeout=1) as engine:
                with pytest.raises((lodeq.BusyError, lodeq.NotLeaderError, lodeq.IncompleteError)):
                    await engine.queue("mail").enqueue(b"after")
            ahead = await most_advanced(nodes) if copies is None else None
            assert {await nodes.stop(name) for name in nodes.names} == {0}
            other = next(name for name in nodes.names if name != ahead)
            nodes.start(other)
            assert await nodes.ended(other, 30) not in (0, None)
            said = nodes.output(other)
            assert "older copy" in said or "cluster id" in said
            store = await saved(nodes, ahead)
            await recovered(nodes, server, store, copies, acknowledged)
    finally:
        server.stop()


async def until_restored(nodes, server, snapshot) -> set[bytes]:
    """Enqueue until etcd has been restored under it; what was acknowledged."""
    acknowledged: set[bytes] = set()
    is_over = False

    async def produce(engine, start: int) -> None:
        n = start
        while not is_over:
            n += 1
            with contextlib.suppress(lodeq.LodeqError):
                await engine.queue("mail").enqueue(b"%d" % n)
                acknowledged.add(b"%d" % n)

    async with nodes.connect(timeout=2) as engine:
        tasks = [asyncio.ensure_future(produce(engine, 1_000_000 * n)) for n in range(8)]
        await looked(lambda: count_of(acknowledged), lambda count: count > 50, SOON_S)
        await asyncio.to_thread(server.save, snapshot)
        before = len(acknowledged)
        await looked(lambda: count_of(acknowledged), lambda count: count > before + 200, SOON_S)
        await asyncio.to_thread(server.restore, snapshot)

        async def stopped() -> bool:
            found = [await nodes.status(name) for name in nodes.names]
            return all(one and one["shards"][0]["role"] == "stopped" for one in found)

        await looked(stopped, bool, SOON_S)
        is_over = True
        await asyncio.gather(*tasks)
    return acknowledged


async def count_of(found: set[bytes]) -> int:
    return len(found)


async def most_advanced(nodes) -> str:
    """The node that has applied most, as the guide says."""
    applied = {}
    for name in nodes.names:
        status = await nodes.status(name)
        applied[name] = [one["applied"] for one in status["shards"]]
    ahead = max(applied, key=lambda name: sum(applied[name]))
    assert all(
        mine >= theirs
        for name in nodes.names
        for mine, theirs in zip(applied[ahead], applied[name], strict=True)
    ), applied
    return ahead


async def saved(nodes, ahead: str | None) -> str:
    """A store of its own, of one copy or of the best of all, as the guide says."""
    if ahead is not None:
        code, said = await nodes.cli("cluster", "detach", str(nodes.path(ahead)))
        assert code == 0, said
        return str(nodes.path(ahead))
    store = str(nodes.path("saved"))
    folders = [str(nodes.path(name)) for name in nodes.names]
    code, said = await nodes.cli("cluster", "assemble", store, *folders)
    assert code == 0, said
    assert said.count(": entry ") == nodes.shards
    return store


async def recovered(nodes, server, store: str, copies, acknowledged: set[bytes]) -> None:
    """The store begins a cluster of another name, and the other nodes start from it."""
    async with nodes_of(server, (), name="orders-2", shards=4, copies=copies) as fresh:
        await asyncio.to_thread(os.rename, store, fresh.path("a"))
        words = ("cluster", "begin", str(fresh.path("a")), "--replicate", fresh.url, "--node", "a")
        for _ in range(2):  # to repeat it changes nothing
            code, said = await nodes.cli(*words)
            assert (code, said.count("begun with")) == (0, 1), said
        fresh.start("a")
        await fresh.led()

        async def published():
            return (await fresh.position())["checkpoints"]

        await looked(published, bool, SOON_S)
        fresh.start("b")
        fresh.start("c")
        await fresh.level(seconds=60)
        async with fresh.connect() as engine:
            found = set()

            async def missing():  # a shard that is on its way to another node gives nothing now
                found.update(await drained(engine.queue("mail")))
                return acknowledged - found

            await looked(missing, lambda left: not left, SOON_S)
        if copies is None:
            await equal(fresh)
        else:

            async def spread():
                return [await fresh.status(name) for name in "abc"]

            def is_spread(found):
                roles = [[one["role"] for one in status["shards"]] for status in found if status]
                return len(roles) == 3 and all("absent" in one for one in roles)

            await looked(spread, is_spread, 90)


# -- two releases ----------------------------------------------------------------------------


async def test_an_old_release_does_not_join_a_cluster_of_a_newer_level(servers):
    altered = {"new": ("--level", "2")}
    async with nodes_of(servers, ("new",), altered=altered) as nodes:
        nodes.start("old")
        nodes.names.remove("old")
        assert await nodes.ended("old", 30) not in (0, None)
        said = nodes.output("old")
        assert "is at feature level 2" in said
        assert "upgrade lodeq on this node" in said
        assert "Traceback" not in said
        assert not nodes.path("old").exists()
        async with nodes.connect() as engine:
            await engine.queue("mail").enqueue(b"x")


async def test_a_new_release_writes_what_the_older_ones_of_its_cluster_read(servers):
    async with nodes_of(servers, ("old",)) as nodes:
        nodes.altered["new"] = ("--level", "2")
        nodes.start("new")
        await nodes.level()
        await nodes.drain("old")
        async with nodes.connect() as engine:
            assert set(await nodes.led()) == {"new"}
            queue = engine.queue("mail")
            for n in range(20):
                await queue.enqueue(b"%d" % n)
            await nodes.drain("old", undo=True)
            await nodes.drain("new")
            assert set(await nodes.led()) == {"old"}
            assert len(await drained(queue)) == 20
        raw = Raw(nodes.url)
        records = [value for key, value in (await raw.all()).items() if key.startswith("log/")]
        await raw.close()
        assert {read_stored(value).level for value in records} == {1}
        await equal(nodes)


async def test_a_node_that_died_takes_its_name_again(servers):
    async with nodes_of(servers, ("a", "b")) as nodes:
        nodes.kill("a")
        nodes.start("a")  # its session of before is still there
        await nodes.level(seconds=4 * TTL + 15)
        assert nodes.is_running("a")
