"""What may be a store's folder, and that looking changes nothing."""

import asyncio
import errno
import os
import stat
from pathlib import Path

import pytest

import lodeq
import lodeq.sync
from lodeq.engine.bulk.inbox import store_info
from lodeq.engine.files import paths
from lodeq.errors import LodeqError, StorageError, StorageFullError, StorePathError


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    return str(path)


def touch(root, name):
    with open(os.path.join(root, name), "wb"):
        pass


def test_normal_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.normal_path("var/jobs/") == str(tmp_path / "var" / "jobs")
    assert paths.normal_path(tmp_path) == str(tmp_path)
    for bad in ("", b"", "a\0b", b"\xff", "\ud800", 5, None):
        with pytest.raises(StorePathError):
            paths.normal_path(bad)


def test_names(root):
    names = [
        paths.lock_path(root),
        paths.shard_path(root, 3),
        paths.watermark_path(root, 3),
        paths.copy_path(root, 3),
        paths.accepted_path(root, 3),
        paths.refused_path(root, 3, 7),
    ]
    assert [os.path.relpath(name, root) for name in names] == [
        "lock",
        "shard3",
        "watermark3",
        "shard3.copy",
        "shard3.accepted",
        "shard3.refused-7",
    ]


def test_a_refused_original_is_never_overwritten(root):
    os.mkdir(paths.refused_path(root, 0, 7))
    os.mkdir(paths.refused_path(root, 0, 7))
    assert sorted(os.listdir(root)) == ["shard0.refused-7", "shard0.refused-7.1"]
    assert paths.list_layout(root) == ((), (), (), (), (), (), ())


def test_what_is_not_there(tmp_path):
    assert not paths.check_root(str(tmp_path / "none"))
    assert os.listdir(tmp_path) == []


def test_a_good_folder(root):
    assert paths.check_root(root)


def test_a_file_a_link_and_a_path_through_a_file(root, tmp_path):
    touch(root, "file")
    os.symlink(root, tmp_path / "link")
    for bad, why in [
        ("store/file", "not a folder"),
        ("link", "symbolic"),
        ("store/file/x", "Not a"),
    ]:
        with pytest.raises(StorePathError, match=why):
            paths.check_root(str(tmp_path / bad))


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_can_write(root, mode):
    os.chmod(root, mode)
    with pytest.raises(StorePathError, match="chmod 700"):
        paths.check_root(root)


def test_a_folder_of_another_user(root, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(root).st_uid + 1)
    with pytest.raises(StorePathError, match="belongs to user"):
        paths.check_root(root)


def test_a_folder_that_cannot_be_written(root, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StorePathError, match="not readable and writable"):
        paths.check_root(root)


def test_the_layout(root):
    for name in ("shard0", "shard10", "shard2", "shard1.copy", "shard1.accepted", "bodies2"):
        os.mkdir(os.path.join(root, name))
    for name in ("watermark0", "watermark2", "watermark1.tmp", "lock", "bodies", "shard4.lock"):
        touch(root, name)
    assert paths.list_layout(root) == ((0, 2, 10), (1,), (1,), (0, 2), (2,), (), (4,))


@pytest.mark.parametrize(
    ("manifest", "advice"),
    [("checkpoint.json", r"lodeq\.restore\(\)"), ("snapshot.json", "open the store")],
)
def test_a_copy_is_no_store_until_somebody_has_made_it_one(root, manifest, advice):
    os.mkdir(os.path.join(root, "shard0"))
    touch(root, manifest)
    with pytest.raises(StorePathError, match=advice):
        paths.list_layout(root)
    touch(root, "watermark0")
    assert paths.list_layout(root).shards == (0,)


@pytest.mark.parametrize("name", ["notes.txt", "shard00", "shard-1", "shard12345", "shard0.old"])
def test_a_folder_of_something_else(root, name):
    touch(root, name)
    touch(root, "lock")
    with pytest.raises(StorePathError, match="no lodeq store"):
        paths.list_layout(root)


def test_a_folder_that_cannot_be_listed(tmp_path):
    with pytest.raises(StorePathError, match="cannot be listed"):
        paths.list_layout(str(tmp_path / "none"))


def test_a_mount_point_is_empty(root):
    os.mkdir(os.path.join(root, "lost+found"))
    assert paths.list_layout(root) == ((), (), (), (), (), (), ())


def test_links_among_our_names(root, tmp_path):
    os.symlink(tmp_path, os.path.join(root, "shard0"))
    with pytest.raises(StorePathError, match="not a folder"):
        paths.list_layout(root)
    os.unlink(os.path.join(root, "shard0"))
    os.mkdir(os.path.join(root, "watermark0"))
    with pytest.raises(StorePathError, match="not a plain file"):
        paths.list_layout(root)


def test_making_a_root_and_what_leads_to_it(tmp_path):
    root = str(tmp_path / "a" / "b" / "store")
    paths.make_root(root)
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
    assert paths.check_root(root)
    paths.make_root(root)  # somebody was quicker


def test_a_root_that_cannot_be_made(tmp_path):
    touch(str(tmp_path), "file")
    with pytest.raises(StorePathError, match="cannot be created"):
        paths.make_root(str(tmp_path / "file" / "store"))


@pytest.mark.parametrize(
    "name", ["a\nb", "a\rb", "a\x1b[2J", "a\x7f", "a\x85b", "a\u2028b", "\u202eb"]
)
def test_a_name_that_would_forge_a_line_is_not_made(tmp_path, name):
    for path in (tmp_path / name, tmp_path / name / "store"):
        with pytest.raises(StorePathError, match="line break or control") as refused:
            paths.make_root(str(path))
        assert str(refused.value).isprintable()
    assert os.listdir(tmp_path) == []
    (tmp_path / name).mkdir()
    paths.make_root(str(tmp_path / name / "store"))  # a folder that is there is its owner's


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EIO, StorageError),
        (errno.ESTALE, StorageError),
        (errno.EACCES, StorePathError),
    ],
)
def test_a_disk_that_fails_is_no_wrong_path(root, tmp_path, monkeypatch, code, expected):
    def fail(path, *_, **__):
        raise OSError(code, os.strerror(code), path)

    new = str(tmp_path / "new")
    calls = [("mkdir", paths.make_root, new), ("scandir", paths.list_layout, root)]
    calls += [("lstat", paths.check_root, root), ("lstat", paths.list_layout, root)]
    for name, call, path in calls:
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(LodeqError) as raised:
                call(path)
        assert type(raised.value) is expected, (name, raised.value)


def test_a_clone_links_tables_and_copies_the_rest(root, tmp_path):
    for name in ("000001.sst", "000002.log", "CURRENT", "LOCK", "LOG.old"):
        touch(root, name)
    os.mkdir(os.path.join(root, "folder"))
    clone = str(tmp_path / "clone")
    paths.clone_folder(root, clone, links=(".sst",), skip=("LOCK", "LOG"))
    assert sorted(os.listdir(clone)) == ["000001.sst", "000002.log", "CURRENT"]
    same = [
        os.path.samefile(os.path.join(root, name), os.path.join(clone, name))
        for name in ("000001.sst", "000002.log")
    ]
    assert same == [True, False]


def test_a_clone_without_hard_links(root, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    touch(root, "000001.sst")
    paths.clone_folder(root, str(tmp_path / "clone"), links=(".sst",), skip=("LOCK",))
    assert os.listdir(tmp_path / "clone") == ["000001.sst"]


def test_a_rocksdb_is_known_by_its_last_file(root):
    assert not paths.is_rocksdb(root)
    touch(root, "CURRENT")
    assert paths.is_rocksdb(root)


def test_the_journal_of_a_store(root):
    assert paths.only_journal(root) is None
    os.makedirs(paths.journal_path(root, "tasks"))
    assert paths.only_journal(root) == "tasks"
    os.makedirs(paths.journal_path(root, "more"))
    assert paths.only_journal(root) is None  # nobody says which


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("file:///srv/jobs", "write '/srv/jobs'"),
        (Path("FILE:///srv/jobs"), "write '/srv/jobs'"),
        ("redis://127.0.0.1/0", "lodeq.open"),
        (Path("postgres://h/jobs"), "lodeq.open"),
        ("what-comes.next://h", "lodeq.open"),
    ],
)
def test_a_url_is_no_folder(given, instead, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def opened():
        await lodeq.open(given)

    for call in (lambda: asyncio.run(opened()), lambda: store_info(given)):
        with pytest.raises(StorePathError, match="not a folder") as refused:
            call()
        assert instead in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    assert paths.normal_path("a:/b").endswith("/a:/b")


@pytest.mark.parametrize(
    "given",
    ["unix:///run/x.sock", "http://127.0.0.1:8765", "tcp://h:1", Path("unix:///run/x.sock")],
)
def test_an_address_is_no_folder(given, tmp_path, monkeypatch):
    """It would become a folder called ``unix:``."""
    monkeypatch.chdir(tmp_path)
    for use in (
        paths.normal_path,
        lodeq.sync.open,
        lambda path: lodeq.restore(path, tmp_path / "s"),
    ):
        with pytest.raises(StorePathError, match=r"address of a service.*connect\('\w+://"):
            use(given)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_such_a_name_can_still_be_written():
    assert paths.normal_path("./unix:/x").endswith("/unix:/x")
