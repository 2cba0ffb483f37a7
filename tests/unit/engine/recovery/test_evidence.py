"""What a recovery has replaced is kept within limits."""

import glob
import logging
import os
import random
import shutil
from pathlib import Path

import pytest
from support_live import copy_live
from support_rows import NOW_US, Life

from lodeq.engine.recovery import evidence, open_shard
from lodeq.engine.recovery.open_shard import open_store
from lodeq.engine.runtime.ids import SeededRng

MIB = 1 << 20
DAY_MS = 86_400_000


class Clock:
    def __init__(self, now_ms=NOW_US // 1000):
        self.now_ms = now_ms

    def wall_us(self):
        return self.now_ms * 1000

    def mono(self):
        return 0.0

    def call_at(self, timers, when_mono, fn):
        raise AssertionError("opening a store sets no timer")


def open_one(root, clock=None):
    return open_store(
        str(root),
        shards=None,
        durability=None,
        block_cache_bytes=8 * MIB,
        recovery="strict",
        rng=SeededRng(1),
        clock=clock or Clock(),
    )


def cut(root, rows):
    """One life that writes everything anew and ends in a power cut; its log has a bad tail."""
    store = open_one(root)
    rocks = store.shards[0].store
    for n in range(8):
        rocks.write([(b"x/%d" % n, rows.randbytes(64 << 10))])
    rocks.flush()
    rocks._db.compact_range(None, None)
    life = Life(rocks, incarnation=store.shards[0].incarnation)
    for _ in range(6):
        life.enqueue()
    image = f"{root}.image"
    copy_live(root, image)
    store.close()
    shutil.rmtree(root)
    os.rename(image, root)
    log = max(glob.glob(f"{root}/shard0/*.log"), key=os.path.getsize)
    raw = bytearray(Path(log).read_bytes())
    raw[raw.rindex(b"body")] ^= 1
    Path(log).write_bytes(raw)


def disk_bytes(path):
    """What it takes on the disk: a file with two names counts once."""
    infos = [file.stat() for file in Path(path).rglob("*") if file.is_file()]
    return sum({info.st_ino: info.st_size for info in infos}.values())


@pytest.mark.slow
def test_power_cuts_do_not_pin_a_generation_of_tables_each(tmp_path):
    root, rows = tmp_path / "store", random.Random(1)
    sizes = []
    for _ in range(5):
        cut(root, rows)
        store = open_one(root)
        assert any("kept as shard0.refused" in text for text in store.recoveries)
        store.close()
        sizes.append(disk_bytes(root))
    assert len(evidence.list_evidence(str(root))) == 5
    for name in evidence.list_evidence(str(root)):
        assert glob.glob(f"{root}/{name}/*.log")
    assert sizes[-1] - sizes[1] < 256 << 10, sizes  # logs; the tables are 512 KiB a generation


class TestLimits:
    @pytest.fixture
    def root(self, tmp_path):
        open_one(tmp_path / "store").close()
        return tmp_path / "store"

    def make(self, root, generations, size=10):
        for n in generations:
            folder = root / f"shard0.refused-{n}"
            folder.mkdir()
            (folder / "000004.log").write_bytes(bytes(size))
            os.utime(folder, (NOW_US / 1e6 + n, NOW_US / 1e6 + n))

    def left(self, root):
        return [int(name.rpartition("-")[2]) for name in evidence.list_evidence(str(root))]

    def test_in_number(self, root, caplog):
        caplog.set_level(logging.INFO, "lodeq")
        self.make(root, range(1, 12))
        open_one(root).close()
        assert self.left(root) == list(range(4, 12))
        (first, *_) = (record for record in caplog.records if record.event == "evidence_removed")
        assert first.detail == "more than 8 of a shard"

    def test_in_bytes_but_for_the_newest(self, root, monkeypatch):
        monkeypatch.setattr(evidence, "BYTES_MAX", 25_000)
        self.make(root, range(1, 5), 10_000)
        open_one(root).close()
        assert self.left(root) == [3, 4]
        monkeypatch.setattr(evidence, "BYTES_MAX", 5)
        open_one(root).close()
        assert self.left(root) == [4]

    def test_in_age(self, root):
        self.make(root, [1, 2])
        open_one(root, Clock(NOW_US // 1000 + 29 * DAY_MS)).close()
        assert self.left(root) == [1, 2]
        open_one(root, Clock(NOW_US // 1000 + 31 * DAY_MS)).close()
        assert self.left(root) == []

    def test_none_in_the_open_that_made_it(self, root, monkeypatch):
        for name in ("BYTES_MAX", "GENERATIONS_MAX"):
            monkeypatch.setattr(evidence, name, 0)
        self.make(root, [1])
        os.rename(root / "shard0.refused-1", root / "made")
        late = Clock(NOW_US // 1000 + 90 * DAY_MS)
        begin, moved = open_shard.begin, []

        def begun(*args, **options):
            if not moved:
                os.rename(root / "made", root / "shard0.refused-1")
            moved.append(1)
            return begin(*args, **options)

        monkeypatch.setattr("lodeq.engine.recovery.open_shard.begin", begun)
        open_one(root, late).close()
        assert self.left(root) == [1]
        late.now_ms += 29 * DAY_MS  # its age is that of the open that made it
        monkeypatch.setattr(evidence, "GENERATIONS_MAX", 1)
        open_one(root, late).close()
        assert self.left(root) == [1]

    def test_what_cannot_be_removed_is_no_reason_not_to_open(self, root, monkeypatch, caplog):
        self.make(root, [1])

        rmtree = shutil.rmtree

        def fail(path, **options):
            if "refused" in str(path):
                raise OSError(13, "Permission denied", path)
            rmtree(path, **options)

        monkeypatch.setattr(shutil, "rmtree", fail)
        open_one(root, Clock(NOW_US // 1000 + 31 * DAY_MS)).close()
        assert self.left(root) == [1]
        assert [record.event for record in caplog.records] == ["evidence_kept"]

    def test_a_table_that_the_shard_has_is_not_kept_twice(self, root):
        self.make(root, [1])
        kept = root / "shard0.refused-1"
        table, *_ = (root / "shard0").glob("*.sst")
        os.link(table, kept / table.name)
        (kept / "000099.sst").write_bytes(b"another")
        open_one(root).close()
        assert sorted(path.name for path in kept.iterdir()) == ["000004.log", "000099.sst"]
