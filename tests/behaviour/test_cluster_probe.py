"""Terms that end before a session is over: the probe, and what it leaves to the next leader."""

import socket
from dataclasses import replace

import pytest
from support_behaviour import drain
from support_log_cluster import LogCluster

import lodeq
from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.replication.probe import CONNECT_S, SocketConnector
from lodeq.replication.waiting import Waiting

pytestmark = pytest.mark.anyio
TTL_S = 3.0
NAMES = ("a", "b", "c")


class Ports:
    """Which addresses refuse connections."""

    def __init__(self) -> None:
        self.refusing: set[str] = set()
        self.asked: list[str] = []

    async def is_refused(self, url: str, spawner: object) -> bool:
        self.asked.append(url)
        return url in self.refusing


@pytest.fixture
async def probed(clock):
    """(cluster, ports, leader, [followers]): three nodes that probe."""
    ports = Ports()
    async with LogCluster(clock) as cluster:
        nodes = await cluster.open_all(*NAMES, connector=ports)
        leader = cluster.leader()
        yield cluster, ports, leader, [node for node in nodes if node is not leader]


def kill(cluster, ports, node) -> None:
    """Nothing reaches ``node`` any more, and its port is closed."""
    cluster.network.freeze(node.name)
    ports.refusing.add(f"http://{node.name}")


async def test_a_killed_leader_is_replaced_within_a_second(probed):
    cluster, ports, old, others = probed
    await cluster.outcome(old.engine.queue("mail").enqueue(b"before"))
    kill(cluster, ports, old)
    took_s = await cluster.until(lambda: any(node.leads() for node in others))
    assert took_s <= 1.0
    new = next(node for node in others if node.leads())
    assert isinstance(await cluster.outcome(new.engine.queue("mail").enqueue(b"x")), lodeq.Receipt)
    await cluster.pass_time(TTL_S + 1)
    assert new.replicator.problems() == ()  # no false alarm: it never came back
    ports.refusing.clear()
    cluster.heal()
    await cluster.until_equal()


async def test_a_frozen_leader_whose_port_accepts_falls_under_the_ttl(probed):
    cluster, _, old, others = probed
    cluster.network.freeze(old.name)
    took_s = await cluster.until(lambda: any(node.leads() for node in others))
    assert 1.5 < took_s <= TTL_S + 0.5


async def test_one_member_alone_ends_nobodys_term(clock):
    ports = Ports()
    async with LogCluster(clock) as cluster:
        await cluster.open_all(*"ab", connector=ports)
        old = cluster.leader()
        kill(cluster, ports, old)
        took_s = await cluster.until(
            lambda: any(node.leads() for node in cluster.nodes.values() if node is not old)
        )
        assert took_s > 1.5


async def test_leaders_that_drop_packets_do_not_hide_one_whose_process_is_gone(clock):
    """Each of them takes the probe as long as a connection may take, in every round."""
    ports = Ports()
    waiting = Waiting(current_spawner(), clock)

    async def is_refused(url: str, spawner: object) -> bool:
        if url in dropping:
            await waiting.pause(CONNECT_S)
        return url in ports.refusing

    dropping: set[str] = set()
    ports.is_refused = is_refused
    async with LogCluster(clock) as cluster:
        cluster.shards = 4
        await cluster.open_all(*"abcd", connector=ports)
        old = cluster.leader()
        for shard in (1, 2, 3):
            await cluster.outcome(old.replicator.hand_over(shard))
        await cluster.until_led()
        others = [node for node in cluster.nodes.values() if node is not old]
        assert {cluster.leader(shard) for shard in range(4)} != {old}
        dropping |= {f"http://{node.name}" for node in others}
        kill(cluster, ports, old)
        took_s = await cluster.until(lambda: any(node.leads() for node in others))
        assert took_s <= 1.5


async def test_refusals_that_are_far_between_are_no_suspicion(probed):
    cluster, ports, old, _ = probed
    url = f"http://{old.name}"
    for _ in range(8):
        ports.refusing.add(url)
        await cluster.until(lambda: url in ports.asked)
        ports.refusing.clear()
        await cluster.pass_time(0.5)
        ports.asked.clear()
    assert cluster.leader() is old


async def test_after_a_false_alarm_nobody_probes_for_ten_ttls(probed):
    cluster, ports, old, others = probed
    ports.refusing.add(f"http://{old.name}")
    await cluster.until(lambda: any(node.leads() for node in others), 2)
    await cluster.until(lambda: any(node.replicator.problems() for node in others), TTL_S)
    assert any("but lives" in text for node in others for text in node.replicator.problems())
    await cluster.pass_time(2)
    loud = [node for node in others if node.replicator.problems()]
    await cluster.pass_time(9 * TTL_S - 2)
    assert all(node.replicator.problems() for node in loud)
    assert cluster.log.requests["depose"] <= len(NAMES)
    ports.refusing.clear()
    await cluster.pass_time(2 * TTL_S)
    assert not any(node.replicator.problems() for node in others)
    await cluster.until_led()
    await cluster.until_equal()


@pytest.mark.parametrize("is_another", [True, False])
async def test_a_dead_leader_that_is_started_again_at_once_is_no_false_alarm(probed, is_another):
    """Its new process reports before anybody has seen that the old one's session was over."""
    cluster, ports, old, others = probed
    kill(cluster, ports, old)
    await cluster.until(lambda: any(node.leads() for node in others), 2)
    ports.refusing.clear()
    for node in others:
        members = node.replicator._at.members.by_name
        before = members[old.name]
        began_ms = before.began_ms + is_another
        members[old.name] = replace(before, clock_ms=before.clock_ms + 500, began_ms=began_ms)
        node.replicator._at.members.see = lambda _: None  # and nothing else meanwhile
    await cluster.pass_time(1)
    said = [text for node in others for text in node.replicator.problems()]
    assert any("but lives" in text for text in said) is not is_another


async def test_a_new_leader_serves_at_once_and_ends_no_inherited_lease_before_the_fence(probed):
    cluster, ports, old, others = probed
    mail = old.engine.queue("mail")
    await cluster.outcome(mail.enqueue_many([lodeq.NewTask(b"1"), lodeq.NewTask(b"2")]))
    (lease,) = await cluster.outcome(mail.claim(lease=1))
    await cluster.until_equal()
    kill(cluster, ports, old)
    await cluster.until(lambda: any(node.leads() for node in others))
    new = next(node for node in others if node.leads())
    assert await cluster.outcome(drain(new.engine.queue("mail"))) == [b"2"]
    error = await cluster.outcome(new.engine.cancel(lease.task_id))
    assert isinstance(error, lodeq.BusyError)
    await cluster.pass_time(2)
    assert await cluster.outcome(new.engine.queue("mail").claim()) == []
    await cluster.pass_time(2)
    (again,) = await cluster.outcome(new.engine.queue("mail").claim())
    assert (again.payload, again.attempt) == (b"1", 2)


async def test_a_port_that_nobody_listens_at_refuses():
    spawner, connector = current_spawner(), SocketConnector()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert not await connector.is_refused(url, spawner)
    assert await connector.is_refused(url, spawner)
    for other in ("", "file:///x", "http://127.0.0.1:notaport", "http://no.such.invalid:1"):
        assert not await connector.is_refused(other, spawner)


async def test_a_sockets_file_that_nobody_listens_behind_refuses(tmp_path):
    spawner, connector = current_spawner(), SocketConnector()
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert not await connector.is_refused(f"unix://{path}", spawner)
    assert await connector.is_refused(f"unix://{path}", spawner)
    path.unlink()
    assert not await connector.is_refused(f"unix://{path}", spawner)
