"""Enqueues whose answer is lost: sent again where twice is the same as once, else unknown."""

import pytest
from support_cluster_client import client, cluster
from support_http import serving, socket_path
from support_link import grow_older

import lodeq
import lodeq.testing
from lodeq import NewTask
from lodeq.client.fast_calls import FastCalls
from lodeq.service.http.link import connection as linked

pytestmark = pytest.mark.anyio

older = pytest.mark.parametrize("is_older", [False, True], ids=["short", "general"])


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch):
    monkeypatch.setattr(linked, "LINGER_S", 0.0)


@pytest.fixture
async def inner():
    async with lodeq.testing.open(clock=lodeq.testing.ManualClock()) as engine:
        yield engine


@older
async def test_a_lost_enqueue_may_have_happened(inner, cut, monkeypatch, is_older):
    if is_older:
        grow_older(monkeypatch)
    with socket_path() as path:
        async with serving(inner, path=path) as url, lodeq.connect(url) as engine:
            queue = engine.queue("mail")
            for n, options in enumerate(({"dedup_key": "k"}, {"priority": 3})):
                await queue.stats()  # opens the link
                cut[0] = 1
                with pytest.raises(lodeq.CommitUnknownError, match="retry with the same dedup key"):
                    await queue.enqueue(b"x", **options)
                assert (await inner.queue("mail").stats()).ready == n + 1
            assert (await queue.enqueue(b"x", dedup_key="k")).duplicate


@older
async def test_a_lost_enqueue_of_many_may_have_happened(inner, cut, monkeypatch, is_older):
    if is_older:
        grow_older(monkeypatch)
    tasks = [NewTask(n, dedup_key=str(n)) for n in range(5)]
    with socket_path() as path:
        async with serving(inner, path=path) as url, lodeq.connect(url) as engine:
            queue = engine.queue("mail")
            await queue.stats()  # opens the link
            cut[0] = 1
            with pytest.raises(
                lodeq.CommitUnknownError, match="retry with the same dedup key"
            ) as lost:
                await queue.enqueue_many(tasks)
            assert lost.value.receipts == [None] * 5
            assert all(one.duplicate for one in await queue.enqueue_many(tasks))
    assert (await inner.queue("mail").stats()).ready == 5


@older
async def test_a_lost_one_with_a_key_is_sent_again_in_a_cluster(cut, monkeypatch, is_older):
    if is_older:
        grow_older(monkeypatch)
    async with cluster() as nodes, client(nodes) as engine:
        queue = engine.queue("mail")
        for n in range(6):
            await queue.enqueue(n)
        cut[0] = 1
        receipt = await queue.enqueue(b"x", dedup_key="k")
        assert receipt.duplicate
        assert cut[0] == 0
        assert (await engine.get(receipt.id)).payload == b"x"
        for n in range(6):  # and links to all
            await queue.enqueue(n)
        cut[0] = 1
        with pytest.raises(lodeq.CommitUnknownError):
            await queue.enqueue(b"y", priority=3)
        assert (await queue.stats()).ready == 14


@older
async def test_a_lost_one_does_not_replace_its_own_task(cut, monkeypatch, is_older):
    """Done by then, it would be there again."""
    if is_older:
        grow_older(monkeypatch)
    async with cluster() as nodes, client(nodes) as engine:
        queue = engine.queue("mail")
        for n in range(6):
            await queue.enqueue(n)
        cut[0] = 1
        with pytest.raises(lodeq.CommitUnknownError):
            await queue.enqueue(b"x", dedup_key="k", on_conflict="replace")
        for n in range(6):  # and links to all
            await queue.enqueue(n)
        cut[0] = 1
        with pytest.raises(lodeq.CommitUnknownError):
            await queue.enqueue_many([NewTask(b"y", dedup_key="m", on_conflict="replace")])
        assert (await queue.stats()).ready == 14
        assert (await queue.enqueue(b"x", dedup_key="k", on_conflict="replace")).replaced


@older
async def test_a_lost_one_is_not_refused_for_its_own_task(cut, monkeypatch, is_older):
    if is_older:
        grow_older(monkeypatch)
    async with cluster() as nodes, client(nodes) as engine:
        queue = engine.queue("mail")
        for n in range(6):
            await queue.enqueue(n)
        cut[0] = 1
        with pytest.raises(lodeq.CommitUnknownError):
            await queue.enqueue(b"x", dedup_key="k", on_conflict="raise")
        for n in range(6):  # and links to all
            await queue.enqueue(n)
        cut[0] = 1
        with pytest.raises(lodeq.CommitUnknownError):
            await queue.enqueue_many([NewTask(b"y", dedup_key="m", on_conflict="raise")])
        with pytest.raises(lodeq.DuplicateTaskError):
            await queue.enqueue(b"x", dedup_key="k", on_conflict="raise")
        assert (await queue.stats()).ready == 14


async def test_a_lost_one_that_nobody_answers_for_may_have_happened(cut):
    async def nobody(call):
        raise lodeq.NotLeaderError("nobody leads it")

    async with cluster() as nodes, client(nodes) as engine:
        queue = engine.queue("mail")
        for n in range(6):
            await queue.enqueue(n)
        engine.fast._send = nobody
        cut[0] = 1
        with pytest.raises(lodeq.CommitUnknownError, match="was lost"):
            await queue.enqueue(b"x", dedup_key="k")
        assert (await queue.stats()).ready == 7


@older
async def test_lost_ones_of_many_with_keys_are_sent_again(cut, monkeypatch, is_older):
    if is_older:
        grow_older(monkeypatch)
    tasks = [NewTask(n, dedup_key=str(n)) for n in range(20)]
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        for n in range(6):
            await mail.enqueue(n)
        cut[0] = 1
        receipts = await mail.enqueue_many(tasks)
        assert cut[0] == 0
        assert any(one.duplicate for one in receipts)
        assert [(await engine.get(one.id)).payload for one in receipts] == [*range(20)]
        for n in range(6):  # and links to all
            await mail.enqueue(n)
        cut[0] = 1
        with pytest.raises(lodeq.CommitUnknownError):
            await mail.enqueue_many([NewTask(n, priority=3) for n in range(4)])
        assert (await mail.stats()).ready == 36


async def test_lost_ones_of_many_that_nobody_answers_for_may_have_happened(cut):
    async def nobody(call):
        raise lodeq.NotLeaderError("nobody leads it")

    tasks = [NewTask(n, dedup_key=str(n)) for n in range(20)]
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        for n in range(6):
            await mail.enqueue(n)
        engine.fast._send = nobody
        cut[0] = 1
        with pytest.raises(lodeq.CommitUnknownError, match="was lost") as caught:
            await mail.enqueue_many(tasks)
        done = caught.value.receipts
        assert 0 < done.count(None) < 20
        for n, one in enumerate(done):
            assert one is None or (await engine.get(one.id)).payload == n
        assert (await mail.stats()).ready == 26


async def partly(engine, monkeypatch, outcomes):
    """Enqueue twenty tasks with keys: what becomes of the parts that are asked for at once."""
    mail = engine.queue("mail")
    for n in range(6):
        await mail.enqueue(n)
    real, left = FastCalls.enqueue_packed, list(outcomes)

    async def enqueue(self, template, tasks):
        error = left.pop(0) if left else None
        if not isinstance(error, lodeq.BusyError):
            receipts = await real(self, template, tasks)
        if error is not None:
            raise error
        return receipts

    monkeypatch.setattr(FastCalls, "enqueue_packed", enqueue)
    with pytest.raises(lodeq.LodeqError) as caught:
        await mail.enqueue_many([NewTask(n, dedup_key=str(n)) for n in range(20)])
    assert not left
    return caught.value


@pytest.mark.parametrize("is_first", [False, True])
async def test_where_some_are_refused_the_lost_ones_are_settled(monkeypatch, is_first):
    outcomes = [lodeq.CommitUnknownError("lost"), lodeq.BusyError("full")]
    async with cluster() as nodes, client(nodes) as engine:
        error = await partly(engine, monkeypatch, outcomes if is_first else outcomes[::-1])
        assert isinstance(error, lodeq.BusyError)
        done = error.receipts
        assert 0 < done.count(None) < 20
        assert any(one is not None and one.duplicate for one in done)
        assert (await engine.queue("mail").stats()).ready == 6 + 20 - done.count(None)
        for n, one in enumerate(done):
            assert one is None or (await engine.get(one.id)).payload == n


async def test_lost_ones_that_cannot_be_settled_count_more_than_a_refusal(monkeypatch):
    async def nobody(call):
        raise lodeq.NotLeaderError("nobody leads it")

    async with cluster() as nodes, client(nodes) as engine:
        engine.fast._send = nobody
        error = await partly(
            engine, monkeypatch, [lodeq.BusyError("full"), lodeq.CommitUnknownError("lost")]
        )
        assert isinstance(error, lodeq.CommitUnknownError)


async def test_of_documents_lost_ones_are_settled_too(monkeypatch):
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        first = [(await mail.enqueue(n)).id for n in range(9)]
        engine.fast = None
        inner, lost = engine._transport.nodes, []
        real = inner.ask

        async def ask(node, call):
            if call.path != "/tasks":
                return await real(node, call)
            if call.doc["tasks"][0].get("after"):
                raise lodeq.BusyError("full")
            while True:
                try:
                    found = await real(node, call)
                    break
                except lodeq.NotLeaderError as error:  # another has the key: here that is all one
                    node = error.leader
            if not lost:
                lost.append(found)
                raise lodeq.CommitUnknownError("lost")
            return found

        monkeypatch.setattr(inner, "ask", ask)
        tasks = [NewTask(b"a", dedup_key="a")]
        tasks += [NewTask(b"b", after=[id], dedup_key=str(n)) for n, id in enumerate(first)]
        with pytest.raises(lodeq.BusyError) as caught:
            await mail.enqueue_many(tasks)
        assert [one is not None for one in caught.value.receipts] == [True] + [False] * 9
        assert caught.value.receipts[0].duplicate
        assert len(lost) == 1


@older
async def test_a_lost_one_that_is_refused_then_may_have_happened(monkeypatch, is_older):
    """Nothing was written, a refusal says; that is true of the second try alone."""
    async with cluster() as nodes, client(nodes) as engine:
        mail = engine.queue("mail")
        for n in range(6):
            await mail.enqueue(n)
        answers = [lodeq.CommitUnknownError("lost"), lodeq.BusyError("full")]

        async def refuse(self, *args):
            raise answers.pop(0)

        if is_older:
            engine.fast = None
        for path in ("enqueue_with", "enqueue_many"):
            monkeypatch.setattr(FastCalls, path, refuse)
        monkeypatch.setattr(engine._transport.nodes, "ask", lambda node, call: refuse(node))
        with pytest.raises(lodeq.CommitUnknownError, match="lost"):
            await mail.enqueue(b"x", dedup_key="k")
        assert answers == []
        answers += [lodeq.CommitUnknownError("lost"), lodeq.BusyError("full")]
        with pytest.raises(lodeq.CommitUnknownError, match="lost") as caught:
            await mail.enqueue_many([NewTask(b"x", dedup_key="k", priority=3)])
        assert answers == []
        assert caught.value.receipts == [None]
