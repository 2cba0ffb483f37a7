"""A row may say anything; what is read is what is there."""

import tracemalloc
from pathlib import Path

import pytest

from lodeq.engine.records.rows import BodyRow, decode_body, decode_files, encode_body, encode_files
from lodeq.errors import RecordCorruptError, SegmentCorruptError
from lodeq.segments.bodies.files import BodyFiles
from lodeq.segments.bodies.find import BodyFolder
from lodeq.segments.bodies.layout import Location

ID = b"i" * 16
WRONG = [
    (64, (1 << 32) - 1),
    (1 << 40, 100),
    ((1 << 63) - 1, (1 << 32) - 1),
    (1 << 63, 100),
    ((1 << 64) - 1, 0),
    (64, 0),
]


@pytest.fixture
def files(tmp_path: Path) -> BodyFiles:
    files = BodyFiles.open(str(tmp_path / "bodies"))
    files.append(ID, bytes(1000))
    return files


@pytest.mark.parametrize(("offset", "size"), WRONG)
def test_a_place_that_is_none_costs_nothing(files: BodyFiles, offset: int, size: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SegmentCorruptError):
            files.read(Location(1, offset, size), ID)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
        files.close()


@pytest.mark.parametrize(("offset", "size"), WRONG)
def test_a_salvage_takes_it_for_lost(files: BodyFiles, offset: int, size: int) -> None:
    folder = BodyFolder(files.folder)
    assert folder.whole([BodyRow(size, 1, offset, ID)]) == [False]
    files.close()


@pytest.mark.parametrize("number", [1 << 63, (1 << 64) - 1])
def test_numbers_that_no_file_can_have_are_damage(number: int) -> None:
    for raw in (encode_body(BodyRow(1, number, 0, ID)), encode_body(BodyRow(1, 0, number, ID))):
        with pytest.raises(RecordCorruptError):
            decode_body(raw)
    with pytest.raises(RecordCorruptError):
        decode_files(encode_files(number))
