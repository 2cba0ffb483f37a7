"""The bytes shown in ``docs/formats.md`` are the bytes the encoders write."""

import re
from pathlib import Path

import pytest

from lodeq.engine.files.paths import (
    bodies_path,
    journal_path,
    lock_path,
    secrets_path,
    shard_path,
    watermark_path,
)
from lodeq.engine.records import events
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.records.face import Face, pack_face
from lodeq.engine.records.lease import LeaseRecord, encode_lease
from lodeq.engine.records.policy import BackoffKind, Policy, encode_policy
from lodeq.engine.records.progress import ProgressRecord, encode_progress
from lodeq.engine.records.result import ResultRecord, Status, decode_result, encode_result
from lodeq.engine.records.task import NO_GHOST, TaskRecord, decode_task, encode_task

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats.md"
BLOCK = re.compile(r"^```hex (?P<name>[\w ]+)\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)

# One life: enqueued in commit 1, claimed in commit 2, completed in commit 3.
ID = bytes.fromhex("018bcfe568007abc8000000000000001")
NOW_US = 1_700_000_000_000_000
SEQ = NOW_US
NUMBER = 1 << 40 | 1
POLICY = encode_policy(
    Policy(5, BackoffKind.FULL_JITTER, 2.0, 5000, 900_000, 3_600_000, 604_800_000)
)
TASK = encode_task(
    TaskRecord(
        0, 7, ord("r"), NOW_US, SEQ, 0, 0, POLICY, NO_GHOST, 0, 2, b"mail", b"acme", b"", b"hi"
    )
)
FACE = pack_face(Face("send", "to=7", ("k=v",)))
LEASE = encode_lease(
    LeaseRecord(
        0,
        1,
        7,
        NUMBER,
        bytes(range(16)),
        NOW_US + 1_000_000,
        30_000,
        len(TASK),
        NOW_US,
        SEQ,
        0,
        POLICY,
        NO_GHOST,
        0,
        b"mail",
        b"acme",
        b"w1",
    )
)
RESULT = encode_result(
    ResultRecord(
        16,
        Status.COMPLETED,
        7,
        1,
        NUMBER,
        0x0102030405060708,
        NOW_US,
        SEQ,
        NOW_US + 1_000_000,
        NOW_US + 2_000_000,
        3_600_000,
        2,
        b"mail",
        b"acme",
        b"w1",
        b"",
        b"ok",
    )
)
SECRET = bytes(range(32))
TENANT_QUEUE = events.tenant_queue_tag(b"mail", b"acme")
CLAIMED = events.pack_run(events.CLAIMED, 7, 1, NOW_US + 1_000_000, TENANT_QUEUE, b"w1", [ID])
EXAMPLES = {
    "task key": ks.TASK + ID,
    "task record": TASK,
    "face": FACE,
    "task record with a face": encode_task(decode_task(TASK)._replace(face=FACE)),
    "result record with a face": encode_result(decode_result(RESULT)._replace(face=FACE)),
    "ready key": ks.ready_key(ks.shard_queue_prefix(b"mail", b"acme"), 7, SEQ, ID),
    "ready row": small.encode_index_row(small.IndexRow(0, 7, 0, len(TASK), 0, b"")),
    "lease record": LEASE,
    "result record": RESULT,
    "expiry key": ks.expiry_key(1_700_003_602_000, NUMBER + 2),
    "expiry row": small.encode_expiry(
        [b"B" + ks.shard_queue_hash(SECRET, b"mail", b"acme"), b"c" + ID]
    ),
    "counters key": ks.counters_key(b"mail", b"acme"),
    "counters row": small.encode_counters(1, 0, 0, 0, 0),
    "body row": small.encode_body(small.BodyRow(27, 3, 64, bytes(range(16)))),
    "at key": ks.body_at_key(3, 64, ID),
    "at row": small.encode_body_at(27),
    "ring key": ks.ring_key(NUMBER),
    "events key": ks.events_key(NUMBER + 1),
    "events row": events.encode_event_row(0, NUMBER + 1, [CLAIMED]),
    "start key": ks.events_key(2 << 40),
    "start row": events.encode_start_row(0, 2 << 40, 1 << 40 | 7, [(1 << 40 | 5, 1 << 40 | 6)]),
    "ring row": small.encode_ring(NUMBER, SEQ),
    "stamp row": small.encode_stamp(small.Stamp(0, 1, 0, bytes(range(16)))),
    "secret row": small.encode_secret(SECRET),
    "ghost key": ks.GHOST + ks.ghost_hash(SECRET, b"mail\0acme\0welcome:42"),
    "ghost row": small.encode_ghost(small.Ghost(ID, 1_700_003_600_000)),
    "old ghosts row": small.encode_old_ghosts(3),
    "progress row": encode_progress(ProgressRecord(1_700_000_000_000_000, 0.5, b"half")),
}


def shown() -> dict[str, bytes]:
    """Each block of the page: its bytes, comments (from ``;`` on) left out."""
    page = PAGE.read_text("utf-8")
    return {
        block["name"]: bytes.fromhex(
            "".join(line.partition(";")[0] for line in block["lines"].splitlines())
        )
        for block in BLOCK.finditer(page)
    }


def test_every_example_is_shown() -> None:
    assert set(shown()) == set(EXAMPLES)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_what_is_shown_is_what_is_written(name: str) -> None:
    assert shown()[name].hex(" ") == EXAMPLES[name].hex(" ")


def test_the_table_of_keys_names_every_family() -> None:
    page = PAGE.read_text("utf-8")
    for prefix in (
        "t/",
        "q/",
        "s/",
        "l/",
        "r/",
        "g/",
        "b/",
        "o/",
        "e/",
        "j/",
        "m/stamp",
        "m/open",
        "m/b/",
        "m/c/",
        "m/n/",
        "m/p/",
        "m/q/",
        "m/k/",
        "m/applied",
        "m/files",
        "m/secret",
        "m/ghosts",
    ):
        assert f"`{prefix}" in page, prefix


def test_the_files_are_named() -> None:
    page = PAGE.read_text("utf-8")
    for path in (
        lock_path(""),
        shard_path("", 0),
        watermark_path("", 0),
        bodies_path("", 0),
        secrets_path(""),
    ):
        assert f"  {path.replace('0', '<i>')}" in page, path
    assert f"  {journal_path('', '<name>')}/" in page


def test_the_kinds_of_events_are_numbered_as_shown() -> None:
    page = PAGE.read_text("utf-8")
    grammar = page[page.index("kind := ") :].partition("```")[0]
    shown_kinds = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", grammar)}
    assert shown_kinds == {kind.name.lower(): kind.value for kind in events.EventKind}
