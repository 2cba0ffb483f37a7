"""Which folders of body files are gone on with, and what the others are told."""

from pathlib import Path

import pytest
from support_bodies import Opened, as_v1, names
from support_loop import on_loop

import lodeq
from lodeq.segments.bodies import layout
from lodeq.segments.bodies.files import BodyFiles
from lodeq.segments.bodies.layout import NO_FILE, examine_folder, file_name, list_numbers
from lodeq.segments.bodies.sqs import HEADER
from lodeq.segments.formats.rdq import Rdq


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "bodies"
    made.mkdir()
    return made


def put(folder: Path, *names: str, data: bytes = HEADER) -> None:
    for name in names:
        (folder / name).write_bytes(data)


def test_a_number_tells_the_format(folder: Path) -> None:
    assert examine_folder(str(folder)) == ((), NO_FILE)
    assert examine_folder(str(folder / "none")) == ((), NO_FILE)
    put(folder, "0.rdq", "10.rdq", "11.sqs", "200.sqs")
    found = examine_folder(str(folder))
    assert found == ((0, 10, 11, 200), 10)
    assert [file_name(n, found.last_v1_file) for n in found.numbers] == [
        "0.rdq",
        "10.rdq",
        "11.sqs",
        "200.sqs",
    ]
    files = BodyFiles.open(str(folder))
    assert [files.is_v1(n) for n in (0, 10, 11)] == [True, True, False]
    assert files.append(bytes(16), b"new").file == 201
    files.close()


def test_new_numbers_are_above_old_files(folder: Path) -> None:
    record = Rdq().encode(bytes(16), b"old")
    put(folder, "7.rdq", data=record)
    files = BodyFiles.open(str(folder), least=3)
    assert files.read(layout.Location(7, 0, len(record)), bytes(16)) == b"old"
    assert files.append(bytes(16), b"new").file == 8
    assert files.v1 == {7: len(record)}
    files.forget(7)
    files.unlink(7)
    assert (files.v1, list_numbers(str(folder))) == ({}, [8])
    files.close()


@pytest.mark.parametrize(
    ("old", "new"), [("5.rdq", "5.sqs"), ("6.rdq", "5.sqs"), ("3.rdq", "0.sqs")]
)
def test_numbers_that_overlap_are_refused(folder: Path, old: str, new: str) -> None:
    put(folder, "1.rdq", old, new, "90.sqs")
    with pytest.raises(lodeq.StorePathError, match=rf"{new[0]}\.sqs and {old[0]}\.rdq"):
        BodyFiles.open(str(folder))


@pytest.mark.parametrize("name", ["3.sqs3", "12.blob", "0.x"])
def test_what_is_of_no_known_format_is_refused(folder: Path, name: str) -> None:
    put(folder, "1.sqs", name)
    with pytest.raises(lodeq.FormatTooNewError, match=name.replace(".", r"\.")):
        BodyFiles.open(str(folder))


def test_what_is_not_named_like_a_body_file_is_left_alone(folder: Path) -> None:
    put(folder, "1.sqs.damaged-64", "01.sqs", "notes.txt", "-1.sqs", "1.", ".sqs", "٣.sqs")
    assert examine_folder(str(folder)).numbers == ()


def newer(version: int = 3) -> bytes:
    return HEADER[:4] + bytes([version]) + HEADER[5:]


def test_a_newer_version_is_refused_below_a_header_that_was_never_written(folder: Path) -> None:
    put(folder, "1.sqs")
    put(folder, "2.sqs", data=newer())
    put(folder, "3.sqs", data=bytes(64))
    put(folder, "4.sqs", data=newer()[:20])
    with pytest.raises(
        lodeq.FormatTooNewError, match=r"2\.sqs.*format 3, this lodeq reads up to 2"
    ):
        BodyFiles.open(str(folder))
    put(folder, "2.sqs")
    assert BodyFiles.open(str(folder)).next_number == 5


def test_a_format_that_was_dropped_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, "1.rdq", "2.sqs")
    examine_folder(str(folder))
    monkeypatch.setattr(layout, "OLDEST_BODY_FORMAT", 2)
    with pytest.raises(lodeq.FormatTooOldError, match=r"migrate_bodies\(\)"):
        examine_folder(str(folder))
    (folder / "1.rdq").unlink()
    assert examine_folder(str(folder)).last_v1_file == NO_FILE


def state(root: Path) -> dict[str, bytes]:
    """Every file and what is in it."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("recovery", ["strict", "salvage"])
@pytest.mark.parametrize("what", ["old", "newer", "unknown", "overlap"])
@on_loop
async def test_a_refused_store_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, recovery: str
) -> None:
    async with Opened(tmp_path) as rig:
        await rig.fill(3)
    as_v1(tmp_path)
    bodies = tmp_path / "s" / "bodies0"
    kind: type[lodeq.OpenError] = lodeq.FormatTooNewError
    if what == "old":
        monkeypatch.setattr(layout, "OLDEST_BODY_FORMAT", 2)
        kind = lodeq.FormatTooOldError
    elif what == "overlap":
        put(bodies, "1.sqs")
        kind = lodeq.StorePathError
    else:
        put(bodies, "2.sqs" if what == "newer" else "2.sqs9", data=newer())
    before, there = state(tmp_path), names(tmp_path)
    with pytest.raises(kind):
        await Opened(tmp_path, recovery=recovery).__aenter__()
    assert (state(tmp_path), names(tmp_path)) == (before, there)
    monkeypatch.undo()
    for name in set(there) - {"1.rdq"}:
        (bodies / name).unlink()
    async with Opened(tmp_path) as rig:  # nothing of it was left open
        assert (await rig.engine.stats()).old_body_files == 1
