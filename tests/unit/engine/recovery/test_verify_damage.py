"""Verification of a store whose table has rotted: it goes on, names it, and accuses nobody else."""

import os
import re

import pytest
from support_rows import HOUR_MS, NOW_MS, Life, busy

from lodeq.engine.records import keyspace as ks
from lodeq.engine.recovery.verify import verify
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.errors import LodeqError

BLOCK = 8 << 10


def opened(path, *, create=False):
    # A cache of its own: that of the last opening has sound blocks of the same table.
    return RocksStore.open(path, shared=SharedMemory(8 << 20), create=create)


@pytest.fixture
def rotting(tmp_path):
    """The path of a closed store of one table, its tasks, and what flips a byte of the table."""
    path = str(tmp_path / "shard0")
    store = opened(path, create=True)
    life = Life(store)
    tasks = [task for _ in range(25) for task in busy(life) if not task.is_dead]
    for n in range(120):
        tasks.append(life.enqueue(ghost=ks.ghost_hash(bytes(32), b"mail\0\0%d" % n)))
        tasks.append(life.enqueue(b"audit", due_ms=NOW_MS + HOUR_MS))
        if n % 3 == 0:
            life.claim(tasks[-2])
    store.flush()
    assert verify(store, 0, 1) == []
    store.close()
    (table,) = (name for name in os.listdir(path) if name.endswith(".sst"))
    table = os.path.join(path, table)

    def flip(offset):
        with open(table, "r+b") as file:
            file.seek(offset)
            byte = file.read(1)
            file.seek(offset)
            file.write(bytes([byte[0] ^ 0x10]))

    return path, flip, os.path.getsize(table)


def key_is_lost(store, key):
    try:
        store.get(key)
    except LodeqError:
        return True
    return False


@pytest.mark.slow
def test_whatever_block_is_damaged_verify_goes_on_and_accuses_no_sound_row(rotting):
    path, flip, size = rotting
    store = opened(path)
    keys = [key for key, _ in store.scan(b"", b"\xff", 1 << 20)]
    ids = {key[2:] for key in keys if key.startswith(ks.TASK)}
    homes = {key[-16:]: key for key in keys if key.startswith(ks.INDEX)}
    store.close()
    families = set()
    for offset in range(BLOCK // 2, size, BLOCK):
        flip(offset)
        try:
            store = opened(path)
        except LodeqError:  # not a block of rows; there is nothing to verify
            flip(offset)
            continue
        found = verify(store, 0, 1)
        lost = {key for key in keys if key_is_lost(store, key)}
        for view in (store, store.snapshot()):
            again = verify(view, 0, 1)
            assert again[1:] == found[1:]  # the first is the range, about
        assert {one.kind for one in found} <= {"unreadable", "unknown"}, offset
        ranges = [one for one in found if one.kind == "unreadable"]
        assert len(ranges) == bool(lost)
        assert ranges == found[:1]
        # Every task that may be gone, or of which nobody knows where it stands, is named.
        unknown = {one.task_id for one in found if one.kind == "unknown"}
        of_tasks = {key[2:] for key in lost if key.startswith((ks.TASK, ks.LEASE))}
        at_home = {task_id for task_id, key in homes.items() if key in lost}
        assert unknown <= of_tasks | at_home | {key[2:] for key in lost}
        assert at_home & ids - of_tasks <= unknown
        assert len(lost) == len(keys) or {key[2:] for key in lost if key[:2] == b"t/"} <= unknown
        families |= {word for one in ranges for word in re.findall(r"\b[a-z]/", one.detail[:50])}
        store.close()
        flip(offset)
    assert {"t/", "q/", "l/", "m/"} <= families
    store = opened(path)
    assert verify(store, 0, 1) == []
    store.close()


@pytest.mark.slow
def test_findings_of_the_rest_are_told_as_usual(rotting):
    path, flip, _ = rotting
    store = opened(path)
    (task, *_, other) = [key for key, _ in store.scan(ks.TASK, ks.TASK_END, 150)]
    store.close()
    (table,) = (name for name in os.listdir(path) if name.endswith(".sst"))
    with open(os.path.join(path, table), "rb") as file:
        at = [found.start() for found in re.finditer(re.escape(other[-10:]), file.read())]
    flip(at[-1])  # t/ is the last of the families
    store = opened(path)
    assert key_is_lost(store, other)
    store.write([(task, None), (ks.LEASE + bytes(16), b"no lease")])
    found = verify(store, 0, 1)
    assert {one.task_id for one in found if one.kind.startswith("orphan")} >= {task[2:]}
    assert {"damaged", "unreadable", "unknown"} < {one.kind for one in found}
    (range_,) = [one for one in found if one.kind == "unreadable"]
    assert range_.detail.startswith("rows of t/ from b't/")
    assert range_.shard == 0
    assert "no_place" not in {one.kind for one in found}
    store.close()
