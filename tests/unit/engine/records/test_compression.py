"""Compression: kept only where it saves, bounded when inflated."""

import builtins
import sys
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodeq.coalescer.commit_loop import SUBMISSION_BYTES_MAX
from lodeq.engine.records.compression import (
    COMPRESS_BYTES_MIN,
    NONE,
    VALUE_BYTES_MAX,
    ZLIB,
    ZSTD,
    Compressor,
    inflate,
)
from lodeq.engine.runtime.ids import SeededRng
from lodeq.errors import RecordCorruptError, UsageError

zstandard = pytest.importorskip("zstandard")
ZEROS = bytes(100_000)
BOMB_BYTES = 64 << 20
each = pytest.mark.parametrize(("name", "code"), [("zlib", ZLIB), ("zstd", ZSTD)])


@each
@given(st.binary(max_size=50), st.integers(1, 200))
def test_what_is_packed_comes_back(name: str, code: int, part: bytes, times: int) -> None:
    data = part * times
    used, stored = Compressor(name).pack(data)
    assert used in (NONE, code)
    assert len(stored) <= len(data)
    assert inflate(used, stored, len(data)) == data


@each
def test_small_or_random_data_is_left_alone(name: str, code: int) -> None:
    pack = Compressor(name).pack
    assert pack(bytes(COMPRESS_BYTES_MIN - 1))[0] == NONE
    assert pack(bytes(COMPRESS_BYTES_MIN))[0] == code
    noise = SeededRng(1).bytes(10_000)
    assert pack(noise) == (NONE, noise)


def test_off_is_off() -> None:
    assert Compressor(None).pack(ZEROS) == (NONE, ZEROS)


@each
def test_less_than_5_per_cent_is_not_worth_it(name: str, code: int) -> None:
    noise = SeededRng(1).bytes(9700) + bytes(300)  # 3 %
    assert Compressor(name).pack(noise)[0] == NONE


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="lz4"):
        Compressor("lz4")


def bomb(code: int) -> bytes:
    if code == ZLIB:
        packer = zlib.compressobj(9)
        return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(8)), packer.flush()])
    return bytes(zstandard.ZstdCompressor(level=1).compress(bytes(8 << 20)))


@each
def test_a_bomb_stops_at_the_declared_size(name: str, code: int) -> None:
    data = bomb(code)
    inflate(
        code, Compressor(name).pack(ZEROS)[1], len(ZEROS)
    )  # whatever the library allocates once
    tracemalloc.start()
    with pytest.raises(RecordCorruptError, match="size"):
        inflate(code, data, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_frame_that_wants_a_huge_window_is_refused() -> None:
    params = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    data = packer.compress(bytes(1000)) + packer.flush()  # the size is not in the frame
    with pytest.raises(RecordCorruptError):
        inflate(ZSTD, data, 1000)


@each
def test_damage_is_told_as_damage(name: str, code: int) -> None:
    _, stored = Compressor(name).pack(ZEROS)
    for bad in (b"", b"\0" * 20, stored[: len(stored) // 2], stored[1:]):
        with pytest.raises(RecordCorruptError):
            inflate(code, bad, len(ZEROS))
    for size in (len(ZEROS) - 1, len(ZEROS) + 1, 0):
        with pytest.raises(RecordCorruptError):
            inflate(code, stored, size)


def test_an_unknown_code_is_damage() -> None:
    with pytest.raises(RecordCorruptError, match="unknown compression 3"):
        inflate(3, b"", 0)


def test_zstd_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "zstandard":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "zstandard", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"lodeq\[zstd\]"):
        Compressor("zstd")


def test_no_value_that_could_be_enqueued_is_too_large_to_be_read() -> None:
    assert VALUE_BYTES_MAX == SUBMISSION_BYTES_MAX
