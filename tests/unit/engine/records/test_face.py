"""The face in records: without one they are what they were, and older readers never misread one."""

import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from lodeq.engine.records.face import NO_FACE, Face, label_in, pack_face, unpack_face
from lodeq.engine.records.result import ResultRecord, decode_result, encode_result
from lodeq.engine.records.task import (
    NO_GHOST,
    TaskRecord,
    decode_task,
    encode_task,
    lease_fields,
    record_face,
    whole_record,
)
from lodeq.errors import RecordCorruptError

OLD_TASK = struct.Struct("<BBHBBBBqqqq32s16sqIIII")  # of formats 1 and 2
OLD_RESULT = struct.Struct("<BBHBBHQQqqqqQIIIHBB")
small = st.binary(max_size=20)
faces = st.builds(
    Face, st.text(max_size=9), st.text(max_size=9), st.lists(st.text(max_size=5)).map(tuple)
)


def task(face: bytes, headers: bytes, payload: bytes) -> TaskRecord:
    return TaskRecord(
        1, 5, ord("r"), 7, 8, 0, 0, bytes(32), NO_GHOST, 0, 3, b"q", b"", headers, payload, 1, face
    )


def result(face: bytes, error: bytes, value: bytes) -> ResultRecord:
    return ResultRecord(17, 1, 5, 1, 1, 1, 7, 7, 7, 7, 7, 1, b"q", b"", b"w", error, value, face)


def old_task(raw: bytes) -> tuple[bytes, bytes]:
    """Headers and payload, as a release of format 2 reads them."""
    fields = OLD_TASK.unpack_from(raw)
    at = OLD_TASK.size + fields[5] + fields[6]
    end = at + fields[14]
    if end + fields[15] + 8 != len(raw):
        raise RecordCorruptError("task record: lengths do not add up")
    return raw[at:end], raw[end : end + fields[15]]


def old_result(raw: bytes) -> tuple[bytes, bytes]:
    """Error and value, as a release of format 2 reads them."""
    fields = OLD_RESULT.unpack_from(raw)
    at = OLD_RESULT.size + fields[17] + fields[18] + fields[16]
    end = at + fields[15]
    if end + fields[13] + 8 != len(raw):
        raise RecordCorruptError("result record: lengths do not add up")
    return raw[at:end], raw[end : end + fields[13]]


@given(face=faces, one=small, two=small)
def test_old_readers_and_new_records(face: Face, one: bytes, two: bytes) -> None:
    packed = pack_face(face)
    assert unpack_face(packed) == face
    records = encode_task(task(packed, one, two)), encode_result(result(packed, one, two))
    if face == NO_FACE:
        assert packed == b""
        assert (old_task(records[0]), old_result(records[1])) == ((one, two), (one, two))
    else:
        for read, raw in zip((old_task, old_result), records, strict=True):
            with pytest.raises(RecordCorruptError):
                read(raw)
    assert decode_task(records[0]) == task(packed, one, two)
    assert decode_result(records[1]) == result(packed, one, two)


@given(headers=small, payload=small)
def test_new_readers_and_old_records(headers: bytes, payload: bytes) -> None:
    body = (
        OLD_TASK.pack(
            0x54,
            1,
            0,
            5,
            ord("r"),
            1,
            0,
            7,
            8,
            0,
            0,
            bytes(32),
            bytes(range(16)),
            0,
            len(headers),
            len(payload),
            9,
            1,
        )
        + b"q"
        + headers
        + payload
    )
    found = decode_task(body + xxh3_64_digest(body))
    assert (found.headers, found.payload, found.ghost_form, found.face) == (
        headers,
        payload,
        1,
        b"",
    )


@given(face=faces.map(pack_face), headers=small, payload=small)
def test_a_claim_finds_it_wherever_the_payload_lies(
    face: bytes, headers: bytes, payload: bytes
) -> None:
    raw = encode_task(task(face, headers, payload))
    payload_bytes, size = lease_fields(raw)[4:]
    assert record_face(raw, payload_bytes, size) == face
    slim = encode_task(task(face, headers, bytes(16))._replace(flags=17))
    assert record_face(slim, *lease_fields(slim)[4:]) == face
    whole = whole_record(slim, payload)
    assert record_face(whole, *lease_fields(whole)[4:]) == face


@given(st.binary(max_size=30))
def test_what_is_no_face_shows_as_none(raw: bytes) -> None:
    found = unpack_face(raw)
    assert isinstance(found, Face)
    if found != NO_FACE:
        assert unpack_face(pack_face(found)) == found


@given(st.binary(max_size=30))
def test_a_label_of_what_is_no_face_is_none(raw: bytes) -> None:
    found = label_in(raw, "a=")
    assert found is None or found.startswith("a=")


def test_a_label_is_found_by_its_name() -> None:
    raw = pack_face(Face("a=0", "a=1", ("ba=2", "a=3", "a=4")))
    assert (label_in(raw, "a="), label_in(raw, "b="), label_in(b"", "a=")) == ("a=3", None, None)
    assert label_in(msgpack.packb(["f", "p", [b"a=1"]]), "a=") is None


def test_other_types_show_as_none() -> None:
    for value in (7, ["f"], ["f", "p", "l"], ["f", "p", [1]], [b"f", "p", []], ["f", None, []]):
        assert unpack_face(msgpack.packb(value)) == NO_FACE


def test_a_face_that_is_not_there_is_damage() -> None:
    raw = encode_result(result(b"x", b"", b""))[:-8]
    at = raw.index(b"\x01\x00x")
    empty = raw[:at] + b"\0\0" + raw[at + 3 :]
    with pytest.raises(RecordCorruptError, match="without a byte"):
        decode_result(empty + xxh3_64_digest(empty))
