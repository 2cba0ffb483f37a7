"""Sources: a file that is not touched, and bytes; nothing is read beyond either."""

import os
from pathlib import Path

import pytest

from lodeq import CorruptionError, StorageError
from lodeq.segments.source import BytesSource, FileSource


def test_both_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = bytes(range(256))
    path.write_bytes(data)
    memory = BytesSource(data)
    with FileSource(path) as file:
        assert file.size == memory.size == 256
        for offset, count in ((0, 10), (250, 10), (256, 1), (300, 5), (0, 0)):
            assert file.read(offset, count) == memory.read(offset, count)


def test_what_is_appended_meanwhile_is_not_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with FileSource(path) as file, path.open("ab") as more:
        more.write(b"def")
        more.flush()
        assert file.read(0, 100) == b"abc"


def test_a_file_cut_while_read_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abcdef")
    with FileSource(path) as file:
        os.truncate(path, 3)
        with pytest.raises(CorruptionError, match="cut short to 3"):
            file.read(0, 6)


def test_links_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name, error in (("link", StorageError), ("pipe", CorruptionError), ("", CorruptionError)):
        with pytest.raises(error):
            FileSource(tmp_path / name)


def test_an_error_of_the_disk_is_not_damage(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    file = FileSource(path)
    file.close()
    file.close()
    with pytest.raises(StorageError):
        file.read(0, 1)
    with pytest.raises(StorageError, match="nowhere"):
        FileSource(tmp_path / "nowhere")
