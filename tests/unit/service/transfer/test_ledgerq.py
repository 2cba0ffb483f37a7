"""From LedgerQ: order, priority, TTL, headers, failures, dedup windows, dead letters."""

import hashlib
from pathlib import Path

import pytest
from support_import import (
    AT_NS,
    FAR_NS,
    complete_all,
    ledgerq,
    message,
    run_import,
    tasks_of,
)
from support_service import spoil, state_of

import lodeq
from lodeq.segments.formats.ledgerq.folder import write_directory
from lodeq.segments.formats.ledgerq.state import (
    DedupEntry,
    DedupState,
    GoTime,
    RetryEntry,
    RetryState,
)
from lodeq.service.transfer.ledgerq import TASK_HEADER

pytestmark = pytest.mark.slow

GZIP = bytes.fromhex("1f8b08000000000000ff4a240000010000ffff7717b1ca20000000")  # 32 times "a"
KEY = hashlib.sha256(b"welcome:42").hexdigest()


def test_everything_a_message_has_comes_along(tmp_path: Path) -> None:
    source = ledgerq(
        tmp_path / "source",
        [
            message(1, b"read already"),
            message(2, b"low", headers={"k": "v"}),
            message(3, b"high", priority=2, expires_ns=FAR_NS + 1),
            message(4, b"expired", expires_ns=AT_NS + 5),
            message(5, GZIP, priority=1, encoding="gzip"),
            message(6, b""),
            message(7, b"bytes", headers={"caf\udce9": "\udcff"}),
        ],
        read_id=2,
    )
    before = state_of(source)
    report = run_import("ledgerq", source, tmp_path / "store")
    assert (report.imported, report.already, report.unreadables) == (5, 0, 0)
    assert report.left_out == {"read already": 1, "expired already": 1}
    found = tasks_of(tmp_path / "store")
    assert [task.payload for task in found] == [b"high", b"a" * 32, b"low", b"", b"bytes"]
    assert [task.priority for task in found] == [9, 7, 5, 5, 5]
    assert found[2].headers == {"k": "v"}
    assert found[4].headers == {"caf\\xe9": b"\xff"}
    assert found[2].enqueued_at.timestamp() == pytest.approx(AT_NS / 1e9)
    assert found[0].expires_at is not None
    assert found[0].expires_at.timestamp() * 1e3 == pytest.approx(FAR_NS // 10**6 + 1)
    assert state_of(source) == before


def test_failures_and_windows_stay(tmp_path: Path) -> None:
    source = ledgerq(
        tmp_path / "source",
        [message(n, b"%d" % n) for n in range(1, 6)],
        read_id=4,
        retries=RetryState(3, (RetryEntry(2, 2, GoTime(AT_NS), "no route"),)),
        dedup=DedupState(
            (
                DedupEntry(KEY, 5, AT_NS, FAR_NS),
                DedupEntry("ab" * 32, 1, AT_NS, FAR_NS),
                DedupEntry("cd" * 32, 3, AT_NS, AT_NS + 1),
            )
        ),
    )
    report = run_import("ledgerq", source, tmp_path / "store", shards=3)
    assert (report.imported, report.keys) == (3, 1)
    assert report.left_out == {"read already": 2, "expired already": 1}
    found = tasks_of(tmp_path / "store")
    assert [(t.payload, t.attempts, t.reason) for t in found] == [
        (b"2", 2, "no route"),
        (b"4", 0, ""),
        (b"5", 0, ""),
    ]
    complete_all(tmp_path / "store")
    with lodeq.sync.open(tmp_path / "store") as engine:
        mail = engine.queue("mail")
        assert mail.enqueue(b"", dedup_key=KEY).duplicate
        assert mail.enqueue(b"", dedup_key="ab" * 32).duplicate
        assert not mail.enqueue(b"", dedup_key="cd" * 32).duplicate


def test_a_queue_of_dead_letters_arrives_dead(tmp_path: Path) -> None:
    dead = {
        "dlq.original_msg_id": "17",
        "dlq.retry_count": "3",
        "dlq.failure_reason": "no route",
        "dlq.last_failure": "2023-11-14T22:13:20.000Z",
        "own": "header",
    }
    source = ledgerq(tmp_path / "source", [message(1, b"x", headers=dead), message(2, b"alive")])
    report = run_import("ledgerq", source, tmp_path / "store")
    assert (report.imported, report.dead) == (2, 1)
    (task,) = tasks_of(tmp_path / "store", "dead")
    assert (task.payload, task.attempts, task.reason) == (b"x", 3, "no route")
    assert task.headers == {"own": "header"}
    assert task.finished_at is not None
    assert task.finished_at.timestamp() == AT_NS // 10**9


def test_damage_is_told_with_its_place_and_the_rest_comes(tmp_path: Path) -> None:
    source = ledgerq(
        tmp_path / "source",
        [message(1, b"first"), message(2, b"second"), message(3, b"third")],
    )
    segment = source / f"{1:020}.log"
    spoil(segment)
    report = run_import("ledgerq", source, tmp_path / "store")
    assert (report.imported, report.unreadables) == (2, 1)
    assert report.unreadable[0].file == segment.name
    assert report.unreadable[0].damage.offset == 64 + 30 + 5
    again = run_import("ledgerq", source, tmp_path / "store")
    assert (again.imported, again.already, again.unreadable) == (0, 2, report.unreadable)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"priority":10,"kind":true,"due_ms":-1}', '{"headers":"!"}', "[" * 9999]
)
def test_a_header_that_only_looks_like_ours_is_none(tmp_path: Path, text: str) -> None:
    source = ledgerq(tmp_path / "source", [message(1, b"x", headers={TASK_HEADER: text})])
    run_import("ledgerq", source, tmp_path / "store")
    (task,) = tasks_of(tmp_path / "store")
    assert (task.payload, task.priority, task.headers) == (b"x", 5, {})


def test_what_was_accepted_and_never_written_is_told(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_directory(source, [message(1, b"a"), message(2, b"b")], next_id=6)
    for already in (0, 2):
        report = run_import("ledgerq", source, tmp_path / "store")
        assert (report.imported, report.already) == (2 - already, already)
        (one,) = report.unreadable
        assert one.file == "metadata.dat"
        assert "messages 3 to 5" in one.damage.reason


def test_one_segment_alone_is_all_unread(tmp_path: Path) -> None:
    source = ledgerq(tmp_path / "source", [message(1, b"a"), message(2, b"b")], read_id=3)
    report = run_import("ledgerq", source / f"{1:020}.log", tmp_path / "store")
    assert report.imported == 2
