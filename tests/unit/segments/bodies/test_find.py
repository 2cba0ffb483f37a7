"""Records looked for in body files: what is found is what was written, whatever else is there."""

from pathlib import Path

import pytest

from lodeq.engine.records.rows import BodyRow
from lodeq.segments.bodies.files import BodyFiles
from lodeq.segments.bodies.find import BodyFolder
from lodeq.segments.bodies.layout import Location
from lodeq.segments.bodies.sqs import HEADER, HEADER_BYTES, Sqs
from lodeq.segments.formats.rdq import Rdq

IDS = [bytes([i]) * 16 for i in range(1, 6)]
BODIES = [b"first" * 9, b"", b"third" * 9, b"\0" * 40, b"\xff" * 40]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "bodies"
    made.mkdir()
    return made


def put_v1(folder: Path, number: int) -> dict[bytes, BodyRow]:
    records = [Rdq().encode(id, body) for id, body in zip(IDS, BODIES, strict=True)]
    (folder / f"{number}.rdq").write_bytes(b"".join(records))
    return _rows(number, 0, records)


def put_v2(folder: Path, number: int) -> dict[bytes, BodyRow]:
    records = [Sqs().encode(id, body) for id, body in zip(IDS, BODIES, strict=True)]
    (folder / f"{number}.sqs").write_bytes(HEADER + b"".join(records))
    return _rows(number, HEADER_BYTES, records)


def _rows(number: int, offset: int, records: list[bytes]) -> dict[bytes, BodyRow]:
    rows = {}
    for id, record in zip(IDS, records, strict=True):
        rows[id] = BodyRow(len(record), number, offset, id)
        offset += len(record)
    return rows


def test_what_is_asked_for_is_found_in_the_newest_file(folder: Path) -> None:
    found = BodyFolder(str(folder))
    assert (found.numbers(), found.find({IDS[0]})) == (frozenset(), {})
    old, new = put_v1(folder, 1), put_v2(folder, 2)
    assert found.numbers() == {1, 2}
    assert found.find(set(IDS[:2])) == {id: new[id] for id in IDS[:2]}
    assert found.find({bytes(16)}) == {}
    (folder / "2.sqs").write_bytes(HEADER)
    assert found.find(set(IDS)) == old


def test_an_id_alone_makes_no_record(folder: Path) -> None:
    """A record without a checksum is none of ours; nor is an id in the middle of a payload."""
    bare = Sqs().encode(IDS[0], b"bare", checksum=False)
    around = Sqs().encode(IDS[1], b"..." + IDS[0] + b"...")
    (folder / "2.sqs").write_bytes(HEADER + bare + around)
    (folder / "1.rdq").write_bytes(Rdq().encode(IDS[2], IDS[0] * 3))
    assert BodyFolder(str(folder)).find({IDS[0]}) == {}


def test_an_empty_file_is_passed_over(folder: Path) -> None:
    new = put_v2(folder, 1)
    (folder / "2.sqs").write_bytes(b"")
    assert BodyFolder(str(folder)).find(set(IDS)) == new


def test_whatever_byte_is_changed_or_cut_what_is_found_is_whole(folder: Path) -> None:
    rows = put_v2(folder, 1)
    path = folder / "1.sqs"
    whole = path.read_bytes()
    for at in range(HEADER_BYTES, len(whole)):
        hit = next(id for id, row in rows.items() if at < row.offset + row.size)
        changed = bytearray(whole)
        changed[at] ^= 0x11
        for data in (bytes(changed), whole[:at]):
            path.write_bytes(data)
            found = BodyFolder(str(folder)).find(set(IDS))
            assert hit not in found
            for id, row in found.items():
                assert row == rows[id]
            if len(data) == len(whole):  # what lies behind the damage is found
                assert len(found) == len(IDS) - 1


def test_in_a_cut_old_file_what_was_cut_is_not_found(folder: Path) -> None:
    rows = put_v1(folder, 1)
    path = folder / "1.rdq"
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        found = BodyFolder(str(folder)).find(set(IDS))
        assert found == {id: row for id, row in rows.items() if row.offset + row.size <= cut}


def test_what_is_found_is_read(folder: Path) -> None:
    put_v1(folder, 4)
    rows = BodyFolder(str(folder)).find(set(IDS))
    files = BodyFiles.open(str(folder))
    for id, body in zip(IDS, BODIES, strict=True):
        row = rows[id]
        assert files.read(Location(row.file, row.offset, row.size), id) == body
    files.close()
