"""From arguments to records: everything wrong is refused here, before anything is queued."""

import math
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from xxhash import xxh3_64_digest

from lodeq import ALL_TENANTS, Backoff, Limits, NewTask
from lodeq.engine.records.compression import Compressor
from lodeq.engine.records.keyspace import ghost_hash
from lodeq.engine.records.policy import decode_policy
from lodeq.engine.records.task import (
    FIRST_DELAYED,
    FIRST_READY,
    NO_GHOST,
    TaskRecord,
    decode_task,
    pack_task_times,
)
from lodeq.engine.runtime.ids import slot_of
from lodeq.errors import InvalidNameError, PayloadTooLargeError, UsageError
from lodeq.repository.model.arguments import duration_s, names_of, when_ms
from lodeq.repository.model.encoded_tasks import (
    EncodedTask,
    TaskTemplate,
    encoded_task,
    simple_item,
)
from lodeq.repository.state.engine_state import NO_BODIES

SECRET = bytes(range(32))
NOW_US = 1_700_000_000_000_000
NOW_MS = NOW_US // 1000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


def state(**limits: Any) -> Any:
    """As much of an engine as an item needs."""
    return SimpleNamespace(
        limits=Limits(**limits),
        compressor=Compressor(None),
        body_bytes_min=NO_BODIES,
        clock=SimpleNamespace(wall_us=lambda: NOW_US),
        ghost_of=lambda slot, routing: ghost_hash(SECRET, routing),
        redaction=None,
        keeps_faces=lambda queue: True,
    )


def defaults(**options: Any) -> TaskTemplate:
    return TaskTemplate(b"mail", b"acme", **options)


def make(payload: Any = b"x", **options: Any) -> EncodedTask:
    return encoded_task(state(), defaults(), NewTask(payload, **options), NOW_US)


def record(item: EncodedTask) -> TaskRecord:
    """The record as ``place`` puts it together."""
    body = (
        item.shared.head(item.flags, item.priority, FIRST_DELAYED if item.due_ms else FIRST_READY)
        + pack_task_times(NOW_US, 7, item.due_ms, item.expires_ms)
        + item.tail
    )
    raw = body + xxh3_64_digest(body)
    assert len(raw) == item.record_bytes
    return decode_task(raw)


@pytest.mark.parametrize("payload", [b"", b"x" * 100, {"to": "a"}, "text", None])
def test_the_short_way_makes_the_same_item(payload: Any) -> None:
    shared = defaults()
    short = simple_item(state(), shared, payload)
    long = encoded_task(state(), shared, NewTask(payload), NOW_US)
    for name in EncodedTask.__slots__:
        assert getattr(short, name) == getattr(long, name), name
    assert record(short) == record(long)


@pytest.mark.parametrize("payload", [b"x" * 100, {"to": "a" * 50}, "text" * 20])
def test_the_short_way_makes_the_same_item_of_a_large_payload(payload: Any) -> None:
    shared, engine = defaults(), state()
    engine.body_bytes_min = 20
    short = simple_item(engine, shared, payload)
    long = encoded_task(engine, shared, NewTask(payload), NOW_US)
    assert short.body is not None
    for name in EncodedTask.__slots__:
        assert getattr(short, name) == getattr(long, name), name


def test_what_is_given_is_what_is_recorded() -> None:
    item = make(
        {"to": "a"},
        priority=8,
        delay=2.5,
        ttl=60,
        dedup_key="k",
        dedup_window=120,
        headers={"trace": "t"},
        max_attempts=9,
    )
    found = record(item)
    assert (found.queue, found.tenant, found.priority) == (b"mail", b"acme", 8)
    assert (found.first_kind, found.due_ms) == (FIRST_DELAYED, NOW_MS + 2500)
    assert found.expires_ms == NOW_MS + 2500 + 60_000, "ttl counts from when it may run"
    assert found.ghost == ghost_hash(SECRET, b"mail\0acme\0k")
    assert found.ghost_expires_ms == NOW_MS + 120_000
    assert item.slot == slot_of(b"mail\0acme\0k")
    assert decode_policy(found.policy).max_attempts == 9


def test_a_queues_defaults_are_frozen_into_the_record() -> None:
    shared = defaults(
        max_attempts=3, retention=1.5, dead_retention=timedelta(days=1), backoff=Backoff("fixed", 2)
    )
    policy = decode_policy(record(simple_item(state(), shared, b"x")).policy)
    assert policy[:2] == (3, 0)
    assert policy.backoff_base_ms == 2000
    assert (policy.retention_ms, policy.dead_retention_ms) == (1500, 86_400_000)


def test_keys_route() -> None:
    assert make().slot is None
    assert make().ghost is NO_GHOST
    assert make(shard_key="customer-42").slot == slot_of(b"customer-42")
    assert make(dedup_key=b"k").slot == make(dedup_key="k").slot
    assert make(dedup_key="k").ghost_expires_ms == 0, "while the task lives"


def test_past_times_are_now() -> None:
    assert make(run_at=NOW - timedelta(hours=1)).due_ms == 0
    assert make(run_at=NOW + timedelta(hours=1)).due_ms == NOW_MS + 3_600_000
    assert make(delay=0).due_ms == 0
    elsewhere = (NOW + timedelta(hours=1)).astimezone()
    assert make(run_at=elsewhere).due_ms == NOW_MS + 3_600_000


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 10},
        {"priority": -1},
        {"priority": True},
        {"priority": 5.0},
        {"delay": -1},
        {"delay": math.nan},
        {"delay": math.inf},
        {"delay": "1"},
        {"delay": True},
        {"delay": 1, "run_at": NOW},
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"run_at": 5},
        {"run_at": datetime(9999, 1, 1, tzinfo=UTC)},
        {"ttl": -1},
        {"ttl": math.nan},
        {"dedup_key": "k", "shard_key": "s"},
        {"dedup_key": ""},
        {"dedup_key": "x" * 5000},
        {"dedup_key": 5},
        {"shard_key": ""},
        {"dedup_window": 5},
        {"on_conflict": "raise"},
        {"dedup_key": "k", "on_conflict": "other"},
        {"dedup_key": "k", "dedup_window": -1},
        {"max_attempts": 0},
        {"max_attempts": 65_536},
        {"max_attempts": True},
        {"headers": {1: "a"}},
        {"dedup_key": "\ud800"},
        {"shard_key": "\ud800"},
        {"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
        {"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))},
    ],
    ids=ascii,
)
def test_what_is_wrong_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        make(**options)


def test_sizes_are_bounded() -> None:
    for limits, task in (
        ({"payload_bytes_max": 3}, NewTask(b"four")),
        ({"headers_bytes_max": 3}, NewTask(b"", headers={"a": "b"})),
    ):
        with pytest.raises(PayloadTooLargeError):
            encoded_task(state(**limits), defaults(), task, NOW_US)


@pytest.mark.parametrize(
    "options",
    [
        {"retention": -1},
        {"dead_retention": math.nan},
        {"max_attempts": 0},
        {"backoff": "fixed"},
        {"retention": 4e8},
    ],
)
def test_defaults_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        defaults(**options)


def test_packed_parts_do_not_pile_up() -> None:
    shared, engine = defaults(), state()
    for size in range(3000):
        simple_item(engine, shared, bytes(size))
    assert len(shared.plain) <= 1024


def test_durations() -> None:
    assert duration_s(timedelta(minutes=1), "x") == 60
    assert duration_s(0, "x") == 0
    with pytest.raises(UsageError, match="x 0 is not between"):
        duration_s(0, "x", least=0.001)
    with pytest.raises(UsageError, match="time zone"):
        when_ms(datetime(2030, 1, 1), "run_at")  # noqa: DTZ001


def test_names() -> None:
    assert names_of("mail", "") == (b"mail", b"")
    assert names_of("mail", "acme") == (b"mail", b"acme")
    for tenant in (None, ALL_TENANTS):
        with pytest.raises(UsageError):
            names_of("mail", tenant)
    with pytest.raises(InvalidNameError):
        names_of("mail", "Acme")
