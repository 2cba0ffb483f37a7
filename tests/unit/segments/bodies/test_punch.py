"""Dead ranges given back: all of them reads as a hole, and nothing beside them changes."""

import os
from pathlib import Path

import pytest

from lodeq.segments.bodies.punch import PAGE_BYTES, punch
from lodeq.segments.bodies.sqs import Sqs
from lodeq.segments.item import Hole
from lodeq.segments.source import BytesSource

P = PAGE_BYTES
RANGES = [
    (0, 1), (0, P), (1, P), (1, P - 1), (P - 1, 2), (P, P), (P, P + 1), (100, 60), (P - 4, P + 8),
    (5, 3 * P), (P - 5, 2 * P + 5), (P - 5, 2 * P + 10), (3, 5 * P - 3),
]  # fmt: skip


@pytest.mark.parametrize("is_v1", [True, False])
@pytest.mark.parametrize(("offset", "size"), RANGES)
def test_the_range_is_a_hole_and_its_neighbours_stay(
    tmp_path: Path, offset: int, size: int, is_v1: bool
) -> None:
    path = tmp_path / "file"
    before = os.urandom(8 * P)
    path.write_bytes(before)
    gone = punch(str(path), offset, size, is_v1=is_v1)
    after = path.read_bytes()
    end = offset + size
    assert (after[:offset], after[end:]) == (before[:offset], before[end:])
    if is_v1:
        assert after[offset:end] == bytes(size)
    else:
        source = BytesSource(after[:end])
        assert list(Sqs().scan(source, offset)) == [Hole(offset, size)]
    assert gone % P == 0
    assert gone <= size
    assert gone >= size - 2 * P


def test_a_file_with_another_name_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4 * P)
    os.link(path, tmp_path / "backup")
    for is_v1 in (True, False):
        assert punch(str(path), 0, 4 * P, is_v1=is_v1) == 0
    assert path.read_bytes() == b"x" * 4 * P
