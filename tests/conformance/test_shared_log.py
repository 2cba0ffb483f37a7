"""One suite for every log service: what ``replication/port.py`` promises."""

import asyncio
from dataclasses import replace

import pytest
from support_behaviour import settle
from support_shared_log import ADAPTERS, PARAMS, LogRig, noise, record_of

from lodeq.errors import RecordCorruptError, UsageError
from lodeq.replication.port import (
    NO_COPY,
    PLACEMENTS,
    Change,
    Checkpoint,
    CompactedError,
    Departure,
    FencedError,
    Genesis,
    Member,
    Placement,
    SessionLostError,
    SharedLog,
    Term,
)
from lodeq.replication.record import LogRecord

pytestmark = pytest.mark.anyio
GENESIS = Genesis("cluster", 2, bytes(16))


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=PARAMS)
async def shared_log(request):
    """A log service that is new."""
    async with ADAPTERS[request.param]() as rig:
        yield rig


async def joined(rig: LogRig, node: str) -> SharedLog:
    """A connection with a session."""
    log = rig.client(node)
    await log.connect(GENESIS)
    await log.join(Member(node))
    return log


async def led(rig: LogRig, node: str = "a", shard: int = 0) -> tuple[SharedLog, Term]:
    """A connection that leads a shard."""
    log = await joined(rig, node)
    term = await log.campaign(shard)
    assert term is not None
    return log, term


PUT = ((b"k", b"v"), (b"gone", None))


# -- genesis and sessions ----------------------------------------------------------------


async def test_the_first_genesis_holds(shared_log):
    first, second = shared_log.client("a"), shared_log.client("b")
    assert await first.connect(GENESIS) == GENESIS
    assert await second.connect(Genesis("cluster", 9, b"x" * 16)) == GENESIS
    assert second.revision > 0


async def test_logs_begin_behind_what_the_cluster_was_begun_with(shared_log):
    log = shared_log.client("a")
    genesis = replace(GENESIS, base=7)
    assert await log.connect(genesis) == genesis
    other = shared_log.client("b")
    assert await other.look() == genesis
    begun = [(one.shard, one.leader, one.last, one.floor) for one in await other.states()]
    assert begun == [(0, None, 7, 8), (1, None, 7, 8)]
    assert await log.state(1) == (await other.states())[1]
    with pytest.raises(CompactedError) as caught:
        await other.read(0, 6)
    assert caught.value.floor == 8
    assert await other.read(0, 7) == []
    await log.join(Member("a"))
    await log.truncate(0, 5)
    assert (await log.state(0)).floor == 8
    term = await log.campaign(0)
    assert term is not None
    assert term.last == 7
    await log.append(record_of(0, term.term, 8, PUT))
    assert [record.last for record in await other.read(0, 7)] == [8]
    await log.truncate(0, 9)
    state = await other.state(0)
    assert (state.last, state.floor) == (8, 9)
    assert ((await other.state(1)).last, (await other.state(1)).floor) == (7, 8)


async def test_a_member_is_there_while_its_session_is(shared_log):
    a, b = await joined(shared_log, "a"), await joined(shared_log, "b")
    assert [member.node for member in await b.members()] == ["a", "b"]
    told = Member("a", "http://a", "1", "z", 5, (1, 2), (0, 1))
    await a.report(told)
    assert (await b.members())[0] == told
    await a.close()
    assert [member.node for member in await b.members()] == ["b"]


async def test_there_is_no_session_before_a_join(shared_log):
    log = shared_log.client("a")
    await log.connect(GENESIS)
    assert log.session_until() == 0
    with pytest.raises(SessionLostError):
        await log.campaign(0)


async def test_a_session_is_renewed(shared_log):
    log, term = await led(shared_log)
    until = log.session_until()
    await shared_log.pass_time(shared_log.ttl_s * 2)
    assert log.session_until() > until
    assert await log.campaign(0) == term


async def test_a_name_that_a_live_node_has_is_refused(shared_log):
    await joined(shared_log, "a")
    twin = shared_log.client("a")
    await twin.connect(GENESIS)
    with pytest.raises(UsageError, match="a"):
        await twin.join(Member("a"))
    assert twin.session_until() == 0


async def test_a_session_that_ended_stays_over_until_the_next_join(shared_log):
    a, term = await led(shared_log)
    await shared_log.expire("a")
    await shared_log.pass_time(shared_log.ttl_s)
    assert a.session_until() == 0
    for call in (a.campaign(0), a.report(Member("a"))):
        with pytest.raises(SessionLostError):
            await call
    await a.join(Member("a"))
    again = await a.campaign(0)
    assert again is not None
    assert again.term > term.term


async def test_an_answer_that_a_session_has_ended_ends_it_on_this_side(shared_log):
    """Whoever asked for whichever shard: nothing else is answered from memory any more."""
    a, _ = await led(shared_log)
    await shared_log.expire("a")
    with pytest.raises(SessionLostError):
        await a.report(Member("a"))
    assert a.session_until() == 0


async def test_joining_again_ends_the_session_before(shared_log):
    a, term = await led(shared_log)
    await a.join(Member("a"))
    again = await a.campaign(0)
    assert again is not None
    assert again.term > term.term
    with pytest.raises(FencedError):
        await a.append(record_of(0, term.term, 1, PUT))


# -- leaders -----------------------------------------------------------------------------


async def test_one_session_leads_and_campaigning_again_gives_its_term(shared_log):
    a, term = await led(shared_log)
    b = await joined(shared_log, "b")
    assert await b.campaign(0) is None
    assert await a.campaign(0) == term
    state = await b.state(0)
    assert (state.leader, state.term, state.last, state.floor) == ("a", term.term, 0, 1)
    assert (await b.campaign(1)) is not None
    assert [state.leader for state in await b.states()] == ["a", "b"]


async def test_terms_grow_and_never_come_back(shared_log):
    a, first = await led(shared_log)
    await a.resign(0, first.term)
    await a.resign(0, first.term)
    assert (await a.state(0)).leader is None
    second = await a.campaign(0)
    assert second is not None
    assert second.term > first.term
    await a.resign(0, first.term)
    assert (await a.state(0)).term == second.term


async def test_a_deposed_leader_is_fenced_and_the_next_one_told_until_when(shared_log):
    a, term = await led(shared_log)
    b = await joined(shared_log, "b")
    assert not await b.depose(0, term.term - 1, fenced_s=3)
    assert await b.depose(0, term.term, fenced_s=3)
    assert not await b.depose(0, term.term, fenced_s=3)
    assert (await b.state(0)).fenced_until > 0
    with pytest.raises(FencedError):
        await a.append(record_of(0, term.term, 1, PUT))


async def test_a_leader_goes_with_its_session(shared_log):
    a, term = await led(shared_log)
    b = await joined(shared_log, "b")
    await shared_log.expire("a")
    assert (await b.state(0)).leader is None
    won = await b.campaign(0)
    assert won is not None
    assert won.term > term.term
    with pytest.raises(FencedError):
        await a.append(record_of(0, term.term, 1, PUT))


# -- records -----------------------------------------------------------------------------


async def test_what_was_appended_is_read_by_everybody(shared_log):
    a, (term, _) = await led(shared_log)
    b = await joined(shared_log, "b")
    one, two = record_of(0, term, 1, PUT, PUT), record_of(0, term, 3, PUT)
    await a.append(one)
    await a.append(two)
    assert await b.read(0, 0) == [one, two]
    assert await b.read(0, 1) == [one, two]  # entry 2 is in the first one
    assert await b.read(0, 2) == [two]
    assert await b.read(0, 3) == []
    assert await b.read(0, 0, bytes_max=1) == [one]
    assert (await b.state(0)).last == 3
    assert await b.read(1, 0) == []


async def test_an_append_that_is_not_the_next_is_fenced(shared_log):
    a, (term, _) = await led(shared_log)
    await a.append(record_of(0, term, 1, PUT))
    for first in (1, 3):
        with pytest.raises(FencedError):
            await a.append(record_of(0, term, first, PUT, nonce=b"another" + bytes(9)))
    assert (await a.state(0)).last == 1


async def test_the_same_append_again_is_once(shared_log):
    a, (term, _) = await led(shared_log)
    record = record_of(0, term, 1, PUT)
    await a.append(record)
    await a.append(record)
    assert await a.read(0, 0) == [record]


async def test_a_new_leader_knows_the_last_entry(shared_log):
    a, (term, _) = await led(shared_log)
    await a.append(record_of(0, term, 1, PUT, PUT))
    await a.resign(0, term)
    with pytest.raises(FencedError):
        await a.append(record_of(0, term, 3, PUT))
    b = await joined(shared_log, "b")
    won = await b.campaign(0)
    assert won is not None
    assert won.last == 2
    await b.append(record_of(0, won.term, 3, PUT))


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
async def test_a_large_record_is_cut_and_put_together(shared_log, size):
    a, (term, _) = await led(shared_log)
    large = record_of(0, term, 1, ((b"k", noise(a.record_bytes_max + size)),))
    after = record_of(0, term, 2, PUT)
    await a.append(large)
    await a.append(after)
    await a.append(large)
    assert await a.read(0, 0) == [large, after]
    assert await shared_log.orphans(0) == 0
    await a.truncate(0, 2)
    assert await a.read(0, 1) == [after]


async def test_a_large_record_of_a_deposed_leader_is_fenced(shared_log):
    a, (term, _) = await led(shared_log)
    await a.resign(0, term)
    with pytest.raises(FencedError):
        await a.append(record_of(0, term, 1, ((b"k", noise(3 * a.record_bytes_max)),)))
    assert await shared_log.orphans(0) == 0


async def test_a_damaged_record_is_told_behind_what_is_good(shared_log):
    a, (term, _) = await led(shared_log)
    good = record_of(0, term, 1, PUT)
    await a.append(good)
    await a.append(record_of(0, term, 2, PUT))
    await a.append(record_of(0, term, 3, PUT))
    await shared_log.damage(0, 2)
    assert await a.read(0, 0) == [good]
    with pytest.raises(RecordCorruptError):
        await a.read(0, 1)


# -- truncation, hints, checkpoints ------------------------------------------------------


async def test_what_is_truncated_is_gone_and_the_floor_never_falls(shared_log):
    a, (term, _) = await led(shared_log)
    records = [record_of(0, term, 1, PUT, PUT), record_of(0, term, 3, PUT)]
    for record in records:
        await a.append(record)
    await a.truncate(0, 2)
    assert await a.read(0, 1) == records  # its second entry is above the floor
    await a.truncate(0, 3)
    await a.truncate(0, 1)
    assert (await a.state(0)).floor == 3
    with pytest.raises(CompactedError) as caught:
        await a.read(0, 1)
    assert caught.value.floor == 3
    assert await a.read(0, 2) == records[1:]
    await a.append(record_of(0, term, 4, PUT))


async def test_a_near_read_finds_what_is_there(shared_log):
    a, (term, _) = await led(shared_log)
    b = await joined(shared_log, "b")
    records = [record_of(0, term, n, PUT) for n in range(1, 4)]
    assert await b.read(0, 0, is_near=True) == []
    for record in records:
        await a.append(record)
    found: list[LogRecord] = []
    while len(found) < len(records):
        more = await b.read(0, len(found), is_near=True)
        assert more  # that there are no more would be wrong
        found += more
    assert found == records
    assert await b.read(0, 3, is_near=True) == []
    await a.truncate(0, 3)
    assert (await b.state(0)).floor == 3
    with pytest.raises(CompactedError):
        await b.read(0, 1, is_near=True)


async def test_a_log_truncated_to_its_end_goes_on(shared_log):
    a, (term, _) = await led(shared_log)
    await a.append(record_of(0, term, 1, PUT))
    await a.truncate(0, 2)
    assert await a.read(0, 1) == []
    await a.append(record_of(0, term, 2, PUT))
    await a.resign(0, term)
    won = await a.campaign(0)
    assert won is not None
    assert won.last == 2


async def test_changes_are_hinted(shared_log):
    a, (term, _) = await led(shared_log, shard=1)
    b = await joined(shared_log, "b")
    seen: set[Change] = set()

    async def watch() -> None:
        async for change in b.watch():
            seen.add(change)

    task = asyncio.ensure_future(watch())
    await shared_log.pass_time(0.3)
    seen.clear()
    await a.append(record_of(1, term, 1, PUT))
    await shared_log.pass_time(0.5)
    assert {change for change in seen if change.shard == 1} == {Change(1, 1)}
    seen.clear()
    await a.resign(1, term)
    await shared_log.pass_time(0.5)
    assert Change(1) in seen
    task.cancel()
    await asyncio.wait([task])
    await settle()


async def test_of_many_appends_the_last_is_hinted(shared_log):
    a, (term, _) = await led(shared_log, shard=1)
    b = await joined(shared_log, "b")
    seen: dict[int, int] = {}  # by shard, as it was told last

    async def watch() -> None:
        async for change in b.watch():
            seen[change.shard] = change.last

    task = asyncio.ensure_future(watch())
    await shared_log.pass_time(0.3)
    seen.clear()
    for first in range(1, 10):
        await a.append(record_of(1, term, first, PUT))
    await shared_log.pass_time(0.5)
    assert seen[1] == 9
    task.cancel()
    await asyncio.wait([task])
    await settle()


async def test_the_last_checkpoint_of_each_node_is_known(shared_log):
    a, b = await joined(shared_log, "a"), await joined(shared_log, "b")
    old = Checkpoint("a", "file:///a", "d1", (3, 4), 10)
    new = Checkpoint("a", "file:///a2", "d2", (5, 6), 30)
    other = Checkpoint("b", "file:///b", "d3", (4, 4), 20)
    await a.publish(old)
    await b.publish(other)
    assert list(await b.checkpoints()) == [other, old]
    await a.publish(new)
    assert list(await b.checkpoints()) == [new, other]
    await a.close()
    assert list(await b.checkpoints()) == [new, other]


async def test_closing_twice_is_harmless(shared_log):
    a, _ = await led(shared_log)
    await a.close()
    await a.close()
    b = await joined(shared_log, "b")
    assert (await b.state(0)).leader is None


async def test_space_says_how_much_of_the_quota_is_used(shared_log):
    a, _ = await led(shared_log)
    before = await a.space()
    assert 0 <= before.used_bytes <= before.file_bytes < before.quota_bytes
    assert not before.is_full
    await a.compact()
    await a.compact()
    assert (await a.space()).share < 1


# -- placements --------------------------------------------------------------------------


async def test_a_placement_is_replaced_only_where_it_is_what_was_read(shared_log):
    a = await joined(shared_log, "a")
    assert await a.placements() == []
    assert await a.become_balancer()
    assert await a.place(Placement(1, ("a", "b")))
    (first,) = await a.placements()
    assert (first.shard, first.copies, first.leaving) == (1, ("a", "b"), ())
    assert first.version > 0
    assert not await a.place(Placement(1, ("a",)))
    assert await a.place(replace(first, copies=("a", "b", "c"), leaving=("a",)))
    assert not await a.place(replace(first, copies=("b",)))
    assert await a.place(Placement(0, ("c",)))
    home, second = await a.placements()
    assert (home.shard, home.copies) == (0, ("c",))
    assert (second.copies, second.leaving) == (("a", "b", "c"), ("a",))
    assert second.version > first.version
    assert await a.place(replace(second, version=first.version))  # as if its answer was lost


async def test_one_session_is_the_balancer_and_only_that_may_place(shared_log):
    a, b = await joined(shared_log, "a"), await joined(shared_log, "b")
    with pytest.raises(FencedError):
        await a.place(Placement(0, ("a",)))
    assert await a.become_balancer()
    assert await a.become_balancer()
    assert not await b.become_balancer()
    with pytest.raises(FencedError):
        await b.place(Placement(0, ("b",)))
    assert await b.place(Placement(0, ("b",)), is_wish=True)
    await shared_log.expire("a")
    (placed,) = await b.placements()
    with pytest.raises((FencedError, SessionLostError)):
        await a.place(replace(placed, copies=("a",)))
    assert await b.become_balancer()
    assert await b.place(replace(placed, copies=("b", "a")))
    await b.close()
    await a.join(Member("a"))
    assert await a.become_balancer()


async def test_a_session_that_is_over_wishes_nothing(shared_log):
    a = await joined(shared_log, "a")
    await shared_log.expire("a")
    with pytest.raises(FencedError):
        await a.place(Placement(0, ("a",)), is_wish=True)
    assert await a.placements() == []


async def test_departures_are_kept_until_they_are_taken_back_or_the_node_is_forgotten(shared_log):
    a, b = await joined(shared_log, "a"), await joined(shared_log, "b")
    mark = Checkpoint("c", "file:///c", "d", (3, NO_COPY), 10)
    await b.publish(mark)
    await a.depart(Departure("c"))
    await a.depart(Departure("b"))
    await a.depart(Departure("c", is_dead=True))
    assert await b.departures() == [Departure("b"), Departure("c", is_dead=True)]
    await b.stay("b")
    await b.stay("b")
    assert list(await a.checkpoints()) == [mark]
    await b.forget("c")
    await b.forget("c")
    assert await a.departures() == []
    assert list(await a.checkpoints()) == []
    await a.close()
    assert [member.node for member in await b.members()] == ["b"]


async def test_changes_of_placements_are_hinted(shared_log):
    a, b = await joined(shared_log, "a"), await joined(shared_log, "b")
    assert await a.become_balancer()
    seen: set[int] = set()

    async def watch() -> None:
        async for change in b.watch():
            seen.add(change.shard)

    task = asyncio.ensure_future(watch())
    await shared_log.pass_time(0.3)
    for change in (a.place(Placement(1, ("a",))), a.depart(Departure("c"))):
        seen.clear()
        await change
        await shared_log.pass_time(0.5)
        assert PLACEMENTS in seen
    task.cancel()
    await asyncio.wait([task])
    await settle()
