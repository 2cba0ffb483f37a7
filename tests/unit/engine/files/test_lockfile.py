"""One process owns a store; the next one is told who."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from lodeq.engine.files.lockfile import LockFile, without_cure
from lodeq.errors import LockedError, StorePathError


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "lock")


HOLDER = """
import sys
from lodeq.engine.files.lockfile import LockFile
lock = LockFile.acquire(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(path):
    """Another process that holds the lock until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


def test_it_is_private_and_names_its_holder(path):
    lock = LockFile.acquire(path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    with open(path) as file:
        assert f"pid {os.getpid()}\n" in file.read()
    lock.release()


def test_a_second_one_in_this_process_is_refused(path):
    lock = LockFile.acquire(path)
    with pytest.raises(LockedError, match="in this process") as caught:
        LockFile.acquire(path)
    assert caught.value.pid == os.getpid()
    lock.release()
    lock.release()
    assert not lock.is_held
    LockFile.acquire(path).release()


def test_another_process_is_named_and_frees_it_by_dying(path, holder):
    with pytest.raises(LockedError, match=f"by process {holder.pid};") as caught:
        LockFile.acquire(path)
    assert caught.value.pid == holder.pid
    holder.kill()
    holder.wait()
    LockFile.acquire(path).release()


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"pid none\n", b"lodeq 1\nboot x\n"])
def test_a_holder_without_a_name(path, holder, text):
    with open(path, "wb") as file:
        file.write(text)
    with pytest.raises(LockedError, match="has not left its name") as caught:
        LockFile.acquire(path)
    assert caught.value.pid is None


def test_a_holder_whose_name_cannot_be_read(path, holder, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(LockedError, match="not left its name") as caught:
        LockFile.acquire(path)
    assert caught.value.pid is None


def test_a_holder_that_cannot_be_seen(path, holder):
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace(f"pid {holder.pid}", "pid 4194305"))
    with pytest.raises(LockedError, match="another container"):
        LockFile.acquire(path)


def test_without_proc_it_locks_all_the_same(path, monkeypatch):
    def fail(*_, **__):
        raise FileNotFoundError(errno.ENOENT, "No such file")

    monkeypatch.setattr("lodeq.engine.files.lockfile.open", fail, raising=False)
    lock = LockFile.acquire(path)
    with pytest.raises(LockedError):
        LockFile.acquire(path)
    lock.release()


def test_a_file_replaced_meanwhile_is_locked_again(path, monkeypatch):
    flock, calls = fcntl.flock, []

    def racing(fd, how):
        calls.append(how)
        flock(fd, how)
        if len(calls) == 1:
            os.unlink(path)

    monkeypatch.setattr(fcntl, "flock", racing)
    lock = LockFile.acquire(path)
    assert len(calls) == 2
    assert os.path.samestat(os.fstat(lock._fd), os.stat(path))
    lock.release()


def test_a_file_that_is_always_replaced_is_given_up(path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: os.unlink(path))
    with pytest.raises(StorePathError, match="keeps changing"):
        LockFile.acquire(path)


def test_a_file_system_without_locks(path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(StorePathError, match="No locks"):
        LockFile.acquire(path)


def test_links_and_folders_are_refused(path, tmp_path):
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(StorePathError):
        LockFile.acquire(path)
    assert not (tmp_path / "elsewhere").exists()
    os.unlink(path)
    os.mkdir(path)
    with pytest.raises(StorePathError):
        LockFile.acquire(path)


FORKER = """
import os, sys
from lodeq.engine.files.lockfile import LockFile
lock = LockFile.acquire(sys.argv[1])
ready, go = os.pipe(), os.pipe()
if os.fork() == 0:
    os.write(ready[1], b"1" if not lock.is_held else b"0")
    os.read(go[0], 1)
    os._exit(0)
assert os.read(ready[0], 1) == b"1"
try:
    LockFile.acquire(sys.argv[1])
except Exception as exc:
    assert type(exc).__name__ == "LockedError"
else:
    raise SystemExit("the child took the parent's lock with it")
lock.release()
LockFile.acquire(sys.argv[1]).release()
os.write(go[1], b"1")
os.wait()
"""


def test_a_forked_child_neither_keeps_nor_frees_it(path):
    subprocess.run([sys.executable, "-c", FORKER, path], check=True, timeout=60)


def test_a_store_that_was_left_is_known_until_somebody_releases_it(path):
    def seen(*, is_sound: bool) -> bool:
        lock = LockFile.acquire(path)
        lock.release(is_sound=is_sound)
        return lock.was_left

    ends = [True, False, False, True, True]
    assert [seen(is_sound=end) for end in ends] == [False, False, True, True, False]


def test_another_process_is_told_to_serve_the_store(path, holder):
    with pytest.raises(
        LockedError, match=r"by process \d+; .*serve=True.*lodeq\.connect"
    ) as caught:
        LockFile.acquire(path)
    assert "serve=True" not in without_cure(str(caught.value))


def test_a_killed_holder_has_left_it(path, holder):
    holder.kill()
    holder.wait()
    assert LockFile.acquire(path).was_left


def test_a_look_takes_nothing_and_writes_nothing(path):
    LockFile.check(path)  # nobody ever had it
    assert not os.path.exists(path)
    lock = LockFile.acquire(path)
    with pytest.raises(LockedError, match="is open already"):
        LockFile.check(path)
    lock.release(is_sound=False)
    before = os.stat(path)
    LockFile.check(path)
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns
    assert LockFile.acquire(path).was_left
