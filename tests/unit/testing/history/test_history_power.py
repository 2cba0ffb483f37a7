"""What a power cut may take, by mode and by what was synced; and what it may not."""

from __future__ import annotations

import pytest

from lodeq.testing import check

A, B = "aa" * 16, "bb" * 16
KILL, POWER = ["kill"], ["power"]
SYNC = [["sync", 0, 1], ["synced", 0, 1]]


def new(n: int, **options) -> dict:
    return {"n": n, "queue": "q", "attempts": 2, **options}


def enqueue(op: int, *tasks: dict, **params) -> list:
    return ["i", op, "enqueue_many", {"tasks": list(tasks), **params}]


def claim(op: int, limit: int = 1, **params) -> list:
    return ["i", op, "claim", {"queues": [["q", ""]], "limit": limit, **params}]


def on(op: int, kind: str, **params) -> list:
    return ["i", op, kind, {"n": 1, "epoch": 5, **params}]


def ok(op: int, answer: object = None) -> list:
    return ["a", op, answer]


def receipts(op: int, *ids: str) -> list:
    return ok(op, [[task_id, False, None] for task_id in ids])


def found(*tasks: list, results: list | None = None) -> list:
    return [
        "found",
        {
            "tasks": list(tasks),
            "results": results or [],
            "findings": [],
            "anomalies": [],
            "rows": {},
            "counted": {},
        },
    ]


def ready(n: int, attempts: int = 0) -> list:
    return [{1: A, 2: B}[n], n, [["ready", attempts, 0]]]


ONE = [enqueue(1, new(1)), receipts(1, A)]
HELD = [claim(2), ok(2, [[1, A, 1, 5]])]
COMPLETE = [on(3, "complete"), ok(3)]
DONE = [[A, "completed", 1]]
FSYNC = [["i", 9, "fsync", {}], ok(9)]
PAIR = [enqueue(1, new(1), new(2)), receipts(1, A, B)]
THEN = [on(3, "complete", then=[new(2)]), ok(3)]
KEYED = [enqueue(1, new(1, key="k")), receipts(1, A)]
RIVAL = [enqueue(4, new(2, key="k")), receipts(4, B)]

DEAD = [*HELD, on(3, "bury"), ok(3)]
TAKEN = [enqueue(4, new(2, key="k", conflict="replace")), ok(4, [[B, False, A]])]

KEPT = {
    "not synced, lost": [*ONE, POWER, found()],
    "not synced, there": [*ONE, POWER, found(ready(1))],
    "a claim that was lost": [*ONE, *SYNC, *HELD, POWER, found(ready(1))],
    "a claim that was not": [*ONE, *SYNC, *HELD, POWER, found(ready(1, 1))],
    "a complete that was lost": [*ONE, *SYNC, *HELD, *COMPLETE, POWER, found(ready(1))],
    "a complete without its claim": [*ONE, *SYNC, *HELD, *COMPLETE, POWER, found(results=DONE)],
    "a complete without its enqueue": [*ONE, *HELD, *COMPLETE, POWER, found(results=DONE)],
    "all of it": [*ONE, *HELD, *COMPLETE, POWER, found()],
    "a release that was lost": [
        *ONE, *SYNC, *HELD, on(3, "release"), ok(3), POWER, found(ready(1, 1))],
    "a nack without its claim": [
        *ONE, *SYNC, *HELD, on(3, "nack"), ok(3), POWER, found(ready(1, 1))],
    "a bury without its enqueue": [
        *ONE, *HELD, on(3, "bury"), ok(3), POWER, found(results=[[A, "dead", 1]])],
    "under way at the sync": [
        ONE[0], ["sync", 0, 1], ONE[1], ["synced", 0, 1], POWER, found()],
    "a sync that did not return": [*ONE, ["sync", 0, 1], POWER, found()],
    "answered while fsync was under way": [
        ["i", 9, "fsync", {}], *ONE, ok(9), POWER, found()],
    "a claim after a durable enqueue": [
        enqueue(1, new(1), durable=True), claim(2), ok(2, [[1, A, 1, 5]]), receipts(1, A), POWER,
        found(ready(1))],
    "a claim cancelled, its giving back lost": [
        *ONE, *SYNC, claim(2), ["c", 2], POWER, found(ready(1, 1))],
    "the same, a kill between": [
        *ONE, *SYNC, claim(2), ["c", 2], KILL, found(ready(1)), POWER, found(ready(1, 1))],
    "what was found survives a second cut": [
        *ONE, POWER, found(ready(1)), POWER, found(ready(1))],
    "both of one key": [
        *KEYED, *SYNC, *HELD, *COMPLETE, *RIVAL, POWER, found(ready(1), ready(2))],
    "the result of a death whose redrive was lost": [
        *ONE, *HELD, on(3, "bury"), ok(3), *SYNC, ["i", 4, "redrive", {
            "queue": "q", "tenant": "", "ids": [A]}], ok(4, 1), claim(5), ok(5, [[1, A, 1, 6]]),
        ["i", 6, "complete", {"n": 1, "epoch": 6, "keep": False}], ok(6), POWER,
        found(results=[[A, "dead", 1]])],
    "a death that was lost, and not what replaced the dead letter": [
        *KEYED, *SYNC, *DEAD, *TAKEN, POWER, found(ready(2)), KILL, found(ready(2))],
    "all or nothing": [*PAIR, POWER, found(ready(1), ready(2))],
    "nothing or all": [*PAIR, POWER, found()],
    "a batch of which an end survived": [
        *PAIR, *HELD, *COMPLETE, POWER, found(results=DONE)],
    "follow-ups and their complete": [
        *ONE, *SYNC, *HELD, *THEN, POWER, found(ready(2), results=DONE)],
    "neither": [*ONE, *SYNC, *HELD, *THEN, POWER, found(ready(1, 1))],
    "a duplicate named what is lost": [
        *KEYED, enqueue(4, new(2, key="k")), ok(4, [[A, True, None]]), POWER, found()],
    "a result of a task we never heard of": [
        KEYED[0], ["c", 1], enqueue(4, new(2, key="k", conflict="replace")),
        ok(4, [[B, False, A]]), POWER, found(results=[[A, "cancelled", 0]])],
    "a complete by the next holder, told of after the release": [
        *ONE, *HELD, on(3, "release"), claim(4), ok(4, [[1, A, 1, 6]]), ok(3), *SYNC,
        ["i", 5, "complete", {"n": 1, "epoch": 6}], ok(5), POWER, found(ready(1, 1))],
    "expired after the first cut, and back after the second": [
        [*enqueue(1, new(1, ttl_us=5_000_000, retention_us=0)), 1_000_000, 1_000_000],
        [*receipts(1, A), 1_000_000, 1_000_000], *SYNC, POWER, [*found(), 9_000_000, 1],
        POWER, [*found(ready(1)), 9_500_000, 1]],
    "an epoch that goes on": [
        *ONE, *SYNC, *HELD, POWER, found(ready(1)), claim(4), ok(4, [[1, A, 1, 6]])],
    "the process died only": [*ONE, KILL, found(ready(1))],
}  # fmt: skip
BROKEN = {
    "synced and lost": (1, [*ONE, *SYNC, POWER, found()]),
    "fsync returned, and lost": (1, [*ONE, *FSYNC, POWER, found()]),
    "a durable enqueue lost": (1, [
        enqueue(1, new(1), durable=True), receipts(1, A), POWER, found()]),
    "a durable complete lost": (4, [
        *ONE, *HELD, on(3, "complete", durable=True), ok(3), POWER, found(ready(1, 1))]),
    "a synced complete lost": (4, [*ONE, *HELD, *COMPLETE, *SYNC, POWER, found(ready(1, 1))]),
    "what a durable call covers, lost": (1, [
        enqueue(1, new(1)), receipts(1, A), enqueue(2, new(2), durable=True), receipts(2, B),
        POWER, found(ready(2))]),
    "completed by nobody": (3, [*ONE, *SYNC, *HELD, POWER, found(results=DONE)]),
    "claimed by nobody": (6, [*ONE, POWER, found(ready(1, 1))]),
    "never enqueued": (2, [*ONE, POWER, found(ready(2))]),
    "an epoch again": (5, [
        *ONE, *SYNC, *HELD, POWER, found(ready(1)), claim(4), ok(4, [[1, A, 1, 5]])]),
    "found, and lost by a second cut": (1, [*ONE, POWER, found(ready(1)), POWER, found()]),
    "half of a batch": (3, [*PAIR, POWER, found(ready(1))]),
    "a follow-up without its complete": (3, [
        *ONE, *SYNC, *HELD, *THEN, POWER, found(ready(1, 1), ready(2))]),
    "a complete without its follow-up": (3, [
        *ONE, *SYNC, *HELD, *THEN, POWER, found(results=DONE)]),
    "two of one key that both live": (8, [
        *KEYED, *SYNC, POWER, found(ready(1)), *RIVAL]),
    "the result of a durable death, lost": (1, [
        *KEYED, *DEAD, *SYNC, *TAKEN, POWER, found(ready(2))]),
    "lost by a kill": (1, [*ONE, KILL, found()]),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_a_power_cut_may_leave(name: str) -> None:
    report = check(KEPT[name])
    assert report.ok, report.broken


@pytest.mark.parametrize("name", BROKEN)
def test_what_it_may_not(name: str) -> None:
    rule, records = BROKEN[name]
    report = check(records)
    assert report.rule == rule, report.broken
    assert report.records == len(records), "found too early"


@pytest.mark.parametrize("name", [name for name, (_, r) in BROKEN.items() if POWER in r])
def test_in_fsync_mode_what_is_broken_without_it_is_broken_too(name: str) -> None:
    assert not check(BROKEN[name][1], durability="fsync").ok


def test_in_fsync_mode_what_was_answered_is_durable() -> None:
    assert check([*ONE, POWER, found()], durability="fsync").rule == 1
    assert check([*ONE, *HELD, *COMPLETE, POWER, found(ready(1, 1))], durability="fsync").rule == 4
    assert check([ONE[0], POWER, found()], durability="fsync").ok


def test_in_fsync_mode_an_end_under_way_may_be_lost_and_what_came_of_it_there() -> None:
    end, rival = on(3, "complete"), enqueue(4, new(2, key="k"))
    both = found(ready(1, 1), ready(2))
    assert check([*KEYED, *HELD, end, rival, POWER, both], durability="fsync").ok
    assert check([*KEYED, *HELD, rival, POWER, both], durability="fsync").rule == 8
    assert check([*KEYED, *HELD, end, rival, KILL, both], durability="fsync").rule == 8
