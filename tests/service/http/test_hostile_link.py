"""Clients of the link that mean harm, or have bugs: others go on, and what they hold is bounded."""

import asyncio

import anyio
import msgpack
import pytest
from support_link import Peer, frame, pack, serving_links, turns
from support_turns import held_at_most

import lodeq
import lodeq.testing
from lodeq.service.http.admission import Admission
from lodeq.service.http.guard import Settings
from lodeq.service.http.link import connection as linked
from lodeq.service.http.operations import OPERATIONS

pytestmark = pytest.mark.anyio
MAIL = [0, 0, pack({"queue": "mail"})]
LATER = [0, 1, pack({"queue": "later"})]
LISTS = pack({"headers": {"x": [[]] * 16364}})  # a byte less is as much as is read at once


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def engine():
    async with lodeq.testing.open() as engine:
        yield engine


@pytest.fixture
async def links(engine):
    return serving_links(engine)


@pytest.fixture
async def peer(links):
    peer = Peer(*links)
    peer.send(MAIL, LATER)
    return peer


def problem(answer):
    status, value = answer
    assert status == 2, answer
    assert value["type"].startswith("urn:lodeq:problem:")
    return value["status"]


async def ready(engine):
    return (await engine.stats()).ready


# --- what comes behind the end ------------------------------------------------------------------


async def test_nothing_behind_a_refused_frame_is_done(engine, peer):
    """The frames of one read."""
    good = frame(pack([[1, 5, 0, 0, b"x"]]))
    peer.send_bytes(good + frame(pack([[1, 5, 0, 0, b"x"]])) + frame(pack([[1, 9, 0, 0, b"x"]])))
    await turns()
    assert problem(peer.answers()[0]) == 400
    assert await ready(engine) == 1
    assert peer.wire.is_gone


@pytest.mark.parametrize("n_before", [0, 10, 600])
async def test_nothing_behind_a_refused_entry_is_done(engine, peer, n_before):
    """Also where it waits for later turns, and where the client does not read the answers."""
    peer.wire.is_stuck = True
    before = [peer.request(1, 0, 0, b"x") for _ in range(n_before)]
    behind = [[1, 10_000 + n, 0, 0, b"y"] for n in range(600)]
    peer.send(*before, [1, 0x7FFF, 0, 0, b"last"], [1, 1, 0, 0, b"again"], *behind)
    await turns()
    assert await ready(engine) == n_before + 1
    assert problem(peer.answers()[0]) == 400


async def test_a_refused_client_that_does_not_read_is_cut_off(links, monkeypatch):
    """Else its connection would stay, uncounted, for as long as it likes."""
    monkeypatch.setattr(linked, "READ_WAIT_S", 0.0)
    for what in ("refused", "shed"):
        peer = Peer(*links, is_stuck=True)
        peer.send(peer.request(8, "GET", "/engine", {}, None, None))
        await turns()
        if what == "refused":
            peer.send_bytes(frame(b"\xc1"))
        else:
            peer.link.shed()
        assert peer.wire.unread
        await turns()
        assert peer.wire.is_gone
        assert peer.link.transport is None


async def test_leases_granted_as_the_client_goes_are_free_at_once(engine, peer):
    """The end of the connection comes between the grant and the write of its answer."""
    await engine.queue("mail").enqueue(b"x")
    answer = peer.link.answer

    def answer_and_go(id, value):
        answer(id, value)
        peer.wire.close()

    peer.link.answer = answer_and_go
    peer.send(peer.request(3, 0, 1, None, 0, "w"))
    await turns()
    assert peer.wire.is_gone
    assert not peer.answers()
    stats = await engine.stats()
    assert (stats.ready, stats.leased) == (1, 0)


async def test_a_request_done_as_the_client_goes_harms_nobody(engine, links, peer):
    peer.send(*[peer.request(1, 0, 0, b"x") for _ in range(10)])
    peer.wire.abort()
    other = Peer(*links)
    other.send(MAIL, other.request(1, 0, 0, b"x"))
    await turns()
    assert len(other.answers()[1][1]) == 16
    assert await ready(engine) == 11


# --- what one client may hold -------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry", [[9, 7], [0, 3, pack({"queue": "x"})], [0, 3, b"\xc1"]], ids=["cancel", "queue", "no"]
)
async def test_a_client_without_requests_is_idle(engine, links, entry):
    """It makes place for another when there are too many."""
    serving, _ = links
    admission = Admission(1)
    first = Peer(serving, admission)
    first.send(entry)
    await turns()
    second = Peer(serving, admission)
    assert first.wire.is_gone
    assert msgpack.unpackb(second.welcome[0][1:])[0] is True


async def test_every_wait_is_counted(engine, links):
    """Also that of a claim of more than one turn takes."""
    serving, _ = links
    admission = Admission(16)
    peer = Peer(serving, admission)
    peer.send(MAIL, *[peer.request(3, 0, 4096, None, 50, "w") for _ in range(100)])
    await turns(200)
    found = peer.answers()
    assert {problem(one) for one in found.values()} == {503}
    assert len(found) == 100 - admission.polls_max
    assert admission.polls == admission.polls_max
    peer.wire.abort()
    await turns()
    assert admission.polls == 0


async def test_a_long_claim_waits_as_any_other(engine, links, peer):
    serving, _ = links
    first, second, third = (peer.request(3, 0, 4096, None, 50, "w") for _ in range(3))
    peer.send(first, second, third)
    await turns()
    assert not peer.answers()
    peer.send([9, first[1]])
    await engine.queue("mail").enqueue(b"x")
    await turns()
    found = peer.answers()
    assert set(found) == {second[1]}  # the cancelled one takes nothing
    assert len(found[second[1]][1]) == 1
    peer.link.shutdown()  # ends the wait at once
    await turns()
    assert peer.answers()[third[1]] == [0, []]
    assert peer.wire.is_gone
    assert not serving.tasks


async def test_ten_thousand_polls(engine, links):
    """Those beyond the limit are refused one by one, and those within it are served."""
    serving, admission = links
    peer = Peer(serving, admission)
    for start in range(0, 10_000, 2000):
        polls = [peer.request(3, 0, 1, None, 50, "w") for _ in range(2000)]
        peer.send(*([MAIL] if not start else []), *polls)
        await turns(20)
    await turns()
    found = peer.answers()
    assert len(found) == 10_000 - admission.polls_max
    assert {problem(one) for one in found.values()} == {503}
    other = Peer(serving, admission)
    other.send(MAIL, other.request(1, 0, 0, b"x"))
    await turns()
    assert len(other.answers()[1][1]) == 16
    assert [one[1] for id, one in peer.answers().items() if one[0] == 0 and one[1]]
    peer.wire.abort()
    await turns()
    assert admission.polls == 0
    assert serving.hub.claims._in_progress == {}


async def test_a_flood_of_cancels(engine, links, peer):
    """It makes nobody else's claim be forgotten."""
    serving, _ = links
    claim_id = b"from another, 16"
    serving.hub.claims.cancel(claim_id)  # overtook its claim
    for start in range(1, 40_000, 4000):
        peer.send(*[[9, id] for id in range(start, start + 4000)])
        await turns(20)
    assert serving.hub.claims.begin(claim_id).is_cancelled
    peer.send(peer.request(1, 0, 0, b"x"))
    await turns()
    assert peer.answers()[1][0] == 0


async def test_empty_claims_are_not_remembered(engine, links, peer):
    serving, _ = links
    for _ in range(5):
        peer.send(peer.request(3, 0, 4096, None, 0, "w"))
        await turns()
    assert len(peer.answers()) == 5
    assert not serving.hub.claims._granted


async def test_half_a_frame_behind_a_pause_has_its_time_too(engine, links, monkeypatch):
    monkeypatch.setattr(linked, "FRAME_WAIT_S", 0.0)
    monkeypatch.setattr(linked, "OPEN_MAX", 1)
    peer = Peer(*links)
    calls = [peer.request(1, 0, 0, b"x") for _ in range(600)]
    peer.send_bytes(frame(pack([MAIL, *calls])) + b"\x00\x00")
    await turns(2000)
    assert len(peer.answers()) == 600
    assert peer.wire.is_gone


async def test_halves_of_many_frames(engine):
    """What all of them hold is bounded, as with HTTP."""
    serving, admission = serving_links(engine, Settings(held_bytes_max=8 << 20))
    half = (8 << 20).to_bytes(4, "big") + bytes(1 << 20)
    peers = [Peer(serving, admission, nonce=n.to_bytes(8, "big")) for n in range(20)]
    for peer in peers:
        peer.send_bytes(half)
    await turns()
    refused = [peer for peer in peers if peer.wire.is_gone]
    assert len(refused) == 13
    assert {problem(peer.answers()[0]) for peer in refused} == {503}
    for peer in peers:
        peer.wire.abort()
    await turns()
    assert serving.hub.held_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "wait"), [(8, 0), (8, 50), (2000, 0), (2000, 50)])
async def test_a_client_that_does_not_read_its_claims(engine, links, limit, wait):
    """What is made for it is bounded, however many claims it sends at once."""
    mail = engine.queue("mail")
    for _ in range(4):
        await mail.enqueue_many([lodeq.NewTask(bytes(64 << 10)) for _ in range(200)])
    peer = Peer(*links, is_stuck=True)
    peer.send(MAIL, *[peer.request(3, 0, limit, 600, wait, "w") for _ in range(100)])
    await turns(300)
    assert peer.wire.most_unread < 3 * linked.UNREAD_BYTES
    peer.wire.read()
    for _ in range(50):
        peer.wire.read()
        await turns(10)
    found = peer.answers()
    assert sum(len(leases) for _, leases in found.values()) == 800
    assert len(found) == 100 or (wait and limit > 100)  # the others wait for more


# --- twice, or in the wrong order --------------------------------------------------------------


async def claimed(engine, peer, **options):
    """The proof of a lease."""
    await engine.queue("mail").enqueue(b"x", **options)
    claim = peer.request(3, 0, 1, None, 0, "w")
    peer.send(claim)
    await turns()
    return peer.answers()[claim[1]][1][0][:3]


async def test_a_complete_that_is_sent_twice_is_done_once(engine, peer):
    """Also where the first is not committed yet, and over another connection."""
    proof = await claimed(engine, peer)
    first, second = (peer.request(4, *proof, 0, b"done", True) for _ in range(2))
    peer.send(first, second)
    await turns()
    third = peer.request(4, *proof, 0, b"other", True)
    many = peer.request(5, [[*proof, 0, b"other"]])
    peer.send(third, many)
    await turns()
    found = peer.answers()
    assert [found[one[1]] for one in (first, second, third, many)] == [[0, None]] * 3 + [[0, []]]
    result = await engine.result(lodeq.TaskId(proof[0]))
    assert (result.status, result.value) == ("completed", b"done")


ENDS = {
    "complete": lambda proof: (4, *proof, None, None, True),
    "forget": lambda proof: (4, *proof, None, None, False),
    "nack": lambda proof: (6, *proof, "nack", 0, ""),
    "release": lambda proof: (6, *proof, "release", None, ""),
    "bury": lambda proof: (6, *proof, "bury", None, ""),
    "cancel": lambda proof: (6, *proof, "cancel", None, ""),
}


@pytest.mark.parametrize("one", ENDS)
@pytest.mark.parametrize("other", ENDS)
async def test_a_lease_ends_once(engine, peer, one, other):
    """Of two different ends in one frame one is done, and the other hears so."""
    proof = await claimed(engine, peer)
    first = peer.request(*ENDS[one](proof))
    second = peer.request(*ENDS[other](proof))
    peer.send(first, second)
    await turns()
    found = peer.answers()
    assert sorted([found[first[1]][0], found[second[1]][0]]) in ([0, 2], [0, 0])
    if found[first[1]][0] == found[second[1]][0]:
        assert one == other != "forget" or (one, other) == ("complete", "forget")
    else:
        failed = first if found[first[1]][0] else second
        assert problem(found[failed[1]]) == 409
    stats = await engine.stats()
    assert stats.leased == 0
    assert (await engine.verify()).ok
    if stats.ready:
        for lease in await engine.queue("mail").claim(limit=5):
            await lease.complete()


async def test_one_nonce_on_two_connections(engine, links):
    """Their claims have the same ids: the second is refused, and nothing is lost by it."""
    peers = [Peer(*links), Peer(*links)]
    for peer in peers:
        peer.send(MAIL, peer.request(3, 0, 1, None, 50, "w"))
    await turns()
    assert not peers[0].answers()
    assert problem(peers[1].answers()[1]) == 422
    queue = engine.queue("mail")
    await queue.enqueue(b"x")
    await queue.enqueue(b"y")
    await turns()
    assert len(peers[0].answers()[1][1]) == 1
    stats = await engine.stats()
    assert (stats.ready, stats.leased) == (1, 1)
    for lease in await queue.claim(limit=5):
        await lease.complete()


async def test_a_claim_that_cannot_be_answered_fails_no_commit(engine, links, peer, monkeypatch):
    """A bug costs its connection, not the shard: that is everybody's."""

    def fail(leases):
        raise KeyError("a bug")

    monkeypatch.setattr("lodeq.service.http.link.claims._lease_entries", fail)
    peer.send(peer.request(3, 0, 1, None, 50, "w"))
    await engine.queue("mail").enqueue(b"x")
    await turns()
    assert peer.wire.is_gone
    stats = await engine.stats()
    assert (stats.ready, stats.leased) == (1, 0)
    for lease in await engine.queue("mail").claim(limit=5):
        await lease.complete()


async def test_a_cancel_in_the_turn_of_the_grant(engine, links, peer):
    """Whichever is first: the task is leased and answered, or it is free."""
    for n in range(8):
        await engine.queue("mail").enqueue(b"x")
        claim = peer.request(3, 0, 1, None, 5, "w")
        peer.send(claim)
        await turns(n)
        peer.send([9, claim[1]])
        await turns()
        stats = await engine.stats()
        assert (stats.ready, stats.leased) == (1, 0)
        for lease in await engine.queue("mail").claim(limit=5):
            assert lease.attempt == 1
            await lease.complete()


async def test_a_claim_that_is_taken_back_before_it_is_read(engine, links):
    """Its connection is lost, and what it had sent is read behind the client's next one."""
    first, second = Peer(*links), Peer(*links, nonce=b"another!")
    await engine.queue("mail").enqueue(b"x")
    late = [MAIL] + [first.request(3, 0, limit, None, wait, "w") for limit, wait in CLAIMS]
    ids = [b"12345678" + one[1].to_bytes(8, "big") for one in late[1:]]
    calls = [
        second.request(8, "POST", "/leases/cancel_claim", {}, pack({"claim_id": id}), None)
        for id in ids
    ]
    second.send(*calls)
    await turns()
    assert {one[0] for one in second.answers().values()} == {0}
    first.send(*late)
    await turns()
    assert [first.answers()[one[1]] for one in late[1:]] == [[0, []]] * len(CLAIMS)
    stats = await engine.stats()
    assert (stats.ready, stats.leased) == (1, 0)
    for lease in await engine.queue("mail").claim(limit=5):
        await lease.complete()


NAMES = ("queue", "id", "task_id", "snapshot_id")
CLAIMS = [(1, 0), (1, 50), (5, 0), (5, 50), (4096, 0), (4096, 50)]


@pytest.mark.parametrize("document", [None, b"", b"\xc1", pack({}), pack([]), pack({"x": 1})])
async def test_every_operation_of_http_as_a_call(peer, document):
    """Whatever its document: an answer, or an error of its own."""
    paths = {one.path.format(**dict.fromkeys(NAMES, "mail")): one.method for one in OPERATIONS}
    calls = [
        peer.request(8, method, path.replace(":path", ""), query, document, 5.0)
        for path, method in paths.items()
        for query in ({}, {"limit": "x"}, {"nothing": ""})
    ]
    assert len(calls) > 60
    peer.send(*calls)
    for _ in range(100):
        await turns()
        if peer.is_quiet:
            break
    found = peer.answers()
    assert set(found) == {one[1] for one in calls}
    for status, value in found.values():
        assert status == 0 or 400 <= problem((status, value)) < 500, value


# --- work in one turn ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([(2, 0, 0, [b"x"] * 1000)] * 40, id="enqueues of many"),
        pytest.param([(2, 9, 0, [b"xy"] * 4096)] * 400, id="a frame of a million parts"),
        pytest.param([(1, 0, 1, b"\x91" * 90 + b"\xc0")] * 4000, id="values to check"),
        pytest.param([(1, 0, 1, b"\xdc\x3f\x00" + b"\x90" * 16128)] * 60, id="lists to check"),
        pytest.param([(10, 0, 0, b"x", pack({"priority": 3}))] * 4000, id="options"),
        pytest.param([(10, 0, 0, b"x", LISTS[:-1])] * 60, id="options of lists"),
        pytest.param([(11, 0, [(0, b"x", pack({"priority": 3}))] * 256)] * 40, id="many options"),
        pytest.param([(11, 0, [(0, b"x", LISTS[:-1])] * 2)] * 30, id="many options of lists"),
        pytest.param([(11, 0, [(0, b"x", LISTS)] * 15)] * 6, id="many options to count"),
        pytest.param([(10, 0, 0, b"x", LISTS)] * 60, id="options to count"),
        pytest.param([(7, [(bytes(16), 1, b"t")] * 4000, None)] * 10, id="heartbeats"),
        pytest.param([(5, [(bytes(16), 1, b"t", 0, b"")] * 4000)] * 10, id="completes"),
    ],
)
@pytest.mark.turns
async def test_no_turn_is_long(engine, peer, entries):
    data = frame(pack([peer.request(*one) for one in entries]))
    assert len(data) <= 8 << 20
    with held_at_most(50.0):
        peer.send_bytes(data)
        for _ in range(400):
            await turns(10)
            if peer.is_quiet:
                break
    assert len(peer.answers()) == len(entries)


# --- deadlines ----------------------------------------------------------------------------------


async def test_what_comes_to_its_turn_too_late_is_not_begun(engine, peer, monkeypatch):
    """Each operation: behind a request that holds up the connection its deadline of 0 s passes."""
    await engine.queue("later").enqueue(b"x")
    lease = [bytes(16), 1, b"token"]
    monkeypatch.setattr(linked, "OPEN_MAX", 1)
    late = [
        [1, 0, 0, b"late", 0],
        [2, 0, 0, [b"late"], 0],
        [3, 1, 1, None, 5, "w", 0],
        [4, *lease, None, None, True, 0],
        [5, [[*lease, None, None]], 0],
        [6, *lease, "nack", None, "", 0],
        [7, [lease], None, 0],
        [8, "POST", "/queues/later/purge", {}, pack({}), 0],
        [10, 0, 0, b"late", pack({"dedup_key": "k"}), 0],
        [11, 0, [[0, b"late", pack({"dedup_key": "k"})]], 0],
    ]
    requests = [peer.request(one[0], *one[1:]) for one in late]
    first, last = peer.request(1, 0, 0, b"first", 0), peer.request(1, 0, 0, b"last", 60)
    first[1], last[1] = 1, 12
    for n, one in enumerate(requests):
        one[1] = 2 + n
    peer.send(first)  # at once: its time has not passed
    peer.send(*requests, last)
    await turns(300)
    found = peer.answers()
    assert found[1][0] == found[12][0] == 0
    for n in range(2, 12):
        assert problem(found[n]) == 503, found[n]
        assert found[n][1]["type"] == "urn:lodeq:problem:deadline-exceeded"
    tasks = await engine.queue("mail").list("ready")
    assert [one.payload for one in tasks] == [b"first", b"last"]
    assert (await engine.queue("later").stats()).ready == 1
    assert peer.is_quiet


async def test_what_stands_in_line_too_long_is_not_begun(engine, peer):
    await engine.queue("mail").enqueue_many([lodeq.NewTask(b"x") for _ in range(9)])
    peer.link.calls_at_work = asyncio.Semaphore(1)
    peer.link.large_claims = asyncio.Semaphore(1)
    purge = ["POST", "/queues/mail/purge", {}, pack({})]
    peer.send(
        [3, 1, 0, 2000, None, 0, "w", 60],
        [3, 2, 0, 2000, None, 0, "w", 0],
        [8, 3, "GET", "/queues/mail/stats", {}, None, 60],
        [8, 4, *purge, 0],
    )
    await turns(300)
    found = peer.answers()
    assert (found[1][0], len(found[1][1]), found[3][0]) == (0, 9, 0)
    assert problem(found[2]) == problem(found[4]) == 503
    assert peer.is_quiet


async def test_a_claim_waits_no_longer_than_its_deadline(peer):
    peer.send([3, 1, 0, 1, None, 30.0, "w", 0.01])
    with anyio.fail_after(10):
        while 1 not in peer.answers():
            await turns(1)
    assert peer.answers()[1] == [0, []]


@pytest.mark.parametrize("seconds", [float("inf"), 1e300])
async def test_a_deadline_that_is_none_is_refused(peer, seconds):
    peer.send([1, 1, 0, 0, b"x", seconds], [3, 2, 0, 1, None, 0, "w", seconds])
    await turns()
    assert problem(peer.answers()[1]) == problem(peer.answers()[2]) == 422
