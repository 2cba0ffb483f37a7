"""The history bites: each broken promise, planted in its records, is found; kept ones are not."""

from __future__ import annotations

import itertools

import pytest

from lodeq.testing import check
from lodeq.testing.history.rules import RULES
from lodeq.testing.history.states import (
    EXPORTED,
    SHORT,
    leased,
    outcomes,
    pending,
    reachable,
    restarted,
)

A, B, C = "aa" * 16, "bb" * 16, "cc" * 16
KILL, POWER = ["kill"], ["power"]
S = 1_000_000


def new(n: int, **options) -> dict:
    return {"n": n, "queue": "q", "attempts": 3, **options}


def enqueue(op: int, *tasks: dict, kind: str = "enqueue", **params) -> list:
    return ["i", op, kind, {"tasks": list(tasks), **params}]


def claim(op: int, limit: int = 1, queues: tuple = (("q", ""),), **params) -> list:
    return ["i", op, "claim", {"queues": [list(q) for q in queues], "limit": limit, **params}]


def on(op: int, kind: str, n: int = 1, epoch: int = 5, **params) -> list:
    return ["i", op, kind, {"n": n, "epoch": epoch, **params}]


def limited(op: int, **limits) -> list:
    return ["i", op, "configure", {"queue": "q", **limits}]


def ok(op: int, answer: object = None) -> list:
    return ["a", op, answer]


def got(op: int, *tasks: tuple) -> list:
    return ["a", op, [list(task) for task in tasks]]


def receipt(task_id: str, duplicate: bool = False, replaced: str | None = None) -> tuple:
    return (task_id, duplicate, replaced)


def found(*tasks: list, results: list | None = None, **more) -> list:
    """What a look tells."""
    return [
        "found",
        {
            "tasks": list(tasks),
            "results": results or [],
            "findings": [],
            "anomalies": [],
            "rows": {},
            "counted": {},
            **more,
        },
    ]


def at(n: int, kind: str = "ready", attempts: int = 0, epoch: int = 0) -> list:
    return [{1: A, 2: B, 3: C}[n], n, [[kind, attempts, epoch]]]


def timed(record: list, wall_s: float, mono_s: float | None = None) -> list:
    return [*record, int(wall_s * S), int((wall_s if mono_s is None else mono_s) * S)]


ONE = [enqueue(1, new(1)), got(1, receipt(A))]
HELD = [*ONE, claim(2), got(2, (1, A, 1, 5))]
DONE = [[A, "completed", 1]]
GOOD = [*HELD, on(3, "complete", then=[new(2)]), ok(3)]
AGAIN = claim(4, 9)
KEYED = [
    enqueue(1, new(1, key="k")),
    got(1, receipt(A)),
    enqueue(2, new(2, key="k", conflict="return")),
]
TWO = enqueue(1, new(1), new(2), kind="enqueue_many")
PAIR = [TWO, got(1, receipt(A), receipt(B))]
BOTH = [*PAIR, claim(2, 2), got(2, (1, A, 1, 5), (2, B, 1, 6))]
DEAD = [*HELD, on(3, "bury"), ok(3)]
BARE = [enqueue(1, new(1, retention_us=0)), *HELD[1:]]  # its end leaves nothing behind
PURGE = ["i", 4, "purge", {"queue": "q", "tenant": "", "state": None}]
LATE = enqueue(1, new(1, delay_us=10 * S))
BRIEF = enqueue(1, new(1, ttl_us=5 * S))
# Its only lease ran out before the claim that had it was answered; its dead letter is redriven.
REDRIVEN_MEANWHILE = [
    timed(enqueue(1, new(1, attempts=1)), 1),
    timed(got(1, receipt(A)), 1),
    timed(claim(2, lease_us=S), 1),
    timed(["i", 3, "claim_dead", {"queue": "q", "tenant": "", "limit": 1, "lease_us": 90 * S}], 4),
    timed(got(3, (1, A, 1, 6)), 4),
    timed(on(4, "redrive_lease", epoch=6), 4),
]
CLAIM_DEAD = ["i", 5, "claim_dead", {"queue": "q", "tenant": "", "limit": 1, "lease_us": 90 * S}]
# A (9) and B (5), then C (9), which B's claim must not pass over.
RANKED = [*ONE, enqueue(2, new(2, priority=9)), got(2, receipt(B))]

LIMITED = [timed(one, 1) for one in PAIR]

# One start, and after a kill another one within its period by the wall clock.
RATED = [
    timed(limited(7, rate=[1, 10 * S]), 0),
    timed(ok(7), 0),
    *LIMITED,
    timed(claim(3, lease_us=90 * S), 2),
    timed(got(3, (1, A, 1, 5)), 2),
]
AFTER_KILL = [timed(claim(5), 4), timed(got(5, (2, B, 1, 6)), 4)]

KEPT = {
    "a rate, and a step of the wall clock before the kill": [
        *RATED, ["wall", 12 * S], ["wall", 2 * S], KILL, *AFTER_KILL],
    "a rate and a concurrency": [
        timed(limited(7, rate=[1, 10 * S], concurrency=1), 0), timed(ok(7), 0), *LIMITED,
        timed(claim(3, lease_us=90 * S), 2), timed(got(3, (1, A, 1, 5)), 2),
        timed(on(4, "complete"), 3), timed(claim(5), 11), timed(ok(4), 11),
        timed(got(5, (2, B, 1, 6)), 12)],
    "cancelled before the claim that took it is answered": [
        timed(limited(7, concurrency=1), 0), timed(ok(7), 0), *LIMITED,
        timed(claim(3, lease_us=9 * S), 2), timed(["i", 4, "cancel", {"id": A}], 3),
        timed(got(3, (1, A, 1, 5)), 3), timed(ok(4, True), 3),
        timed(claim(5, lease_us=9 * S), 4), timed(got(5, (2, B, 1, 6)), 4)],
    "a limit that is taken back": [
        timed(limited(7, rate=[1, 10 * S], concurrency=1), 0), timed(ok(7), 0), *LIMITED,
        timed(claim(3, lease_us=90 * S), 2), timed(got(3, (1, A, 1, 5)), 2),
        timed(limited(8), 3), timed(claim(5), 3), timed(got(5, (2, B, 1, 6)), 3)],
    "everything": [*GOOD, KILL, found(at(2), results=DONE)],
    "done and not told": [*GOOD[:5], KILL, found(at(2), results=DONE)],
    "not done": [*GOOD[:5], KILL, found(at(1, attempts=1))],
    "claimed and not told": [*GOOD[:3], KILL, found(at(1, attempts=1))],
    "not claimed": [*GOOD[:3], KILL, found(at(1))],
    "unknown and done": [*GOOD[:5], ["u", 3, "CommitUnknownError"], KILL,
                         found(at(2), results=DONE)],
    "unknown and not done": [*GOOD[:5], ["u", 3, "CommitUnknownError"], KILL,
                             found(at(1, attempts=1))],
    "refused and not done": [*GOOD[:5], ["e", 3, "StorageFullError", None], KILL,
                             found(at(1, attempts=1))],
    "completed again by the same lease": [*GOOD, on(4, "complete"), ok(4)],
    "a duplicate": [*KEYED, got(2, receipt(A, True)), KILL, found(at(1))],
    "many": [TWO, KILL, found(at(1), at(2))],
    "none of many": [TWO, KILL, found()],
    "half of many that failed": [TWO, ["u", 1, "QueueFullError", [[A, False, None], None]],
                                 KILL, found(at(1))],
    "a lost complete under way, completed by the next holder": [
        *ONE, claim(2, short=True), got(2, (1, A, 1, 5)), on(3, "complete", then=[new(2)]),
        claim(4), got(4, (1, A, 2, 6)), on(5, "complete", epoch=6), ok(5), KILL,
        found(results=[[A, "completed", 2]])],
    "completed before a cancel that was told first": [
        enqueue(1, new(1, attempts=1)), got(1, receipt(A)), claim(2, short=True),
        got(2, (1, A, 1, 5)), ["i", 3, "complete_many", {"pairs": [[1, 5]]}],
        ["i", 4, "cancel", {"id": A}], ok(4, False), ok(3, [True]), KILL, found(results=DONE)],
    "given back before a cancel that was told first": [
        *HELD, on(3, "nack"), ["i", 4, "cancel", {"id": A}], ok(4, True), ok(3), KILL,
        found(results=[[A, "cancelled", 1]])],
    "a lease that ran out": [
        timed(ONE[0], 1), timed(ONE[1], 1), timed(claim(2, lease_us=5 * S), 2),
        timed(got(2, (1, A, 1, 5)), 2), timed(claim(3), 9), timed(got(3, (1, A, 2, 6)), 9)],
    "an exported lease stays": [
        *ONE, claim(2, exported=True), got(2, (1, A, 1, 5)), KILL, found(at(1, "leased", 1, 5))],
    "purged": [*PAIR, ["i", 2, "purge", {"queue": "q", "tenant": "", "state": None}], ok(2, 2),
               KILL, found(results=[[A, "cancelled", 0], [B, "cancelled", 0]])],
    "purged as soon as it was released, which is told later": [
        *BARE, on(3, "release"), PURGE, ok(4, 1), ok(3), KILL, found()],
    "purged, perhaps": [*PAIR, claim(9), ["i", 2, "purge", {"queue": "q", "tenant": None,
                        "state": "ready"}], ok(2, 1), got(9, (1, A, 1, 5)), KILL,
                        found(at(1, attempts=1), results=[[B, "cancelled", 0]])],
    "redriven": [*DEAD, ["i", 4, "redrive", {"queue": "q", "tenant": "", "ids": [A]}], ok(4, 1),
                 claim(5), got(5, (1, A, 1, 6))],
    "a dead letter that was not redriven": [
        *DEAD, ["i", 4, "redrive", {"queue": "q", "tenant": ""}], ok(4, 0),
        found(at(1, "dead", 1))],
    "cancelled by an id that is not known yet": [
        ONE[0], ["c", 1], ["i", 2, "cancel", {"id": A}], ok(2, True),
        found(results=[[A, "cancelled", 0]])],
    "replaced before the claim that had had it told its id": [
        timed(enqueue(1, new(1, key="k")), 1), timed(["c", 1], 1), timed(claim(2, lease_us=S), 1),
        timed(enqueue(3, new(2, key="k", conflict="replace")), 3),
        timed(got(3, receipt(B, replaced=A)), 3), timed(got(2, (1, A, 1, 5)), 4), KILL,
        timed(found(at(2), results=[[A, "cancelled", 1]]), 5)],
    "not before its time": [timed(LATE, 1), timed(got(1, receipt(A)), 1), timed(claim(2), 11),
                            timed(got(2, (1, A, 1, 5)), 11)],
    "due while the clock was ahead": [
        timed(LATE, 1), timed(got(1, receipt(A)), 1), ["wall", 20 * S], ["wall", 2 * S],
        timed(claim(2), 2), timed(got(2, (1, A, 1, 5)), 2)],
    "expired": [timed(BRIEF, 1), timed(got(1, receipt(A)), 1),
                timed(found(results=[[A, "expired", 0]]), 6)],
    "expired between the kill and the open": [
        *[timed(r, 1) for r in (enqueue(1, new(1, ttl_us=5 * S, attempts=1)), *HELD[1:])], KILL,
        timed(found(results=[[A, "expired", 1]]), 9)],
    "dead when a cancel looked that is answered after a claim of dead letters": [
        *[timed(one, 1) for one in HELD], timed(on(3, "bury"), 1),
        timed(["i", 4, "cancel", {"id": A}], 1), timed(CLAIM_DEAD, 1), timed(ok(3), 1),
        timed(got(5, (1, A, 1, 6)), 1), timed(on(6, "redrive_lease", epoch=6), 1),
        timed(ok(4, False), 1)],
    "expired, or cancelled by a call that answers last": [
        timed(BRIEF, 1), timed(got(1, receipt(A)), 1), timed(["i", 2, "cancel", {"id": A}], 7),
        timed(["i", 3, "cancel", {"id": A}], 7), timed(ok(3, False), 7), timed(ok(2, True), 7)],
    "a result that was forgotten": [
        timed(enqueue(1, new(1, retention_us=S)), 1), timed(got(1, receipt(A)), 1),
        timed(claim(2), 1), timed(got(2, (1, A, 1, 5)), 1), timed(on(3, "complete"), 1),
        timed(ok(3), 1), timed(found(), 3)],
    "no result to keep": [*HELD, on(3, "complete", keep=False), ok(3), found()],
    "results may go": [*HELD, on(3, "complete"), ok(3), found()],
    "in order": [*RANKED, claim(3), got(3, (2, B, 1, 5)), claim(4), got(4, (1, A, 1, 6))],
    "two claims at once": [*RANKED, claim(3), claim(4), got(3, (1, A, 1, 5)),
                           got(4, (2, B, 1, 6))],
    "enqueued while the claim was under way": [
        claim(3), *RANKED, got(3, (1, A, 1, 5)), claim(4), got(4, (2, B, 1, 6))],
    "a cancelled claim had it": [
        *RANKED, claim(8), claim(3), got(3, (1, A, 1, 5)), ["c", 8], claim(4),
        got(4, (2, B, 1, 6))],
    "answered with a lease that was over, and granted anew": [
        *REDRIVEN_MEANWHILE, timed(got(2, (1, A, 1, 5)), 5), timed(ok(4), 5)],
    "starvation": [*RANKED, claim(3, starvation=True), got(3, (1, A, 1, 5)), claim(4),
                   got(4, (2, B, 1, 6))],
    "released, then in order again": [
        *RANKED, claim(3), got(3, (2, B, 1, 5)), claim(4), got(4, (1, A, 1, 6)),
        on(5, "release", 2), ok(5), claim(6), got(6, (2, B, 1, 7))],
}  # fmt: skip
BROKEN = {
    "lost": (1, [*ONE, KILL, found()]),
    "phantom": (2, [found(at(1))]),
    "delivered, never enqueued": (2, [AGAIN, got(4, (7, A, 1, 9))]),
    "delivered from another queue": (2, [*ONE, claim(2, queues=(("r", ""),)),
                                         got(2, (1, A, 1, 5))]),
    "delivered before its enqueue was refused": (2, [
        ONE[0], ["e", 1, "QueueFullError", None], claim(2), got(2, (1, A, 1, 5))]),
    "found though its enqueue was refused": (2, [
        ONE[0], ["e", 1, "StorageFullError", None], KILL, found(at(1))]),
    "delivered after its complete": (4, [*GOOD, AGAIN, got(4, (1, A, 2, 9))]),
    "delivered after its complete and a kill": (4, [
        *GOOD, KILL, found(at(2), results=DONE), AGAIN, got(4, (1, A, 2, 9))]),
    "delivered after a complete without a result": (4, [
        *HELD, on(3, "complete", keep=False), ok(3), KILL, found(), AGAIN, got(4, (1, A, 2, 9))]),
    "back after its complete": (4, [*GOOD, KILL, found(at(1, attempts=1), at(2))]),
    "delivered after its cancel": (4, [*ONE, ["i", 2, "cancel", {"id": A}], ok(2, True),
                                       AGAIN, got(4, (1, A, 1, 9))]),
    "delivered after its purge": (4, [
        *ONE, ["i", 2, "purge", {"queue": "q", "tenant": "", "state": None}], ok(2, 1), AGAIN,
        got(4, (1, A, 1, 9))]),
    "gone after a purge of nothing": (1, [
        *BARE, on(3, "release"), PURGE, ok(4, 0), ok(3), KILL, found()]),
    "more purged than there is": (2, [
        *ONE, ["i", 2, "purge", {"queue": "q", "tenant": "", "state": None}], ok(2, 2)]),
    "two leases": (5, [*HELD, AGAIN, got(4, (1, A, 2, 9))]),
    "two leases before the first can have run out": (5, [
        timed(ONE[0], 1), timed(ONE[1], 1), timed(claim(2, lease_us=5 * S), 2),
        timed(got(2, (1, A, 1, 5)), 2), timed(claim(3), 6), timed(got(3, (1, A, 2, 6)), 6)]),
    "reaped after a heartbeat": (5, [
        timed(ONE[0], 1), timed(ONE[1], 1), timed(claim(2, lease_us=5 * S), 2),
        timed(got(2, (1, A, 1, 5)), 2), timed(on(4, "heartbeat", seconds_us=60 * S), 3),
        timed(ok(4), 3), timed(on(5, "complete"), 9),
        timed(["e", 5, "LeaseLostError", None], 9)]),
    "two places": (11, [*ONE, KILL, found([A, 1, [["ready", 0, 0], ["leased", 1, 5]]])]),
    "still leased": (5, [*HELD, KILL, found(at(1, "leased", 1, 5))]),
    "a lower epoch": (5, [*HELD, KILL, found(at(1, attempts=1)), AGAIN, got(4, (1, A, 2, 4))]),
    "a lower epoch by a claim that began later": (5, [
        *REDRIVEN_MEANWHILE, timed(claim(5), 5), timed(got(5, (1, A, 1, 5)), 5)]),
    "the same epoch": (5, [*HELD, KILL, found(at(1, attempts=1)), AGAIN, got(4, (1, A, 2, 5))]),
    "an attempt too many": (6, [*HELD, KILL, found(at(1, attempts=2))]),
    "an attempt too few": (6, [*HELD, KILL, found(at(1))]),
    "claimed by nobody": (6, [*ONE, KILL, found(at(1, attempts=1))]),
    "claims took more than they asked for": (6, [
        *PAIR, claim(2), KILL, found(at(1, attempts=1), at(2, attempts=1))]),
    "a release that counted": (6, [*HELD, on(3, "release"), ok(3), AGAIN, got(4, (1, A, 2, 9))]),
    "a nack that counted twice": (6, [*HELD, on(3, "nack"), ok(3), AGAIN, got(4, (1, A, 3, 9))]),
    "lost without a reason": (5, [*GOOD[:5], ["e", 3, "LeaseLostError", None]]),
    "completed without its follow-up": (3, [*GOOD[:5], KILL, found(results=DONE)]),
    "a follow-up without its complete": (3, [*GOOD[:5], KILL, found(at(1, attempts=1), at(2))]),
    "half of many": (3, [TWO, KILL, found(at(1))]),
    "half of a complete_many": (3, [
        *BOTH, ["i", 3, "complete_many", {"pairs": [[1, 5], [2, 6]]}], KILL,
        found(at(2, attempts=1), results=DONE)]),
    "unknown, there, and gone": (1, [
        ONE[0], ["u", 1, "CommitUnknownError"], KILL, found(at(1)), KILL, found()]),
    "not there, and there": (2, [
        ONE[0], ["u", 1, "CommitUnknownError"], KILL, found(), KILL, found(at(1))]),
    "two of one key": (8, [*KEYED, got(2, receipt(B))]),
    "two of one key, found": (8, [*KEYED, KILL, found(at(1), at(2))]),
    "a duplicate of a task that is gone": (1, [
        *KEYED, got(2, receipt(A, True)), KILL, found(at(2))]),
    "a duplicate of another key": (8, [
        *ONE, enqueue(2, new(2, key="k")), got(2, receipt(A, True))]),
    "a key held by what has ended": (8, [
        *KEYED[:2], claim(3), got(3, (1, A, 1, 5)), on(4, "complete"), ok(4), KEYED[2],
        got(2, receipt(A, True))]),
    "a wrong result": (3, [*GOOD, KILL, found(at(2), results=[[A, "cancelled", 1]])]),
    "a result of wrong attempts": (6, [*GOOD, KILL, found(at(2), results=[[A, "completed", 2]])]),
    "a result nobody knows": (2, [found(results=[[A, "cancelled", 0]])]),
    "completed and never delivered": (2, [found(results=DONE)]),
    "a result that went": (1, [*HELD, on(3, "complete"), ok(3), found()]),
    "expired before its TTL": (3, [timed(BRIEF, 1), timed(got(1, receipt(A)), 1),
                                   timed(found(results=[[A, "expired", 0]]), 5)]),
    "expired while it was leased": (3, [
        timed(BRIEF, 1), timed(got(1, receipt(A)), 1), timed(claim(2), 2),
        timed(got(2, (1, A, 1, 5)), 2), timed(found(results=[[A, "expired", 1]]), 9)]),
    "expired between a kill and an open that was too early": (3, [
        *[timed(r, 1) for r in (enqueue(1, new(1, ttl_us=5 * S, attempts=1)), *HELD[1:])], KILL,
        timed(found(results=[[A, "expired", 1]]), 2)]),
    "before its delay": (9, [timed(LATE, 1), timed(got(1, receipt(A)), 1), timed(claim(2), 10.9),
                             timed(got(2, (1, A, 1, 5)), 10.9)]),
    "before its moment": (9, [
        timed(enqueue(1, new(1, run_at_us=50 * S)), 1), timed(got(1, receipt(A)), 1),
        timed(claim(2), 49), timed(got(2, (1, A, 1, 5)), 49)]),
    "before the delay of a nack": (9, [
        *[timed(r, 1) for r in HELD], timed(on(3, "nack", delay_us=5 * S), 2), timed(ok(3), 2),
        timed(claim(4), 6), timed(got(4, (1, A, 2, 6)), 6)]),
    "a lower priority first": (7, [*RANKED, claim(3), got(3, (1, A, 1, 5)), claim(4),
                                   got(4, (2, B, 1, 6))]),
    "enqueued later, delivered first": (7, [
        *ONE, enqueue(2, new(2)), got(2, receipt(B)), claim(3), got(3, (2, B, 1, 5)), claim(4),
        got(4, (1, A, 1, 6))]),
    "the second of a call first": (7, [*PAIR, claim(3), got(3, (2, B, 1, 5)), claim(4),
                                       got(4, (1, A, 1, 6))]),
    "order across a kill": (7, [
        *RANKED, KILL, found(at(1), at(2)), claim(3), got(3, (1, A, 1, 5)), claim(4),
        got(4, (2, B, 1, 6))]),
    "counters": (10, [found(counted={"q": {"ready": 1}})]),
    "findings": (11, [found(findings=["a row without a task"])]),
    "anomalies": (11, [found(anomalies=["a counter was off"])]),
    "not drained": (12, [*ONE, found(at(1)), ["drained"]]),
    "more starts than a rate": (13, [
        timed(limited(7, rate=[1, 10 * S]), 0), timed(ok(7), 0), *LIMITED,
        timed(claim(3), 2), timed(got(3, (1, A, 1, 5)), 2), timed(on(4, "release"), 3),
        timed(ok(4), 3), timed(claim(5), 11), timed(got(5, (2, B, 1, 6)), 11)]),
    "more starts than a rate, after a kill": (13, [*RATED, KILL, *AFTER_KILL]),
    "more leases than a concurrency": (13, [
        timed(limited(7, concurrency=1), 0), timed(ok(7), 0), *LIMITED,
        timed(claim(3, lease_us=9 * S), 2), timed(got(3, (1, A, 1, 5)), 2),
        timed(claim(5, lease_us=9 * S), 4), timed(got(5, (2, B, 1, 6)), 4)]),
    "an answer to nothing": (0, [ok(1, [])]),
    "a failed process": (0, [["crash", "Traceback"]]),
}  # fmt: skip
LOOSE = {"results may go": {"keeps_results": False}}


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_promise_is_accepted(name: str) -> None:
    report = check(KEPT[name], **LOOSE.get(name, {}))
    assert report.ok, report.broken
    assert report.records == len(KEPT[name])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name: str) -> None:
    rule, records = BROKEN[name]
    report = check(records)
    assert not report.ok
    assert report.rule == rule, report.broken
    assert report.records == len(records), "found too early"
    if rule:
        assert f"rule {rule}, {RULES[rule]}: " in report.broken


def test_every_rule_has_a_history_that_breaks_it() -> None:
    beside = {20, 21, 22, 23}  # of joins, and of a history: test_joins.py, test_kept_ends.py
    assert {rule for rule, _ in BROKEN.values()} | beside == {0, *RULES}


def test_order_over_shards_is_held_where_it_is_asked_for() -> None:
    """``aa…`` and ``00…`` are on different shards of two."""
    other = "00" * 16
    records = [
        enqueue(1, new(1)),
        got(1, receipt(A)),
        enqueue(2, new(2, priority=9)),
        got(2, receipt(other)),
        claim(3),
        got(3, (1, A, 1, 5)),
        claim(4),
        got(4, (2, other, 1, 6)),
    ]
    assert check(records, shards=2).ok
    assert check(records, shards=2, order_across_shards=True).rule == 7
    assert check(records, shards=1).rule == 7


def test_no_order_is_asked_of_a_task_that_may_have_been_set_aside() -> None:
    """Its label is one that a limit of keys of its queue goes, or went, by."""

    def records(**labels: str) -> list[list]:
        return [
            limited(7, keys="customer"),
            ok(7),
            limited(8),
            ok(8),
            enqueue(1, new(1)),
            got(1, receipt(A)),
            enqueue(2, new(2, priority=9, labels=labels)),
            got(2, receipt(B)),
            claim(3),
            got(3, (1, A, 1, 5)),
            claim(4),
            got(4, (2, B, 1, 6)),
        ]

    assert check(records(customer="acme")).ok
    assert check(records(customer="acme")[2:]).rule == 7
    assert check(records(region="north")).rule == 7


def test_the_automaton_is_finite() -> None:
    """Every pair of operations on a state ends, and nothing either can do is left out."""
    names = (
        "enqueue",
        "redrive",
        "cancel",
        "replace",
        "complete",
        "nack",
        "release",
        "bury",
        "purge",
        "purge dead",
        "heartbeat",
    )
    starts = [pending(0), pending(1), leased(1, 7, SHORT), leased(1, 7, EXPORTED)]
    for state, (a, b), time in itertools.product(
        starts, itertools.combinations(names, 2), (0, 1, 2, 3)
    ):
        states = reachable(frozenset([state]), ((a, 7), (b, 7)), (1, 2, 1, 2), 3, time)
        assert state in states
        for op in (a, b):
            assert set(outcomes(state, (op, 7), 3, time)) <= states
        again = restarted(states, 3, time)
        assert not any(s[0] == "leased" and not s[3] & EXPORTED for s in again)
