"""A note comes back as it was; whatever else is there counts as none."""

import json
from pathlib import Path

import pytest

from lodeq import StorageError
from lodeq.segments.item import Damage
from lodeq.service.transfer.entries import Mark, Unreadable
from lodeq.service.transfer.progress_note import Note, note_path, read_note, write_note

NOTE = Note(
    Mark("a.log", 64, "ab"), 7, {"read already": 2}, 1, [Unreadable("a", Damage(1, 2, "torn"))]
)


def test_there_and_back(tmp_path: Path) -> None:
    path = str(tmp_path / "note.json")
    assert read_note(path) is None
    write_note(path, NOTE)
    write_note(path, NOTE)
    assert read_note(path) == NOTE
    assert [entry.name for entry in tmp_path.iterdir()] == ["note.json"]


def test_every_import_has_its_own(tmp_path: Path) -> None:
    assert note_path("store", "huey", "p", "q") != note_path("store", "huey", "p", "r")
    assert note_path("store", "huey", "p\udcff", "q")


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"mark": ["a", -1, "x"]}, {"entries": "7"}, {"unreadable": [1]}, {"mark": 1}],
)
def test_what_is_not_understood_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "note.json"
    write_note(str(path), NOTE)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert read_note(str(path)) is None
    path.write_bytes(b"\xff")
    assert read_note(str(path)) is None


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        write_note(str(tmp_path / "gone" / "note.json"), NOTE)
