"""A served store on a machine with other users: whose socket, whose note, and who believes them."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest
from support_http import socket_path

import lodeq
import lodeq.sync
from lodeq.engine.files import served_note
from lodeq.engine.files.lockfile import LockFile, boot_id, is_held_by
from lodeq.engine.files.paths import lock_path
from lodeq.engine.files.served_note import find_served, leave_note, note_path, read_note
from lodeq.service.http import listener
from lodeq.service.http.listener import listen_unix

OTHER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture
def root():
    with socket_path() as path:
        yield Path(path).parent


@pytest.fixture
def store(root):
    """A store whose lock this process holds, and whose note it has left."""
    path = str(root / "jobs")
    os.mkdir(path, 0o700)
    lock = LockFile.acquire(lock_path(path))
    leave_note(path, "http://127.0.0.1:1")
    yield path
    lock.release()


def write_note(store, **changes):
    note = {"address": "http://127.0.0.1:1", "pid": os.getpid(), "boot_id": boot_id()}
    Path(note_path(store)).write_text(json.dumps({**note, **changes}))


# --- the note -----------------------------------------------------------------------------------


class TestTheNoteIsTrusted:
    def test_while_its_process_holds_the_lock(self, store):
        assert find_served(store) == ("http://127.0.0.1:1", os.getpid(), boot_id())

    @pytest.mark.parametrize("changes", [{"pid": 1}, {"boot_id": "another"}])
    def test_not_that_of_another_process_or_boot(self, store, changes):
        write_note(store, **changes)
        assert read_note(store) is not None
        assert find_served(store) is None

    def test_not_once_the_lock_is_free(self, root):
        path = str(root / "jobs")
        os.mkdir(path, 0o700)
        lock = LockFile.acquire(lock_path(path))
        leave_note(path, "http://127.0.0.1:1")
        lock.release(is_sound=False)  # its text stays, as when a process is killed
        text = Path(lock_path(path)).read_text().replace("start ", "start 9")
        Path(lock_path(path)).write_text(text)  # and its pid is another process's now
        assert find_served(path) is None

    def test_where_the_holder_cannot_be_seen_while_it_has_the_lock(self, store):
        """In another container: only the lock itself says that it lives."""
        lock = Path(lock_path(store))
        text = lock.read_text().replace(f"pid {os.getpid()}\n", "pid 4194305\n")
        lock.write_text(text)
        write_note(store, pid=4_194_305)
        assert find_served(store).pid == 4_194_305

    def test_asking_takes_no_lock_from_an_opener(self, store, monkeypatch):
        """The holder is there: nothing is locked, not even for a moment."""

        def flock(*_):
            raise AssertionError("locked")

        monkeypatch.setattr("fcntl.flock", flock)
        assert find_served(store) is not None

    @needs_root
    def test_not_that_of_another_user(self, store, monkeypatch):
        os.chown(note_path(store), OTHER, OTHER)
        assert read_note(store) is None
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
        assert read_note(store) is not None  # theirs

    @needs_root
    def test_that_of_root_is(self, store, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
        assert read_note(store) is not None

    def test_not_a_link_nor_a_pipe(self, store, root):
        os.rename(note_path(store), root / "note")
        os.symlink(root / "note", note_path(store))
        assert read_note(store) is None
        os.unlink(note_path(store))
        os.mkfifo(note_path(store))
        assert read_note(store) is None  # and nobody waits for a writer

    def test_a_store_with_a_link_for_a_note_is_served_all_the_same(self, root):
        path = root / "jobs"
        lodeq.sync.open(path).close()
        (root / "elsewhere").write_text("mine")
        os.symlink(root / "elsewhere", note_path(path))
        with lodeq.sync.open(path, serve=True):
            assert find_served(path).url == f"unix://{path}.sock"
            assert not os.path.islink(note_path(path))
        assert (root / "elsewhere").read_text() == "mine"

    def test_it_holds_no_token(self, root):
        serve = lodeq.Serve("127.0.0.1:0", token="a token of some length")
        with lodeq.sync.open(root / "jobs", serve=serve):
            assert "a token" not in Path(note_path(root / "jobs")).read_text()
            assert stat.S_IMODE(os.stat(note_path(root / "jobs")).st_mode) == 0o600

    @pytest.mark.parametrize("text", ["", "pid x\n", "\0" * 600])
    def test_a_lock_that_names_nobody_is_held_by_nobody(self, store, text):
        Path(lock_path(store)).write_text(text)
        assert not is_held_by(lock_path(store), os.getpid())
        assert not is_held_by(f"{store}/none", os.getpid())


# --- the socket ---------------------------------------------------------------------------------


class TestTheSocket:
    def test_a_link_in_its_place_is_refused(self, root):
        with listen_unix(root / "other"):
            os.symlink(root / "other", root / "s")
            with pytest.raises(lodeq.StorePathError, match="no socket of ours"):
                listen_unix(root / "s")
            assert os.path.islink(root / "s")

    def test_a_file_in_its_place_is_refused(self, root):
        (root / "s").write_text("mine")
        with pytest.raises(lodeq.StorePathError, match="no socket of ours"):
            listen_unix(root / "s")
        assert (root / "s").read_text() == "mine"

    @needs_root
    def test_another_users_socket_is_refused(self, root):
        listen_unix(root / "s").close()
        os.chown(root / "s", OTHER, OTHER)
        with pytest.raises(lodeq.StorePathError, match="no socket of ours"):
            listen_unix(root / "s")
        assert os.lstat(root / "s").st_uid == OTHER

    @needs_root
    def test_a_note_is_not_followed_to_another_users_socket(self, root):
        """Somebody who can write to the folder has put theirs in its place."""
        path = root / "jobs"
        with lodeq.sync.open(path, serve=True):
            address = f"{path}.sock"
            os.unlink(address)
            with socket.socket(socket.AF_UNIX) as theirs:
                theirs.bind(address)
                os.chown(address, OTHER, OTHER)
                assert find_served(path) is None
                with pytest.raises(lodeq.LockedError) as caught:
                    lodeq.sync.open(path)
                assert caught.value.address is None
            assert os.path.lexists(address)
        assert os.path.lexists(address)  # not ours to remove

    def test_nor_to_a_link(self, root):
        path = root / "jobs"
        with lodeq.sync.open(path, serve=True):
            os.rename(f"{path}.sock", f"{path}.real")
            os.symlink(f"{path}.real", f"{path}.sock")
            assert find_served(path) is None
        assert os.path.islink(f"{path}.sock")

    def test_nobody_ever_finds_it_open_to_others(self, root, monkeypatch):
        seen = []
        real = os.rename

        def rename(source, target):
            seen.append((stat.S_IMODE(os.lstat(source).st_mode), os.path.lexists(target)))
            real(source, target)

        monkeypatch.setattr(listener.os, "rename", rename)
        umask = os.umask(0)
        try:
            listen_unix(root / "s").close()
        finally:
            os.umask(umask)
        assert seen == [(0o600, False)]

    def test_what_a_killed_server_left_under_a_temporary_name_is_no_obstacle(self, root):
        names = [root / f".s.{os.getpid():x}.{n:x}" for n in range(2)]
        for name in names:
            name.write_text("")
        with listen_unix(root / "s"):
            assert stat.S_ISSOCK(os.lstat(root / "s").st_mode)
        assert sorted(root.iterdir()) == sorted([*names, root / "s"])

    def test_a_failure_leaves_nothing(self, root, monkeypatch):
        def rename(*_):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(listener.os, "rename", rename)
        with pytest.raises(lodeq.StorePathError, match="cannot listen there"):
            listen_unix(root / "s")
        assert list(root.iterdir()) == []

    def test_the_longest_path_and_one_beyond(self, root):
        rest = 107 - len(os.fsencode(root)) - 1
        longest = root / ("x" * rest)
        with listen_unix(longest), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(longest))
        with pytest.raises(lodeq.StorePathError, match=r"at most 107 bytes, this one has 108: ch"):
            listen_unix(root / ("x" * (rest + 1)))

    def test_bytes_count_not_characters(self, root):
        with pytest.raises(lodeq.StorePathError, match="at most 107 bytes"):
            listen_unix(root / ("ü" * 50))

    def test_a_store_with_a_long_path_says_what_to_do(self, root):
        path = root / ("x" * 100)
        with pytest.raises(lodeq.StorePathError, match="choose a shorter one"):
            lodeq.sync.open(path, serve=True)
        assert not path.exists()
        with lodeq.sync.open(path, serve=str(root / "s")), lodeq.sync.connect(f"unix://{root}/s"):
            assert served_note.find_served(path).url == f"unix://{root}/s"
