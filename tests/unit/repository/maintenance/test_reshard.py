"""Another number of shards: every row comes along, and back again."""

import asyncio
import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import lodeq
from lodeq.engine.bulk.reader import open_shard
from lodeq.engine.files import atomic_swap, durable_files
from lodeq.engine.files.lockfile import LockFile
from lodeq.engine.offline.reroute import FAMILIES, sources_of, tally
from lodeq.engine.records.keyspace import EVENTS, EVENTS_END
from lodeq.engine.records.rows import decode_body, decode_expiry
from lodeq.engine.runtime.ids import SLOTS
from lodeq.repository.api.in_place_reshard import reshard
from lodeq.repository.maintenance.reshard import Unit, finish, plan_reshard, stage
from lodeq.service.cli.app import lodeq as command

pytestmark = pytest.mark.slow

BIG = os.urandom(5000)


async def fill(path: Path, shards: int, **options) -> None:
    """Rows of every family: ready, delayed, dead, leased, moved, results, keys, bodies, pauses."""
    async with lodeq.open(path, shards=shards, body_bytes_min=2000, **options) as engine:
        mail = engine.queue("mail", tenant="acme")
        await mail.enqueue_many(
            [
                lodeq.NewTask(b"%d" % n, priority=n % 10, dedup_key=f"k{n}", dedup_window=900)
                for n in range(60)
            ]
        )
        await mail.enqueue_many([lodeq.NewTask(b"later", delay=900, ttl=1800) for _ in range(20)])
        await engine.queue("big").enqueue_many([lodeq.NewTask(BIG) for _ in range(6)])
        for lease in await mail.claim(limit=20):
            await lease.complete(b"ok")
        for lease in await mail.claim(limit=5):
            await lease.bury("bad")
        for lease in await mail.claim(limit=5):
            await lease.nack()
        await engine.queue("quiet").pause()
        await engine.snapshot()
        await mail.claim(limit=3)  # in the snapshot they are not leased, in the store they are


def rows_of(root: Path, shards: int) -> dict[str, list]:
    """All that is no meta row, by shard and family; places of payloads apart."""
    found: dict[str, list] = {}
    for shard in range(shards):
        with open_shard(str(root), shard) as reader:
            for rows in reader.batches(b"", b"m/"):
                for key, value in rows:
                    found.setdefault(f"{shard}{key[:1].decode()}", []).append(plain(key, value))
            for rows in reader.batches(b"q/", b"\xff"):
                for key, value in rows:
                    found.setdefault(f"{shard}{key[:1].decode()}", []).append(plain(key, value))
    return found


def plain(key: bytes, value: bytes):
    if key[:2] == b"e/":
        return key, sorted(entry for entry in decode_expiry(value) if entry[0] not in b"bB")
    if key[:2] == b"b/":
        row = decode_body(value)
        return key, row.size, row.record_id
    return key, value


async def look(
    root: Path, shards: int | None
) -> tuple[lodeq.VerifyReport, list[bytes], tuple[str, ...]]:
    async with lodeq.open(root, shards=shards, reaper=False) as engine:
        report = await engine.verify()
        found = [lease.payload for lease in await engine.queue("big").claim(limit=10)]
        recoveries = (await engine.stats()).recoveries
    return report, found, recoveries


@pytest.mark.parametrize(("old", "new"), [(4, 6), (3, 1), (1, 5)])
def test_every_row_comes_along_and_back(tmp_path, old, new):
    root = tmp_path / "store"
    asyncio.run(fill(root, old))
    before = rows_of(root, old)
    report, aside = reshard(root, new)
    assert (report.old_shards, report.shards) == (old, new)
    assert rows_of(Path(aside), old) == before
    assert reshard(root, old)[0].rows == report.rows
    assert rows_of(root, old) == before


def test_what_opens_is_sound_and_works(tmp_path):
    root = tmp_path / "store"
    asyncio.run(fill(root, 2, journal="tasks"))
    reshard(root, 3)
    report, payloads, recoveries = asyncio.run(look(root, 3))
    assert report.ok
    assert not recoveries
    assert payloads == [BIG] * 6
    assert (root / "journals" / "tasks").is_dir()


def test_a_snapshot_becomes_a_store_of_its_own(tmp_path):
    root, target = tmp_path / "store", tmp_path / "other"
    asyncio.run(fill(root, 2))
    source = next((root / "snapshots").iterdir())
    plan = plan_reshard(source, target, 5)
    tallies = []
    for shard in range(2):
        with open_shard(str(source), shard) as reader:
            tallies.append(tally(reader))
    report = finish(plan, [stage(plan, unit) for unit in reversed(plan.units)], tallies)
    assert report.rows["l"] == 0
    assert set(report.rows) == set(FAMILIES)
    assert asyncio.run(look(target, 5))[0].ok


def test_events_of_a_snapshot_stay_with_its_store(tmp_path):
    root, target = tmp_path / "store", tmp_path / "other"
    asyncio.run(fill(root, 1, journal="tasks"))
    source = next((root / "snapshots").iterdir())
    with open_shard(str(source), 0) as reader:
        assert reader.scan(EVENTS, EVENTS_END, 1)
        tallies = [tally(reader)]
    with pytest.raises(lodeq.UsageError, match="has events for its lifecycle journal"):
        plan_reshard(source, target, 2)
    plan = plan_reshard(source, target, 2, leave_events=True)
    finish(plan, [stage(plan, unit) for unit in plan.units], tallies)
    for shard in range(2):
        with open_shard(str(target), shard) as reader:
            assert not reader.scan(EVENTS, EVENTS_END, 1)
    assert asyncio.run(look(target, 2))[0].ok


def test_a_row_in_a_wrong_shard_is_not_lost_in_silence(tmp_path):
    root, target = tmp_path / "store", tmp_path / "other"
    asyncio.run(fill(root, 2))
    plan = plan_reshard(root, target, 3)
    tallies = []
    for shard in range(2):
        with open_shard(str(root), shard) as reader:
            tallies.append(tally(reader))
    staged = [stage(plan, unit) for unit in plan.units]
    short = [one._replace(files=()) if one.unit == Unit(1, "r") else one for one in staged]
    with pytest.raises(lodeq.CorruptionError, match=r"family 'r'.*audit"):
        finish(plan, short, tallies)
    assert not target.exists()


def test_what_cannot_be_resharded_is_refused_before_anything_is_written(tmp_path):
    root = tmp_path / "store"
    asyncio.run(fill(root, 2))
    names = sorted(os.listdir(tmp_path))
    with pytest.raises(lodeq.UsageError, match="from 1 to 4096"):
        reshard(root, 4097)
    with pytest.raises(lodeq.StorePathError, match="does not exist"):
        reshard(tmp_path / "none", 2)
    with lodeq.Stage(root, "load-1") as load:
        load.add([lodeq.NewTask(b"x", queue="q")])
        load.publish()
    with pytest.raises(lodeq.UsageError, match="load 'load-1' waits"):
        reshard(root, 3)
    assert sorted(os.listdir(tmp_path)) == names


async def _while_open(root: Path) -> None:
    async with lodeq.open(root):
        with pytest.raises(lodeq.LockedError):
            reshard(root, 3)


def test_an_open_store_is_left_alone(tmp_path):
    root = tmp_path / "store"
    asyncio.run(fill(root, 2))
    asyncio.run(_while_open(root))


@pytest.mark.parametrize(("old", "new"), [(1, 4096), (4096, 1), (4, 6), (7, 3), (5, 5)])
def test_sources_hold_every_slot_of_a_shard(old, new):
    wanted: dict[int, set[int]] = {}
    for slot in range(SLOTS):
        wanted.setdefault(slot * new // SLOTS, set()).add(slot * old // SLOTS)
    assert {shard: set(sources_of(shard, new, old)) for shard in range(new)} == wanted


def test_the_command_that_the_error_names(tmp_path):
    root = tmp_path / "store"
    asyncio.run(fill(root, 2))
    done = CliRunner().invoke(command, ["reshard", str(root), "--shards", "3"])
    assert done.exit_code == 0, done.output
    assert "2 shards before, 3 now" in done.output
    assert asyncio.run(look(root, 3))[0].ok
    done = CliRunner().invoke(command, ["reshard", str(root), "--shards", "4", "--json"])
    told = json.loads(done.stdout)
    assert (told["path"], told["old_shards"], told["shards"]) == (str(root), 3, 4)
    assert (told["tasks"] > 0, Path(told["old"]).is_dir()) == (True, True)


@pytest.mark.interpreted
def test_a_system_that_cannot_exchange_names_renames_twice(tmp_path, monkeypatch):
    root = tmp_path / "store"
    asyncio.run(fill(root, 2))
    monkeypatch.setattr("lodeq.repository.api.in_place_reshard.exchange", lambda one, other: False)
    report, kept = reshard(root, 3)
    assert (report.shards, kept) == (3, f"{root}.2-shards")
    assert asyncio.run(look(root, 3))[0].ok
    assert sorted(os.listdir(tmp_path)) == ["store", "store.2-shards"]


@pytest.mark.slow
@pytest.mark.interpreted
def test_a_kill_between_two_renames_is_finished_by_the_next_open(tmp_path, monkeypatch):
    """Where names cannot be exchanged; never is an empty store begun."""
    (tmp_path / "here").mkdir()
    root = tmp_path / "here" / "store"
    asyncio.run(fill(root, 2))
    images: list[Path] = []

    def photographed(fn):
        def call(*args):
            done = fn(*args)
            if any("store" in str(arg) and str(tmp_path) in str(arg) for arg in args):
                images.append(tmp_path / f"image{len(images)}")
                shutil.copytree(tmp_path / "here", images[-1] / "here")
            return done

        return call

    monkeypatch.setattr("lodeq.repository.api.in_place_reshard.exchange", lambda one, other: False)
    move = atomic_swap.move_twice

    def watched(*args: str) -> None:
        with monkeypatch.context() as patched:
            for name in ("replace", "rename", "unlink"):
                patched.setattr(os, name, photographed(getattr(os, name)))
            move(*args)

    monkeypatch.setattr("lodeq.repository.api.in_place_reshard.move_twice", watched)
    reshard(root, 3)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path / "here")) == ["store", "store.2-shards"]
    shards = []
    for image in images:
        at = image / "here" / "store"
        verified, big, _ = asyncio.run(look(at, None))
        assert verified.ok
        assert big == [BIG] * 6
        shards.append(len(list(at.glob("shard?"))))
        assert not list((image / "here").glob("*.moving*"))
    assert shards == [2, 3, 3, 3]  # note, aside, in its place, note removed


@pytest.mark.interpreted
def test_an_open_leaves_the_note_of_a_move_that_goes_on(tmp_path):
    """Between the note and the first rename: who goes on may be killed behind it."""
    root = tmp_path / "store"
    asyncio.run(fill(root, 1))
    note = Path(f"{root}.moving")
    note.write_text('{"work": "new", "aside": "old"}')
    held = LockFile.acquire(str(root / "lock"))
    with pytest.raises(lodeq.LockedError):
        asyncio.run(look(root, 1))
    assert note.exists()
    held.release()
    assert asyncio.run(look(root, 1))[0].ok
    assert not note.exists()


@pytest.mark.interpreted
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.write_text("boxes\n")])
def test_what_only_has_the_name_of_a_note_stays(tmp_path, make):
    root, other = tmp_path / "store", tmp_path / "store.moving"
    asyncio.run(fill(root, 1))
    make(other)
    assert asyncio.run(look(root, 1))[0].ok
    assert other.exists()


@pytest.mark.interpreted
@pytest.mark.parametrize("fails", ["sync_file", "fsync_dir"])
def test_a_move_that_cannot_be_begun_leaves_no_note(tmp_path, monkeypatch, fails):
    for name in ("store", "new"):
        (tmp_path / name).mkdir()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable_files, fails, full)
    with pytest.raises(OSError, match="No space"):
        atomic_swap.move_twice(*(str(tmp_path / name) for name in ("new", "store", "old")))
    assert sorted(os.listdir(tmp_path)) == ["new", "store"]


@pytest.mark.interpreted
def test_a_move_that_cannot_be_finished_is_refused(tmp_path, monkeypatch):
    root, work, aside = (str(tmp_path / name) for name in ("store", "new", "old"))
    asyncio.run(fill(Path(root), 1))
    shutil.copytree(root, work)
    note = Path(f"{root}.moving")

    def killed(one: str, other: str) -> None:
        if one == work:
            raise KeyboardInterrupt
        rename(one, other)

    rename = os.rename
    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        atomic_swap.move_twice(work, root, aside)
    monkeypatch.undo()
    told = note.read_bytes()
    held = LockFile.acquire(os.path.join(work, "lock"))
    with pytest.raises(lodeq.LockedError):  # by the process that is at it
        asyncio.run(look(Path(root), 1))
    held.release()
    for wrong in (b"", b"[]", told[:-3], b'{"work": "../new", "aside": "old"}'):
        note.write_bytes(wrong)
        with pytest.raises(lodeq.StorePathError, match="look which folder"):
            asyncio.run(look(Path(root), 1))
    note.write_bytes(told)
    os.rename(work, tmp_path / "gone")
    with pytest.raises(lodeq.StorePathError, match=r"is not there.* rename it to"):
        asyncio.run(look(Path(root), 1))
    assert not os.path.exists(root)


@pytest.mark.interpreted
def test_an_attempt_that_fails_leaves_the_store_as_it_was(tmp_path, monkeypatch):
    root = tmp_path / "store"
    asyncio.run(fill(root, 2))
    before = rows_of(root, 2)

    def refuse(one: str, other: str) -> bool:
        raise OSError(5, "Input/output error", one)

    monkeypatch.setattr("lodeq.repository.api.in_place_reshard.exchange", refuse)
    with pytest.raises(lodeq.StorageError, match="Input/output"):
        reshard(root, 3)
    assert os.listdir(tmp_path) == ["store"]
    assert rows_of(root, 2) == before
    assert asyncio.run(look(root, 2))[0].ok


@pytest.mark.interpreted
@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_reshard_whose_last_sync_fails_says_where_both_stores_are(
    tmp_path, monkeypatch, can_exchange
):
    root = tmp_path / "store"
    asyncio.run(fill(root, 2))
    sync = atomic_swap.fsync_dir
    if not can_exchange:
        monkeypatch.setattr(
            "lodeq.repository.api.in_place_reshard.exchange", lambda one, other: False
        )

    def fails(path):
        if path == str(tmp_path) and len(list(root.glob("shard?"))) == 3:  # it took the place
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        sync(path)

    with monkeypatch.context() as patched:
        patched.setattr(atomic_swap, "fsync_dir", fails)
        with pytest.raises(lodeq.StorageError) as failed:
            reshard(root, 3)
        said = str(failed.value)
        assert f"{root} has 3 shards now" in said
        assert f"{root}.2-shards" in said
        assert "Input/output error" in said
        assert sorted(os.listdir(tmp_path)) == ["store", "store.2-shards", "store.moving"]
        with pytest.raises(
            lodeq.StorageError, match="that failed: Input/output"
        ):  # not durable even now
            asyncio.run(look(root, 3))
        assert os.path.exists(f"{root}.moving")
    synced = []
    monkeypatch.setattr(atomic_swap, "fsync_dir", lambda path: synced.append(path) or sync(path))
    assert asyncio.run(look(root, 3))[0].ok
    assert synced[0] == str(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["store", "store.2-shards"]
    assert asyncio.run(look(Path(f"{root}.2-shards"), 2))[0].ok


@pytest.mark.interpreted
def test_the_old_store_is_kept_whatever_happens_once_the_new_one_is_in_place(tmp_path, monkeypatch):
    root = tmp_path / "store"
    asyncio.run(fill(root, 2))
    rename = os.rename

    def interrupted(one, other):
        if str(other).endswith(".2-shards"):
            raise KeyboardInterrupt
        rename(one, other)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reshard(root, 3)
    assert asyncio.run(look(root, 3))[0].ok
    (old,) = [name for name in os.listdir(tmp_path) if name != "store"]
    assert asyncio.run(look(tmp_path / old, 2))[0].ok


def test_what_an_interrupted_reshard_left_is_not_removed_if_it_is_whole(tmp_path):
    root, left = tmp_path / "store", tmp_path / "store.2-shards.resharding"
    asyncio.run(fill(root, 2))
    (left / "staged").mkdir(parents=True)  # one that was not
    reshard(root, 3)
    asyncio.run(fill(tmp_path / "other", 2))
    os.rename(tmp_path / "other", tmp_path / "store.3-shards.resharding")
    with pytest.raises(lodeq.StorePathError, match="a whole store, left by a reshard"):
        reshard(root, 2)
