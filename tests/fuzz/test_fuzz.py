"""No stored byte, however damaged, makes a decoder do anything but decode or refuse."""

import os
import random
import re
import tracemalloc
import zlib

import msgpack
import pytest
import zstandard
from fuzz import pieces
from fuzz.mutate import check, mutated
from fuzz.targets import ELSEWHERE, TARGETS, _thing
from hypothesis import given, settings
from hypothesis import strategies as st
from support_sources import modules_in, name_of, text_of

from lodeq.engine.records.compression import inflate
from lodeq.errors import RecordCorruptError
from lodeq.repository.model.codec import decode_headers, decode_value, encode_headers, encode_value

names = pytest.mark.parametrize("name", TARGETS)
EXAMPLES = int(os.environ.get("LODEQ_FUZZ_EXAMPLES", "30"))
INPUTS = 40_000  # of each; the rate of the target is applied
DECODERS = re.compile(
    r"^ *def (_?decode(?:_\w*)?|inflate|open_frame|read_manifest|_?unpack(?:_\w*)?)\(", re.MULTILINE
)


@names
def test_what_is_valid_is_taken(name):
    rng = random.Random(1)
    target = TARGETS[name]
    assert all(check(target, target.example(rng)) for _ in range(50))


@pytest.mark.parametrize("name", [name for name in TARGETS if TARGETS[name].fix is not bytes])
def test_a_wrong_checksum_is_refused(name):
    """The others lie under the checksum of something else, or have none."""
    target, rng = TARGETS[name], random.Random(2)
    raw = target.example(rng)
    damaged = bytearray(raw)
    for at in range(0, len(raw), 7):
        damaged[at] ^= 0x10
    assert not check(target, bytes(damaged))


@pytest.mark.slow
@names
def test_many_mutations(name):
    taken, _ = pieces.piece(name, 0, int(INPUTS * TARGETS[name].rate))
    assert taken, "no mutation got past the first check: nothing behind it was tested"


@pytest.mark.sample
@names
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_mutations_that_shrink(name, data):
    target = TARGETS[name]
    rng = data.draw(st.randoms(use_true_random=False))
    check(target, mutated(rng, target, [target.example(rng) for _ in range(2)]))
    check(target, data.draw(st.binary(max_size=200)))


@names
def test_the_corpus(name):
    for raw in pieces.corpus(name):
        check(TARGETS[name], raw)


def test_every_file_of_the_corpus_belongs_to_a_target():
    assert {path.name.partition("-")[0] for path in pieces.CORPUS.iterdir()} <= set(TARGETS)


def test_every_decoder_has_a_target():
    found = set()
    for path in modules_in("engine", "repository", "coalescer", "segments"):
        module = name_of(path).removesuffix(".py").replace("/", ".")
        found |= {f"{module}.{name}" for name in DECODERS.findall(text_of(path))}
    covered = {name for target in TARGETS.values() for name in target.covers}
    assert found - ELSEWHERE == covered


def test_values_come_back():
    rng = random.Random(3)
    for _ in range(2000):
        value = _thing(rng)
        kind, data = encode_value(value, None, 1 << 20, "payload")
        assert decode_value(kind, 0, data, len(data), None) == value
        headers = {"k": value}
        assert decode_headers(encode_headers(headers, 1 << 20)) == headers


# -- bombs -------------------------------------------------------------------------------

LIMIT = 1 << 20
ZEROS = bytes(1 << 20)


def zlib_bomb():
    engine = zlib.compressobj(9)
    return b"".join(engine.compress(ZEROS) for _ in range(256)) + engine.flush()


def zstd_bomb():
    engine = zstandard.ZstdCompressor().compressobj()
    return b"".join(engine.compress(ZEROS) for _ in range(256)) + engine.flush()


def zstd_frame_of_a_huge_size():
    engine = zstandard.ZstdCompressor(write_content_size=True).compressobj(size=1 << 40)
    return engine.compress(b"x") + engine.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


def peak_bytes(call):
    tracemalloc.start()
    try:
        with pytest.raises(RecordCorruptError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "bomb"), [(1, zlib_bomb), (2, zstd_bomb), (2, zstd_frame_of_a_huge_size)]
)
def test_a_decompression_bomb_stops_at_the_declared_size(code, bomb):
    data = bomb()
    assert peak_bytes(lambda: inflate(code, data, LIMIT)) < 4 * LIMIT


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\x91" * 100_000,
        b"\x81\x01" * 100_000,
        b"\xdd\x00\xff\xff\xff" * 20_000,
    ],
    ids=["array", "map", "bytes", "text", "extension", "depth", "depth of maps", "nested arrays"],
)
def test_a_msgpack_bomb_costs_no_more_than_its_bytes_allow(bomb):
    limit = 100 * len(bomb) + (1 << 20)
    assert peak_bytes(lambda: decode_value(1, 0, bomb, len(bomb), None)) < limit
    assert peak_bytes(lambda: decode_headers(bomb)) < limit


def test_a_large_flat_payload_is_no_bomb():
    data = msgpack.packb([0] * (LIMIT - 5))
    assert len(decode_value(1, 0, data, len(data), None)) == LIMIT - 5
