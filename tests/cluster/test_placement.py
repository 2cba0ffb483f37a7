"""Four processes and a real etcd: shards whose copies are on some of the nodes."""

import asyncio
import time
from typing import Any

import pytest
from support_etcd import looked
from support_nodes import TTL, nodes_of, report
from support_replication import OWN, OWN_FAMILIES

import lodeq
from lodeq.engine.bulk.reader import open_shard
from lodeq.replication.etcd.address import parse_address
from lodeq.service.cluster.overview import overview

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

SHARDS = 6
COPIES = 2
REST_S = 120.0
PACE_S = 0.1  # between two calls of one caller: the machine does other things, too


async def position(nodes) -> dict[str, Any]:
    """The cluster as its log has it."""
    return (await overview(parse_address(nodes.url))).document()


async def at_rest(nodes, names, seconds: float = REST_S) -> dict[int, list[str]]:
    """Placements, once every shard has its copies on these nodes, where they are to be."""

    async def look():
        cluster = await position(nodes)
        status = {name: await nodes.status(name) for name in names}
        return cluster, status

    def holds(found):
        cluster, status = found
        if not all(status.values()) or len(cluster["placements"]) < SHARDS:
            return False
        for one in cluster["placements"]:
            here = {
                name
                for name, told in status.items()
                if told["shards"][one["shard"]]["applied"] >= 0
            }
            wanted = set(names) if one["shard"] == 0 else {*one["copies"]}
            if one["leaving"] or here != wanted or not wanted <= set(names):
                return False
            if one["shard"] and len(one["copies"]) != min(COPIES, len(names)):
                return False
        held = [
            sum(name in one["copies"] for one in cluster["placements"] if one["shard"])
            for name in names
        ]
        return max(held) - min(held) <= 1 and all(s["leader"] for s in cluster["shards"])

    cluster, _ = await looked(look, holds, seconds)
    return {one["shard"]: one["copies"] for one in cluster["placements"]}


class Load:
    """Callers who enqueue, claim and hold tasks, and note what they were told."""

    def __init__(self, engine) -> None:
        self.queue = engine.queue("mail")
        self.acknowledged: dict[str, lodeq.TaskId] = {}
        self.completed: list[bytes] = []
        self.longest_s = 0.0
        self.is_over = False
        self._tasks = [asyncio.ensure_future(self.write(n)) for n in range(2)]
        self._tasks += [asyncio.ensure_future(self.work())]

    async def write(self, writer: int) -> None:
        n = 0
        while not self.is_over:
            n += 1
            key, began = f"{writer}-{n}", time.monotonic()
            while key not in self.acknowledged:
                try:
                    receipt = await self.queue.enqueue(key.encode(), dedup_key=key)
                    self.acknowledged[key] = receipt.id
                except (lodeq.NotLeaderError, lodeq.CommitUnknownError, lodeq.BusyError):
                    assert time.monotonic() - began < 30
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            await asyncio.sleep(PACE_S)

    async def work(self) -> None:
        while not self.is_over:
            try:
                leases = await self.queue.claim(limit=5, lease=60, wait=0.2)
            except (lodeq.NotLeaderError, lodeq.BusyError, lodeq.CommitUnknownError):
                continue
            for lease in leases:
                await self.complete(lease)

    async def complete(self, lease) -> None:
        for _ in range(100):
            try:
                await lease.complete(b"done")
            except (lodeq.NotLeaderError, lodeq.BusyError, lodeq.CommitUnknownError):
                await asyncio.sleep(0.05)
            except lodeq.LeaseLostError:
                return  # by an answer that was lost
            else:
                self.completed.append(lease.payload)
                return
        raise AssertionError("it cannot be completed")

    async def end(self) -> None:
        self.is_over = True
        await asyncio.gather(*self._tasks)
        while leases := await self.queue.claim(limit=50):
            for lease in leases:
                await self.complete(lease)


async def judged(nodes, engine, load, held) -> None:
    """Nothing was lost or done twice, and what was held all the while counts one attempt."""
    await load.end()
    assert len(load.completed) == len(set(load.completed))
    results = await asyncio.gather(*(engine.result(one) for one in load.acknowledged.values()))
    assert all(one is not None and one.status == "completed" for one in results)
    for task in await asyncio.gather(*(engine.get(lease.task_id) for lease in held)):
        assert (task.state, task.attempts) == ("leased", 1), task
    await engine.complete_many([(lease, b"") for lease in held])
    report(f"{len(load.acknowledged)} tasks, longest call {load.longest_s:.2f} s, TTL {TTL:g} s")


def rows_by_copy(nodes, names) -> None:
    """All copies of a shard have the same rows. The nodes have ended."""
    found: dict[int, list[dict[bytes, bytes]]] = {}
    for name in names:
        for shard in range(SHARDS):
            if (nodes.path(name) / f"shard{shard}").exists():
                with open_shard(str(nodes.path(name)), shard) as reader:
                    pairs = reader.scan(b"", b"\xff", 1 << 30)
                own = {*OWN, b"m/open"}
                rows = {
                    key: raw for key, raw in pairs if key not in own and key[:2] not in OWN_FAMILIES
                }
                found.setdefault(shard, []).append(rows)
    assert sorted(found) == [*range(SHARDS)]
    for shard, copies in found.items():
        assert len(copies) == (len(names) if shard == 0 else COPIES)
        assert all(rows == copies[0] for rows in copies), shard


async def test_shards_move_under_load_and_nothing_is_lost(servers):
    async with nodes_of(servers, shards=SHARDS, copies=COPIES) as nodes:
        await at_rest(nodes, "abc")
        async with nodes.connect() as engine:
            for _ in range(4):
                await engine.queue("held").enqueue_many([lodeq.NewTask(b"x") for _ in range(50)])
            held = []
            while len(held) < 200:
                held += await engine.queue("held").claim(limit=50, lease=600)
            load = Load(engine)

            nodes.start("d")
            await at_rest(nodes, "abcd")
            for name in "abcd":  # what there is now does not reach back to the beginning
                await nodes.post(name, "/cluster/checkpoint")
            for name in "abcd":
                await nodes.post(name, "/cluster/truncate")

            for shard in (1, 2):  # the balancer may move others after one was moved by hand
                where = await at_rest(nodes, "abcd")
                while (led := (await nodes.led())[shard]) not in where[shard]:
                    where = await at_rest(nodes, "abcd")
                target = next(name for name in "abcd" if name not in where[shard])
                code, said = await nodes.cli(
                    "cluster",
                    "move",
                    nodes.node_url("a"),
                    str(shard),
                    "--to",
                    target,
                    "--from",
                    led,
                )
                assert (code, said) == (0, f"shard {shard} is on node {target}\n")
            await engine.heartbeat_many(held)
            await at_rest(nodes, "abcd")

            code, said = await nodes.cli("cluster", "remove", nodes.node_url("b"), seconds=REST_S)
            assert (code, said) == (0, "node b has no copies any more: stop it\n")
            assert await nodes.stop("b") == 0
            nodes.names.remove("b")
            await at_rest(nodes, "acd")

            async def known() -> set[str]:
                return {one["node"] for one in (await position(nodes))["checkpoints"]}

            # Forgotten by whoever balances, soon after its session has ended.
            await looked(known, lambda names: "b" not in names, REST_S)

            code, said = await nodes.cli("cluster", "status", nodes.url)
            assert code == 0
            assert said.count("copies on") == SHARDS
            await judged(nodes, engine, load, held)
        await nodes.level()
        nodes.end()
        rows_by_copy(nodes, "acd")


async def test_a_killed_node_is_made_up_for_and_a_forgotten_one_is_gone(servers):
    async with nodes_of(servers, "abcd", shards=SHARDS, copies=COPIES) as nodes:
        await at_rest(nodes, "abcd")
        async with nodes.connect() as engine:
            load = Load(engine)
            await asyncio.sleep(0)
            nodes.kill("d")
            await nodes.led()

            async def forgotten():
                return await nodes.cli("cluster", "forget", nodes.node_url("a"), "d")

            code, said = await looked(forgotten, lambda found: found[0] == 0, TTL + 10)
            assert (code, said) == (0, "node d is forgotten\n")
            nodes.names.remove("d")
            await at_rest(nodes, "abc")
            nodes.start("d")  # it comes back, gives up what it had, and gets its share
            await at_rest(nodes, "abcd")
            await judged(nodes, engine, load, [])
        await nodes.level()
        nodes.end()
        rows_by_copy(nodes, "abcd")


async def test_a_backup_under_load_has_all_that_was_acknowledged(servers):
    async with nodes_of(servers, shards=SHARDS, copies=COPIES) as nodes:
        await at_rest(nodes, "abc")
        store = str(nodes.path("store"))
        backups: dict[str, dict[str, lodeq.TaskId]] = {}

        async def backed_up(node: str) -> None:
            folder, known = str(nodes.path(f"backup-{node}")), dict(load.acknowledged)
            code, said = await nodes.cli("cluster", "backup", nodes.node_url(node), folder)
            assert code == 0, said
            assert said.count(": entry ") == SHARDS
            backups[folder] = known

        async with nodes.connect() as engine:
            load = Load(engine)
            await asyncio.sleep(1)
            await backed_up("a")
            nodes.kill("c")  # others have what it had: it is left out
            await nodes.led()
            await backed_up("b")
            await load.end()
        nodes.end()
        for folder, known in backups.items():
            assert len(known) > 10
            store += "s"
            code, said = await nodes.cli("cluster", "assemble", store, folder)
            assert code == 0, said
            code, said = await nodes.cli("snapshot", store)  # Spark reads that
            assert code == 0, said
            async with lodeq.open(store) as engine:
                assert (await engine.verify()).findings == ()
                for task_id in known.values():
                    assert await engine.get(task_id) is not None
