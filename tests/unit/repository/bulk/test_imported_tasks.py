"""Tasks with a past: where they are, what counts, and that every rule of the store holds."""

from pathlib import Path

import pytest
from support_loop import on_loop

import lodeq
from lodeq import Engine, PayloadTooLargeError, Task, UsageError
from lodeq.engine.records.keyspace import BODY, BODY_END
from lodeq.engine.runtime.clock import SystemClock
from lodeq.repository.bulk.imported_tasks import ImportedTask, encode_imported, enqueue_imported
from lodeq.repository.model.encoded_tasks import TaskTemplate
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing

DAY_MS = 86_400_000
NOW_US = ManualClock().wall_us()
NOW_MS = NOW_US // 1000


def past(payload: bytes, **told: object) -> ImportedTask:
    return ImportedTask(payload, f"key:{payload.decode()}", NOW_MS + DAY_MS, **told)  # type: ignore[arg-type]


async def take(engine: Engine, *tasks: ImportedTask) -> list[bool]:
    state, shared = engine._state, TaskTemplate(b"mail", b"")
    now_us = state.clock.wall_us()
    return await enqueue_imported(
        state, [(task, encode_imported(state, shared, task, now_us)) for task in tasks]
    )


async def sound(engine: Engine) -> None:
    report = await engine.verify()
    assert report.ok, report.findings


async def listed(engine: Engine, state: str) -> list[Task]:
    return await engine.queue("mail").list(state)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("limit", [1, 8])
@on_loop
async def test_who_was_tried_too_often_to_count_stops_nobody(shards: int, limit: int) -> None:
    async with open_testing(shards=shards) as engine:
        await take(engine, past(b"tried", attempts=1 << 40), past(b"fresh"))
        queue = engine.queue("mail")
        leases = [lease for _ in range(2) for lease in await queue.claim(limit=limit)]
        assert {lease.payload: lease.attempt for lease in leases} == {b"tried": 65_535, b"fresh": 1}
        for lease in leases:
            await lease.nack(delay=0)
        assert [task.payload for task in await listed(engine, "dead")] == [b"tried"]
        assert [task.payload for task in await listed(engine, "ready")] == [b"fresh"]
        await sound(engine)


@pytest.mark.parametrize("shards", [1, 3])
@on_loop
async def test_order_priority_age_and_attempts_stay(shards: int) -> None:
    async with open_testing(clock=ManualClock(), shards=shards, seed=1) as engine:
        tasks = [
            past(b"old", created_us=NOW_US - 5_000_000, headers={"k": "v"}),
            past(b"tried", attempts=2, reason="no route", created_us=NOW_US - 4_000_000),
            past(b"urgent", priority=9, attempts=1),
            past(b"last"),
        ]
        assert await take(engine, *tasks) == [True] * 4
        await sound(engine)
        found = await listed(engine, "ready")
        assert [task.payload for task in found] == [b"urgent", b"old", b"tried", b"last"]
        assert [task.attempts for task in found] == [1, 0, 2, 0]
        assert [task.reason for task in found] == ["", "", "no route", ""]
        assert found[1].enqueued_at.timestamp() * 1e6 == NOW_US - 5_000_000
        assert found[1].headers == {"k": "v"}
        leases = await engine.queue("mail").claim(limit=10)
        assert [lease.payload for lease in leases] == [b"urgent", b"old", b"tried", b"last"]
        assert [lease.attempt for lease in leases] == [2, 1, 3, 1]
        for lease in leases:  # back to its place: the rows of one that has moved must agree
            await lease.release()
        await sound(engine)
        assert [task.attempts for task in await listed(engine, "ready")] == [1, 0, 2, 0]


@on_loop
async def test_the_delayed_and_the_mortal() -> None:
    clock = ManualClock()
    async with open_testing(clock=clock, seed=1) as engine:
        await take(
            engine,
            past(b"later", due_ms=NOW_MS + 2000),
            past(b"later again", due_ms=NOW_MS + 3000, attempts=1, reason="busy"),
            past(b"due long ago", due_ms=NOW_MS - 1),
            past(b"mortal", expires_ms=NOW_MS + 1500, attempts=1),
        )
        await sound(engine)
        assert [task.payload for task in await listed(engine, "delayed")] == [
            b"later",
            b"later again",
        ]
        assert [t.payload for t in await listed(engine, "ready")] == [b"due long ago", b"mortal"]
        clock.advance(5.0)
        await sound(engine)
        found = await listed(engine, "ready")
        assert [(task.payload, task.attempts) for task in found] == [
            (b"due long ago", 0),
            (b"later", 0),
            (b"later again", 1),
        ]


@on_loop
async def test_the_dead_stay_dead_until_they_are_redriven_or_forgotten() -> None:
    clock = ManualClock()
    async with open_testing(clock=clock, seed=1) as engine:
        mail = engine.queue("mail")
        await take(
            engine,
            past(b"second", died_ms=NOW_MS - 1000, attempts=3, reason="broken", priority=9),
            past(b"first", died_ms=NOW_MS - 20 * DAY_MS, attempts=70_000),
            past(b"unknown", died_ms=0, expires_ms=NOW_MS - 5),
        )
        await sound(engine)
        found = await mail.dead_letters()
        assert [task.payload for task in found] == [b"first", b"second", b"unknown"]
        assert [task.attempts for task in found] == [65_535, 3, 0]
        assert [task.reason for task in found] == ["dead", "broken", "dead"]
        assert (await mail.stats()).dead == 3
        assert await mail.redrive([found[1].id]) == 1
        await sound(engine)
        (lease,) = await mail.claim()
        assert (lease.payload, lease.attempt) == (b"second", 1)
        await lease.complete()
        clock.advance(8 * 86_400)  # their retention begins with us
        assert await mail.dead_letters() == []
        await sound(engine)


@on_loop
async def test_whoever_holds_the_key_is_left_alone() -> None:
    clock = ManualClock()
    async with open_testing(clock=clock, seed=1) as engine:
        mail = engine.queue("mail")
        one = past(b"one", attempts=1)
        assert await take(engine, one, one) == [True, False]
        (lease,) = await mail.claim()
        assert await take(engine, one) == [False]
        await lease.complete()
        assert await take(engine, one, past(b"two")) == [False, True]
        await mail.purge()
        await sound(engine)
        clock.advance(2 * 86_400)  # the window is over, and with it every trace
        assert await take(engine, one._replace(dedup_until_ms=NOW_MS + 4 * DAY_MS)) == [True]
        await sound(engine)


@on_loop
async def test_only_a_key() -> None:
    clock = ManualClock()
    async with open_testing(clock=clock, seed=1) as engine:
        mail = engine.queue("mail")
        assert await take(engine, past(b"gone", is_over=True)) == [True]
        await sound(engine)
        assert (await mail.stats()).pending == 0
        assert (await mail.enqueue(b"again", dedup_key="key:gone")).duplicate
        clock.advance(86_401)
        await sound(engine)
        assert not (await mail.enqueue(b"again", dedup_key="key:gone")).duplicate


@on_loop
async def test_kinds_of_payload_and_limits() -> None:
    async with open_testing(clock=ManualClock(), seed=1) as engine:
        await take(engine, ImportedTask(b"\x81\xa1a\x01", "k", NOW_MS + DAY_MS, kind=1))
        assert [task.payload for task in await listed(engine, "ready")] == [{"a": 1}]
        with pytest.raises(PayloadTooLargeError):
            await take(engine, ImportedTask(bytes(17 << 20), "large", NOW_MS + DAY_MS))
        assert (await engine.queue("mail").stats()).ready == 1


@on_loop
async def test_a_large_payload_goes_to_a_body_file_whatever_its_task_has_behind_it(
    tmp_path: Path,
) -> None:
    key_until_ms = SystemClock().wall_us() // 1000 + DAY_MS
    payloads = [bytes([65 + i]) * 40_000 for i in range(3)]
    tasks = [
        ImportedTask(payloads[0], "a", key_until_ms),
        ImportedTask(payloads[1], "b", key_until_ms, attempts=2),
        ImportedTask(payloads[2], "c", key_until_ms, died_ms=1, reason="no"),
    ]
    async with lodeq.open(tmp_path / "s") as engine:
        assert await take(engine, *tasks) == [True] * 3
        assert len(engine._state.shards[0].store.scan(BODY, BODY_END, 9)) == 3
    async with lodeq.open(tmp_path / "s") as engine:
        await sound(engine)
        leases = await engine.queue("mail").claim(limit=9)
        assert [(lease.payload, lease.attempt) for lease in leases] == [
            (payloads[0], 1),
            (payloads[1], 3),
        ]
        assert [task.payload for task in await engine.queue("mail").dead_letters(9)] == payloads[2:]


@pytest.mark.parametrize(
    "told",
    [
        {"attempts": -5},
        {"attempts": True},
        {"attempts": 1.5},
        {"kind": 3},
        {"kind": -1},
        {"created_us": -1},
        {"created_us": 1 << 63},
        {"due_ms": 10**15},
        {"due_ms": -1},
        {"expires_ms": 1 << 50},
        {"died_ms": -1},
        {"died_ms": 1 << 64},
        {"dedup_until_ms": 10**15},
        {"reason": b"bytes"},
        {"priority": 10},
        {"priority": -1},
    ],
    ids=str,
)
@on_loop
async def test_a_number_that_no_task_can_have_is_refused_before_anything_is_queued(
    told: dict[str, object],
) -> None:
    async with open_testing(clock=ManualClock(), seed=1) as engine:
        with pytest.raises(UsageError):
            await take(engine, past(b"good"), past(b"bad")._replace(**told))  # type: ignore[arg-type]
        assert not await listed(engine, "ready")
        await sound(engine)
        assert await take(engine, past(b"good"), past(b"bad")) == [True] * 2
        await sound(engine)
