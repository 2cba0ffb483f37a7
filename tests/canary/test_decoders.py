"""Fact 12: what zlib, zstandard and msgpack do with input that was made to hurt.

What ``engine/records/compression.py`` and ``repository/model/codec.py`` do differently rests on it.
"""

import zlib

import msgpack
import pytest
import zstandard

MIB = 1 << 20
ZEROS = bytes(8 * MIB)


def test_one_shot_zstd_ignores_its_limit_when_the_frame_tells_a_size():
    packed = zstandard.ZstdCompressor(write_content_size=True).compress(ZEROS)
    out = zstandard.ZstdDecompressor().decompress(packed, max_output_size=MIB)
    assert len(out) == len(ZEROS)


def test_a_zstd_stream_gives_no_more_than_was_asked_for():
    packed = zstandard.ZstdCompressor(write_content_size=True).compress(ZEROS)
    with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
        assert len(reader.read(1001)) == 1001


def test_a_zstd_window_is_refused_by_its_size():
    params = zstandard.ZstdCompressionParameters(window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    packed = packer.compress(b"x" * 1000) + packer.flush()
    with (
        zstandard.ZstdDecompressor(max_window_size=8 << 20).stream_reader(packed) as reader,
        pytest.raises(zstandard.ZstdError),
    ):
        reader.read(1001)


def test_a_zlib_object_gives_no_more_than_was_asked_for():
    assert len(zlib.decompressobj().decompress(zlib.compress(ZEROS), 1001)) == 1001


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"])
def test_msgpack_believes_no_length_beyond_its_input(head):
    with pytest.raises(ValueError, match=r"exceeds|incomplete"):
        msgpack.unpackb(head + b"\xff\xff\xff\xff\x01")


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", ValueError),
        (b"\xc1", msgpack.exceptions.FormatError),
        (b"\x01\x01", ValueError),
        (b"\xa2\xff\xfe", UnicodeDecodeError),
        (b"\x91" * 10_000, msgpack.exceptions.StackError),
        (b"\x81\x90\x01", TypeError),
        (b"\xc7\x0c\xff" + b"\xff" * 12, ValueError),
        (b"\xc7\x0c\xff\x00\x00\x00\x00" + b"\x7f" + b"\xff" * 7, OverflowError),
    ],
    ids=["nothing", "reserved", "more", "text", "depth", "key", "nanoseconds", "year"],
)
def test_how_msgpack_refuses(raw, error):
    """Of several families: none of them may escape from a decoder of ours."""
    with pytest.raises(error):
        msgpack.unpackb(raw, timestamp=3, strict_map_key=False)
