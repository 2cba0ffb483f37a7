"""The locks of a store that is open whole, or shard by shard."""

import os
import subprocess
import sys

import pytest

from lodeq.engine.files.lockfile import LockFile
from lodeq.engine.files.paths import list_layout, lock_path, shard_lock_path
from lodeq.engine.files.store_lock import StoreLock
from lodeq.errors import LockedError

CHILD = """
import sys
from lodeq.engine.files.store_lock import StoreLock
lock = StoreLock.of_shards(sys.argv[1], [2])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "s"
    path.mkdir(mode=0o700)
    return str(path)


def test_a_store_that_was_never_shared_has_one_lock(root):
    lock = StoreLock.of_store(root)
    assert os.listdir(root) == ["lock"]
    with pytest.raises(LockedError):
        StoreLock.of_store(root)
    lock.release()
    lock.release()
    again = StoreLock.of_store(root)
    assert not again.was_left
    again.release(is_sound=False)
    assert StoreLock.of_store(root).was_left


def test_shards_are_taken_below_a_holder_of_the_store_and_one_by_one(root):
    with pytest.raises(LockedError, match="below a process that holds"):
        StoreLock.of_shards(root, [0])
    assert os.path.getsize(shard_lock_path(root, 0)) == 0  # let go of
    above = LockFile.acquire(lock_path(root))
    some = StoreLock.of_shards(root, [0, 1])
    others = StoreLock.of_shards(root, [2])
    with pytest.raises(LockedError):
        StoreLock.of_shards(root, [3, 1])
    StoreLock.of_shards(root, [3]).release()  # what was taken before the refusal is free again
    above.release()
    with pytest.raises(LockedError):
        StoreLock.of_store(root)
    LockFile.acquire(lock_path(root)).release()  # so is the store's own
    some.release()
    others.release(is_sound=False)
    whole = StoreLock.of_store(root)
    assert whole.was_left
    whole.release()
    assert not StoreLock.of_store(root).was_left
    assert list_layout(root).locks == (0, 1, 2, 3)


def test_a_holder_of_the_store_gives_its_shards_to_those_below(root):
    above = LockFile.acquire(lock_path(root))
    StoreLock.of_shards(root, [0, 1]).release()
    above.release()
    whole = StoreLock.of_store(root)
    with pytest.raises(LockedError):
        StoreLock.of_shards(root, [1])
    whole.give_shards(root, 2)
    below = StoreLock.of_shards(root, [1])
    below.release()
    with pytest.raises(LockedError):
        StoreLock.of_store(root)
    whole.release()


@pytest.mark.slow
def test_a_child_that_outlives_its_parents_lock_keeps_its_shard(root):
    above = LockFile.acquire(lock_path(root))
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout.readline() == b"held\n"
        above.release()
        with pytest.raises(LockedError) as caught:
            StoreLock.of_store(root)
        assert caught.value.pid == child.pid
    finally:
        child.kill()
        child.communicate()
    whole = StoreLock.of_store(root)
    assert whole.was_left
    whole.release()
