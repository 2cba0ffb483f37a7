"""Faces of tasks, on every engine: given at enqueue, shown everywhere, kept with the result."""

import pytest
from conformance import test_engine as suite

import lodeq

pytestmark = pytest.mark.anyio
store, shards, opening = suite.store, suite.shards, suite.opening
form = suite.form
engine, queue = suite.engine, suite.queue
FACE = {"function": "send", "preview": "to='a@example.org', n=3", "labels": {"customer": "7"}}
NONE = {"function": "", "preview": "", "labels": {}}


def face_of(found):
    return {name: getattr(found, name) for name in FACE}


async def test_a_face_is_shown_from_enqueue_to_result(engine, queue):
    receipt = await queue.enqueue(b"x", **FACE)
    assert face_of(await engine.get(receipt.id)) == FACE
    assert [face_of(task) for task in await queue.list("ready")] == [FACE]
    (lease,) = await queue.claim()
    assert face_of(lease) == FACE
    assert lease.payload == b"x"
    assert lease.headers == {}
    assert [face_of(task) for task in await queue.list("leased")] == [FACE]
    await lease.complete({"n": 1})
    result = await engine.result(receipt.id)
    assert (face_of(result), result.value) == (FACE, {"n": 1})
    assert face_of(await engine.get(receipt.id)) == FACE


async def test_without_one_all_three_are_empty(engine, queue):
    receipts = [await queue.enqueue(b"x"), await queue.enqueue(b"y", function="", labels={})]
    assert [face_of(await engine.get(one.id)) for one in receipts] == [NONE, NONE]
    for lease in await queue.claim(limit=2):
        assert face_of(lease) == NONE
        await lease.complete()
    assert [face_of(await engine.result(one.id)) for one in receipts] == [NONE, NONE]


async def test_with_options_and_beside_tasks_without(engine, queue):
    tasks = [
        lodeq.NewTask({"n": 0}, **FACE),
        lodeq.NewTask(b"1"),
        lodeq.NewTask(b"2", labels={"a": "b=c", "ä": ""}, headers={"h": 1}, priority=7),
        lodeq.NewTask(b"3", function="later", dedup_key="k", delay=60, ttl=600),
        lodeq.NewTask(b"4", preview="p", max_attempts=2, shard_key="s"),
    ]
    receipts = await queue.enqueue_many(tasks)
    found = [await engine.get(one.id) for one in receipts]
    assert [task.payload for task in found] == [{"n": 0}, b"1", b"2", b"3", b"4"]
    assert found[2].headers == {"h": 1}
    assert [face_of(task) for task in found] == [
        FACE,
        NONE,
        {**NONE, "labels": {"a": "b=c", "ä": ""}},
        {**NONE, "function": "later"},
        {**NONE, "preview": "p"},
    ]
    assert [face_of(one) for one in (found[0], found[2])] == [
        face_of(one) for one in (await engine.get(receipts[0].id), await engine.get(receipts[2].id))
    ]


async def test_every_end_keeps_it(engine, queue):
    dead = await queue.enqueue(b"1", priority=9, **FACE)
    (lease,) = await queue.claim()
    await lease.bury("no use")
    cancelled = await queue.enqueue(b"2", priority=9, **FACE)
    assert await engine.cancel(cancelled.id)
    revoked = await queue.enqueue(b"3", priority=9, **FACE)
    (lease,) = await queue.claim()
    await lease.cancel()
    tried = await queue.enqueue(b"4", priority=9, max_attempts=1, **FACE)
    (lease,) = await queue.claim()
    await lease.nack(reason="no luck")
    for receipt in (dead, cancelled, revoked, tried):
        assert face_of(await engine.result(receipt.id)) == FACE
    assert [face_of(task) for task in await queue.dead_letters()] == [FACE, FACE]
    assert await queue.redrive([dead.id]) == 1
    (lease,) = await queue.claim()
    assert face_of(lease) == FACE


async def test_follow_ups_have_their_own(engine, queue):
    await queue.enqueue(b"1", **FACE)
    (lease,) = await queue.claim()
    await lease.complete(then=[lodeq.NewTask(b"2", function="next"), lodeq.NewTask(b"3")])
    assert sorted(task.function for task in await queue.list("ready")) == ["", "next"]


async def test_many_completed_at_once(engine, queue):
    receipts = await queue.enqueue_many(
        [lodeq.NewTask(b"x", **FACE) if n % 2 else lodeq.NewTask(b"y") for n in range(6)]
    )
    await engine.complete_many([(lease, None) for lease in await queue.claim(limit=6)])
    found = [face_of(await engine.result(one.id)) for one in receipts]
    assert found == [FACE if n % 2 else NONE for n in range(6)]


@pytest.mark.parametrize(
    ("given", "kept"), [("x" * 300, "x" * 256), ("ä" * 200, "ä" * 128), ("a" + "ä" * 200, 128)]
)
async def test_a_preview_is_cut_between_two_characters(engine, queue, given, kept):
    receipt = await queue.enqueue(b"x", preview=given)
    found = (await engine.get(receipt.id)).preview
    assert found == kept or (len(found) == kept and given.startswith(found))


TOO_MUCH = [
    ({"function": "f" * 257}, "longer than 256 bytes"),
    ({"function": "ä" * 129}, "longer than 256 bytes"),
    ({"function": 7}, "function must be a str, not int"),
    ({"preview": b"x"}, "preview must be a str, not bytes"),
    ({"preview": "\ud800"}, "preview is not valid Unicode"),
    ({"labels": {"a": 1}}, "label 'a' must be a str with a str"),
    ({"labels": {1: "a"}}, "label 1 must be a str with a str"),
    ({"labels": ["a=b"]}, "labels must be a mapping of str to str, not list"),
    ({"labels": {"a=b": "c"}}, 'must have a name without "="'),
    ({"labels": {"": "c"}}, 'must have a name without "="'),
    ({"labels": {"key": "v" * 61}}, "longer than 64 bytes"),
    ({"labels": {"key": "ä" * 31}}, "longer than 64 bytes"),
    ({"labels": {str(n): "v" for n in range(9)}}, "9 labels, at most 8"),
]


async def test_what_cannot_be_kept_is_refused_before_anything_is_written(engine, queue, subtests):
    for options, words in TOO_MUCH:
        with subtests.test(words):
            with pytest.raises(lodeq.UsageError, match=words):
                await queue.enqueue(b"x", **options)
            with pytest.raises(lodeq.UsageError, match=words):
                await queue.enqueue_many([lodeq.NewTask(b"x"), lodeq.NewTask(b"y", **options)])
            assert await queue.list("ready") == []


async def test_the_limits_are_kept_whole(engine, queue):
    labels = {f"{n}ä": "v" * 60 for n in range(8)}
    face = {"function": "f" * 256, "preview": "ä" * 128, "labels": labels}
    receipt = await queue.enqueue(b"x", **face)
    (lease,) = await queue.claim()
    assert face_of(lease) == face
    await lease.complete(b"value")
    result = await engine.result(receipt.id)
    assert (face_of(result), result.value) == (face, b"value")


async def test_a_queue_that_is_set_to_store_none(engine, queue):
    await engine.configure("mail", faces=False)
    receipts = [await queue.enqueue(b"1", **FACE), await queue.enqueue(b"2", delay=1, **FACE)]
    receipts += await queue.enqueue_many([lodeq.NewTask(b"3", **FACE)])
    receipts += await engine.enqueue_many([lodeq.NewTask(b"4", queue="mail", **FACE)])
    receipts.append(await queue.enqueue(b"5", max_attempts=3, **FACE))
    assert [face_of(await engine.get(one.id)) for one in receipts] == [NONE] * 5
    other = await engine.queue("other").enqueue(b"6", **FACE)
    assert face_of(await engine.get(other.id)) == FACE
    await engine.configure("mail", faces=None)
    again = await queue.enqueue(b"7", **FACE)
    assert face_of(await engine.get(again.id)) == FACE
