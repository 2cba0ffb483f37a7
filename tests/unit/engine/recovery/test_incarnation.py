"""From which number on an opened store commits: an incarnation of its own, or the log's."""

from contextlib import contextmanager

import pytest
from support_rows import FixedClock, Life

from lodeq.engine.files.paths import watermark_path
from lodeq.engine.records import keyspace as ks
from lodeq.engine.records import rows as small
from lodeq.engine.records.events import StartRow, decode_start_row
from lodeq.engine.recovery.open_shard import open_store
from lodeq.engine.recovery.watermark import Watermark
from lodeq.engine.runtime.ids import SeededRng
from lodeq.errors import RecoveryRefusedError, ReplicaStoreError

BASE = 1 << 40


@pytest.fixture
def root(tmp_path):
    return str(tmp_path / "store")


@pytest.fixture
def opened(root):
    """Opens the store, as a replica unless told otherwise, for the time of a block."""

    @contextmanager
    def open_one(*, is_replica=True, is_detached=False, recovery="strict", has_journal=False):
        store = open_store(
            root,
            shards=None,
            durability=None,
            block_cache_bytes=8 << 20,
            recovery=recovery,
            rng=SeededRng(1),
            clock=FixedClock(),
            is_replica=is_replica,
            is_detached=is_detached,
            has_journal=has_journal,
        )
        try:
            yield store.shards[0]
        finally:
            store.close()

    return open_one


def test_an_ordinary_open_begins_an_incarnation(opened):
    for incarnation in (1, 2, 3):
        with opened(is_replica=False) as shard:
            assert (shard.incarnation, shard.last) == (incarnation, 0)


def test_every_new_replica_starts_alike(opened):
    for _ in range(3):
        with opened() as shard:
            assert (shard.incarnation, shard.last) == (1, 0)
            assert small.decode_open(shard.store.get(ks.OPEN)) == 1


def test_a_replica_goes_on_in_the_incarnation_of_the_log(opened, root):
    applied = small.encode_applied(small.Applied(4, 3))
    with opened() as shard:
        life = Life(shard.store)
        for _ in range(3):
            life.enqueue()
        shard.store.write([(ks.APPLIED, applied)])
    for _ in range(2):
        with opened() as shard:
            assert (shard.incarnation, shard.last) == (1, 3)
            assert shard.store.get(ks.APPLIED) == applied
            assert Watermark.read(watermark_path(root, 0)).commit_seq == BASE | 3


@pytest.mark.parametrize("recovery", ["strict", "salvage"])
def test_without_its_log_a_replica_is_refused(opened, recovery):
    applied = small.encode_applied(small.Applied(1, 1))
    with opened() as shard:
        shard.store.write([(ks.APPLIED, applied)])
    refused = pytest.raises(ReplicaStoreError, match=r"with its replicator, or .*lodeq\.detach")
    with refused, opened(is_replica=False, recovery=recovery):
        pass
    with opened() as shard:
        assert (shard.incarnation, shard.store.get(ks.APPLIED)) == (1, applied)


def test_a_replica_that_is_detached_is_a_store_of_its_own(opened):
    with opened() as shard:
        shard.store.write([(ks.APPLIED, small.encode_applied(small.Applied(1, 1)))])
    with opened(is_replica=False, is_detached=True) as shard:
        assert (shard.incarnation, shard.last) == (2, 0)
        assert shard.store.get(ks.APPLIED) is None


@pytest.mark.parametrize("recovery", ["strict", "salvage"])
def test_a_replica_with_a_hole_is_copied_anew_not_repaired(opened, recovery):
    with opened() as shard:
        life = Life(shard.store)
        for n in range(1, 8):
            life.enqueue(lost=n == 5)
    for _ in range(2):
        refused = pytest.raises(RecoveryRefusedError, match="checkpoint of another replica")
        with refused as caught, opened(recovery=recovery):
            pass
        assert caught.value.missing == (BASE | 5,)


def start_rows(shard):
    return [
        decode_start_row(value) for _, value in shard.store.scan(ks.EVENTS, ks.EVENTS_END, 1000)
    ]


def test_with_a_journal_every_incarnation_leaves_its_start(opened):
    with opened(is_replica=False, has_journal=True) as shard:
        life = Life(shard.store)
        for _ in range(3):
            life.enqueue()
    with opened(is_replica=False) as shard:  # one that nobody hears of
        assert start_rows(shard) == [StartRow(0, BASE, 0, ())]
    with opened(is_replica=False, has_journal=True) as shard:
        assert start_rows(shard)[1:] == [StartRow(0, 3 * BASE, 2 * BASE, ())]


def test_a_start_says_what_is_missing(opened):
    with opened(is_replica=False) as shard:
        life = Life(shard.store)
        for n in range(1, 10):
            life.enqueue(lost=n in (4, 5, 7))
    with opened(is_replica=False, has_journal=True) as shard:
        missing = ((BASE | 4, BASE | 5), (BASE | 7, BASE | 7))
        assert start_rows(shard) == [StartRow(0, 2 * BASE, BASE | 9, missing)]
    with opened(is_replica=False, has_journal=True) as shard:  # told once
        assert start_rows(shard)[1:] == [StartRow(0, 3 * BASE, 2 * BASE, ())]


def test_without_a_journal_there_is_no_start(opened):
    for is_replica in (True, False):
        with opened(is_replica=is_replica) as shard:
            assert start_rows(shard) == []
