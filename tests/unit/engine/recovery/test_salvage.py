"""What can be had back of a damaged store, counted on real damage."""

import errno
import glob
import os
import re
import shutil
from pathlib import Path

import pytest
from support_live import copy_live
from support_rows import FixedClock, Life, busy, dump

from lodeq.engine.recovery import open_shard, salvage
from lodeq.engine.recovery.open_shard import open_store
from lodeq.engine.recovery.table_blocks import inspect_table
from lodeq.engine.recovery.verify import verify
from lodeq.engine.runtime.ids import SeededRng
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.errors import RecoveryRefusedError

MIB = 1 << 20
TASKS = 700
ROOT = Path(__file__).resolve().parents[4]

pytestmark = pytest.mark.slow


def open_one(root, recovery="strict"):
    return open_store(
        str(root),
        shards=None,
        durability=None,
        block_cache_bytes=8 * MIB,
        recovery=recovery,
        rng=SeededRng(1),
        clock=FixedClock(),
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A closed store: one table of before, one of a later life. Copied for every case."""
    root = tmp_path_factory.mktemp("original") / "store"
    store = open_one(root)
    life = Life(store.shards[0].store)
    busy(life)
    for _ in range(TASKS):
        life.enqueue()
    store.close()
    compact(root)
    store = open_one(root)
    later = Life(store.shards[0].store, incarnation=store.shards[0].incarnation, us=life.us)
    later.counts, later.ids = life.counts, life.ids
    for _ in range(20):
        later.enqueue(b"later")
    store.shards[0].watermark.write(later.incarnation, later.incarnation << 40 | later.n)
    store.close()
    assert len(tables(root)) == 2
    return root


@pytest.fixture
def root(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "store"))


def compact(root):
    store = RocksStore.open(f"{root}/shard0", shared=SharedMemory(8 * MIB), create=False)
    store._db.compact_range(None, None)
    store.close()


def tables(root):
    """The large one, then the small one."""
    return sorted(glob.glob(f"{root}/shard0/*.sst"), key=os.path.getsize, reverse=True)


def rows_of(root):
    store = RocksStore.open(f"{root}/shard0", shared=SharedMemory(8 * MIB), create=False)
    try:
        return dict(dump(store))
    finally:
        store.close()


def image(root):
    """All that a refusal must leave as it is."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(Path(root).rglob("*"))
        if path.is_file() and not path.name.startswith(("LOG", "LOCK", "lock", "rocksdict"))
    }


def flip(path, at):
    raw = bytearray(Path(path).read_bytes())
    raw[at] ^= 4
    Path(path).write_bytes(raw)


def block_with(table, prefix, which=0.5):
    """(offset in the middle, keys above, keys up to) of a block with rows of that family."""
    entries = inspect_table(table).index
    inside = [
        n for n in range(1, len(entries)) if entries[n - 1][0][:2] == entries[n][0][:2] == prefix
    ]
    n = inside[int(len(inside) * which)]
    offset = at = shift = 0
    while True:
        byte = entries[n][1][at]
        offset |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return offset + 100, entries[n - 1][0], entries[n][0]


def ids_of(rows):
    return {key[2:] for key in rows if key[:2] == b"t/"}


class TestABlock:
    def damage(self, root, prefix, which=0.5):
        """Flip a bit of a block; returns (rows before, keys that lay in the block)."""
        before = rows_of(root)
        (table, _) = tables(root)
        at, after, to = block_with(table, prefix, which)
        flip(table, at)
        return before, {key for key in before if after < key <= to}

    @pytest.mark.parametrize("which", [0.0, 0.5, 0.99])
    def test_of_index_rows_loses_no_task(self, root, which):
        before, lay_there = self.damage(root, b"q/", which)
        assert len(lay_there) > 20
        store = open_one(root, "salvage")
        rows = store.shards[0].store
        assert ids_of(dict(dump(rows))) == ids_of(before)
        assert verify(rows, 0, 1) == []
        assert any("index rows after" in text for text in store.recoveries)
        assert any(f"{len(lay_there)} tasks requeued" in text for text in store.recoveries)
        store.close()
        self.sound(root)

    def test_of_task_records_loses_those_and_names_them(self, root):
        before, lay_there = self.damage(root, b"t/")
        lost = {key[2:] for key in lay_there}
        assert len(lost) > 20
        store = open_one(root, "salvage")
        rows = store.shards[0].store
        assert ids_of(dict(dump(rows))) == ids_of(before) - lost
        assert verify(rows, 0, 1) == []
        (told,) = (text for text in store.recoveries if "repaired" in text)
        assert f"{len(lost)} tasks are lost" in told
        assert {bytes.fromhex(text) for text in re.findall(r"[0-9a-f]{32}", told)} <= lost
        (counted,) = (text for text in store.recoveries if "counters knew" in text)
        numbers = [int(n) for n in re.findall(r"\d+", counted.partition(":")[2])]
        assert numbers[0] - numbers[1] == len(lost)
        store.close()
        self.sound(root)

    def test_rows_of_other_tables_in_its_range_come_back(self, root):
        """At their newest versions, and without those that were deleted."""
        store = open_one(root)
        rocks = store.shards[0].store
        rocks._db.set_options({"disable_auto_compactions": "true"})
        batches = []
        for table in range(8):
            ops = {b"x/%04d" % n: b"%d" % table * 200 for n in range(0, 800, table + 1)}
            ops |= {b"x/%04d" % n: None for n in range(table, 800, 97)}
            rocks.write(list(ops.items()))
            rocks.flush()
            batches.append(ops)
        names = sorted(one["name"] for one in rocks._db.live_files())
        store.close()
        bad = f"{root}/shard0{names[-3]}"  # of the sixth batch
        (_, _), (after, _), (to, handle), *_ = inspect_table(bad).index
        flip(bad, number_of(handle) + 100)
        batches[5] = {key: row for key, row in batches[5].items() if not after < key <= to}
        expected = {key: row for ops in batches for key, row in ops.items()}
        store = open_one(root, "salvage")
        found = dict(store.shards[0].store.scan(b"x/", b"x0", 10_000))
        store.close()
        assert found == {key: value for key, value in expected.items() if value is not None}
        assert len([key for key in found if after < key <= to]) > 20
        self.sound(root)

    def test_strict_refuses_nothing_and_salvage_keeps_the_original(self, root):
        self.damage(root, b"q/")
        bad = Path(tables(root)[0]).read_bytes()
        open_one(root, "salvage").close()
        (kept,) = glob.glob(f"{root}/shard0.refused-*")
        assert bad in [Path(path).read_bytes() for path in glob.glob(f"{kept}/*.sst")]

    def test_a_kill_at_any_step_is_seen_and_a_salvage_repeated_ends_well(
        self, root, tmp_path, monkeypatch
    ):
        before, _ = self.damage(root, b"q/")
        images = []

        def photograph(*_):
            to = tmp_path / f"image{len(images)}"
            copy_live(root, to)
            images.append(to)

        def watched(fn):
            def call(*args, **options):
                photograph()
                return fn(*args, **options)

            return call

        monkeypatch.setattr(os, "rename", watched(os.rename))
        for name in ("repair", "begin"):
            monkeypatch.setattr(open_shard, name, watched(getattr(open_shard, name)))
        monkeypatch.setattr(salvage, "write_without", watched(salvage.write_without))
        open_one(root, "salvage").close()
        monkeypatch.undo()
        assert len(images) == 7
        outcomes = []
        for at in images:
            outcomes.append(strictly(at))
            store = open_one(at, "salvage")
            assert verify(store.shards[0].store, 0, 1) == []
            assert ids_of(dict(dump(store.shards[0].store))) == ids_of(before)
            store.close()
            assert strictly(at) == "opens"
            assert not glob.glob(f"{at}/*.copy") + glob.glob(f"{at}/*.fresh")
        # Damaged still, or half done.
        assert set(outcomes) <= {"opens; `verify` reports it", "refuses"}
        assert {"opens; `verify` reports it", "refuses"} <= set(outcomes)

    def sound(self, root):
        store = open_one(root)
        assert store.recoveries == []
        assert verify(store.shards[0].store, 0, 1) == []
        store.close()
        compact(root)
        assert len(glob.glob(f"{root}/shard0.refused-*")) == 1
        assert not glob.glob(f"{root}/*.copy") + glob.glob(f"{root}/*.fresh")


def without_current(root):
    os.unlink(root / "shard0" / "CURRENT")


def empty_current(root):
    os.truncate(root / "shard0" / "CURRENT", 0)


def flipped_current(root):
    flip(root / "shard0" / "CURRENT", 14)


def manifest(root):
    (path,) = glob.glob(f"{root}/shard0/MANIFEST-*")
    return path


def flipped_manifest(root):
    flip(manifest(root), 40)


def cut_manifest(root):
    os.truncate(manifest(root), os.path.getsize(manifest(root)) // 2)


def without_manifest(root):
    os.unlink(manifest(root))


def without_both(root):
    without_manifest(root)
    without_current(root)


def without_all_small(root):
    for path in (root / "shard0").iterdir():
        if path.suffix != ".sst":
            path.unlink()
    os.unlink(root / "watermark0")


def without_table(root):
    os.unlink(tables(root)[1])


def without_large_table(root):
    os.unlink(tables(root)[0])


def flipped_index_row(root):
    flip(tables(root)[0], block_with(tables(root)[0], b"q/")[0])


def flipped_task(root):
    flip(tables(root)[0], block_with(tables(root)[0], b"t/")[0])


def handles_of(path):
    return dict(inspect_table(path).meta)


def flipped_filter(root):
    path = tables(root)[0]
    raw = next(value for name, value in handles_of(path).items() if name.startswith(b"full"))
    flip(path, number_of(raw) + 50)


def number_of(raw):
    out = shift = 0
    for byte in raw:
        out |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return out
    raise AssertionError(raw)


def flipped_table_index(root):
    path = tables(root)[0]
    raw = handles_of(path)[b"rocksdb.properties"]
    flip(path, number_of(raw) - 40)  # the index lies in front of the properties


def flipped_footer(root):
    flip(tables(root)[1], os.path.getsize(tables(root)[1]) - 3)


def flipped_properties(root):
    path = tables(root)[0]
    flip(path, number_of(handles_of(path)[b"rocksdb.properties"]) + 100)


def cut_table(root):
    """Behind a block of task records: what follows is lost."""
    (table, _) = tables(root)
    os.truncate(table, block_with(table, b"t/")[0])


def only_block(root):
    """The newest table has but one; its counters lie in it too."""
    flip(tables(root)[1], 1000)


def without_watermark(root):
    os.unlink(root / "watermark0")


def without_shard(root):
    shutil.rmtree(root / "shard0")


DAMAGE = {
    "`CURRENT` is missing": without_current,
    "`CURRENT` is empty": empty_current,
    "a bit of `CURRENT` is flipped": flipped_current,
    "a bit of the manifest is flipped": flipped_manifest,
    "the manifest is cut in half": cut_manifest,
    "the manifest is missing": without_manifest,
    "manifest and `CURRENT` are missing": without_both,
    "all is missing but the tables, the watermark too": without_all_small,
    "a bit of a table is flipped, among index rows": flipped_index_row,
    "… among task records": flipped_task,
    "… in its filter": flipped_filter,
    "… in its own index": flipped_table_index,
    "… in its footer": flipped_footer,
    "… in its properties": flipped_properties,
    "a table is cut short": cut_table,
    "the only block of the newest table": only_block,
    "the newest table is missing": without_table,
    "the oldest table is missing": without_large_table,
    "the watermark is missing": without_watermark,
    "the shard's folder is missing": without_shard,
}


class Parts:
    """Which tasks lie where, before there is damage."""

    def __init__(self, root):
        copy = shutil.copytree(root, f"{root}.looked-at")
        self.rows = rows_of(copy)
        shutil.rmtree(copy)
        _, after, to = block_with(tables(root)[0], b"t/")
        self.every = ids_of(self.rows)
        later = {key[-16:] for key in self.rows if key.startswith(b"q/later")}
        self.by_words = {
            "": set(),
            "those of that block": ids_of(key for key in self.rows if after < key <= to),
            "those behind the cut": ids_of(key for key in self.rows if after < key) - later,
            "those of that table": later,
            "those of that table (all but the newest)": self.every - later,
            "all": self.every,
        }

    def words(self, left):
        lost = self.every - left
        (words,) = (name for name, ids in self.by_words.items() if ids == lost)
        return {"": "every task", "all": "nothing, and says so"}.get(words, f"all but {words}")


def strictly(root):
    """What an ordinary open says. Any error but that one is a bare one."""
    try:
        store = open_one(root)
    except RecoveryRefusedError as error:
        return "refuses" if "salvage" in str(error) else f"refuses without advice: {error}"
    findings = verify(store.shards[0].store, 0, 1)
    store.close()
    return "opens; `verify` reports it" if findings else "opens"


def judge(root, damage, parts):
    """(strict, salvage) in words, after demands that hold for every damage."""
    damage(root)
    before = image(root)
    strict = strictly(root)
    if strict == "refuses":
        assert image(root) == before
    store = open_one(root, "salvage")
    open_shard = store.shards[0].store
    assert verify(open_shard, 0, 1) == []
    left = ids_of(dict(dump(open_shard)))
    reports = " ".join(store.recoveries)
    store.close()
    again = open_one(root)
    assert again.recoveries == []
    assert ids_of(dict(dump(again.shards[0].store))) == left
    again.close()
    compact(root)
    if left != parts.every:
        told = (
            r"tasks are lost|\(\d+ rows\) cannot be read|durable commits|the open row says|"
            r"\d+ tasks, \d+ are left"
        )
        assert re.search(told, reports), reports
    return strict, parts.words(left)


def page():
    """The rows of the table in docs/operations.md."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("| damage | strict | salvage brings back |\n|---|---|---|\n")
    out = {}
    for line in rest.partition("\n\n")[0].splitlines():
        damage, *told = (cell.strip() for cell in line.strip("|").split("|"))
        out[damage] = tuple(told)
    return out


def test_a_process_without_descriptors_calls_no_table_lost(tmp_path, monkeypatch):
    def fails(path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    (tmp_path / "000001.sst").touch()
    monkeypatch.setattr(salvage, "inspect_table", fails)
    with pytest.raises(OSError, match="Too many open files"):
        salvage.damaged_tables(str(tmp_path))


@pytest.fixture(scope="module")
def parts(original):
    return Parts(original)


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_page_says_what_comes_back(root, parts, damage):
    assert judge(root, DAMAGE[damage], parts) == page()[damage]


def test_the_page_has_no_other_row():
    assert list(page()) == list(DAMAGE)
