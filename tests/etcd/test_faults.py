"""What a replica goes through with a real etcd: the rows of the failure matrix that concern it."""

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support_etcd import TTL_S, Proxy, Raw, closing, fresh_name, log_of, looked, until
from support_shared_log import noise, record_of

from lodeq.errors import ClosedError, LogRolledBackError, UsageError
from lodeq.replication.port import (
    PLACEMENTS,
    FencedError,
    Genesis,
    LogUnavailableError,
    Member,
    Position,
    SessionLostError,
)

pytestmark = pytest.mark.anyio
PUT = ((b"k", b"v"),)
BOUND_S = TTL_S * 1.5 + 0.5  # the session, the try under way, and a busy machine


def seconds() -> float:
    return asyncio.get_running_loop().time()


async def joined(url: str, node: str = "a", **given):
    log = log_of(url, **given)
    await log.connect(Genesis("any", 2, bytes(16)))
    await log.join(Member(node))
    return log


async def led(url: str, node: str = "a", **given):
    log = await joined(url, node, **given)
    term = await log.campaign(0)
    return log, term.term


# -- answers that are lost -------------------------------------------------------------------


async def test_an_append_whose_answer_is_lost_is_there_once(servers):
    name = fresh_name()
    async with Proxy(servers.ports[0]) as proxy:
        others = ",".join(servers.endpoints[1:])
        url = f"etcd://127.0.0.1:{proxy.port},{others}/{name}?ttl={TTL_S}"
        log, term = await led(url)
        reader = await joined(servers.url(name, first=1), "b")
        async with closing(log, reader):
            first, second = (record_of(0, term, n, PUT) for n in (1, 2))
            await log.append(first)
            proxy.is_losing = True
            await log.append(second)
            assert proxy.lost_bytes > 0
            proxy.is_losing = False
            third = record_of(0, term, 3, PUT)
            await log.append(third)
            assert await reader.read(0, 0) == [first, second, third]
            raw = Raw(url)
            found = await raw.kvs()
            await raw.close()
            assert [kv.version for key, kv in found.items() if key.startswith("log/0000/")] == [
                1
            ] * 3
            assert found["tail/0000"].version == 4  # the campaign's and one for each append


async def test_appends_that_came_together_are_there_once_when_their_answer_is_lost(servers):
    name = fresh_name()
    async with Proxy(servers.ports[0]) as proxy:
        others = ",".join(servers.endpoints[1:])
        url = f"etcd://127.0.0.1:{proxy.port},{others}/{name}?ttl={TTL_S}"
        log = await joined(url)
        raw = Raw(url)
        async with closing(log, raw):
            terms = [(await log.campaign(shard)).term for shard in range(2)]
            for n in (1, 2, 3):
                proxy.is_losing = n == 2
                records = [record_of(shard, terms[shard], n, PUT) for shard in range(2)]
                await asyncio.gather(*map(log.append, records))
            assert proxy.lost_bytes > 0
            found = await raw.kvs()
            tails = [found[f"tail/000{shard}"] for shard in range(2)]
            assert [one.version for one in tails] == [4, 4]
            assert tails[0].mod_revision == tails[1].mod_revision, "one transaction"
            for shard in range(2):
                assert len(await log.read(shard, 0)) == 3


async def test_a_shard_that_another_leads_by_now_does_not_hold_up_those_beside_it(servers):
    url = servers.url(fresh_name())
    log, other = await joined(url), await joined(url, "b")
    async with closing(log, other):
        terms = [(await log.campaign(shard)).term for shard in range(2)]
        assert await other.depose(1, terms[1], fenced_s=0)
        assert await other.campaign(1) is not None
        records = [record_of(shard, terms[shard], 1, PUT) for shard in range(2)]
        found = await asyncio.gather(*map(log.append, records), return_exceptions=True)
        assert [type(one) for one in found] == [type(None), FencedError]
        assert await other.read(0, 0) == records[:1]
        assert await other.read(1, 0) == []


async def test_a_large_append_whose_answers_are_lost_is_there_once(servers):
    name = fresh_name()
    async with Proxy(servers.ports[0]) as proxy:
        others = ",".join(servers.endpoints[1:])
        url = f"etcd://127.0.0.1:{proxy.port},{others}/{name}?ttl={TTL_S}"
        log, term = await led(url, record_bytes_max=4096)
        async with closing(log):
            proxy.is_losing = True
            large = record_of(0, term, 1, ((b"k", noise(50_000)),))
            await log.append(large)
            proxy.is_losing = False
            assert await log.read(0, 0) == [large]
            raw = Raw(url)
            found = await raw.kvs()
            await raw.close()
            assert sum(key.startswith("log/0000/") for key in found) > 50_000 // 4096


async def test_a_campaign_whose_answer_is_lost_is_won_once(servers):
    async with Proxy(servers.ports[0]) as proxy:
        others = ",".join(servers.endpoints[1:])
        url = f"etcd://127.0.0.1:{proxy.port},{others}/{fresh_name()}?ttl={TTL_S}"
        log = await joined(url)
        async with closing(log):
            proxy.is_losing = True
            term = await log.campaign(1)
            proxy.is_losing = False
            assert await log.campaign(1) == term
            assert (await log.state(1)).leader == "a"


async def test_without_any_answer_an_append_is_unknown_and_the_log_says_it_later(servers):
    name = fresh_name()
    async with Proxy(servers.ports[0]) as proxy:
        log, term = await led(f"etcd://127.0.0.1:{proxy.port}/{name}?ttl={TTL_S}")
        reader = await joined(servers.url(name), "b")
        async with closing(log, reader):
            record = record_of(0, term, 1, PUT)
            proxy.is_losing = True
            began = seconds()
            with pytest.raises(LogUnavailableError):
                await log.append(record)
            assert seconds() - began < BOUND_S
            assert log.session_until() == 0
            assert await reader.read(0, 0) == [record]
            with pytest.raises(FencedError):
                await log.append(record_of(0, term, 2, PUT))


async def test_what_is_left_of_an_append_that_was_given_up_cannot_come_later(servers):
    """Campaigning again writes the tail anew: a late copy of the request compares the old one."""
    name = fresh_name()
    log, term = await led(servers.url(name))
    async with closing(log):
        tenure = log._appender.tenure(0, term)
        seen = tenure.seen
        tenure.is_unsure = True  # as an append without an answer leaves it
        assert await log.campaign(0) == (term, 0)
        again = log._appender.tenure(0, term)
        assert again.seen > seen
        late = record_of(0, term, 1, PUT, nonce=b"late" * 4)
        tenure.is_unsure = False
        log._appender._tenures[0] = tenure
        with pytest.raises(FencedError):
            await log.append(late)
        assert (await log.state(0)).last == 0


# -- members that do not answer --------------------------------------------------------------


async def appended(log, term: int, first: int, count: int) -> float:
    """Append so many records; the longest wait for one, in seconds."""
    longest = 0.0
    for index in range(first, first + count):
        began = seconds()
        await log.append(record_of(0, term, index, PUT))
        longest = max(longest, seconds() - began)
    return longest


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_one_frozen_member_stops_nobody_for_long(servers, at):
    """Each of the three, so the leader of etcd is among them."""
    url = servers.url(fresh_name()).replace(f"ttl={TTL_S}", "ttl=3")
    log, term = await led(url)
    async with closing(log):
        await appended(log, term, 1, 5)
        with servers.frozen(at):
            assert await appended(log, term, 6, 20) < 3
            assert log.session_until() > 0
        assert await appended(log, term, 26, 5) < 3
        assert len(await log.read(0, 0)) == 30
    await asyncio.to_thread(servers.wait_ready)


async def test_one_dead_member_stops_nobody_for_long(servers):
    url = servers.url(fresh_name()).replace(f"ttl={TTL_S}", "ttl=3")
    log, term = await led(url)
    async with closing(log):
        await appended(log, term, 1, 5)
        with servers.dead(0):
            assert await appended(log, term, 6, 20) < 3
            assert len(await log.read(0, 0)) == 25


async def test_without_a_quorum_nothing_is_acknowledged_and_it_recovers_by_itself(servers):
    log, term = await led(servers.url(fresh_name()))
    async with closing(log):
        await appended(log, term, 1, 2)
        with servers.frozen(1, 2):
            began = seconds()
            with pytest.raises(LogUnavailableError):
                await log.append(record_of(0, term, 3, PUT))
            with pytest.raises(LogUnavailableError):
                await log.read(0, 0)
            assert seconds() - began < 2 * BOUND_S
            assert log.session_until() == 0
        await asyncio.to_thread(servers.wait_ready)
        await log.join(Member("a"))
        found = await log.campaign(0)
        assert found.last in {2, 3}
        await log.append(record_of(0, found.term, found.last + 1, PUT))
        assert len(await log.read(0, 0)) == found.last + 1


# -- sessions --------------------------------------------------------------------------------


async def test_a_session_that_etcd_ends_is_over_here_within_a_beat(servers):
    url = servers.url(fresh_name())
    log, term = await led(url)
    raw = Raw(url)
    async with closing(log, raw):
        await raw.expire("a")
        await until(lambda: log.session_until() == 0, TTL_S / 2)
        with pytest.raises(SessionLostError):
            await log.campaign(0)
        with pytest.raises(FencedError):
            await log.append(record_of(0, term, 1, PUT))
        await log.join(Member("a"))
        assert (await log.campaign(0)).term > term


async def test_a_session_ends_while_the_machine_is_suspended(servers):
    """The monotonic clock stands still meanwhile, and etcd's does not."""
    slept_s = 0.0
    log = await joined(servers.url(fresh_name()), boot=lambda: seconds() + slept_s)
    async with closing(log):
        assert log.session_until() > 0
        slept_s = TTL_S + 1.0
        assert log.session_until() == 0
        slept_s = 0.0
        assert log.session_until() == 0


async def test_the_second_process_of_a_name_is_refused_until_the_first_is_gone(servers):
    url = servers.url(fresh_name())
    child = await start_child(url, "twin")
    try:
        with pytest.raises(UsageError, match="a node named 'twin' is there"):
            await joined(url, "twin")
        child.kill()
        await child.wait()
        log = log_of(url)
        await log.connect(Genesis("any", 2, bytes(16)))
        async with closing(log):
            await until_joined(log, "twin")
            assert [member.node for member in await log.members()] == ["twin"]
    finally:
        await end_child(child)


async def until_joined(log, node: str) -> None:
    end = seconds() + TTL_S + 3
    while True:
        try:
            return await log.join(Member(node))
        except UsageError:
            assert seconds() < end
            await asyncio.sleep(0.1)


async def start_child(url: str, node: str):
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("child.py")),
        url,
        node,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert (await child.stdout.readline()).startswith(b"leads ")
    return child


async def end_child(child) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    await child.wait()
    child._transport.close()


async def test_a_frozen_leader_is_fenced_when_it_comes_back(servers):
    url = servers.url(fresh_name())
    child = await start_child(url, "frozen")
    try:
        log = await joined(url, "b")
        async with closing(log):
            old = await log.state(0)
            assert old.leader == "frozen"
            child.send_signal(signal.SIGSTOP)
            began = seconds()
            while (found := await log.campaign(0)) is None:
                assert seconds() - began < TTL_S + 2
                await asyncio.sleep(0.05)
            assert found.last == 1
            await log.append(record_of(0, found.term, 2, PUT))
            child.stdin.write(b"append\n")
            child.send_signal(signal.SIGCONT)
            assert await child.stdout.readline() == b"session over\n"
            assert await child.stdout.readline() == b"FencedError\n"
            assert [record.term for record in await log.read(0, 0)] == [old.term, found.term]
    finally:
        await end_child(child)


async def test_a_close_gives_the_session_back_at_once(servers):
    url = servers.url(fresh_name())
    log, _ = await led(url)
    other = await joined(url, "b")
    async with closing(log, other):
        await log.close()
        assert await other.members() == [Member("b")]
        assert (await other.state(0)).leader is None
        with pytest.raises(ClosedError):
            await log.members()


async def test_a_close_ends_what_is_under_way(servers):
    log, term = await led(servers.url(fresh_name()))
    async with closing(log):
        with servers.frozen(0, 1, 2):
            append = asyncio.create_task(log.append(record_of(0, term, 1, PUT)))
            hints = asyncio.create_task(anext(log.watch(), None))
            await asyncio.sleep(0.2)
            began = seconds()
            await log.close()
            assert seconds() - began < 2
            with pytest.raises(ClosedError):
                await append
            assert await hints is None
    await asyncio.to_thread(servers.wait_ready)


# -- watching --------------------------------------------------------------------------------


async def test_a_watch_over_compacted_revisions_says_that_all_may_have_changed(servers):
    log, term = await led(servers.url(fresh_name()))
    async with closing(log):
        changes = log.watch()  # asked for nothing yet: it lags
        await appended(log, term, 1, 5)
        await log.compact()
        async with asyncio.timeout(10):
            everything = {PLACEMENTS, -1, 0, 1}
            assert {(await anext(changes)).shard for _ in everything} == everything
            await log.append(record_of(0, term, 6, PUT))
            while (await anext(changes)).shard != 0:
                pass
        await changes.aclose()


async def test_a_watch_goes_on_at_another_member(servers):
    url = servers.url(fresh_name(), first=1)
    log, term = await led(url)
    async with closing(log):
        changes = log.watch()
        async with asyncio.timeout(20):
            await log.append(record_of(0, term, 1, PUT))
            assert (await anext(changes)).shard == 0
            with servers.frozen(1):
                await log.append(record_of(0, term, 2, PUT))
                while (await anext(changes)).shard != 0:
                    pass
        await changes.aclose()


# -- space -----------------------------------------------------------------------------------


async def test_what_is_truncated_and_compacted_is_free_again(one_server):
    server = one_server(quota_bytes=64 << 20)
    url = server.url("space")
    log, term = await led(url)
    async with closing(log):
        large = (b"k", noise(1 << 20))
        for index in range(1, 13):
            await log.append(record_of(0, term, index, (large,)))
        # It tells what it has committed, ten times a second.
        full = await looked(log.space, lambda space: space.used_bytes > 12 << 20)
        assert full.quota_bytes == 64 << 20
        assert 0.18 < full.share < 0.4
        await log.truncate(0, 12)
        await log.compact()
        async with asyncio.timeout(10):
            while (await log.space()).used_bytes > 6 << 20:
                await log.report(Member("a"))  # pages are free one commit later
                await asyncio.sleep(0.05)
        assert (await log.space()).file_bytes >= full.file_bytes
        assert await log.defragment() == []
        assert (await log.space()).file_bytes < 8 << 20
        assert [record.first for record in await log.read(0, 11)] == [12]


async def fill(log, term: int) -> None:
    """Append more than a small quota takes, and truncate it all."""
    for index in range(1, 20):
        await log.append(record_of(0, term, index, ((b"k", noise(1 << 20)),)))
        await log.truncate(0, index)


async def test_an_etcd_that_is_full_says_so_and_goes_on_once_it_has_space(one_server):
    """Old revisions have used it up: compaction, defragmentation and disarming give it back."""
    server = one_server(quota_bytes=8 << 20)
    log, term = await led(server.url("full"))
    async with closing(log):
        with pytest.raises(LogUnavailableError, match="used up its quota"):
            await fill(log, term)
        assert (await looked(log.space, lambda space: space.is_full)).share == 1.0
        await log.compact()
        assert await log.defragment() == []
        assert not (await log.space()).is_full
        found = await log.campaign(0)
        assert found.term == term  # renewals are no writes: the session went on
        await log.append(record_of(0, term, found.last + 1, PUT))


# -- an etcd that has gone back --------------------------------------------------------------


async def test_an_etcd_restored_from_an_older_copy_is_refused(one_server, tmp_path):
    server = one_server()
    url = server.url("back")
    log, term = await led(url)
    async with closing(log):
        await appended(log, term, 1, 3)
        server.kill(0)
        shutil.copytree(server.data(0), tmp_path / "copy")
        server.start(0)
        server.wait_ready()
        await log.join(Member("a"))
        found = await log.campaign(0)
        await appended(log, found.term, 4, 10)
        noted = log.position()
        server.kill(0)
        shutil.rmtree(server.data(0))
        shutil.copytree(tmp_path / "copy", server.data(0))
        server.start(0)
        server.wait_ready()
        with pytest.raises(LogRolledBackError, match="older copy"):
            await log.states()
        with pytest.raises(LogRolledBackError):  # and never believed again
            await log.members()
    later = log_of(url)
    later.check_position(noted)
    async with closing(later):
        with pytest.raises(LogRolledBackError, match="older copy"):
            await later.connect(Genesis("any", 2, bytes(16)))


async def test_another_etcd_is_refused(servers, one_server):
    log = await joined(servers.url(fresh_name()))
    async with closing(log):
        noted = log.position()
    other = log_of(one_server().url("other"))
    other.check_position(Position(noted.service_id, 1))
    async with closing(other):
        with pytest.raises(LogRolledBackError, match="cluster id"):
            await other.connect(Genesis("any", 2, bytes(16)))
