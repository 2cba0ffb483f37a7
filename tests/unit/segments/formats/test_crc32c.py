"""CRC-32C: the check value, pieces, and both ways to compute it."""

import importlib.util
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodeq.segments.formats import crc32c as module
from lodeq.segments.formats.crc32c import crc32c, crc32c_tables

# RFC 3720, B.4
KNOWN = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]
both = pytest.mark.parametrize("compute", [crc32c, crc32c_tables])


def bit_by_bit(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@both
@pytest.mark.parametrize(("data", "expected"), KNOWN)
def test_known_values(compute, data, expected) -> None:
    assert compute(data) == expected


@both
@settings(max_examples=50)
@given(data=st.binary(max_size=100), cuts=st.lists(st.integers(0, 100), max_size=4))
def test_pieces_add_up(compute, data, cuts) -> None:
    crc, last = 0, 0
    for cut in [*sorted(cuts), len(data)]:
        crc = compute(data[last:cut], crc)
        last = max(last, min(cut, len(data)))
    assert crc == compute(data) == bit_by_bit(data)


def reloaded(monkeypatch: pytest.MonkeyPatch, wheel: types.ModuleType | None) -> types.ModuleType:
    """A second copy of the module, made where the wheel is ``wheel``, or is missing."""
    monkeypatch.setitem(sys.modules, "google_crc32c", wheel)
    spec = importlib.util.spec_from_file_location("again", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    return again


def test_without_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    again = reloaded(monkeypatch, None)
    assert not again.IS_FAST
    assert again.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("implementation", ["c", "python"])
def test_the_wheel_is_used_if_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch, implementation: str
) -> None:
    wheel = types.ModuleType("google_crc32c")
    wheel.implementation = implementation  # type: ignore[attr-defined]
    wheel.extend = lambda crc, data: crc + len(data)  # type: ignore[attr-defined]
    again = reloaded(monkeypatch, wheel)
    assert again.IS_FAST is (implementation == "c")
    assert again.crc32c(b"1234", 1) == (5 if again.IS_FAST else crc32c_tables(b"1234", 1))
