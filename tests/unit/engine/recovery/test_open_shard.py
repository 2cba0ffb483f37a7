"""Opening a store: whole, or not at all, or mended and reported."""

import errno
import glob
import os
import shutil
import stat
import subprocess
import sys
import threading

import pytest
from support_live import copy_live
from support_loop import on_loop
from support_rows import FixedClock, Life, dump

import lodeq
from lodeq.engine.files import paths
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.recovery.incarnation import sync_all
from lodeq.engine.recovery.open_shard import open_memory, open_store
from lodeq.engine.recovery.verify import verify
from lodeq.engine.recovery.watermark import Watermark
from lodeq.engine.runtime.ids import SeededRng
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.errors import (
    ClosedError,
    CommitUnknownError,
    FormatTooNewError,
    FormatTooOldError,
    LockedError,
    RecoveryRefusedError,
    ShardCountError,
    StorageError,
    StorePathError,
    StoreStalledError,
    UsageError,
)

MIB = 1 << 20


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "store")


@pytest.fixture
def opened(root):
    """Opens stores and closes them in the end."""
    stores = []

    def open_one(path=root, **options):
        options = {"shards": None, "durability": None, "recovery": "strict"} | options
        store = open_store(
            path, block_cache_bytes=8 * MIB, rng=SeededRng(1), clock=FixedClock(), **options
        )
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


def live(shard, shards=1):
    return Life(shard.store, incarnation=shard.incarnation, shard=shard.index, shards=shards)


def kill(store, root):
    """What SIGKILL leaves of an open store: its files as they are, with logs, unlocked."""
    copy_live(root, f"{root}.image")
    store.close()
    shutil.rmtree(root)
    os.rename(f"{root}.image", root)


def edit(root, shard, ops):
    store = RocksStore.open(
        paths.shard_path(root, shard), shared=SharedMemory(8 * MIB), create=False
    )
    store.write(ops)
    store.close()


class TestCreation:
    def test_a_new_store(self, root, opened):
        store = opened(shards=3, durability="fsync")
        assert (len(store.shards), store.durability, store.recoveries) == (3, "fsync", [])
        assert [shard.index for shard in store.shards] == [0, 1, 2]
        assert [shard.incarnation for shard in store.shards] == [1, 1, 1]
        assert [shard.seq for shard in store.shards] == [0, 0, 0]
        assert [shard.path for shard in store.shards] == [
            paths.shard_path(root, index) for index in range(3)
        ]
        assert len(store.store_id) == 16
        assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
        assert sorted(os.listdir(root)) == sorted(
            [
                "lock",
                "secrets",
                *(f"{name}{n}" for name in ("shard", "watermark") for n in range(3)),
            ]
        )
        for shard in store.shards:
            assert shard.watermark.state.incarnation == 1
            assert verify(shard.store, shard.index, 3) == []

    def test_defaults(self, opened):
        store = opened()
        assert (len(store.shards), store.durability) == (1, "nosync")

    def test_in_an_empty_folder_and_on_a_fresh_mount(self, root, opened):
        os.makedirs(os.path.join(root, "lost+found"))
        os.chmod(root, 0o700)
        assert len(opened(shards=2).shards) == 2

    @pytest.mark.parametrize(
        "options",
        [
            {"shards": 0},
            {"shards": 4097},
            {"shards": True},
            {"shards": "2"},
            {"durability": "some"},
            {"recovery": "maybe"},
        ],
    )
    def test_wrong_arguments_create_nothing(self, root, opened, options):
        with pytest.raises(UsageError):
            opened(**options)
        assert not os.path.exists(root)

    @pytest.mark.parametrize("size", [-1, 1 << 70, 1.5, True, "256", None])
    def test_a_wrong_cache_size_creates_nothing(self, root, size):
        with pytest.raises(UsageError, match="block_cache_bytes"):
            open_store(
                root,
                shards=None,
                durability=None,
                block_cache_bytes=size,
                recovery="strict",
                rng=SeededRng(1),
            )
        assert not os.path.exists(root)

    def test_refused_folders_stay_as_they_are(self, root, opened):
        os.makedirs(root)
        with open(os.path.join(root, "notes.txt"), "w"):
            pass
        os.chmod(root, 0o700)
        with pytest.raises(StorePathError, match="no lodeq store"):
            opened()
        os.chmod(root, 0o777)
        with pytest.raises(StorePathError, match="chmod"):
            opened()
        assert os.listdir(root) == ["notes.txt"]

    def test_a_path_that_is_no_folder(self, tmp_path, opened):
        (tmp_path / "file").write_bytes(b"")
        os.symlink(tmp_path, tmp_path / "link")
        for name in ("file", "link", "file/below"):
            with pytest.raises(StorePathError):
                opened(str(tmp_path / name))


class TestReopening:
    def test_what_was_written_is_there_and_numbers_grow(self, root, opened):
        store = opened(shards=2)
        lives = [live(shard, 2) for shard in store.shards]
        for life in lives:
            life.enqueue()
        first = store.store_id
        store.close()
        again = opened()
        assert (again.store_id, again.recoveries) == (first, [])
        assert [shard.incarnation for shard in again.shards] == [2, 2]
        assert [shard.seq for shard in again.shards] == [life.us for life in lives]
        assert [shard.watermark.state.incarnation for shard in again.shards] == [2, 2]
        for shard in again.shards:
            assert verify(shard.store, shard.index, 2) == []

    def test_after_a_kill_nothing_is_missing_and_nothing_reported(self, root, opened):
        store = opened(shards=2)
        for shard in store.shards:
            life = live(shard, 2)
            for _ in range(30):
                life.enqueue()
            shard.watermark.write(1, 1 << 40 | 20)
        kill(store, root)
        again = opened()
        assert again.recoveries == []
        for shard in again.shards:
            assert len(shard.store.scan(ks.TASK, ks.TASK_END, 99)) == 30
        assert not glob.glob(f"{root}/*.*")

    def test_a_log_that_cannot_be_read_back_leaves_nothing_open(self, root, opened, monkeypatch):
        kill(opened(), root)

        def fail(*_):
            raise OSError(errno.EIO, "Input/output error", "000004.log")

        with monkeypatch.context() as patched:
            patched.setattr("lodeq.engine.recovery.decide.newest_commit", fail)
            with pytest.raises(StorageError) as caught:
                opened()
        again = opened()  # while the traceback still holds whatever was left open
        assert caught.value.__cause__ is not None
        assert again.recoveries == []
        again.close()
        assert not glob.glob(f"{root}/*.copy")

    def test_durability_may_differ_for_one_open(self, opened):
        opened(durability="fsync").close()
        store = opened(durability="nosync")
        assert store.durability == "nosync"
        store.close()
        assert opened().durability == "fsync"

    def test_another_shard_count(self, root, opened):
        opened(shards=2).close()
        with pytest.raises(
            ShardCountError, match=r"has 2 shards, 3 were .*lodeq reshard"
        ) as caught:
            opened(shards=3)
        assert (caught.value.stored, caught.value.requested) == (2, 3)
        assert len(opened(shards=2).shards) == 2
        assert sorted(os.listdir(root)) == [
            "lock",
            "secrets",
            "shard0",
            "shard1",
            "watermark0",
            "watermark1",
        ]

    def test_a_newer_format(self, root, opened):
        opened().close()
        newer = small.encode_stamp(small.Stamp(0, 1, 0, bytes(16), small.FORMAT_VERSION + 1))
        edit(root, 0, [(ks.STAMP, newer)])
        with pytest.raises(FormatTooNewError, match="upgrade"):
            opened()

    def test_a_format_without_an_upgrade(self, root, opened):
        opened().close()
        edit(root, 0, [(ks.STAMP, small.encode_stamp(small.Stamp(0, 1, 0, bytes(16), 0)))])
        with pytest.raises(
            FormatTooOldError,
            match=r"has format 0, this lodeq reads 1 to .*open it once with an older lodeq",
        ):
            opened()

    @pytest.mark.parametrize("bit", range(8))
    def test_a_flipped_bit_of_the_version_is_damage(self, root, opened, bit):
        store = opened()
        raw = bytearray(store.shards[0].store.get(ks.STAMP))
        store.close()
        raw[1] ^= 1 << bit
        edit(root, 0, [(ks.STAMP, bytes(raw))])
        with pytest.raises(RecoveryRefusedError, match="checksum mismatch"):
            opened()

    def test_a_shard_of_another_store(self, tmp_path, root, opened):
        opened(shards=2).close()
        other = str(tmp_path / "other")
        open_store(
            other,
            shards=2,
            durability=None,
            block_cache_bytes=MIB,
            recovery="strict",
            rng=SeededRng(2),
        ).close()
        shutil.rmtree(paths.shard_path(root, 1))
        shutil.copytree(paths.shard_path(other, 1), paths.shard_path(root, 1))
        os.replace(paths.watermark_path(other, 1), paths.watermark_path(root, 1))
        with pytest.raises(RecoveryRefusedError, match="which is not shard 1 of 2") as caught:
            opened()
        assert caught.value.shard == 1

    def test_shards_that_have_changed_places(self, root, opened):
        opened(shards=2).close()
        for old, new in [("shard0", "x"), ("shard1", "shard0"), ("x", "shard1")]:
            os.rename(os.path.join(root, old), os.path.join(root, new))
        with pytest.raises(RecoveryRefusedError):
            opened()

    def test_a_shard_too_many(self, root, opened):
        opened().close()
        os.mkdir(paths.shard_path(root, 5))
        with pytest.raises(StorePathError, match="does not belong"):
            opened()

    def test_one_process_one_engine(self, root, opened):
        store = opened()
        with pytest.raises(LockedError, match="in this process"):
            opened()
        store.close()
        store.close()
        opened()

    def test_another_process(self, root, opened):
        opened()
        script = (
            "import sys\n"
            "from lodeq.engine.runtime.ids import SystemRng\n"
            "from lodeq.engine.recovery.open_shard import open_store\n"
            "try: open_store(sys.argv[1], shards=None, durability=None,"
            " block_cache_bytes=1 << 20, recovery='strict', rng=SystemRng())\n"
            "except Exception as exc: print(type(exc).__name__, exc.pid)\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", script, root], capture_output=True, text=True, check=True
        )
        assert ran.stdout == f"LockedError {os.getpid()}\n"

    def test_closed_is_closed(self, opened):
        store = opened()
        store.close()
        with pytest.raises(ClosedError):
            store.shards[0].store.get(b"x")
        assert not store.lock.is_held


class TestHalfCreated:
    """A crash at any point of the creation is completed by the next open."""

    @pytest.mark.parametrize("gone", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
    def test_missing_shards_without_data(self, root, opened, gone):
        self.creation(root, opened, [n for n in range(3) if n not in gone])
        store = opened(shards=3 if len(gone) == 3 else None)
        assert store.recoveries == []
        assert [shard.incarnation for shard in store.shards] == [1, 1, 1]
        stamps = [small.decode_stamp(shard.store.get(ks.STAMP)) for shard in store.shards]
        assert [stamp.shard for stamp in stamps] == [0, 1, 2]
        assert {stamp.store_id for stamp in stamps} == {store.store_id}

    def creation(self, root, opened, shards):
        """A store of three shards, as far as it has come: stamps, no open row, no watermarks."""
        os.mkdir(root, 0o700)
        shared = SharedMemory(8 * MIB)
        for shard in shards:
            store = RocksStore.open(paths.shard_path(root, shard), shared=shared, create=True)
            stamp = small.Stamp(shard, 3, 0, bytes(range(16)))
            store.write([(ks.STAMP, small.encode_stamp(stamp))])
            store.close()

    def test_only_the_lock(self, root, opened):
        os.mkdir(root, 0o700)
        with open(os.path.join(root, "lock"), "w"):
            pass
        assert len(opened(shards=2).shards) == 2

    def test_an_empty_shard_folder_and_a_shard_without_a_stamp(self, root, opened):
        self.creation(root, opened, [0])
        os.mkdir(paths.shard_path(root, 1))
        RocksStore.open(
            paths.shard_path(root, 2), shared=SharedMemory(8 * MIB), create=True
        ).close()
        store = opened()
        assert (len(store.shards), store.recoveries) == (3, [])

    def test_between_the_first_and_the_second_open_row(self, root, opened):
        self.creation(root, opened, [0, 1, 2])
        edit(root, 0, [(ks.OPEN, small.encode_open(1))])
        Watermark.create(
            paths.watermark_path(root, 0),
            shard=0,
            store_id=bytes(range(16)),
            incarnation=0,
            commit_seq=0,
        ).close()
        store = opened()
        assert [shard.incarnation for shard in store.shards] == [2, 2, 2]
        assert store.recoveries == []

    def test_between_the_open_rows_and_the_watermarks(self, root, opened, monkeypatch):
        def crash(stores):
            sync_all(stores)
            raise CommitUnknownError("killed")

        monkeypatch.setattr("lodeq.engine.recovery.incarnation.sync_all", crash)
        with pytest.raises(CommitUnknownError):
            opened(shards=2)
        monkeypatch.undo()
        store = opened()
        assert [shard.incarnation for shard in store.shards] == [2, 2]
        assert store.recoveries == []

    def test_a_process_without_descriptors_salvages_nothing(self, root, opened, monkeypatch):
        opened().close()
        before = sorted(os.listdir(root))

        def no_files(*_, **__):
            raise StorageError("IO error: While open a file: /s/1.sst: Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr("lodeq.engine.recovery.decide._examine", no_files)
            with pytest.raises(StorageError, match="Too many open files"):
                opened(recovery="salvage")
        assert sorted(os.listdir(root)) == before
        assert not opened(recovery="salvage").recoveries

    def test_a_shard_missing_from_a_used_store_is_lost_data(self, root, opened):
        store = opened(shards=2)
        live(store.shards[0], 2).enqueue()
        store.close()
        shutil.rmtree(paths.shard_path(root, 1))
        with pytest.raises(RecoveryRefusedError, match="shard 1 of 2 is missing") as caught:
            opened()
        assert caught.value.shard == 1
        assert not os.path.exists(paths.shard_path(root, 1))
        store = opened(recovery="salvage")
        assert "its tasks are lost" in store.recoveries[0]
        assert [shard.incarnation for shard in store.shards] == [2, 2]
        assert len(store.shards[0].store.scan(ks.TASK, ks.TASK_END, 9)) == 1
        store.close()
        assert opened().recoveries == []

    def test_the_remains_of_a_shard_are_opened_and_kept(self, root, opened):
        store = opened(shards=2)
        task = live(store.shards[1], 2).enqueue()
        store.close()
        os.unlink(os.path.join(paths.shard_path(root, 1), "CURRENT"))
        with pytest.raises(RecoveryRefusedError, match="CURRENT is missing: put the file back"):
            opened()
        store = opened(recovery="salvage")
        assert store.shards[1].store.get(ks.TASK + task.id) is not None
        assert os.path.isdir(os.path.join(root, "shard1.refused-1"))

    def test_no_shard_is_begun_where_tables_lie(self, root, opened):
        """Without watermark and CURRENT nothing says that the store was ever used."""
        opened().close()
        for name in ("watermark0", "shard0/CURRENT"):
            os.unlink(os.path.join(root, name))
        with pytest.raises(RecoveryRefusedError, match="CURRENT is missing"):
            opened()
        assert not os.path.exists(os.path.join(root, "watermark0"))

    def test_all_shards_missing(self, root, opened):
        opened(shards=2).close()
        for shard in range(2):
            shutil.rmtree(paths.shard_path(root, shard))
        with pytest.raises(RecoveryRefusedError):
            opened()
        assert len(opened(recovery="salvage").shards) == 2


class TestRecovery:
    def fill(self, opened, *, durable, lost=(), commits=12):
        store = opened()
        shard = store.shards[0]
        life = live(shard)
        for n in range(1, commits + 1):
            life.enqueue(lost=n in lost)
        shard.watermark.write(1, 1 << 40 | durable)
        return store, life

    def test_a_hole_below_the_watermark_is_refused_and_stays(self, root, opened):
        store, _ = self.fill(opened, durable=10, lost={5, 9})
        kill(store, root)
        for _ in range(2):
            with pytest.raises(RecoveryRefusedError, match=r"commits 5, 9 .2 in all") as caught:
                opened()
            assert caught.value.missing == (1 << 40 | 5, 1 << 40 | 9)
            assert Watermark.read(paths.watermark_path(root, 0)).incarnation == 1

    def test_salvage_goes_on_and_reports(self, root, opened):
        store, _ = self.fill(opened, durable=10, lost={5})
        kill(store, root)
        store = opened(recovery="salvage")
        assert any("dropped" in text and "commits 5 " in text for text in store.recoveries)
        assert any("repaired" in text for text in store.recoveries)
        assert verify(store.shards[0].store, 0, 1) == []
        store.close()
        assert opened().recoveries == []

    def test_a_hole_above_the_watermark_is_repaired(self, root, opened):
        store, life = self.fill(opened, durable=3)
        task = life.enqueue()
        life.claim(task, lost=True)
        life.nack(task)
        kill(store, root)
        store = opened()
        assert any("power cut" in text for text in store.recoveries)
        assert any("1 second places removed" in text for text in store.recoveries)
        assert verify(store.shards[0].store, 0, 1) == []
        assert store.shards[0].incarnation == 2
        assert store.shards[0].seq == life.us
        store.close()
        assert opened().recoveries == []

    def test_a_crash_during_a_repair_finds_the_hole_again(self, root, opened, monkeypatch):
        store, _ = self.fill(opened, durable=3, lost={6})
        kill(store, root)

        def cut(_):
            raise CommitUnknownError("power cut")

        monkeypatch.setattr("lodeq.engine.recovery.open_shard.sync_all", cut)
        with pytest.raises(StorageError):
            opened()
        monkeypatch.undo()
        assert any("commits 6 " in text for text in opened().recoveries)

    def test_a_sync_that_fails_is_raised(self, root, opened, monkeypatch):
        opened().close()

        def fail(self, done):
            done(CommitUnknownError("fdatasync"))

        monkeypatch.setattr(RocksStore, "start_sync", fail)
        with pytest.raises(CommitUnknownError):
            opened()
        monkeypatch.undo()
        assert opened().recoveries == []

    def test_a_damaged_record_in_a_repair(self, root, opened):
        store, life = self.fill(opened, durable=3, lost={6})
        task = life.enqueue()
        store.shards[0].store.write([(task.key, b"rubbish")])
        kill(store, root)
        with pytest.raises(RecoveryRefusedError, match="record is damaged"):
            opened()
        store = opened(recovery="salvage")
        assert any("1 damaged rows dropped" in text for text in store.recoveries)
        assert verify(store.shards[0].store, 0, 1) == []

    def flip(self, root):
        log = max(glob.glob(paths.shard_path(root, 0) + "/*.log"), key=os.path.getsize)
        with open(log, "r+b") as file:
            raw = bytearray(file.read())
            raw[raw.index(b"body", len(raw) // 2)] ^= 1
            file.seek(0)
            file.write(raw)

    def test_a_damaged_tail_is_left_behind(self, root, opened):
        store, _ = self.fill(opened, durable=2)
        kill(store, root)
        self.flip(root)
        store = opened()
        kept = os.path.join(root, "shard0.refused-1")
        assert any(os.path.basename(kept) in text for text in store.recoveries)
        assert os.path.isdir(kept)
        assert 2 <= len(store.shards[0].store.scan(ks.TASK, ks.TASK_END, 99)) < 12
        assert verify(store.shards[0].store, 0, 1) == []
        store.close()
        assert opened().recoveries == []

    def test_a_damaged_log_with_durable_commits_is_refused(self, root, opened):
        store, _ = self.fill(opened, durable=12)
        kill(store, root)
        self.flip(root)
        for _ in range(2):
            with pytest.raises(RecoveryRefusedError, match="durable commits are missing"):
                opened()
        assert not glob.glob(f"{root}/shard0.*")
        store = opened(recovery="salvage")
        assert any("dropped" in text for text in store.recoveries)
        assert any("kept as shard0.refused-1" in text for text in store.recoveries)

    def test_a_refusal_of_one_shard_changes_no_other(self, root, opened):
        store = opened(shards=2)
        for shard, lost in zip(store.shards, ({8}, {2}), strict=True):
            life = live(shard, 2)
            for n in range(1, 10):
                life.enqueue(lost=n in lost)
            shard.watermark.write(1, 1 << 40 | 5)
        kill(store, root)
        with pytest.raises(RecoveryRefusedError) as caught:
            opened()
        assert caught.value.shard == 1
        assert Watermark.read(paths.watermark_path(root, 0)).incarnation == 1
        store = opened(recovery="salvage")
        assert any("shard 0: a power cut" in text for text in store.recoveries)
        assert any("shard 1: dropped" in text for text in store.recoveries)

    def test_a_swap_that_was_interrupted_is_finished_first(self, root, opened):
        opened().close()
        os.rename(paths.shard_path(root, 0), paths.accepted_path(root, 0))
        store = opened()
        assert "interrupted recovery" in store.recoveries[0]
        assert store.shards[0].incarnation == 2

    def test_watermark_damage(self, root, opened):
        opened().close()
        path = paths.watermark_path(root, 0)
        with open(path, "r+b") as file:
            file.seek(20)
            file.write(b"\xff")
        store = opened()
        assert "one slot of the watermark" in store.recoveries[0]
        store.close()
        os.truncate(path, 10)
        with pytest.raises(RecoveryRefusedError, match="both slots"):
            opened()
        os.unlink(path)
        with pytest.raises(RecoveryRefusedError, match="missing"):
            opened()
        store = opened(recovery="salvage")
        assert "new watermark" in store.recoveries[0]
        assert store.shards[0].watermark.state.incarnation == store.shards[0].incarnation
        store.close()
        assert opened().recoveries == []

    def test_a_store_that_went_back_in_time(self, root, opened):
        opened().close()
        shutil.copytree(paths.shard_path(root, 0), f"{root}.old")
        opened().close()
        shutil.rmtree(paths.shard_path(root, 0))
        os.rename(f"{root}.old", paths.shard_path(root, 0))
        with pytest.raises(RecoveryRefusedError, match="watermark 2"):
            opened()
        assert opened(recovery="salvage").shards[0].incarnation == 3

    def test_a_lost_stamp_is_salvaged(self, root, opened):
        store, _ = self.fill(opened, durable=3)
        store.close()
        edit(root, 0, [(ks.STAMP, None)])
        with pytest.raises(RecoveryRefusedError, match="no stamp"):
            opened()
        store = opened(recovery="salvage")
        assert any("lost its stamp" in text for text in store.recoveries)
        assert len(store.shards[0].store.scan(ks.TASK, ks.TASK_END, 99)) == 12

    def test_a_crash_during_the_salvage_of_a_whole_store_is_seen(self, opened, monkeypatch):
        store = opened()
        task = live(store.shards[0]).enqueue()
        store.close()

        def killed(self):
            raise KeyboardInterrupt

        monkeypatch.setattr("lodeq.engine.recovery.repair._Repair.rebuild_counters", killed)
        with pytest.raises(KeyboardInterrupt):
            opened(recovery="salvage")
        monkeypatch.undo()
        with pytest.raises(RecoveryRefusedError, match="salvage"):
            opened()
        store = opened(recovery="salvage").shards[0].store
        assert verify(store, 0, 1) == []
        assert store.get(ks.TASK + task.id)

    def test_a_store_that_is_stalled_when_it_is_opened_is_waited_for(self, opened, monkeypatch):
        opened().close()
        write, refused = RocksStore.write, []

        def stall(self, ops):
            if len(refused) < 3:
                refused.append(1)
                raise StoreStalledError("more tables in level 0 than may be")
            write(self, ops)

        monkeypatch.setattr(RocksStore, "write", stall)
        assert opened().shards[0].incarnation == 2
        assert len(refused) == 3

    def test_without_a_thread_nothing_is_opened_and_it_stays_unlocked(self, opened, monkeypatch):
        def fail(self):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", fail)
        with pytest.raises(StorageError, match="thread"):
            opened()
        monkeypatch.undo()
        opened()

    def test_failures_of_the_disk_are_typed_and_leave_it_unlocked(self, root, opened, monkeypatch):
        opened().close()

        def fail(path):
            raise OSError(5, "Input/output error", path)

        monkeypatch.setattr("lodeq.engine.recovery.open_shard.is_rocksdb", fail)
        with pytest.raises(StorageError, match="look at the disk"):
            opened()
        monkeypatch.undo()
        opened()


class TestMemory:
    def test_it_is_a_store_like_any_other(self):
        store = open_memory(shards=3, durability="fsync", rng=SeededRng(1))
        assert (store.path, store.durability, store.recoveries) == (None, "fsync", [])
        assert [shard.incarnation for shard in store.shards] == [1, 1, 1]
        for shard in store.shards:
            assert (shard.watermark, shard.path, shard.seq) == (None, None, 0)
            assert verify(shard.store, shard.index, 3) == []
            assert len(dump(shard.store)) == 3
        store.close()
        store.close()

    def test_defaults_and_wrong_arguments(self):
        store = open_memory(shards=None, durability=None, rng=SeededRng(1))
        assert (len(store.shards), store.durability) == (1, "nosync")
        store.close()
        with pytest.raises(UsageError):
            open_memory(shards=0, durability=None, rng=SeededRng(1))


class TestOlderCopies:
    """A folder that an operator got wrong: one shard of an earlier day, whole in itself."""

    @pytest.fixture
    def mixed(self, root, opened):
        """Shard 1 and its watermark are those of two openings before."""
        opened(shards=2).close()
        shutil.copytree(paths.shard_path(root, 1), f"{root}.old")
        shutil.copy(paths.watermark_path(root, 1), f"{root}.mark")
        for _ in range(2):
            store = opened()
            live(store.shards[1], 2).enqueue()
            store.close()
        shutil.rmtree(paths.shard_path(root, 1))
        os.rename(f"{root}.old", paths.shard_path(root, 1))
        os.replace(f"{root}.mark", paths.watermark_path(root, 1))
        return root

    def test_a_shard_older_than_the_others_is_refused_with_both_numbers(self, mixed, opened):
        with pytest.raises(RecoveryRefusedError, match=r"shard 1 .* incarnation 1, shard 0 as 3"):
            opened()
        with pytest.raises(RecoveryRefusedError, match="older copy"):  # it has changed nothing
            opened()

    def test_a_salvage_goes_on_and_reports_it(self, mixed, opened):
        store = opened(recovery="salvage")
        assert any("older copy" in text for text in store.recoveries)
        assert [shard.incarnation for shard in store.shards] == [4, 4]
        store.close()
        assert opened().recoveries == []

    def test_shards_of_an_earlier_release_may_differ(self, root, opened):
        opened(shards=2).close()
        edit(root, 0, [(ks.OPEN, small.encode_open(7))])
        edit(root, 1, [(ks.OPEN, small.encode_open(1))])
        store = opened()
        assert [shard.incarnation for shard in store.shards] == [8, 8]

    def test_a_crash_between_the_shards_is_no_older_copy(self, root, opened):
        opened(shards=2).close()
        edit(root, 0, [(ks.OPEN, small.encode_open(2, is_common=True))])
        store = opened()
        assert [shard.incarnation for shard in store.shards] == [3, 3]

    def test_processes_that_share_a_store_open_their_shards_as_often_as_they_like(
        self, root, opened
    ):
        whole = opened(shards=2)
        for _ in range(2):
            whole.lock.give_shards(root, 2)
            for shard in whole.shards:
                shard.close()
            part = opened(hosts=lambda shard: shard == 0)
            assert part.recoveries == []
            part.close()
        whole.close()
        assert [shard.incarnation for shard in opened().shards] == [4, 4]

    @on_loop
    async def test_the_shards_of_a_checkpoint_agree(self, root, tmp_path):
        for n in range(2):
            async with lodeq.open(root, shards=2) as engine:
                await engine.queue("q").enqueue_many([lodeq.NewTask(b"x")] * 9)
                await engine.checkpoint(tmp_path / f"copy{n}")
        lodeq.restore(tmp_path / "copy0", tmp_path / "restored")
        async with lodeq.open(tmp_path / "restored") as engine:
            assert (await engine.stats()).recoveries == ()
            assert len(await engine.queue("q").claim(limit=99)) == 9
