"""Copies of shards on some of the nodes: placed, moved, made again, and found by clients."""

import asyncio
import os
import re
import shutil

import pytest
from support_disk_nodes import DiskNode, patiently
from support_placement import HOME, PlacedCluster

import lodeq
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.errors import LogRolledBackError, NotLeaderError, StorePathError, UsageError
from lodeq.replication.checkpoints import Checkpoints
from lodeq.replication.memory.network import Route
from lodeq.replication.options import LogOptions
from lodeq.replication.port import NO_COPY
from lodeq.replication.replica_note import read_note
from lodeq.repository.api.view import view_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def three(clock):
    """Three nodes, six shards, two copies of each; all of them where they belong."""
    async with PlacedCluster(clock) as cluster:
        for name in "abc":
            await cluster.open(name)
        await cluster.until_at_rest()
        yield cluster


def balancer_of(cluster) -> str:
    """The node that changes placements."""
    (found,) = [
        name for name, node in cluster.nodes.items() if node.replicator.status().is_balancer
    ]
    return found


async def enqueued(cluster, n: int, start: int = 0) -> list[bytes]:
    """Tasks whose payloads are numbers, on shards that are drawn."""
    payloads = [b"%d" % k for k in range(start, start + n)]
    for payload in payloads:
        answer = await cluster.call(lambda engine, p=payload: engine.queue("mail").enqueue(p))
        assert isinstance(answer, lodeq.Receipt), answer
    return payloads


async def drained(cluster) -> list[bytes]:
    """Complete all that leaders have; the payloads."""
    found = []
    for node in cluster.nodes.values():
        while leases := await cluster.outcome(node.engine.queue("mail").claim(limit=50)):
            if isinstance(leases, NotLeaderError):
                break  # it leads nothing
            assert isinstance(leases, list), leases
            for lease in leases:
                answer = await cluster.outcome(lease.complete())
                assert answer is None or not isinstance(answer, Exception), answer
                found.append(lease.payload)
    return found


async def test_copies_are_spread_and_a_node_without_one_names_the_leader(three):
    cluster = three
    assert all(len(one.copies) == 2 for one in cluster.placements().values() if one.shard != HOME)
    assert set(cluster.held().values()) <= {3, 4}
    for shard in range(1, cluster.shards):
        leader = cluster.leader(shard)
        (other,) = [name for name in cluster.nodes if shard not in cluster.hosted(name)]
        seen = view_of(cluster.nodes[other].engine).cluster()
        await cluster.until(
            lambda other=other, shard=shard, leader=leader: (
                view_of(cluster.nodes[other].engine).cluster().leaders[shard]
                == f"http://{leader.name}"
            )
        )
        assert shard not in seen.hosted
        with pytest.raises(NotLeaderError) as caught:
            view_of(cluster.nodes[other].engine).check_led([shard])
        assert caught.value.leader == f"http://{leader.name}"
    payloads = await enqueued(cluster, 40)
    await cluster.until_at_rest()
    await cluster.check_rows()
    assert sorted(await drained(cluster)) == sorted(payloads)


async def test_leaders_come_to_be_spread(three):
    def led():
        return [cluster.leader(shard) for shard in range(cluster.shards)]

    cluster = three
    await cluster.until(lambda: all(led()) and len({node.name for node in led()}) == 3, 120)
    counts = [sum(node.name == name for node in led()) for name in cluster.nodes]
    assert max(counts) <= 3, counts


async def test_a_node_that_joins_gets_its_share_and_one_that_is_removed_loses_it(three):
    cluster = three
    payloads = await enqueued(cluster, 30)
    await cluster.open("d")
    await cluster.until_at_rest()
    assert set(cluster.held().values()) <= {2, 3}
    assert len(cluster.held()) == 4
    await cluster.check_rows()
    await cluster.outcome(cluster.nodes["d"].replicator.wishes.remove("b"))
    await cluster.until(lambda: not cluster.placed("b"), 120)
    await cluster.until(lambda: cluster.hosted("b") == [HOME])
    assert cluster.log.service.departures()
    await cluster.stop("b")
    await cluster.until(lambda: not cluster.log.service.departures(), 30)
    await cluster.until_at_rest()
    assert sorted(await drained(cluster)) == sorted(payloads)
    await cluster.check_rows()


async def test_a_removal_that_would_leave_too_few_is_refused_and_one_can_be_taken_back(three):
    cluster = three
    wishes = cluster.nodes["a"].replicator.wishes
    await cluster.outcome(wishes.remove("c"))
    found = await cluster.outcome(wishes.remove("b"))
    assert isinstance(found, UsageError)
    assert "start another node first" in str(found)
    await cluster.until(lambda: not cluster.placed("c"), 120)
    await cluster.outcome(wishes.add("c"))
    await cluster.until_at_rest()
    assert len(cluster.held()) == 3


async def test_a_shard_is_moved_where_it_is_wanted(three):
    cluster = three
    payloads = await enqueued(cluster, 30)
    await cluster.open("d")
    await cluster.until_at_rest()
    shard = next(s for s in range(1, cluster.shards) if "d" not in cluster.placements()[s].copies)
    leader = cluster.leader(shard).name
    assert await cluster.outcome(cluster.nodes["d"].replicator.wishes.move(shard, "d", leader))
    await cluster.until(
        lambda: "d" in cluster.copies_of(shard) and leader not in cluster.copies_of(shard), 60
    )
    await cluster.until(lambda: cluster.leader(shard))
    wishes = cluster.nodes["a"].replicator.wishes
    for wrong, why in (
        ((HOME, "d", None), "shard 0"),
        ((99, "d", None), "no shard 99"),
        ((shard, "nobody", None), "cannot take a copy"),
        ((1, next(n for n in "abcd" if n not in cluster.placements()[1].copies), "x"), "no copy"),
    ):
        found = await cluster.outcome(wishes.move(*wrong))
        assert isinstance(found, UsageError), found
        assert why in str(found)
    await cluster.until_at_rest()
    assert sorted(await drained(cluster)) == sorted(payloads)


async def test_copies_of_a_node_that_stays_away_are_made_elsewhere(three):
    cluster = three
    payloads = await enqueued(cluster, 20)
    await cluster.open("d")
    await cluster.until_at_rest()
    cluster.network.splits.add("c")
    await cluster.until(lambda: not cluster.log.service.sessions_of("c"))
    before = cluster.placements()
    await cluster.pass_time(cluster.options.away_s - 2)
    moved = [s for s in before if {*cluster.placements()[s].copies} - {*before[s].copies}]
    assert not moved, moved
    await cluster.until(lambda: not [s for s in cluster.placed("c") if s != HOME], 120)
    cluster.network.splits.discard("c")
    await cluster.until_at_rest()
    assert len(cluster.hosted("c")) > 1
    await cluster.check_rows()
    assert sorted(await drained(cluster)) == sorted(payloads)


async def test_a_dead_node_is_forgotten(three):
    cluster = three
    await enqueued(cluster, 20)
    await cluster.open("d")
    await cluster.until_at_rest()
    wishes = cluster.nodes["a"].replicator.wishes
    found = await cluster.outcome(wishes.forget("d"))
    assert isinstance(found, UsageError)
    assert "stop it first" in str(found)
    cluster.network.freeze("d")
    await cluster.until(lambda: not cluster.log.service.sessions_of("d"))
    del cluster.nodes["d"]
    assert await cluster.outcome(wishes.forget("d")) is None
    await cluster.until_at_rest(30)
    await cluster.until(lambda: not cluster.log.service.departures())
    assert set(cluster.held()) == {*"abc"}


async def test_a_node_that_nobody_remembers_is_not_forgotten(three):
    cluster = three
    await cluster.open("d")
    await cluster.until_at_rest()
    cluster.crash("d")
    await cluster.until(lambda: not cluster.log.service.sessions_of("d"))
    found = await cluster.outcome(cluster.nodes["a"].replicator.wishes.forget("x"))
    assert isinstance(found, UsageError), found
    assert "no node 'x' is remembered" in str(found)
    assert "can be forgotten are d; live are a, b, c" in str(found)
    assert not cluster.log.service.departures()


@pytest.mark.parametrize("is_balanced", [True, False])
async def test_a_forgotten_node_that_comes_back_gets_its_share(three, is_balanced):
    """Whether the balancer had seen meanwhile that it has nothing any more, or not."""
    cluster = three
    await cluster.open("d")
    await cluster.until_at_rest()
    cluster.crash("d")
    await cluster.until(lambda: not cluster.log.service.sessions_of("d"))
    assert await cluster.outcome(cluster.nodes["a"].replicator.wishes.forget("d")) is None
    if is_balanced:
        await cluster.until_at_rest(30)
        await cluster.until(lambda: not cluster.log.service.departures())
    await cluster.open("d")
    await cluster.until(lambda: not cluster.log.service.departures(), 30)
    await cluster.until_at_rest(30)
    assert len(cluster.hosted("d")) > 1


async def test_a_balancer_that_lost_its_session_changes_nothing(three, monkeypatch):
    cluster = three
    old = balancer_of(cluster)
    refused = []
    place = type(cluster.log.service).place

    def noted(self, session, placement, *, is_wish):
        try:
            return place(self, session, placement, is_wish=is_wish)
        except lodeq.LodeqError as error:
            refused.append((placement, error))
            raise

    monkeypatch.setattr(type(cluster.log.service), "place", noted)
    # What it sends when there is something to do arrives after others have taken over.
    cluster.network.plan(Route((8.0,)), node=old, kind="place")
    await cluster.open("d")
    await cluster.until(lambda: not cluster.network._planned)
    cluster.log.expire(old)
    for name in cluster.nodes:
        if name != old:
            await cluster.nodes[name].replicator.log.become_balancer()
            break
    await cluster.pass_time(9)
    assert refused
    assert all("balancer" in str(error) for _, error in refused)
    await cluster.until_at_rest()


async def test_placement_goes_on_where_a_node_was_stopped(three):
    cluster = three
    payloads = await enqueued(cluster, 20)
    await cluster.stop(balancer_of(cluster))
    await cluster.open("d")
    await cluster.until_at_rest()
    assert len(cluster.held()) == 3
    assert sorted(await drained(cluster)) == sorted(payloads)


async def test_a_cluster_without_a_number_of_copies_has_no_placement(clock):
    async with PlacedCluster(clock, copies=None) as cluster:
        await cluster.open_all("a", "b")
        await cluster.pass_time(5)
        assert not cluster.placements()
        assert cluster.hosted("a") == cluster.hosted("b") == [*range(6)]
        wishes = cluster.nodes["a"].replicator.wishes
        for call in (wishes.move(1, "b", None), wishes.remove("b"), wishes.add("b")):
            found = await cluster.outcome(call)
            assert isinstance(found, UsageError), found
            assert "every node has a copy" in str(found)


async def test_a_node_that_gives_up_its_log_still_says_how_it_is(three):
    cluster = three
    replicator = cluster.nodes["a"].replicator
    replicator._stop(LogRolledBackError("the log went back"))
    roles = {one.role for one in replicator.status().shards}
    assert roles == {"stopped", "absent"}
    assert "the log went back" in str(replicator.failures())


async def test_the_number_of_copies_stays_as_it_was(three):
    cluster = three
    cluster.copies = 3
    with pytest.raises(UsageError, match="leave out copies=3"):
        await cluster.open("e")


async def test_a_shard_is_served_while_it_moves(three):
    cluster = three
    await cluster.open("d")
    await cluster.until_at_rest()
    shard = 3
    for turn in range(4):
        holds = cluster.placements()[shard].copies
        target = next(name for name in cluster.nodes if name not in holds)
        source = cluster.leader(shard).name
        wishes = cluster.nodes["a"].replicator.wishes
        await cluster.outcome(wishes.move(shard, target, source))
        longest = 0.0
        while source in cluster.copies_of(shard) or cluster.leader(shard) is None:
            began = cluster.clock.mono()
            while cluster.leader(shard) is None:
                await cluster.pass_time(0.05)
            longest = max(longest, cluster.clock.mono() - began)
            await cluster.pass_time(0.05)
        assert longest <= 1.0, (turn, longest)
        leader = cluster.leader(shard)
        answer = await cluster.outcome(leader.engine.queue("mail").enqueue(b"x"))
        assert isinstance(answer, lodeq.Receipt), answer


# -- stores on disk ----------------------------------------------------------------------


@pytest.fixture
async def on_disk(clock, tmp_path):
    """(cluster, nodes, folder): three nodes on disk, four shards of two copies."""
    async with PlacedCluster(clock, shards=4) as cluster:
        cluster.options = LogOptions(away_s=1e9, balance_s=2.0)
        nodes = {name: DiskNode(cluster, tmp_path, name) for name in "abc"}
        for node in nodes.values():
            await node.open()
        await patiently(cluster, cluster.is_at_rest)
        try:
            yield cluster, nodes, tmp_path
        finally:
            cluster.heal()
            for name in list(cluster.nodes):
                await nodes[name].close()


async def test_a_copy_whose_files_are_gone_is_made_anew(on_disk):
    cluster, nodes, folder = on_disk
    payloads = await enqueued(cluster, 40)
    await patiently(cluster, cluster.is_at_rest)
    shard = next(one for one in range(1, 4) if one in cluster.hosted("a"))
    for name in "abc":
        await nodes[name].publish(str(folder / f"checkpoint-{name}"))
    for one, tail in enumerate(cluster.tails()):  # nothing can be begun any more
        cluster.log.service.truncate(one, tail + 1)
    await nodes["a"].close()
    assert shard in read_note(nodes["a"].root).hosted
    shutil.rmtree(os.path.join(nodes["a"].root, f"shard{shard}"))
    await nodes["a"].open()
    assert shard not in cluster.hosted("a")
    await patiently(cluster, cluster.is_at_rest)
    assert shard in cluster.hosted("a")
    await cluster.check_rows()
    assert sorted(await drained(cluster)) == sorted(payloads)


async def test_a_copy_that_is_made_and_one_that_is_given_up_leave_no_files(on_disk):
    cluster, nodes, folder = on_disk
    await enqueued(cluster, 40)
    for name in "abc":
        await nodes[name].publish(str(folder / f"checkpoint-{name}"))
    for one, tail in enumerate(cluster.tails()):
        cluster.log.service.truncate(one, tail + 1)
    nodes["d"] = DiskNode(cluster, folder, "d")
    await nodes["d"].open()
    assert cluster.hosted("d") == [HOME]
    # Others can start from what is left only where it was published since.
    for name in "abc":
        await nodes[name].publish(str(folder / f"later-{name}"))
    await patiently(cluster, lambda: len(cluster.hosted("d")) > 1)
    await nodes["d"].publish(str(folder / "checkpoint-d"))
    await patiently(cluster, cluster.is_at_rest)
    await cluster.check_rows()

    def there(name):
        names = os.listdir(nodes[name].root)
        return sorted(int(one[5:]) for one in names if re.fullmatch(r"shard\d+", one))

    await patiently(cluster, lambda: all(there(name) == cluster.hosted(name) for name in nodes))
    for name, node in nodes.items():
        assert sorted(read_note(node.root).hosted) == cluster.hosted(name)
        assert not [one for one in os.listdir(folder) if one.startswith(f"{name}.")]


async def test_what_is_not_noted_is_removed_and_a_store_of_its_own_is_not(on_disk):
    cluster, nodes, folder = on_disk
    (gone,) = [one for one in range(1, 4) if one not in cluster.hosted("a")][:1]
    (there,) = [one for one in range(1, 4) if one in cluster.hosted("a")][:1]
    await nodes["a"].close()
    root = nodes["a"].root
    shutil.copytree(os.path.join(root, f"shard{there}"), os.path.join(root, f"shard{gone}"))
    await nodes["a"].open()
    assert f"shard{gone}" not in os.listdir(root)
    async with lodeq.open(folder / "plain", clock=cluster.clock) as engine:
        await engine.queue("mail").enqueue(b"mine")
    plain = DiskNode(cluster, folder, "plain")
    with pytest.raises(StorePathError, match="no replica of this cluster"):
        await plain.open()
    async with lodeq.open(folder / "plain", clock=cluster.clock) as engine:
        assert [one.payload for one in await engine.queue("mail").claim()] == [b"mine"]
    await patiently(cluster, cluster.is_at_rest)


async def test_a_copy_behind_the_log_stays_until_another_can_be_had(on_disk, monkeypatch):
    cluster, nodes, folder = on_disk
    await enqueued(cluster, 10)
    await patiently(cluster, cluster.is_at_rest)
    (shard, *_) = (one for one in range(1, 4) if one in cluster.hosted("a"))
    cluster.network.splits.add("a")
    await patiently(cluster, lambda: not cluster.log.service.sessions_of("a"))
    before = cluster.tails()
    await patiently(cluster, lambda: all(map(cluster.leader, range(cluster.shards))))
    payloads = await enqueued(cluster, 40, start=10)
    for one in (HOME, shard):
        queue = cluster.leader(one).engine.queue("more")
        for n in range(99):  # a key of another shard is refused
            await cluster.outcome(queue.enqueue(b"more", dedup_key=f"{one}-{n}"))
            if cluster.tails()[one] > before[one]:
                break
        assert cluster.tails()[one] > before[one]
        cluster.log.service.truncate(one, cluster.tails()[one] + 1)
    cluster.network.splits.clear()
    replicator = nodes["a"].replicator
    await patiently(cluster, lambda: str(replicator.problems()).count("stays as it is") == 2)
    assert {HOME, shard} <= {*cluster.hosted("a")}
    for one in (HOME, shard):
        assert f"shard{one}" in os.listdir(nodes["a"].root)
    # A checkpoint that cannot be fetched after all: the copy is gone, and made when it can be.
    fetch, failed = replicator._files.fetch, []

    async def fails_once(one, checkpoint, spawner):
        if one not in failed:
            failed.append(one)
            raise UsageError("it is gone")
        await fetch(one, checkpoint, spawner)

    monkeypatch.setattr(replicator._files, "fetch", fails_once)
    for name in "bc":
        await nodes[name].publish(str(folder / f"checkpoint-{name}"))
    await patiently(cluster, cluster.is_at_rest)
    assert {*failed} == {HOME, shard}
    await cluster.check_rows()
    found = await drained(cluster)
    assert {*payloads} <= {*found}


async def test_a_checkpoint_names_no_shard_that_went_while_it_was_taken(on_disk):
    cluster, nodes, _ = on_disk
    await enqueued(cluster, 20)
    await patiently(cluster, cluster.is_at_rest)
    node, shard = nodes["a"], next(one for one in cluster.hosted("a") if one != HOME)
    replica = node.replicator._at.replica

    async def take(folder):
        await replica.unhost(shard)
        await node.engine.checkpoint(folder)
        await replica.host(shard)

    checkpoints = Checkpoints(
        node.root,
        take,
        node.replicator,
        node="a",
        url="http://a",
        spawner=current_spawner(),
        clock=cluster.clock,
    )
    taking = asyncio.ensure_future(checkpoints.take())
    await patiently(cluster, taking.done)
    published = [one for one in cluster.log.service.checkpoints() if one.node == "a"]
    assert published == [taking.result()]
    there = [one for one, at in enumerate(published[0].applied) if at != NO_COPY]
    assert there == [one for one in cluster.hosted("a") if one != shard]
