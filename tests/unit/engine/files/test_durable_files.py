"""Durable files: the order of calls, links, leftovers of an error, and which error it is."""

import errno
import os
import stat
from pathlib import Path

import pytest

from lodeq.engine.files import durable_files
from lodeq.engine.files.disk_errors import disk_error
from lodeq.engine.files.durable_files import (
    create_file,
    new_file,
    replace_file,
    replaced_file,
    write_new,
)
from lodeq.errors import StorageError, StorageFullError


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "note")


@pytest.fixture
def calls(monkeypatch):
    """The system calls that decide what survives, each with the names of files."""
    found = []
    fsync, replace, unlink = os.fsync, os.replace, os.unlink

    def name_of(fd):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        return "folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else name

    def synced(fd):
        found.append(("fsync", name_of(fd), os.fstat(fd).st_size))
        fsync(fd)

    def renamed(one, other):
        found.append(("replace", os.path.basename(one), os.path.basename(other)))
        replace(one, other)

    def removed(name):
        found.append(("unlink", os.path.basename(name)))
        unlink(name)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(os, "unlink", removed)
    return found


def order(calls):
    return [call[:3] if call[0] == "replace" else call[:2] for call in calls]


class TestOrder:
    def test_a_replaced_file_is_synced_then_named_then_its_folder_is_synced(self, path, calls):
        replace_file(path, b"new")
        assert order(calls) == [
            ("fsync", "note.tmp"),
            ("replace", "note.tmp", "note"),
            ("fsync", "folder"),
        ]
        assert calls[0][2] == 3, "all bytes are written before the fsync"

    def test_one_that_need_not_be_durable_is_only_renamed(self, path, calls):
        replace_file(path, b"new", suffix="~", is_durable=False)
        assert order(calls) == [("replace", "note~", "note")]
        assert Path(path).read_bytes() == b"new"

    def test_a_new_file_is_synced_and_nothing_else(self, path, calls):
        write_new(path, b"new")
        assert calls == [("fsync", "note", 3)]

    def test_a_leftover_goes_first(self, path, calls):
        Path(f"{path}.tmp").write_bytes(b"half of an old one")
        replace_file(path, b"new")
        assert order(calls)[0] == ("unlink", "note.tmp")
        assert Path(path).read_bytes() == b"new"


class TestLinks:
    def test_a_link_is_replaced_and_what_it_leads_to_stays(self, path, tmp_path):
        other = tmp_path / "other"
        other.write_bytes(b"somebody's")
        os.symlink(other, path)
        os.symlink(other, f"{path}.tmp")
        replace_file(path, b"ours")
        assert other.read_bytes() == b"somebody's"
        assert not os.path.islink(path)
        assert sorted(os.listdir(tmp_path)) == ["note", "other"]

    @pytest.mark.parametrize("exists", [True, False])
    def test_a_new_file_goes_through_no_link(self, path, tmp_path, exists):
        other = tmp_path / "other"
        if exists:
            other.write_bytes(b"somebody's")
        os.symlink(other, path)
        with pytest.raises(FileExistsError):
            write_new(path, b"ours")
        assert os.path.islink(path), "a name that is not ours is left alone"
        write_new(path, b"ours", may_exist=True)
        assert not os.path.islink(path)
        assert other.exists() is exists

    def test_a_file_that_is_there_is_left_alone(self, path):
        write_new(path, b"first")
        with pytest.raises(FileExistsError), new_file(path):
            pass
        assert Path(path).read_bytes() == b"first"


class TestPermissions:
    def test_only_the_owner_reads_it(self, path):
        Path(path).touch(mode=0o644)
        Path(f"{path}.tmp").touch(mode=0o666)
        replace_file(path, b"secret")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600

    def test_others_may_where_asked(self, path):
        with create_file(path, mode=0o640):
            pass
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o640


class TestErrors:
    @pytest.mark.parametrize("name", ["fsync", "replace"])
    @pytest.mark.parametrize(
        ("code", "kind"),
        [(errno.ENOSPC, StorageFullError), (errno.EDQUOT, StorageFullError), (errno.EIO, None)],
    )
    def test_a_disk_that_fails_leaves_the_old_file_alone(
        self, path, tmp_path, monkeypatch, name, code, kind
    ):
        Path(path).write_bytes(b"old")

        def fail(*_):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, name, fail)
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            replace_file(path, b"new")
        assert os.listdir(tmp_path) == ["note"]
        assert Path(path).read_bytes() == b"old"
        assert type(disk_error(caught.value, path)) is (kind or StorageError)

    def test_a_folder_that_cannot_be_synced_is_an_error_of_a_file_that_is_there(
        self, path, monkeypatch
    ):
        def fail(folder):
            raise OSError(errno.EIO, "Input/output error", folder)

        monkeypatch.setattr(durable_files, "fsync_dir", fail)
        with pytest.raises(OSError, match="Input/output"):
            replace_file(path, b"new")
        assert Path(path).read_bytes() == b"new"

    @pytest.mark.parametrize("make", [new_file, replaced_file])
    def test_a_block_that_raises_leaves_nothing(self, path, tmp_path, make):
        def interrupted():
            with make(path) as file:
                file.write(b"half")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert os.listdir(tmp_path) == []

    def test_a_new_file_that_cannot_be_synced_is_removed(self, path, tmp_path, monkeypatch):
        def fail(fd):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            write_new(path, b"new")
        assert os.listdir(tmp_path) == []
