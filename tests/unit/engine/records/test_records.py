"""Records: what is encoded comes back, a changed layout is noticed, damage never passes."""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from lodeq.engine.records import rows as small
from lodeq.engine.records.attempts import (
    AttemptRecord,
    Outcome,
    decode_attempts,
    encode_attempts,
)
from lodeq.engine.records.frame import CHECKSUM_BYTES, RECORD_BYTES_MAX, open_frame, seal
from lodeq.engine.records.lease import LeaseRecord, decode_lease, encode_lease
from lodeq.engine.records.policy import BackoffKind, Policy, decode_policy, encode_policy
from lodeq.engine.records.queues import queue_settings as settings
from lodeq.engine.records.result import (
    HAS_FACE,
    HAS_HISTORY,
    ResultRecord,
    Status,
    decode_result,
    encode_result,
)
from lodeq.engine.records.task import (
    BODY_FLAG,
    NO_GHOST,
    TaskRecord,
    decode_task,
    encode_task,
    has_body,
    payload_of,
    record_id_in,
    slim_record,
    whole_record,
)
from lodeq.errors import CorruptionError, FormatTooNewError, FormatTooOldError, RecordCorruptError

u8, u16, u32 = st.integers(0, 0xFF), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF_FFFF)
u64 = st.integers(0, (1 << 64) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
id16 = st.binary(min_size=16, max_size=16)
policies = st.binary(min_size=32, max_size=32)
names = st.binary(max_size=64)
tails = st.binary(max_size=100)
faces = st.binary(max_size=40)
priorities = st.integers(0, 9)

TASKS = st.builds(
    TaskRecord,
    u16,
    priorities,
    st.sampled_from(b"rd"),
    i64,
    i64,
    i64,
    i64,
    policies,
    id16,
    i64,
    u32,
    names,
    names,
    tails,
    tails,
    ghost_form=st.just(small.KEYED_FORM),
    face=faces,
)
LEASES = st.builds(
    LeaseRecord,
    u16,
    u16,
    priorities,
    u64,
    id16,
    i64,
    u32,
    u32,
    i64,
    i64,
    i64,
    policies,
    id16,
    i64,
    names,
    names,
    tails,
    st.integers(-(1 << 31), (1 << 31) - 1),
)
RESULTS = st.builds(
    ResultRecord,
    u16.map(lambda flags: flags & ~HAS_FACE),
    st.integers(1, 4),
    u8,
    u16,
    u64,
    u64,
    i64,
    i64,
    i64,
    i64,
    u64,
    u32,
    names,
    names,
    tails,
    tails,
    tails,
    faces,
    u32,
).map(lambda r: r._replace(flags=r.flags | HAS_HISTORY if r.history_s else r.flags & ~HAS_HISTORY))
ATTEMPT_LISTS = st.lists(
    st.builds(AttemptRecord, u16, st.integers(1, 3), i64, i64, names, tails),
    min_size=1,
    max_size=10,
)
ENTRIES = st.lists(
    st.tuples(st.sampled_from(b"trgxbcBvh"), id16).map(lambda e: bytes((e[0],)) + e[1]), max_size=8
)

POLICY = Policy(5, BackoffKind.FULL_JITTER, 2.0, 5000, 900_000, 3_600_000, 604_800_000)
ID, TOKEN = bytes(range(16)), bytes(range(16, 32))
TASK = TaskRecord(
    1,
    7,
    ord("r"),
    1_700_000_000_000_000,
    1_700_000_000_000_001,
    0,
    0,
    encode_policy(POLICY),
    NO_GHOST,
    0,
    2,
    b"mail",
    b"acme",
    b"\x81\xa1k\xa1v",
    b"hi",
)
LEASE = LeaseRecord(
    2,
    3,
    7,
    1 << 40 | 5,
    TOKEN,
    1_700_000_000_500_000,
    30_000,
    200,
    1_700_000_000_000_000,
    1_700_000_000_000_001,
    0,
    encode_policy(POLICY),
    ID,
    1_700_000_100_000,
    b"mail",
    b"acme",
    b"w1",
)
RESULT = ResultRecord(
    17,
    Status.COMPLETED,
    7,
    3,
    1 << 40 | 5,
    99,
    1_700_000_000_000_000,
    1_700_000_000_000_001,
    1_700_000_000_500_000,
    1_700_000_000_900_000,
    3_600_000,
    2,
    b"mail",
    b"acme",
    b"w1",
    b"",
    b"ok",
)


class Format(NamedTuple):
    """One kind of record: how it is made, read, and what one example looks like on disk."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    values: st.SearchStrategy[Any]
    example: Any
    golden: str


FORMATS = {
    "task": Format(
        encode_task,
        decode_task,
        TASKS,
        TASK,
        (
            "540101000772040400401e18240a060001401e18240a060000000000000000000000000000000000"
            "050004000000004088130000a0bb0d0080ee36000000000000840c24000000000000000000000000"
            "00000000000000000000000000000000050000000200000002000000000000006d61696c61636d65"
            "81a16ba1766869b487a249c0063214"
        ),
    ),
    "lease": Format(
        encode_lease,
        decode_lease,
        LEASES,
        LEASE,
        (
            "4c010200030007000500000000010000101112131415161718191a1b1c1d1e1f20e12518240a0600"
            "30750000c800000000401e18240a060001401e18240a060000000000000000000500040000000040"
            "88130000a0bb0d0080ee36000000000000840c2400000000000102030405060708090a0b0c0d0e0f"
            "a0eee6cf8b01000004040200000000006d61696c61636d657731f90f60e7eb922a1e"
        ),
    ),
    "result": Format(
        encode_result,
        decode_result,
        RESULTS,
        RESULT,
        (
            "52011100010703000500000000010000630000000000000000401e18240a060001401e18240a0600"
            "20e12518240a0600a0fb2b18240a060080ee36000000000002000000020000000000000002000404"
            "6d61696c61636d6577316f6bc496bbae6e8fc497"
        ),
    ),
    "result with history": Format(
        encode_result,
        decode_result,
        RESULTS,
        RESULT._replace(flags=17 | HAS_HISTORY, history_s=604_800),
        (
            "52011101010703000500000000010000630000000000000000401e18240a060001401e18240a0600"
            "20e12518240a0600a0fb2b18240a060080ee36000000000002000000020000000000000002000404"
            "6d61696c61636d6577316f6b803a0900f59055c967f658d3"
        ),
    ),
    "attempts": Format(
        encode_attempts,
        decode_attempts,
        ATTEMPT_LISTS,
        [
            AttemptRecord(
                1, Outcome.NACKED, 1_700_000_000_500_000, 1_700_000_000_900_000, b"w1", b"boom"
            )
        ],
        ("61010100010001000200040020e12518240a0600a0fb2b18240a06007731626f6f6de3bf733a1c7ed603"),
    ),
    "index": Format(
        small.encode_index_row,
        small.decode_index_row,
        st.builds(small.IndexRow, u8, priorities, u16, u32, i64, tails),
        small.IndexRow(1, 7, 2, 200, 1_700_000_100_000, b"boom"),
        "4901010702000400c8000000a0eee6cf8b010000626f6f6dcd586d608af4f300",
    ),
    "moved": Format(
        small.encode_moved,
        small.decode_moved,
        st.builds(small.Moved, u16, tails),
        small.Moved(2, b"q/mail\0\0r"),
        "53010200712f6d61696c00007232ab38438255aa8b",
    ),
    "ghost": Format(
        small.encode_ghost,
        small.decode_ghost,
        st.builds(small.Ghost, id16, i64, st.sampled_from([small.OLD_FORM, small.KEYED_FORM])),
        small.Ghost(ID, 1_700_000_100_000),
        ("47010100a0eee6cf8b010000000102030405060708090a0b0c0d0e0f836f5861cedea8a8"),
    ),
    "expiry": Format(
        small.encode_expiry,
        lambda raw: [bytes((kind,)) + key for kind, key in small.decode_expiry(raw)],
        ENTRIES,
        [b"r" + ID, b"g" + TOKEN],
        (
            "4501000072000102030405060708090a0b0c0d0e0f67101112131415161718191a1b1c1d1e1fdcad"
            "3d7c2195df39"
        ),
    ),
    "counters": Format(
        lambda c: small.encode_counters(*c),
        small.decode_counters,
        st.builds(small.Counters, u64, u64, u64, u64, u64, u64),
        small.Counters(1, 2, 3, 4, 5),
        (
            "43010000010000000000000002000000000000000300000000000000040000000000000005000000"
            "00000000f659ab1cc74859be"
        ),
    ),
    "pause": Format(
        small.encode_pause,
        small.decode_pause,
        i64,
        1_700_000_000_000_000,
        "5001000000401e18240a0600c796f9ca48221b01",
    ),
    "queue settings": Format(
        settings.encode_queue_settings,
        settings.decode_queue_settings,
        st.dictionaries(
            st.text(min_size=1, max_size=16),
            st.builds(
                settings.Setting,
                st.booleans() | st.integers(0, 1 << 40) | st.tuples(u16, u16),
                st.text(),
                i64,
            ),
        ),
        {"rate": settings.Setting((10, 1000), "operator", 7)},
        "5101000081a47261746593920acd03e8a86f70657261746f72075dcec7732974f233",
    ),
    "stamp": Format(
        small.encode_stamp,
        small.decode_stamp,
        st.builds(
            small.Stamp,
            u16,
            u16,
            u8,
            id16,
            version=st.integers(small.FORMAT_OLDEST, small.FORMAT_VERSION),
        ),
        small.Stamp(1, 4, 1, ID),
        "4d04010004000100000102030405060708090a0b0c0d0e0f59e1999ac218dfca",
    ),
    "open": Format(
        small.encode_open, small.decode_open, u64, 7, "4f0100000700000000000000360a48866e306707"
    ),
    "files": Format(
        small.encode_files,
        small.decode_files,
        st.integers(0, (1 << 63) - 1),
        7,
        "46010000070000000000000093a08fc5c140e39c",
    ),
    "journal": Format(
        small.encode_journal,
        small.decode_journal,
        id16,
        ID,
        "6a010000000102030405060708090a0b0c0d0e0f2a289342f3795223",
    ),
    "applied": Format(
        small.encode_applied,
        small.decode_applied,
        st.builds(small.Applied, u64, u64),
        small.Applied(3, 9),
        "41010000030000000000000009000000000000009cbcdd268f054a99",
    ),
    "secret": Format(
        small.encode_secret,
        small.decode_secret,
        st.binary(min_size=32, max_size=32),
        bytes(range(32)),
        "58010000000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f9f5701c33589ebca",
    ),
    "old ghosts": Format(
        small.encode_old_ghosts,
        small.decode_old_ghosts,
        u64,
        7,
        "5601000007000000000000001e6acb212350518d",
    ),
    "ring": Format(
        lambda r: small.encode_ring(*r),
        small.decode_ring,
        st.tuples(u64, u64),
        (1 << 40 | 9, 1_700_000_000_000_001),
        "4b010000090000000001000001401e18240a0600c6d0a1ca8d840765",
    ),
}
each = pytest.mark.parametrize("name", list(FORMATS))


@each
@given(data=st.data())
def test_what_is_encoded_comes_back(name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    value = data.draw(form.values)
    assert form.decode(form.encode(value)) == value


@each
def test_the_layout_has_not_changed(name: str) -> None:
    form = FORMATS[name]
    assert form.encode(form.example).hex() == form.golden
    assert form.decode(bytes.fromhex(form.golden)) == form.example


@each
def test_a_flipped_bit_never_passes(name: str) -> None:
    form = FORMATS[name]
    raw = form.encode(form.example)
    for at in range(len(raw)):
        for bit in (0x01, 0x80):
            bad = bytearray(raw)
            bad[at] ^= bit
            with pytest.raises(RecordCorruptError):
                form.decode(bytes(bad))


@each
def test_a_record_cut_short_never_passes(name: str) -> None:
    form = FORMATS[name]
    raw = form.encode(form.example)
    for size in range(len(raw)):
        with pytest.raises(RecordCorruptError):
            form.decode(raw[:size])
    with pytest.raises(RecordCorruptError):
        form.decode(raw + b"\0")


def test_rows_of_an_older_store_still_decode() -> None:
    """Bytes as they were written before these values could say more."""
    opened = bytes.fromhex("4f0100000700000000000000360a48866e306707")
    assert (small.decode_open(opened), small.is_common_open(opened)) == (7, False)
    files = bytes.fromhex("46010000070000000000000093a08fc5c140e39c")
    assert (small.decode_files(files), small.first_file_of_life(files)) == (7, 0)
    ring = bytes.fromhex("4b010000090000000001000001401e18240a0600c6d0a1ca8d840765")
    assert (small.decode_ring(ring)[0], small.owner_of(ring)) == (1 << 40 | 9, 0)
    body = seal(bytes.fromhex("42010000" + "05000000" + "02" + "00" * 7 + "09" + "00" * 7) + ID)
    assert small.decode_body(body) == small.BodyRow(5, 2, 9, ID, is_lost=False)
    at = seal(bytes.fromhex("59010000" + "05000000"))
    assert (small.decode_body_at(at), small.is_lost_at(at)) == (5, False)
    counters = seal(bytes.fromhex("43010000") + b"".join(n.to_bytes(8, "little") for n in range(5)))
    assert small.decode_counters(counters).waiting == 0


def test_what_such_rows_say_since_comes_back() -> None:
    assert small.is_common_open(small.encode_open(7, is_common=True))
    assert small.decode_open(small.encode_open(7, is_common=True)) == 7
    files = small.encode_files(7, 3)
    assert (small.decode_files(files), small.first_file_of_life(files)) == (7, 3)
    ring = small.encode_ring(9, 8, small.ring_owner(ID, 1))
    assert (small.decode_ring(ring), small.owner_of(ring)) == ((9, 8), small.ring_owner(ID, 1))
    body = small.BodyRow(5, 2, 9, ID, is_lost=True)
    assert small.decode_body(small.encode_body(body)) == body
    assert small.is_lost_at(small.encode_body_at(5, is_lost=True))


@each
@given(raw=st.binary(max_size=300))
def test_random_bytes_never_pass(name: str, raw: bytes) -> None:
    with pytest.raises((CorruptionError, FormatTooNewError)):
        FORMATS[name].decode(raw)


@each
@given(data=st.data())
def test_a_right_checksum_does_not_make_a_record(name: str, data: st.DataObject) -> None:
    """Whatever the fields say: it decodes, or it is refused as damage. Nothing else is raised."""
    form = FORMATS[name]
    head = form.encode(form.example)[:2]
    body = head + data.draw(st.binary(max_size=200))
    try:
        form.decode(body + xxh3_64_digest(body))
    except RecordCorruptError:
        pass


@each
def test_another_type_or_version_is_refused(name: str) -> None:
    form = FORMATS[name]
    raw = form.encode(form.example)
    for other in FORMATS.values():
        if other.decode is not form.decode:
            with pytest.raises(RecordCorruptError):
                other.decode(raw)
    newer = raw[:1] + bytes((raw[1] + 1,)) + raw[2:-CHECKSUM_BYTES]
    with pytest.raises(FormatTooNewError if name == "stamp" else RecordCorruptError):
        form.decode(newer + xxh3_64_digest(newer))


def test_a_record_of_format_1_says_so_of_its_dedup_key() -> None:
    raw = encode_task(TASK._replace(ghost=ID, ghost_form=small.OLD_FORM))
    assert raw[108:112] == bytes(4)
    assert decode_task(raw).ghost_form == small.OLD_FORM
    keyed = encode_task(TASK._replace(ghost=ID))
    assert (keyed[108:112], decode_task(keyed).ghost_form) == (b"\1\0\0\0", small.KEYED_FORM)
    plain = encode_task(TASK._replace(ghost=NO_GHOST))
    assert plain[108:112] == bytes(4)


def restamped(version: int, more: bytes = b"") -> bytes:
    """A stamp of another version, whole: its frame is that of every version."""
    raw = small.encode_stamp(small.Stamp(1, 4, 1, ID))[:-CHECKSUM_BYTES]
    body = raw[:1] + bytes((version,)) + raw[2:] + more
    return body + xxh3_64_digest(body)


def test_a_stamp_says_its_version_only_in_a_whole_frame() -> None:
    newest = small.FORMAT_VERSION
    for version in (newest + 1, 255):
        for more in (b"", bytes(40)):  # a later version may say more
            with pytest.raises(FormatTooNewError, match=f"has format {version}"):
                small.decode_stamp(restamped(version, more))
    with pytest.raises(FormatTooOldError, match="has format 0"):
        small.decode_stamp(restamped(0))
    for version in range(small.FORMAT_OLDEST, newest + 1):
        assert small.decode_stamp(restamped(version)) == small.Stamp(1, 4, 1, ID, version)
        with pytest.raises(RecordCorruptError, match="lengths"):
            small.decode_stamp(restamped(version, b"\0"))


def test_an_oversized_record_is_refused_unread() -> None:
    with pytest.raises(RecordCorruptError, match="not a possible size"):
        decode_task(b"T\x01" + bytes(RECORD_BYTES_MAX))


def test_a_frame_needs_type_version_and_checksum() -> None:
    layout = struct.Struct("<BBH")
    raw = seal(layout.pack(0x58, 1, 0))
    open_frame(raw, layout, 0x58, 1, "thing")
    for kind, version in ((0x59, 1), (0x58, 2)):
        with pytest.raises(RecordCorruptError, match="thing"):
            open_frame(raw, layout, kind, version, "thing")


def test_an_unknown_expiry_kind_is_refused() -> None:
    with pytest.raises(RecordCorruptError, match="unknown kind"):
        small.decode_expiry(small.encode_expiry([b"z" + ID]))


# -- policy: under the checksum of the record that carries it --------------------------


@given(
    st.builds(
        Policy, u16, st.sampled_from(BackoffKind), st.floats(0, 1e6, width=32), u32, u32, u64, u64
    )
)
def test_a_policy_comes_back(policy: Policy) -> None:
    assert decode_policy(encode_policy(policy)) == policy


def test_the_policy_layout_has_not_changed() -> None:
    assert (
        encode_policy(POLICY).hex()
        == "050004000000004088130000a0bb0d0080ee36000000000000840c2400000000"
    )


def test_numbers_on_disk_are_never_renumbered() -> None:
    assert {kind.name: kind.value for kind in BackoffKind} == {
        "FIXED": 0,
        "LINEAR": 1,
        "EXPONENTIAL": 2,
        "EQUAL_JITTER": 3,
        "FULL_JITTER": 4,
    }
    assert {status.name: status.value for status in Status} == {
        "COMPLETED": 1,
        "DEAD": 2,
        "EXPIRED": 3,
        "CANCELLED": 4,
    }
    assert frozenset(b"trgxbcBvhw") == small.EXPIRY_KINDS
    assert (small.OLD_FORM, small.KEYED_FORM) == (0, 1)


@given(FORMATS["task"].values, id16)
def test_a_payload_goes_out_of_a_record_and_comes_back(task: TaskRecord, record_id: bytes) -> None:
    task = task._replace(flags=task.flags & ~BODY_FLAG)
    whole = encode_task(task)
    slim = slim_record(whole, record_id)
    assert decode_task(slim) == task._replace(flags=task.flags | BODY_FLAG, payload=record_id)
    assert (has_body(whole), has_body(slim), record_id_in(slim)) == (False, True, record_id)
    assert payload_of(whole) == task.payload
    assert seal(whole_record(slim, task.payload)[:-8]) == whole
