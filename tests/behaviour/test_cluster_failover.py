"""A cluster over the log in memory: elections, failover, sessions; nothing acknowledged is lost."""

import asyncio

import pytest
from support_behaviour import drain, payloads, settle
from support_disk_nodes import patiently
from support_log_cluster import LogCluster

import lodeq
from lodeq.errors import (
    AccessDeniedError,
    CommitUnknownError,
    FormatTooNewError,
    LogRolledBackError,
    NotLeaderError,
    RecordCorruptError,
    UsageError,
)
from lodeq.replication.fragments import read_stored
from lodeq.replication.members import in_line
from lodeq.replication.memory.network import Route
from lodeq.replication.options import LogOptions
from lodeq.replication.port import NO_COPY, Genesis, LogUnavailableError, Member
from lodeq.replication.record import LEVEL
from lodeq.replication.replica_note import read_note

pytestmark = pytest.mark.anyio
TTL_S = 3.0
NAMES = ("a", "b", "c")


@pytest.fixture
async def three(clock):
    """(cluster, leader, [followers]): three nodes, one of which leads the one shard."""
    async with LogCluster(clock) as cluster:
        nodes = await cluster.open_all(*NAMES)
        leader = cluster.leader()
        yield cluster, leader, [node for node in nodes if node is not leader]


async def test_one_node_leads_and_the_others_have_its_rows(three):
    cluster, leader, (b, _) = three
    mail = leader.engine.queue("mail")
    await cluster.outcome(mail.enqueue_many([lodeq.NewTask(b"%d" % n) for n in range(50)]))
    await cluster.until_equal()
    error = await cluster.outcome(b.engine.queue("mail").enqueue(b"x"))
    assert isinstance(error, NotLeaderError)
    assert error.leader == f"http://{leader.name}"


async def test_a_leader_that_is_cut_off_is_followed_by_another_within_its_ttl(three):
    cluster, old, others = three
    await cluster.outcome(old.engine.queue("mail").enqueue(b"before"))
    cluster.network.splits.add(old.name)
    took_s = await cluster.until(lambda: any(node.leads() for node in others))
    assert took_s <= TTL_S + 0.5
    assert not old.replicator.holds_session(0)
    new = cluster.leader()
    await cluster.outcome(new.engine.queue("mail").enqueue(b"after"))
    cluster.network.splits.clear()
    await cluster.until_equal()
    assert sorted(await cluster.outcome(drain(new.engine.queue("mail")))) == [b"after", b"before"]


async def test_what_a_split_leader_takes_is_never_acknowledged(three):
    cluster, old, _ = three
    cluster.network.splits.add(old.name)
    calls = [asyncio.ensure_future(old.engine.queue("mail").enqueue(b"%d" % n)) for n in range(3)]
    await cluster.until(lambda: all(call.done() for call in calls), TTL_S + 2)
    assert all(isinstance(call.exception(), CommitUnknownError) for call in calls)
    await cluster.until_led()
    cluster.network.splits.clear()
    await cluster.until_equal()
    assert await cluster.outcome(drain(cluster.leader().engine.queue("mail"))) == []


async def test_an_append_whose_answer_is_lost_enters_once(three):
    cluster, leader, _ = three
    cluster.network.plan(Route((0.0,), None), node=leader.name, kind="append")
    before = cluster.tails()[0]
    await cluster.outcome(leader.engine.queue("mail").enqueue(b"x"))
    assert cluster.tails()[0] == before + 1
    assert cluster.log.requests["append"] > before + 1 - 1
    await cluster.until_equal()
    assert await cluster.outcome(drain(leader.engine.queue("mail"))) == [b"x"]


async def test_an_append_that_arrives_twice_enters_once(three):
    cluster, leader, _ = three
    cluster.network.plan(Route((0.0, 0.3), 0.0), node=leader.name, kind="append")
    before = cluster.tails()[0]
    await cluster.outcome(leader.engine.queue("mail").enqueue(b"x"))
    await cluster.pass_time(0.5)
    assert cluster.tails()[0] == before + 1
    await cluster.until_equal()


async def test_a_late_append_of_a_deposed_leader_is_refused(three):
    cluster, old, others = three
    cluster.network.plan(Route((6.0,), 0.0), node=old.name, kind="append")
    call = asyncio.ensure_future(old.engine.queue("mail").enqueue(b"late"))
    await cluster.pass_time(0.1)
    cluster.network.splits.add(old.name)
    await cluster.until(lambda: any(node.leads() for node in others))
    cluster.network.splits.clear()
    await cluster.pass_time(7)
    assert isinstance(call.exception(), CommitUnknownError)
    await cluster.until_equal()
    assert await cluster.outcome(drain(cluster.leader().engine.queue("mail"))) == []


async def test_a_session_that_the_service_ended_deposes_and_is_begun_again(three):
    cluster, old, _ = three
    await cluster.outcome(old.engine.queue("mail").enqueue(b"x"))
    cluster.log.expire(old.name)
    assert len(cluster.log.service.members()) == 2
    await cluster.until(lambda: not old.leads())
    await cluster.until_led()
    await cluster.until(lambda: len(cluster.log.service.members()) == 3, TTL_S)
    await cluster.until_equal()


async def test_a_session_lost_on_the_nodes_side_alone_is_begun_again(three):
    cluster, old, _ = three
    term = cluster.log.service.state(0).term
    old.replicator.log.lose_session()
    assert not old.replicator.holds_session(0)
    await cluster.until(lambda: cluster.log.service.state(0).term > term)
    await cluster.until_led()
    await cluster.outcome(cluster.leader().engine.queue("mail").enqueue(b"x"))
    await cluster.until_equal()


async def test_without_a_quorum_nothing_is_acknowledged_and_it_comes_back_by_itself(three):
    cluster, leader, _ = three
    cluster.network.has_quorum = False
    call = asyncio.ensure_future(leader.engine.queue("mail").enqueue(b"x", dedup_key="k"))
    await cluster.until(call.done, TTL_S + 2)
    assert isinstance(call.exception(), CommitUnknownError | NotLeaderError)
    await cluster.pass_time(5)
    assert cluster.leader() is None
    refused = await cluster.outcome(leader.engine.queue("mail").enqueue(b"y"))
    assert isinstance(refused, NotLeaderError)
    cluster.network.has_quorum = True
    await cluster.until_led(TTL_S + 6)
    mail = cluster.leader().engine.queue("mail")
    assert not (await cluster.outcome(mail.enqueue(b"x", dedup_key="k"))).duplicate
    await cluster.until_equal()


async def test_a_node_without_a_session_does_not_say_that_it_has_truncated(three):
    cluster, leader, _ = three
    cluster.network.has_quorum = False
    await cluster.pass_time(3 * TTL_S)
    refused = await cluster.outcome(leader.replicator.truncate())
    assert isinstance(refused, LogUnavailableError)
    assert "no session with the log" in str(refused)
    cluster.network.has_quorum = True
    await cluster.until_led(TTL_S + 6)
    assert await cluster.outcome(leader.replicator.truncate()) is None


async def test_a_node_says_that_its_log_does_not_answer(three):
    cluster, *_ = three
    nodes = cluster.nodes.values()
    cluster.network.has_quorum = False
    await cluster.pass_time(3 * TTL_S)
    for node in nodes:
        (problem,) = node.replicator.problems()
        assert problem.startswith("no session with the log, so it leads nothing there: the log has")
        found = node.replicator.status().shards[0]
        assert (found.leader, found.term) == (None, 0)  # as the alert has it
    cluster.network.has_quorum = True
    await cluster.until_led()
    await cluster.until(lambda: not any(node.replicator.problems() for node in nodes))


async def test_health_says_that_the_log_does_not_answer(three):
    cluster, *_ = three
    cluster.network.has_quorum = False
    await cluster.pass_time(3 * TTL_S)
    for node in cluster.nodes.values():
        (reason,) = (await node.engine.health()).reasons
        assert reason.startswith("no session with the log, so it leads nothing there: the log has")


async def test_health_says_that_a_session_is_over_before_the_log_was_asked_for_another(three):
    cluster, leader, _ = three
    cluster.network.has_quorum = False
    await cluster.until(lambda: not leader.replicator.status().session_s)
    (reason,) = (await leader.engine.health()).reasons
    assert reason.startswith("no session with the log, so it leads nothing there")


async def test_health_is_ok_again_once_the_log_answers(three):
    cluster, leader, _ = three
    cluster.network.has_quorum = False
    await cluster.pass_time(3 * TTL_S)
    cluster.network.has_quorum = True
    await cluster.until(lambda: leader.replicator.status().session_s > 0)
    assert (await leader.engine.health()).ok


async def test_a_node_that_its_log_refuses_for_a_while_goes_on(three, monkeypatch):
    """An operator changes a role or a password: nobody has to be started again for that."""
    cluster, leader, (b, _) = three
    denied = AccessDeniedError("user 'lodeq' needs the role readwrite")

    async def refuse(*_: object, **__: object):
        raise denied

    with monkeypatch.context() as patch:
        for call in ("read", "state"):
            patch.setattr(b.replicator.log, call, refuse)
        await cluster.outcome(leader.engine.queue("mail").enqueue(b"x"))
        await cluster.pass_time(2)
        assert b.role() == "following"
        problems = b.replicator.problems()
        assert problems == (f"shard 0: the log refuses this node: {denied}",)
    await cluster.until_equal()
    await cluster.pass_time(1)
    assert b.replicator.problems() == ()


@pytest.mark.parametrize("error", [AccessDeniedError, UsageError])
async def test_a_node_that_may_not_join_for_a_while_has_no_name_that_is_taken(
    three, monkeypatch, error
):
    cluster, _, (b, _) = three

    async def refuse(_: object):
        raise error("password-file=/etc/lodeq/etcd is empty")

    with monkeypatch.context() as patch:
        patch.setattr(b.replicator.log, "join", refuse)
        cluster.log.expire(b.name)
        await cluster.pass_time(6 * TTL_S)
        (problem,) = b.replicator.problems()
        assert problem.endswith("so it leads nothing there: password-file=/etc/lodeq/etcd is empty")
        assert b.replicator.refusal is None
    await cluster.until(lambda: b.replicator.status().session_s > 0)
    await cluster.until_equal()
    assert b.replicator.problems() == ()


async def test_a_frozen_leader_is_refused_when_it_wakes(three):
    cluster, old, others = three
    mail = old.engine.queue("mail")
    await cluster.outcome(mail.enqueue(b"x"))
    (lease,) = await cluster.outcome(mail.claim(lease=60))
    cluster.network.freeze(old.name)
    write = asyncio.ensure_future(mail.enqueue(b"late"))
    await cluster.until(lambda: any(node.leads() for node in others))
    new = cluster.leader()
    assert new is not old
    cluster.network.thaw(old.name)
    for call in (lease.heartbeat(), lease.complete(), mail.enqueue(b"y"), mail.claim()):
        assert isinstance(await cluster.outcome(call), lodeq.LodeqError)
    assert isinstance(await cluster.outcome(write), CommitUnknownError | NotLeaderError)
    await cluster.until_equal()
    (again,) = await cluster.outcome(new.engine.queue("mail").claim())
    assert payloads([again]) == [b"x"]


async def test_a_won_campaign_whose_answer_is_lost_is_begun_anew(clock):
    async with LogCluster(clock) as cluster:
        cluster.network.plan(Route((0.0,), None), kind="campaign", times=2)
        await cluster.open_all(*NAMES)
        await cluster.outcome(cluster.leader().engine.queue("mail").enqueue(b"x"))
        await cluster.until_equal()


@pytest.mark.slow
async def test_leaders_are_spread_over_the_nodes(clock):
    async with LogCluster(clock) as cluster:
        cluster.shards = 6
        await cluster.open_all(*NAMES)
        first = {shard: in_line(shard, NAMES)[0] for shard in range(6)}
        await cluster.until(
            lambda: (
                {
                    shard: leader.name
                    for shard in range(6)
                    if (leader := cluster.leader(shard)) is not None
                }
                == first
            ),
            200,
        )
        assert len(set(first.values())) > 1
        await cluster.until_equal()


async def twin_of(cluster, node):
    """Another node of the same name."""
    twin = await cluster.open(node.name)
    cluster.nodes |= {node.name: node, "twin": twin}
    return twin


async def test_a_second_node_of_one_name_is_refused(three):
    cluster, leader, _ = three
    twin = await twin_of(cluster, leader)
    await cluster.until(lambda: twin.replicator.problems())
    assert "another live node has the name" in twin.replicator.problems()[0]
    await cluster.pass_time(2 * TTL_S)
    assert twin.replicator.problems()
    assert cluster.leader() is leader


async def test_a_node_that_restarts_joins_when_its_old_session_has_ended(three):
    cluster, _, (old, _) = three
    old.replicator.log._renewer.cancel()  # as a process that is dead: nothing leaves it
    old.replicator.log._is_closed = True
    new = await cluster.open(old.name)
    await cluster.pass_time(1)
    assert "or this one died less than 3 s ago" in new.replicator.problems()[0]
    await cluster.pass_time(TTL_S)
    assert new.replicator.problems() == ()
    assert new.replicator.status().session_s > 0
    await cluster.until_equal()


async def test_a_node_whose_clock_is_off_does_not_campaign(three):
    cluster, leader, _ = three
    node = leader.replicator._at
    clock = node.members._clock

    class Off:
        def wall_us(self) -> int:
            return clock.wall_us() + 3_600_000_000

        mono = clock.mono

    node.members._clock = Off()
    await cluster.pass_time(2)
    assert not node.may_campaign()
    cluster.log.expire(leader.name)
    await cluster.until(lambda: not leader.leads())
    await cluster.until_led()
    assert cluster.leader() is not leader
    await cluster.until(node.has_session)  # until then it is that which its health names first
    assert "clock" in leader.replicator.problems()[0]
    assert "clock" in (await leader.engine.health()).reasons[0]


async def test_close_is_over_within_a_second_even_while_being_elected(clock):
    async with LogCluster(clock) as cluster:
        node = await cluster.open("a")
        cluster.network.plan(Route((5.0,), 0.0), kind="append")
        await cluster.until(lambda: node.role() == "elected")
        close = asyncio.ensure_future(node.engine.close())
        assert await cluster.until(close.done, 5) <= 1.0


async def test_close_is_over_within_a_second_without_the_log(three):
    cluster, leader, _ = three
    cluster.network.has_quorum = False
    call = asyncio.ensure_future(leader.engine.queue("mail").enqueue(b"x"))
    await cluster.pass_time(0.1)
    close = asyncio.ensure_future(leader.engine.close())
    assert await cluster.until(close.done, 5) <= 1.0
    assert isinstance(call.exception(), CommitUnknownError)
    del cluster.nodes[leader.name]


async def test_a_node_whose_name_stays_taken_gives_up(three):
    cluster, leader, _ = three
    twin = await twin_of(cluster, leader)
    assert await cluster.until(lambda: twin.replicator.refusal) > 2 * TTL_S
    assert "has the name" in str(twin.replicator.refusal)
    assert "keeps it: end that one" in twin.replicator.problems()[0]
    assert twin.role() == "stopped"
    assert cluster.leader() is leader


async def opened_as(cluster, folder, name):
    """A node of this name, with a folder that is new."""
    options = {"shards": cluster.shards, "clock": cluster.clock, "inbox": False}
    handle = lodeq.open(folder, replicator=cluster.replicator(name), **options)
    opening = asyncio.ensure_future(handle.__aenter__())
    await patiently(cluster, opening.done)
    return handle, opening


async def test_a_new_folder_under_a_name_that_stays_taken_is_not_made(three, tmp_path):
    cluster, leader, _ = three
    folder = tmp_path / "n4"
    _, opening = await opened_as(cluster, folder, leader.name)
    with pytest.raises(lodeq.UsageError, match=f"keeps it: end that one.*http://{leader.name}"):
        await opening
    assert not folder.exists()
    assert cluster.leader() is leader


async def test_a_new_folder_under_the_name_of_a_node_that_died_waits_for_it(three, tmp_path):
    cluster, _, (old, _) = three
    old.replicator.log._renewer.cancel()  # as a process that is dead: nothing leaves it
    old.replicator.log._is_closed = True
    handle, opening = await opened_as(cluster, tmp_path / "n4", old.name)
    await opening
    closing = asyncio.ensure_future(handle.__aexit__(None, None, None))
    await patiently(cluster, closing.done)
    assert read_note(str(tmp_path / "n4")).node == old.name


async def test_a_leader_whose_clock_is_off_gives_its_shards_up(three):
    cluster, leader, _ = three
    clock = leader.replicator._at.members._clock

    class Off:
        def wall_us(self) -> int:
            return clock.wall_us() - 3_600_000_000

        mono = clock.mono

    await cluster.pass_time(2)
    leader.replicator._at.members._clock = Off()
    await cluster.until(lambda: not leader.leads())
    await cluster.until_led()
    assert cluster.leader() is not leader
    assert "clock" in leader.replicator.problems()[0]


async def test_a_node_leaves_a_cluster_of_a_newer_level_alone(clock):
    async with LogCluster(clock) as cluster:
        newer = Genesis("lodeq", 1, bytes(16), level=LEVEL + 1)
        cluster.log.service.begin(newer)
        with pytest.raises(FormatTooNewError, match=r"level 2 .* upgrade lodeq on this node"):
            await cluster.open("a")


async def test_entries_are_written_at_the_level_of_the_cluster(three):
    cluster, leader, _ = three
    assert cluster.log.service.genesis.level == LEVEL
    leader.replicator._at.level = 7
    first = cluster.tails()[0] + 1
    assert await cluster.outcome(leader.engine.queue("mail").enqueue(b"x"))
    (stored,) = cluster.log.service.read(0, first - 1, 1 << 20)
    with pytest.raises(RecordCorruptError, match="version 7, and this release reads up to 1"):
        read_stored(stored.raw)


async def test_no_shard_is_handed_to_a_node_whose_clock_is_off(clock):
    async with LogCluster(clock) as cluster:
        nodes = await cluster.open_all(*NAMES)
        best = cluster.nodes[in_line(0, NAMES)[0]]
        right = best.replicator._at.members._clock

        class Off:
            def wall_us(self) -> int:
                return right.wall_us() + 3_600_000_000

            mono = right.mono

        best.replicator._at.members._clock = best.replicator._clock = Off()
        await cluster.until(lambda: cluster.leader() not in (best, None))
        leader = cluster.leader()
        await cluster.pass_time(45)
        assert cluster.leader() is leader
        assert len(nodes) == 3


async def test_a_report_that_follows_another_at_once_is_seen_in_time(clock):
    """Else the clocks of all but the first look late by the time between two reports."""
    async with LogCluster(clock) as cluster:
        node = await cluster.open("a", options=LogOptions(poll_s=60.0, report_s=60.0))
        clients = {name: cluster.log.client(name) for name in ("b", "c")}
        for name, client in clients.items():
            await cluster.outcome(client.join(Member(name)))
        await cluster.pass_time(1)
        for name, client in clients.items():
            await client.report(Member(name, clock_ms=7))
            await cluster.pass_time(0.05)
        await cluster.pass_time(0.3)
        members = node.replicator._at.members.by_name
        assert [members[name].clock_ms for name in clients] == [7, 7]
        for client in clients.values():
            await cluster.outcome(client.close())


async def test_a_copy_that_has_stopped_is_none_to_count_on(three):
    cluster, leader, (one, other) = three
    await cluster.outcome(leader.engine.queue("mail").enqueue(b"x"))

    def reported(node):
        (found,) = [m for m in cluster.log.service.members() if m.node == node.name]
        return found

    await cluster.until(lambda: reported(one).applied == reported(other).applied != (0,))
    assert reported(one).may_lead
    one.replicator._shards[0].stop("a damaged record")
    other.replicator._stop(LogRolledBackError("the log went back"))
    await cluster.pass_time(2)
    for node in (one, other):
        assert not reported(node).may_lead
        assert reported(node).applied == (NO_COPY,)
        assert reported(node).durable[0] != NO_COPY  # it goes on there when it is opened again
    assert reported(leader).may_lead


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_bad_copy_that_was_given_up_does_not_count_against_its_node(three, is_begun):
    _, _, (node, _) = three
    shard = node.replicator._shards[0]
    shard.can_lead, shard._stuck_looks = False, 3
    assert not node.replicator._member().may_lead
    shard.leave()
    assert node.replicator._member().may_lead
    if is_begun:
        shard._stuck_looks = 3
        shard.begin()
        assert shard.may_lead
        assert node.replicator._member().may_lead


@pytest.mark.parametrize("how", ["stop", "leave"])
async def test_a_term_that_is_won_without_a_copy_is_resigned(three, how):
    cluster, leader, (one, other) = three
    shard = one.replicator._shards[0]
    if how == "stop":
        shard.stop("a damaged record")
    else:
        shard.leave()
    await cluster.pass_time(1)
    cluster.network.freeze(leader.name)
    cluster.network.freeze(other.name)
    await cluster.until(lambda: cluster.log.service.state(0).leader is None)
    assert await cluster.outcome(one.replicator.log.campaign(0))  # as one that arrives late
    assert cluster.log.service.state(0).leader == one.name
    await cluster.until(lambda: cluster.log.service.state(0).leader is None, 5)
    for node in (leader, other):
        cluster.network.thaw(node.name)
    await cluster.until_led()


async def test_a_hand_over_whose_caller_is_cancelled_leaves_no_shard_without_a_leader(three):
    cluster, leader, _ = three
    cluster.network.plan(Route((0.0,), 0.2), kind="append")
    call = asyncio.ensure_future(leader.engine.queue("mail").enqueue(b"x"))
    await settle(5)
    handing = asyncio.ensure_future(leader.replicator.hand_over(0))
    await settle(5)
    assert leader.role() == "leaving"
    handing.cancel()
    await settle(25)
    assert handing.cancelled()
    assert leader.role() == "following"
    await cluster.until_led()
    assert isinstance(await cluster.outcome(call), lodeq.Receipt)


async def test_a_replica_that_waited_for_its_last_append_looks_on_behind_it(clock):
    """The poll would find that nobody leads; it may be far away."""
    async with LogCluster(clock) as cluster:
        node = await cluster.open("a", options=LogOptions(poll_s=30.0))
        await cluster.until_led()
        cluster.network.plan(Route((0.0,), 0.5), kind="append")
        call = asyncio.ensure_future(node.engine.queue("mail").enqueue(b"x"))
        await settle(5)
        node.replicator._shards[0].lose()
        await cluster.pass_time(0.2)
        assert cluster.log.service.state(0).leader is None
        assert await cluster.until_led(40) < 5
        assert isinstance(await cluster.outcome(call), lodeq.Receipt)
