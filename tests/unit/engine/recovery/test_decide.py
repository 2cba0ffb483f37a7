"""The ring tells what is missing; a damaged log is left behind if nothing durable is in it."""

import errno
import glob
import os
import shutil
from pathlib import Path

import pytest
from support_live import copy_live
from support_rows import Life

from lodeq.engine.files import paths
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.recovery import decide
from lodeq.engine.recovery.decide import check_ring, describe_numbers
from lodeq.engine.recovery.watermark import Watermark, WatermarkState
from lodeq.engine.store.memory import MemoryStore
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.errors import (
    FormatTooNewError,
    RecoveryRefusedError,
    StorageError,
    StorageFullError,
    StorePathError,
)

MIB = 1 << 20
STORE = bytes(range(16))


def seqs(incarnation, *numbers):
    return tuple(incarnation << 40 | n for n in numbers)


def mark(incarnation, n=0):
    return WatermarkState(0, STORE, incarnation, incarnation << 40 | n, 1, 0)


@pytest.fixture
def store():
    store = MemoryStore()
    store.write([(ks.OPEN, small.encode_open(3))])
    yield store
    store.close()


def ring(store, incarnation, numbers, seq=100):
    store.write(
        (ks.ring_key(n), small.encode_ring(incarnation << 40 | n, seq + n)) for n in numbers
    )


class TestRing:
    def test_an_empty_store(self):
        store = MemoryStore()
        found = check_ring(store, None)
        assert found.is_whole
        assert (found.stored, found.newest, found.last, found.seq) == (0, 0, 0, 0)
        assert found.next_commit_seq == 1

    def test_all_there(self, store):
        ring(store, 3, range(1, 11))
        found = check_ring(store, mark(3, 7))
        assert found.is_whole
        assert (found.stored, found.newest, found.last, found.seq) == (3, 3, 10, 110)
        assert found.next_commit_seq == 3 << 40 | 11

    def test_missing_at_or_below_the_watermark_is_lost(self, store):
        ring(store, 3, [1, 2, 4, 5, 7, 8])
        found = check_ring(store, mark(3, 6))
        assert (found.lost, found.holes) == (seqs(3, 3, 6), ())
        assert found.is_refused
        assert "commits 3, 6 (2 in all)" in found.describe()

    def test_missing_above_it_is_a_hole(self, store):
        ring(store, 3, [1, 2, 4])
        found = check_ring(store, mark(3, 2))
        assert (found.lost, found.holes) == ((), seqs(3, 3))
        assert not found.is_refused
        assert not found.is_whole
        assert "not yet durable" in found.describe()

    def test_a_tail_below_the_watermark_is_lost(self, store):
        ring(store, 3, [1, 2])
        assert check_ring(store, mark(3, 4)).lost == seqs(3, 3, 4)

    def test_a_tail_above_the_watermark_is_not_missed(self, store):
        ring(store, 3, [1, 2])
        assert check_ring(store, mark(3, 2)).is_whole

    def test_an_older_watermark_promises_nothing(self, store):
        ring(store, 3, [2])
        found = check_ring(store, mark(2, 900))
        assert (found.lost, found.holes) == ((), seqs(3, 1))
        assert check_ring(store, None).holes == seqs(3, 1)

    def test_older_incarnations_are_not_counted_but_their_seq_is(self, store):
        ring(store, 2, [10, 12], seq=5000)
        ring(store, 3, [1, 2])
        found = check_ring(store, mark(3, 2))
        assert found.is_whole
        assert found.seq == 5012

    def test_a_watermark_of_a_later_incarnation_is_refused(self, store):
        found = check_ring(store, mark(4))
        assert found.is_refused
        assert (found.stored, found.newest) == (3, 4)
        assert "watermark 4" in found.describe()

    def test_a_ring_of_a_later_incarnation_is_refused(self, store):
        ring(store, 5, [1])
        found = check_ring(store, mark(3))
        assert found.is_refused
        assert found.newest == 5

    def test_a_damaged_open_row_is_refused(self, store):
        store.write([(ks.OPEN, b"rubbish")])
        ring(store, 3, [1])
        found = check_ring(store, mark(3, 1))
        assert found.rolled_back.startswith("the open row is damaged")
        assert found.newest == 3
        assert check_ring(store, None).is_refused

    def test_damaged_ring_rows_prove_nothing(self, store):
        ring(store, 3, [1, 2, 3])
        store.write([(ks.ring_key(2), b"rubbish")])
        store.write([(ks.ring_key(9), small.encode_ring(3 << 40 | 3, 1))])
        assert check_ring(store, mark(3, 3)).lost == seqs(3, 2)

    def test_it_reaches_back_one_turn(self, store, monkeypatch):
        monkeypatch.setattr(decide, "RING_SLOTS", 4)
        ring(store, 3, [7, 8, 9, 10])
        assert check_ring(store, mark(3, 10)).is_whole
        store.write([(ks.ring_key(7), None)])
        assert check_ring(store, mark(3, 10)).lost == seqs(3, 7)

    def test_a_full_turn_is_read_page_by_page(self, store, monkeypatch):
        monkeypatch.setattr(decide, "_PAGE", 3)
        ring(store, 3, range(1, 10))
        assert check_ring(store, mark(3, 9)).is_whole
        ring(store, 3, range(65_537, 65_540))  # numbers 1 to 3 are overwritten
        found = check_ring(store, mark(3))
        assert found.last == 65_539
        assert found.holes == seqs(3, *range(10, 65_537))


def test_numbers_in_words():
    assert describe_numbers(()) == "none"
    assert describe_numbers(seqs(2, 5, 7, 8, 9)) == "incarnation 2, commits 5, 7-9 (4 in all)"
    assert describe_numbers(seqs(2, *range(1, 40, 2))).endswith("15, … (20 in all)")


def image(folder):
    """Names and contents."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "**"), recursive=True)):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


class TestShard:
    """One shard on disk: stamped, opened as incarnation 1, with ``commits`` tasks in its log."""

    @pytest.fixture
    def root(self, tmp_path):
        (tmp_path / "store").mkdir()
        return str(tmp_path / "store")

    @pytest.fixture
    def shared(self):
        return SharedMemory(8 * MIB)

    def make(self, root, shared, *, commits=20, durable=0, lost=()):
        live = f"{root}.live"
        store = RocksStore.open(live, shared=shared, create=True)
        store.write([(ks.STAMP, small.encode_stamp(small.Stamp(0, 1, 0, STORE)))])
        store.write([(ks.OPEN, small.encode_open(1))])
        store.flush()
        life = Life(store)
        for n in range(1, commits + 1):
            life.enqueue(lost=n in lost)
        # What a kill leaves: closing would flush the log.
        copy_live(live, paths.shard_path(root, 0), ignore=shutil.ignore_patterns("LOCK"))
        store.close()
        Watermark.create(
            paths.watermark_path(root, 0),
            shard=0,
            store_id=STORE,
            incarnation=1,
            commit_seq=1 << 40 | durable,
        ).close()

    def examine(self, root, shared, *, is_salvage=False):
        return decide.examine(root, 0, shared=shared, shards=1, is_salvage=is_salvage)

    def damage_log(self, root, *, length=False):
        """Flip a bit in the middle: of a task's body, or of a log record's length."""
        log = max(glob.glob(paths.shard_path(root, 0) + "/*.log"), key=os.path.getsize)
        with open(log, "r+b") as file:
            raw = bytearray(file.read())
            at = raw.index(b"body", len(raw) // 2)
            if length:  # a record: checksum:4, length:2, type:1, then the batch
                at = next(n for n in range(at, 0, -1) if raw[n : n + 3] == raw[4:7]) + 1
            raw[at] ^= 0x40
            file.seek(0)
            file.write(raw)

    def test_a_whole_one(self, root, shared):
        self.make(root, shared, durable=20)
        found = self.examine(root, shared)
        assert found.check.is_whole
        assert (found.check.last, found.is_copy, found.reports) == (20, False, [])
        assert found.stamp == small.Stamp(0, 1, 0, STORE)
        found.abandon()

    def test_durable_commits_that_are_missing(self, root, shared):
        self.make(root, shared, durable=10, lost={4, 5})
        with pytest.raises(
            RecoveryRefusedError, match=r"shard 0: .*commits 4-5.*salvage"
        ) as caught:
            self.examine(root, shared)
        assert (caught.value.shard, caught.value.missing) == (0, seqs(1, 4, 5))
        found = self.examine(root, shared, is_salvage=True)
        assert found.check.lost == seqs(1, 4, 5)
        assert "dropped" in found.reports[0]
        found.abandon()

    def test_a_hole(self, root, shared):
        self.make(root, shared, durable=10, lost={14})
        found = self.examine(root, shared)
        assert found.check.holes == seqs(1, 14)
        assert "power cut" in found.reports[0]
        found.abandon()

    def test_a_damaged_log_with_nothing_durable_behind_it(self, root, shared):
        self.make(root, shared, durable=2)
        self.damage_log(root)
        found = self.examine(root, shared)
        assert found.is_copy
        assert 2 <= found.check.last < 20
        assert found.check.is_whole
        found.abandon()
        assert paths.list_layout(root).copies == ()

    @pytest.mark.parametrize("length", [False, True])
    def test_durable_commits_behind_damage_are_refused_unchanged(self, root, shared, length):
        self.make(root, shared, durable=19)
        self.damage_log(root, length=length)
        before = image(root)
        with pytest.raises(RecoveryRefusedError) as caught:
            self.examine(root, shared)
        assert caught.value.missing[-1] == 1 << 40 | 19
        after = image(root)
        kept = [n for n in before if n.endswith((".log", ".sst")) or "watermark" in n]
        assert [after[name] for name in kept] == [before[name] for name in kept]
        assert paths.list_layout(root) == ((0,), (), (), (0,), (), (), ())

    @pytest.mark.parametrize("error", [StorageError, FormatTooNewError])
    def test_whatever_ends_the_look_the_log_is_put_back(self, root, shared, monkeypatch, error):
        self.make(root, shared, durable=19)
        self.damage_log(root, length=True)
        before = image(root)

        def fail(self, key):
            raise error("not now")

        monkeypatch.setattr(RocksStore, "get", fail)
        with pytest.raises(error):
            self.examine(root, shared)
        after = image(root)
        kept = [n for n in before if n.endswith((".log", ".sst"))]
        assert [after.get(name) for name in kept] == [before[name] for name in kept]
        assert paths.list_layout(root) == ((0,), (), (), (0,), (), (), ())

    def test_a_kill_before_the_judgement_changes_nothing(self, root, shared, monkeypatch, tmp_path):
        """RocksDB has deleted the log by then: what it was has to come back at the next open."""
        self.make(root, shared, durable=19)
        self.damage_log(root, length=True)
        before, killed, look = image(root), str(tmp_path / "killed"), decide._look
        kept = [n for n in before if n.endswith((".log", ".sst"))]

        def copying(found, is_salvage, **given):
            copy_live(root, killed, ignore=shutil.ignore_patterns("LOCK"))
            for name in kept:  # RocksDB removes it in the background: here it has
                if name.endswith(".log"):
                    Path(killed, "shard0", os.path.basename(name)).unlink(missing_ok=True)
            look(found, is_salvage, **given)

        monkeypatch.setattr(decide, "_look", copying)
        with pytest.raises(RecoveryRefusedError):
            self.examine(root, shared)
        gone = image(paths.shard_path(killed, 0))
        assert any(os.path.basename(name) not in gone for name in kept)
        decide.finish_swaps(killed, paths.list_layout(killed))
        after = image(killed)
        assert [after.get(name) for name in kept] == [before[name] for name in kept]
        assert paths.list_layout(killed).copies == ()

    @pytest.mark.parametrize("length", [False, True])
    def test_salvage_takes_what_is_left(self, root, shared, length):
        self.make(root, shared, durable=19)
        self.damage_log(root, length=length)
        before = image(paths.shard_path(root, 0))
        found = self.examine(root, shared, is_salvage=True)
        assert found.is_copy != length
        assert found.check.lost[-1] == 1 << 40 | 19
        found.abandon()
        if length:  # opened as it was: what it was is kept
            kept = image(paths.refused_path(root, 0, 1)[: -len(".1")])
            assert kept.items() <= before.items()
            assert any(name.endswith(".log") and raw for name, raw in kept.items())

    def test_damage_that_no_mode_opens(self, root, shared):
        self.make(root, shared)
        (manifest,) = glob.glob(paths.shard_path(root, 0) + "/MANIFEST-*")
        with open(manifest, "r+b") as file:
            file.write(b"\xff" * 64)
        with pytest.raises(RecoveryRefusedError, match=r"not even up to the damage.*salvage"):
            self.examine(root, shared)
        assert paths.list_layout(root).copies == ()
        found = self.examine(root, shared, is_salvage=True)
        assert (found.is_rebuilt, found.check.is_whole, found.check.last) == (True, True, 20)
        found.abandon()
        assert paths.list_layout(root).copies == ()

    def test_damage_that_nothing_is_left_of(self, root, shared):
        self.make(root, shared)
        folder = paths.shard_path(root, 0)
        for name in os.listdir(folder):
            if name.endswith((".sst", ".log")) or name.startswith("MANIFEST"):
                with open(os.path.join(folder, name), "r+b") as file:
                    file.write(b"\xff" * os.path.getsize(file.name))
        before = image(root)
        with pytest.raises(RecoveryRefusedError, match=r"nothing of it .* move .* away"):
            self.examine(root, shared, is_salvage=True)
        after = image(root)
        kept = [name for name in before if name.endswith((".sst", ".log")) or "MANIFEST" in name]
        assert [after.get(name) for name in kept] == [before[name] for name in kept]
        assert paths.list_layout(root).copies == ()

    def test_a_lost_stamp(self, root, shared):
        self.make(root, shared)
        store = RocksStore.open(paths.shard_path(root, 0), shared=shared, create=False)
        store.write([(ks.STAMP, None)])
        store.close()
        with pytest.raises(RecoveryRefusedError, match="no stamp"):
            self.examine(root, shared)
        found = self.examine(root, shared, is_salvage=True)
        assert found.stamp is None
        found.store.write([(ks.STAMP, b"rubbish")])
        found.abandon()
        with pytest.raises(RecoveryRefusedError, match="which store"):
            self.examine(root, shared, is_salvage=True)

    def test_a_missing_watermark(self, root, shared):
        self.make(root, shared)
        os.unlink(paths.watermark_path(root, 0))
        with pytest.raises(RecoveryRefusedError, match="missing"):
            self.examine(root, shared)
        found = self.examine(root, shared, is_salvage=True)
        assert found.mark is None
        assert "new watermark" in found.reports[0]
        found.abandon()

    def test_a_copy_that_cannot_be_made(self, root, shared, monkeypatch):
        self.make(root, shared)
        self.damage_log(root)
        for number, kind in [(errno.ENOSPC, StorageFullError), (errno.EIO, StorageError)]:

            def fail(*_, number=number, **__):
                raise OSError(number, os.strerror(number))

            monkeypatch.setattr(decide, "clone_folder", fail)
            with pytest.raises(kind):
                self.examine(root, shared)

    def test_a_copy_that_fails_for_another_reason(self, root, shared, monkeypatch):
        self.make(root, shared)
        self.damage_log(root)
        opened = RocksStore.open

        def fail(path, **options):
            if options.get("recovery_mode"):
                raise StorePathError("no")
            return opened(path, **options)

        monkeypatch.setattr(RocksStore, "open", fail)
        with pytest.raises(StorePathError):
            self.examine(root, shared)
        assert paths.list_layout(root).copies == ()


class TestSwap:
    """A crash after any step of the swap leaves names that say how to go on."""

    @pytest.fixture
    def root(self, tmp_path):
        for name, content in [("shard0", b"old"), ("shard0.copy", b"new")]:
            os.mkdir(tmp_path / name)
            (tmp_path / name / "CURRENT").write_bytes(content)
        return str(tmp_path)

    def contents(self, root):
        return {path.partition("/")[0]: raw for path, raw in image(root).items()}

    def test_it_keeps_the_original(self, root):
        kept = decide.swap_in(root, 0, 7)
        assert os.path.basename(kept) == "shard0.refused-7"
        assert self.contents(root) == {"shard0": b"new", "shard0.refused-7": b"old"}

    @pytest.mark.parametrize("renames", [0, 1, 2])
    def test_a_crash_in_the_middle(self, root, monkeypatch, renames):
        rename, left = os.rename, [renames]

        def dying(source, target):
            if not left[0]:
                raise OSError(errno.EIO, "power cut", source)
            left[0] -= 1
            rename(source, target)

        monkeypatch.setattr(os, "rename", dying)
        with pytest.raises(StorageError, match="power cut"):
            decide.swap_in(root, 0, 7)
        monkeypatch.undo()
        reports = decide.finish_swaps(root, paths.list_layout(root))
        if renames < 2:  # not decided yet, or decided and not begun: as if never tried
            assert self.contents(root) == {"shard0": b"old"}
            assert reports == []
        else:
            assert self.contents(root) == {"shard0": b"new", "shard0.refused-7": b"old"}
            assert "interrupted recovery" in reports[0]
        assert decide.finish_swaps(root, paths.list_layout(root)) == []
