"""A job is published whole, once; what is given up goes, what is published stays."""

import errno
import os
from contextlib import contextmanager

import pytest
from support_ingest import create, inbox_of, manifest_of, publish, staged
from support_loop import on_loop

import lodeq
from lodeq import NewTask
from lodeq.engine.bulk import inbox, sst
from lodeq.engine.bulk.inbox import Outcome, conclude, discard, outcome, pending, store_info
from lodeq.errors import (
    CorruptionError,
    DuplicateTaskError,
    StorageError,
    StorageFullError,
    StorePathError,
    UsageError,
)

TASKS = [NewTask(n, dedup_key=f"k{n}") for n in range(20)]


@pytest.fixture
def path(tmp_path):
    on_loop(create)(tmp_path / "s", 3)
    return tmp_path / "s"


def test_a_store_is_known_by_its_watermarks(path, tmp_path):
    info = store_info(path)
    assert (info.path, info.shards, len(info.store_id)) == (str(path), 3, 16)
    for bad in (tmp_path / "none", tmp_path):
        with pytest.raises(StorePathError):
            store_info(bad)
    (path / "watermark1").unlink()
    with pytest.raises(StorePathError, match="no whole store"):
        store_info(path)
    assert not (tmp_path / "none").exists()


def test_the_first_to_publish_wins(path):
    first, second = lodeq.Stage(path, "j"), lodeq.Stage(path, "j")
    for stage in (first, second):
        stage.add(TASKS, queue="mail")
    assert second.publish()
    assert not first.publish()
    named = {mark.name for mark in manifest_of(path).files}
    assert {file.name for file in staged(path).iterdir()} == named
    assert pending(str(path)) == ["j"]


def test_giving_up_keeps_what_is_published(path, monkeypatch):
    """Whoever fails behind the commit point may be told to abort."""

    def fails(folder):
        raise OSError(errno.EIO, "Input/output error", folder)

    stage = lodeq.Stage(path, "j")
    stage.add(TASKS, queue="mail")
    real = inbox.fsync_dir

    def fsync_dir(folder):
        (fails if os.path.exists(path / "inbox" / "j.json") else real)(folder)

    monkeypatch.setattr(inbox, "fsync_dir", fsync_dir)
    with pytest.raises(StorageError):
        stage.publish()
    stage.discard()
    assert {mark.name for mark in manifest_of(path).files} <= set(os.listdir(staged(path)))
    inbox.verify_files(str(path), manifest_of(path), range(3))


class Killed(BaseException):
    """Stands for the end of the process."""


def synced_until(monkeypatch, stops):
    """The folders that are synced from now on; at one that ``stops`` it is killed."""
    names, real = [], inbox.fsync_dir

    def fsync_dir(folder):
        if stops(folder):
            raise Killed
        real(folder)
        names.append(os.fspath(folder))

    monkeypatch.setattr(inbox, "fsync_dir", fsync_dir)
    return names


@pytest.mark.parametrize("is_late", [False, True], ids=["seen before", "met at the end"])
def test_who_finds_a_job_published_makes_that_durable(path, monkeypatch, is_late):
    """Whoever published it may have been killed before the sync: a power cut would take it back."""
    manifest = path / "inbox" / "j.json"
    late, stage = lodeq.Stage(path, "j"), lodeq.Stage(path, "j")
    for one in (late, stage):
        one.add(TASKS, queue="mail")
    with monkeypatch.context() as patch:
        synced_until(patch, lambda folder: manifest.exists())
        with pytest.raises(Killed):
            stage.publish()
    assert pending(str(path)) == ["j"]
    if is_late:
        monkeypatch.setattr(inbox, "is_published", lambda root, job: False)
        monkeypatch.setattr("lodeq.repository.bulk.stage.was_published", lambda root, job: False)
    synced = synced_until(monkeypatch, lambda folder: False)
    assert not late.publish()
    assert str(manifest.parent) in synced


def test_folders_that_a_killed_stage_has_made_are_made_durable(path, monkeypatch):
    with monkeypatch.context() as patch:
        synced_until(patch, lambda folder: (path / "inbox").exists())
        with pytest.raises(Killed):
            lodeq.Stage(path, "j")
    synced = synced_until(monkeypatch, lambda folder: False)
    publish(path, TASKS)
    whole = {path, path / "inbox", path / "inbox" / "staged", path / "inbox" / "staged" / "j"}
    assert {str(one) for one in whole} <= set(synced)


def test_where_there_are_no_links_it_is_renamed(path, monkeypatch):
    def link(*args):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(inbox.os, "link", link)
    publish(path, TASKS)
    assert inbox_of(path)[""] == ["j.json"]


def full(*args, **how):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["files", "keys", "manifest", "folder"])
def test_a_full_disk_leaves_nothing_visible(path, monkeypatch, where):
    if where == "folder":
        monkeypatch.setattr(inbox.os, "mkdir", full)
        with pytest.raises(StorageFullError):
            lodeq.Stage(path, "j")
        return
    with lodeq.Stage(path, "j", run_bytes=4000) as stage:
        if where == "files":
            monkeypatch.setattr(sst.os, "fsync", full)
        elif where == "keys":
            monkeypatch.setattr("lodeq.engine.bulk.keys.checksum_of", full)
        else:
            monkeypatch.setattr(inbox, "write_new", full)
        stage.add(TASKS[:1] if where == "manifest" else [], queue="mail")
        with pytest.raises(StorageFullError, match="free some disk space"):
            stage.publish() if where == "manifest" else stage.add(TASKS, queue="mail")
    assert pending(str(path)) == []
    assert not staged(path).exists()
    monkeypatch.undo()
    publish(path, TASKS)  # there is room again
    assert pending(str(path)) == ["j"]


@pytest.mark.parametrize("where", ["sst.os.fsync", "keys.checksum_of"])
def test_what_a_full_disk_has_kept_out_is_published_all_the_same(path, monkeypatch, where):
    stage = lodeq.Stage(path, "j")
    stage.add(TASKS, queue="mail")
    monkeypatch.setattr(f"lodeq.engine.bulk.{where}", full)
    with pytest.raises(StorageFullError):
        stage.publish()
    monkeypatch.undo()
    assert stage.publish()  # there is room again
    manifest = manifest_of(path)
    rows = dict.fromkeys("etgq", 0) | {"keys": 0, "ids": 0}
    for mark in manifest.files:
        rows[mark.family] += mark.rows
    assert manifest.tasks == rows["t"] == rows["q"] == rows["g"] == rows["keys"] == len(TASKS)
    assert {mark.name for mark in manifest.files} == set(os.listdir(staged(path)))
    inbox.verify_files(str(path), manifest, range(3))


@pytest.mark.parametrize("call", ["add", "publish", "discard"])
def test_a_job_that_comes_in_meanwhile_takes_its_folder_along(path, call):
    with lodeq.Stage(path, "j") as late:
        publish(path, TASKS)
        conclude(str(path), "j", Outcome("done", {}))
        assert not staged(path).exists()
        if call != "discard":
            late.add(TASKS[:1], queue="mail")
        if call == "publish":
            assert not late.publish()
    assert not staged(path).exists()


def test_one_key_is_given_once(path):
    with lodeq.Stage(path, "j") as stage, pytest.raises(DuplicateTaskError, match="each key once"):
        stage.add([TASKS[0], TASKS[0]], queue="mail")
    with lodeq.Stage(path, "j", on_conflict="skip", run_bytes=1000) as stage:
        ids = stage.add([*TASKS, TASKS[3]], queue="mail")
        assert ids[-1] is None
        assert (stage.tasks, stage.skipped) == (20, 1)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (NewTask(1, on_conflict="raise", dedup_key="k"), {"queue": "mail"}),
        (NewTask(1), {}),
        (NewTask(1, queue="Mail"), {}),
        (NewTask(1, priority=10), {"queue": "mail"}),
        (NewTask(bytes(17 << 20)), {"queue": "mail"}),
        ("no task", {"queue": "mail"}),
    ],
)
def test_what_no_enqueue_takes_no_stage_does(path, task, options):
    with lodeq.Stage(path, "j") as stage:
        with pytest.raises(UsageError):
            stage.add([NewTask(0, queue="mail"), task], **options)
        assert stage.tasks == 0


@pytest.mark.parametrize("options", [{"job": "a/b"}, {"job": "j", "on_conflict": "return"}])
def test_arguments_are_checked(path, options):
    with pytest.raises(UsageError):
        lodeq.Stage(path, **options)
    assert not (path / "inbox").exists()


def test_a_file_that_has_gone_is_not_published(path):
    stage = lodeq.Stage(path, "j", run_bytes=1000)
    stage.add(TASKS, queue="mail")
    next(staged(path).glob("*-t*.sst")).unlink()
    with pytest.raises(UsageError, match="stage the load again"):
        stage.publish()


def test_a_disk_that_cannot_read_is_told(path, monkeypatch):
    publish(path, TASKS)

    def eio(*args, **how):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(inbox, "decode_manifest", eio)
    with pytest.raises(StorageError, match="look at the disk"):
        inbox.read_pending(str(path), "j")
    monkeypatch.undo()
    monkeypatch.setattr(inbox, "MANIFEST_BYTES_MAX", 9)  # no more than that is read
    with pytest.raises(CorruptionError):
        inbox.read_pending(str(path), "j")


def test_outcomes(path):
    root = str(path)
    publish(path, TASKS)
    assert outcome(root, "j") is None
    conclude(root, "j", Outcome("refused", {"reason": "why"}))
    assert outcome(root, "j") == Outcome("refused", {"reason": "why"})
    assert staged(path).exists()
    publish(path, TASKS)  # a job that was refused may be published again
    assert outcome(root, "j") is None  # and what became of it then is not what did before
    conclude(root, "j", Outcome("done", {"tasks": 20}))
    conclude(root, "j", Outcome("done", {"tasks": 20}))  # as after a crash in between
    assert outcome(root, "j") == Outcome("done", {"tasks": 20})
    assert not staged(path).exists()
    discard(root, "j", ["x"])


def test_pending_passes_over_what_is_none(path):
    assert pending(str(path)) == []
    publish(path, TASKS, "b")
    publish(path, TASKS, "a")
    os.utime(path / "inbox" / "b.json", (1, 1))
    (path / "inbox" / "c.json.tmp").touch()
    (path / "inbox" / "d.json").mkdir()
    assert pending(str(path)) == ["b", "a"]


def test_a_job_that_is_taken_away_while_it_is_listed_hides_no_other(path, monkeypatch):
    publish(path, TASKS[:1], "a")
    publish(path, TASKS[1:2], "b")
    scandir = os.scandir

    @contextmanager
    def slow(folder):
        with scandir(folder) as entries:
            listed = list(entries)
        os.unlink(os.path.join(folder, "a.json"))
        yield listed

    monkeypatch.setattr(inbox.os, "scandir", slow)
    assert pending(str(path)) == ["b"]
