"""Disk errors: which ones mean a full disk, and what the error of ours says."""

import errno
import os

import pytest

from lodeq.engine.files.disk_errors import (
    disk_error,
    error_class,
    is_disk_text,
    is_full,
    is_full_text,
    is_limit,
    is_limit_text,
    path_error,
    short_write,
)
from lodeq.errors import StorageError, StorageFullError, StorePathError


def failed(code, name=None):
    return OSError(code, os.strerror(code), name)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_and_no_quota_are_a_full_disk(code):
    assert is_full(failed(code))
    assert error_class(failed(code)) is StorageFullError
    text = f"p: {os.strerror(code)}; free some disk space"
    assert str(disk_error(failed(code), "p")) == text


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EACCES, errno.EFBIG])
def test_any_other_error_is_none(code):
    assert not is_full(failed(code))
    assert error_class(failed(code)) is StorageError
    assert str(disk_error(failed(code), "p")) == f"p: {os.strerror(code)}; look at the disk"


def test_what_rocksdb_says_of_a_disk_that_fails():
    for code in (errno.EIO, errno.EDQUOT):
        assert is_disk_text(
            f"IO error: While open a file for random read: /s/1.sst: {os.strerror(code)}"
        )
    for text in (
        f"IO error: While lock file: /s/LOCK: {os.strerror(errno.EACCES)}",
        f"IO error: No such file or directory: While opening /{os.strerror(errno.EIO)}",
        "Corruption: bad block",
    ):
        assert not is_disk_text(text)


def test_a_path_is_to_blame_unless_the_disk_is():
    said = path_error(failed(errno.EACCES), "p cannot be read", "choose another path")
    assert (type(said), str(said)) == (StorePathError, "p cannot be read; choose another path")
    said = path_error(failed(errno.EIO), "p cannot be read", "choose another path")
    assert (type(said), str(said)) == (StorageError, "p cannot be read; look at the disk")
    said = path_error(failed(errno.ENOSPC), "p cannot be made")
    assert (type(said), str(said)) == (StorageFullError, "p cannot be made; free some disk space")


def test_the_file_that_the_system_names_comes_first():
    assert str(disk_error(failed(errno.EIO, "q"), "p")).startswith("q: ")


def test_a_short_write_is_a_full_disk():
    assert is_full(short_write("a header"))
    assert "no space for a header" in str(short_write("a header"))


def test_rocksdb_goes_on_only_after_what_it_calls_no_space():
    assert is_full_text("IO error: No space left on device: While appending to file: x.log")
    assert not is_full_text("IO error: Disk quota exceeded: While appending to file: x.log")


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_limit_of_the_process_says_nothing_of_the_disk_or_the_path(code):
    assert is_limit(failed(code))
    assert "ulimit -n" in str(disk_error(failed(code), "p"))
    said = path_error(failed(code), "p cannot be listed", "choose another path")
    assert type(said) is StorageError
    assert "another path" not in str(said)
    assert is_limit_text(f"IO error: While open a file: /s/1.sst: {os.strerror(code)}")
    assert not is_limit_text(f"IO error: While open a file: /s/1.sst: {os.strerror(errno.EIO)}")
