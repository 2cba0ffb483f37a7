"""Packed records: the same when they are unpacked, and damage otherwise."""

import os
import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support_shared_log import record_of
from xxhash import xxh3_64_digest

from lodeq.engine.records.compression import Compressor
from lodeq.errors import RecordCorruptError
from lodeq.replication.fragments import Head, cut_record, join_fragments, read_stored
from lodeq.replication.record import decode_record, encode_record, unpacked_bytes

PACKER = Compressor("zstd", level=1)


def large(n: int = 400):
    return record_of(3, 57, 12, tuple((b"key %06d" % i, b"value" * (i % 7)) for i in range(n)))


def packed(body: bytes, size: int | None = None) -> bytes:
    frame = zstandard.ZstdCompressor().compress(body)
    rest = b"\xc1" + struct.pack(">I", len(body) if size is None else size) + frame
    return xxh3_64_digest(rest) + rest


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.none() | st.binary(max_size=90))))
def test_a_packed_record_is_the_same(ops):
    record = record_of(3, 57, 12, tuple(ops * 9))
    raw = encode_record(record, PACKER)
    assert decode_record(raw) == record
    assert unpacked_bytes(raw) == len(encode_record(record))


def test_a_record_is_packed_where_that_is_worth_it():
    plain = encode_record(large())
    raw = encode_record(large(), PACKER)
    assert len(raw) * 3 < len(plain)
    small = record_of(3, 57, 12, ((b"key", b"value" * 100),))
    noise = record_of(3, 57, 12, ((b"key", os.urandom(9000)),))
    for record in (small, noise):
        assert encode_record(record, PACKER) == encode_record(record)


def test_every_flipped_bit_of_a_packed_record_is_damage():
    raw = encode_record(large(60), PACKER)
    for at in range(len(raw) * 8):
        bad = bytearray(raw)
        bad[at // 8] ^= 1 << at % 8
        with pytest.raises(RecordCorruptError):
            decode_record(bytes(bad))


@pytest.mark.parametrize("lie", [-1, 1, 1 << 20, 1 << 31])
def test_a_record_that_lies_about_its_size_is_damage(lie):
    body = encode_record(large())[8:]
    assert decode_record(packed(body)) == large()
    with pytest.raises(RecordCorruptError, match="a record of the log says that it has"):
        decode_record(packed(body, len(body) + lie))


def test_a_bomb_is_damage():
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    for size in (1000, (1 << 32) - 1):
        rest = b"\xc1" + struct.pack(">I", size) + bomb
        with pytest.raises(RecordCorruptError):
            decode_record(xxh3_64_digest(rest) + rest)


def test_a_frame_cut_off_is_damage():
    raw = encode_record(large(), PACKER)[8:-9]
    with pytest.raises(RecordCorruptError):
        decode_record(xxh3_64_digest(raw) + raw)


def test_what_is_cut_is_packed_as_a_whole():
    whole = large(4000)
    stored, fragments = cut_record(whole, 4096, PACKER)
    head = read_stored(stored)
    assert isinstance(head, Head)
    assert head.size_bytes == sum(map(len, fragments)) < unpacked_bytes(fragments[0])
    assert unpacked_bytes(fragments[0]) == len(encode_record(whole))
    assert join_fragments(head, fragments) == whole
