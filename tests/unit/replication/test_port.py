"""The commit loop behind a replicated log: order, roles, answers, replay, refusals, close."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from support_loop import FaultyStore, ManualSpawner, Seq, on_loop, settle

from lodeq.coalescer.commit_loop import GROUP_BYTES_MAX
from lodeq.coalescer.fsync import Syncer
from lodeq.coalescer.linger import WAIT_BYTES_MAX
from lodeq.coalescer.replicated import ReplicatedCoalescer
from lodeq.coalescer.replicator import Done, Entry
from lodeq.engine.records.keyspace import APPLIED, OPEN, ring_key
from lodeq.engine.records.rows import (
    Applied,
    decode_applied,
    decode_open,
    decode_ring,
    encode_applied,
)
from lodeq.engine.store.port import Op
from lodeq.errors import (
    ClosedError,
    CommitUnknownError,
    InvariantError,
    NotLeaderError,
    StorageError,
    StorageFullError,
    StoragePoisonedError,
    StoreStalledError,
)

BASE = 1 << 40


@dataclass
class Script:
    """A replication layer that does what the test says, one proposal at a time."""

    where: str | None = "elsewhere"
    proposals: list[tuple[int, tuple[Op, ...], Done]] = field(default_factory=list)
    index: int = 0
    error: Exception | None = None
    is_instant: bool = False

    entry_bytes_max: int = 1 << 30
    definite_s: float = 0.0
    has_session: bool = True

    async def prepare(self, path: str | None) -> None:
        raise AssertionError("not at this level")

    async def start(self, replica: Any, spawner: Any, clock: Any) -> None:
        raise AssertionError("not at this level")

    async def closing(self) -> None:
        raise AssertionError("not at this level")

    async def closed(self) -> None:
        raise AssertionError("not at this level")

    def holds_session(self, shard: int) -> bool:
        return self.has_session

    def leader(self, shard: int) -> str | None:
        return self.where

    def is_leader(self, shard: int) -> bool:
        return self.where == "here"

    def propose(self, shard: int, commit_seq: int, ops: tuple[Op, ...], done: Done) -> None:
        if self.error is not None:
            raise self.error
        self.proposals.append((commit_seq, ops, done))
        if self.is_instant:
            self.commit()

    def commit(self, count: int = 1) -> None:
        for _ in range(count):
            commit_seq, ops, done = self.proposals.pop(0)
            self.index += 1
            done(Entry(0, 1, self.index, commit_seq, ops))

    def refuse(self, error: BaseException) -> None:
        self.proposals.pop(0)[2](error)


@dataclass
class Rig:
    """One coalescer with everything around it under control."""

    store: FaultyStore
    spawner: ManualSpawner
    log: Script
    coalescer: ReplicatedCoalescer
    seen: list[int]  # the last index of each write whose rows were passed on
    deposed: list[bool]
    clock: list[float]

    async def lead(self, incarnation: int = 2) -> None:
        self.log.where = "here"
        future = self.coalescer.elect(incarnation)
        await settle()
        if self.log.proposals:
            self.log.commit()
        await future
        self.coalescer.serve()
        self.store.batches.clear()

    async def lead_beside(self, incarnation: int) -> None:
        """Lead again while earlier proposals have no answer, and never were committed."""
        future = self.coalescer.elect(incarnation)
        await settle()
        number, ops, done = self.log.proposals.pop()
        self.log.index += 1
        done(Entry(0, 2, self.log.index, number, ops))
        await future
        self.coalescer.serve()

    def put_late(self) -> Any:
        """What a caller is told who comes now."""
        try:
            return self.coalescer.begin()
        except NotLeaderError as error:
            return error

    def put(self, key: bytes) -> Any:
        group = self.coalescer.begin()
        group.ops.append((key, b"v"))
        return self.coalescer.wait(group, key)

    @property
    def written(self) -> list[list[bytes]]:
        return [[key for key, _ in batch if key[:2] != b"m/"] for batch in self.store.batches]


def make(
    *,
    fsync: bool = False,
    store: FaultyStore | None = None,
    first: int = BASE + 1,
    batch_max: int = 1,
) -> Rig:
    store, spawner, log = store or FaultyStore(), ManualSpawner(), Script()
    clock = [0.0]
    seen: list[int] = []
    deposed: list[bool] = []
    syncer = Syncer(
        store, spawner, first_number=first, interval_s=1.0, write_watermark=lambda number: None
    )
    coalescer = ReplicatedCoalescer(
        store,
        spawner,
        shard=0,
        first_number=first,
        seq_source=Seq(7),
        syncer=syncer,
        is_fsync=fsync,
        commit_batch_max=batch_max,
        submit_queue_max=1024,
        tick_work=None,
        on_writes_end=lambda: None,
        replicator=log,
        mono=lambda: clock[0],
        on_rows=lambda ops: seen.append(decode_applied(dict(ops)[APPLIED] or b"").index),
        on_deposed=lambda: deposed.append(True),
    )
    return Rig(store, spawner, log, coalescer, seen, deposed, clock)


def entry(index: int, number: int, *ops: Op, term: int = 1, shard: int = 0) -> Entry:
    return Entry(shard, term, index, number, ops or ((b"k%d" % index, b"v"),))


async def outcome(future: Any) -> Any:
    try:
        return await future
    except Exception as error:  # noqa: BLE001 - whatever it was
        return error


# -- following -------------------------------------------------------------------------


@on_loop
async def test_a_follower_refuses_before_anything_changes() -> None:
    rig = make()
    with pytest.raises(NotLeaderError, match="elsewhere") as caught:
        rig.coalescer.begin()
    assert caught.value.leader == "elsewhere"
    await settle()
    assert (rig.coalescer.waiting, rig.store.batches, rig.log.proposals) == (0, [], [])
    rig.log.where = None
    with pytest.raises(NotLeaderError, match="not known") as caught:
        rig.coalescer.begin()
    assert caught.value.leader is None


@on_loop
async def test_an_entry_is_applied_with_its_index_in_one_batch() -> None:
    rig = make()
    rig.coalescer.apply(entry(1, BASE + 1))
    rig.coalescer.apply(entry(2, BASE + 2, term=4))
    assert rig.written == [[b"k1"], [b"k2"]]
    assert rig.store.batches[1][-1] == (APPLIED, encode_applied(Applied(4, 2)))
    assert (rig.coalescer.applied, rig.coalescer.applied_number) == (Applied(4, 2), BASE + 2)
    assert (rig.seen, rig.coalescer.waiting) == ([1, 2], 0)


@on_loop
async def test_replay_changes_nothing() -> None:
    rig = make()
    entries = [entry(n, BASE + n) for n in (1, 2, 3)]
    for one in [*entries, *entries, entries[0]]:
        rig.coalescer.apply(one)
    assert rig.written == [[b"k1"], [b"k2"], [b"k3"]]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (entry(3, BASE + 2), "1 was the last"),
        (entry(2, BASE + 3), "commit"),
        (entry(2, BASE + 1), "commit"),
        (entry(2, 2 * BASE + 2), "commit"),
        (entry(2, BASE + 2, term=0), "term 0 after 1"),
        (entry(2, BASE + 2, shard=1), "shard 1"),
    ],
)
def test_what_does_not_come_next_is_refused_and_changes_nothing(wrong: Entry, why: str) -> None:
    @on_loop
    async def main() -> None:
        rig = make()
        rig.coalescer.apply(entry(1, BASE + 1))
        with pytest.raises(InvariantError, match=why):
            rig.coalescer.apply(wrong)
        rig.coalescer.apply(entry(2, BASE + 2))
        assert rig.written == [[b"k1"], [b"k2"]]

    main()


@on_loop
async def test_the_position_survives_a_restart() -> None:
    rig = make()
    rig.coalescer.apply(entry(1, BASE + 1, term=5))
    again = make(store=rig.store, first=BASE + 2)
    assert again.coalescer.applied == Applied(5, 1)
    again.coalescer.apply(entry(1, BASE + 1, term=5))
    again.coalescer.apply(entry(2, 3 * BASE + 1, term=6))
    assert again.coalescer.applied == Applied(6, 2)


@on_loop
async def test_a_store_that_refuses_takes_the_entry_later_and_no_second_one() -> None:
    rig = make()
    rig.store.write_errors = [StorageFullError("full"), StoreStalledError("stalled")]
    rig.coalescer.apply(entry(1, BASE + 1))
    assert (rig.written, rig.coalescer.applied) == ([], Applied())
    with pytest.raises(StorageFullError):
        rig.coalescer.apply(entry(2, BASE + 2))
    rig.spawner.fire()
    with pytest.raises(StoreStalledError):
        rig.coalescer.apply(entry(2, BASE + 2))
    rig.spawner.fire()
    rig.coalescer.apply(entry(1, BASE + 1))
    rig.coalescer.apply(entry(2, BASE + 2))
    assert rig.written == [[b"k1"], [b"k2"]]
    assert rig.store.batches[0].count((APPLIED, encode_applied(Applied(1, 1)))) == 1


@on_loop
async def test_a_follower_whose_disk_fails_is_out() -> None:
    rig = make()
    rig.store.write_errors = [StorageError("broken")]
    with pytest.raises(StoragePoisonedError):
        rig.coalescer.apply(entry(1, BASE + 1))
    with pytest.raises(StoragePoisonedError):
        rig.coalescer.apply(entry(1, BASE + 1))
    with pytest.raises(NotLeaderError):  # another replica is to lead
        rig.coalescer.begin()
    assert not rig.coalescer.is_following


@on_loop
async def test_a_follower_syncs_what_it_applies() -> None:
    rig = make(fsync=True)
    rig.coalescer.apply(entry(1, BASE + 1))
    barrier = rig.coalescer.commit_barrier()
    assert barrier is not None
    await barrier
    assert rig.coalescer.durable_number == BASE + 1
    assert rig.coalescer.waiting == 0


@on_loop
async def test_many_entries_are_one_write_with_one_position() -> None:
    rig = make()
    rig.coalescer.apply_many([entry(n, BASE + n) for n in (1, 2, 3)])
    assert rig.written == [[b"k1", b"k2", b"k3"]]
    assert [op for op in rig.store.batches[0] if op[0] == APPLIED] == [
        (APPLIED, encode_applied(Applied(1, 3)))
    ]
    assert (rig.coalescer.applied, rig.coalescer.applied_number) == (Applied(1, 3), BASE + 3)
    assert (rig.seen, rig.coalescer.waiting) == ([3], 0)
    rig.coalescer.apply_many(
        [entry(n, BASE + n, term=2) for n in (2, 3, 4)]
    )  # two are there already
    assert rig.written[1:] == [[b"k4"]]
    rig.coalescer.apply_many([])
    assert (len(rig.written), rig.seen) == (2, [3, 4])


@on_loop
async def test_of_many_entries_a_row_is_written_once_as_the_last_leaves_it() -> None:
    rig = make()
    rig.coalescer.apply_many(
        [
            entry(1, BASE + 1, (b"a", b"1"), (b"b", b"1"), (b"gone", b"1")),
            entry(2, BASE + 2, (b"b", None), (b"a", b"2"), (b"gone", None)),
            entry(3, BASE + 3, (b"b", b"3"), (b"c", b"3")),
        ]
    )
    assert [op for op in rig.store.batches[0] if op[0] != APPLIED] == [
        (b"a", b"2"),
        (b"b", b"3"),
        (b"gone", None),
        (b"c", b"3"),
    ]
    assert rig.coalescer.applied == Applied(1, 3)


@on_loop
async def test_of_many_entries_all_or_none_are_taken() -> None:
    rig = make()
    with pytest.raises(InvariantError, match="2 was the last one taken"):
        rig.coalescer.apply_many([entry(1, BASE + 1), entry(2, BASE + 2), entry(4, BASE + 4)])
    assert (rig.written, rig.coalescer.applied, rig.coalescer.waiting) == ([], Applied(), 0)
    rig.store.write_errors = [StorageFullError("full")]
    rig.coalescer.apply_many([entry(1, BASE + 1), entry(2, BASE + 2)])
    assert (rig.written, rig.coalescer.applied) == ([], Applied())
    with pytest.raises(StorageFullError):
        rig.coalescer.apply_many([entry(3, BASE + 3)])
    rig.spawner.fire()
    assert (rig.written, rig.coalescer.applied) == ([[b"k1", b"k2"]], Applied(1, 2))


@on_loop
async def test_many_entries_answer_whoever_had_proposed_one_of_them() -> None:
    rig = make()
    await rig.lead()
    futures = [rig.put(b"a")]
    await settle()
    number, ops, _ = rig.log.proposals[0]
    rig.coalescer.depose()
    rig.coalescer.apply_many([Entry(0, 1, 2, number, ops), entry(3, 3 * BASE + 1, term=2)])
    assert await asyncio.gather(*futures) == [b"a"]
    assert (rig.written, rig.coalescer.waiting, rig.seen) == ([[b"a", b"k3"]], 0, [3])


# -- what is durable -------------------------------------------------------------------


@on_loop
async def test_an_entry_is_durable_once_a_sync_has_covered_it() -> None:
    rig = make()
    rig.store.is_held = True
    rig.coalescer.apply(entry(1, BASE + 1))
    rig.coalescer.apply_many([entry(2, BASE + 2), entry(3, BASE + 3)])
    assert (rig.coalescer.applied.index, rig.coalescer.durable) == (3, 0)
    synced = rig.coalescer.commit_barrier(is_durable=True)
    assert synced is not None
    rig.coalescer.apply(entry(4, BASE + 4))  # after the sync has begun
    rig.store.release()
    await synced
    assert (rig.coalescer.applied.index, rig.coalescer.durable) == (4, 3)
    again = make(store=rig.store, first=BASE + 5)  # an open syncs what it finds
    assert again.coalescer.durable == 4


@on_loop
async def test_a_failed_sync_makes_nothing_durable() -> None:
    rig = make()
    rig.store.is_held = True
    rig.coalescer.apply(entry(1, BASE + 1))
    synced = rig.coalescer.commit_barrier(is_durable=True)
    assert synced is not None
    rig.store.release(StorageError("broken"))
    assert isinstance(await outcome(synced), StorageError)
    assert rig.coalescer.durable == 0


@on_loop
async def test_a_leader_knows_as_well_what_is_durable_and_keeps_no_list_of_it() -> None:
    rig = make(fsync=True)
    await rig.lead()
    rig.log.is_instant = True
    for n in range(300):
        await rig.put(b"k%d" % n)
    assert rig.coalescer.durable == rig.coalescer.applied.index == 301
    assert not rig.coalescer._unsynced_entries


# -- leading ---------------------------------------------------------------------------


@on_loop
async def test_nobody_is_served_before_memory_is_built() -> None:
    rig = make()
    rig.log.where = "here"
    elected = rig.coalescer.elect(2)
    with pytest.raises(NotLeaderError):
        rig.coalescer.begin()
    await settle()
    ((number, ops, _),) = rig.log.proposals
    assert number == 2 * BASE + 1
    assert [key for key, _ in ops] == [OPEN, ring_key(number)]
    rig.log.commit()
    await elected
    assert decode_open(rig.store.get(OPEN) or b"") == 2
    with pytest.raises(NotLeaderError):
        rig.coalescer.begin()
    with rig.coalescer.loading():
        rig.coalescer.begin()
    rig.coalescer.serve()
    rig.coalescer.begin()
    await settle()
    assert len(rig.log.proposals) == 2


@on_loop
async def test_every_submission_is_proposed_in_order_and_written_when_committed() -> None:
    rig = make()
    await rig.lead()
    futures = [rig.put(b"k%d" % n) for n in range(3)]
    await settle()
    assert [number & 0xFF for number, _, _ in rig.log.proposals] == [2, 3, 4]
    assert APPLIED not in [key for _, ops, _ in rig.log.proposals for key, _ in ops]
    assert (rig.store.batches, rig.store.get(b"k0"), rig.coalescer.overlay.get(b"k0")) == (
        [],
        None,
        b"v",
    )
    assert not any(future.done() for future in futures)
    rig.log.commit(2)
    assert [future.done() for future in futures] == [True, True, False]
    rig.log.commit()
    assert rig.written == [[b"k0"], [b"k1"], [b"k2"]]
    assert decode_applied(rig.store.get(APPLIED) or b"").index == 4
    assert (await asyncio.gather(*futures), rig.coalescer.waiting) == ([b"k0", b"k1", b"k2"], 0)


@on_loop
async def test_a_log_that_commits_inside_the_call() -> None:
    rig = make()
    rig.log.is_instant = True
    await rig.lead()
    assert await asyncio.gather(*(rig.put(b"k%d" % n) for n in range(300)))
    assert rig.written == [[b"k%d" % n] for n in range(300)]
    assert not rig.coalescer.commit_now(rig.coalescer.begin())


@on_loop
async def test_in_fsync_mode_the_answer_follows_the_sync() -> None:
    rig = make(fsync=True)
    await rig.lead()
    rig.store.is_held = True
    future = rig.put(b"k")
    await settle()
    rig.log.commit()
    await settle()
    assert rig.written == [[b"k"]]
    assert not future.done()
    rig.store.release()
    assert await future == b"k"


@on_loop
async def test_a_stalled_store_keeps_the_order_of_what_is_committed() -> None:
    rig = make()
    await rig.lead()
    futures = [rig.put(b"k%d" % n) for n in range(3)]
    await settle()
    rig.store.write_errors = [StoreStalledError("stalled")]
    rig.log.commit(3)
    assert rig.written == []
    rig.spawner.fire()
    assert rig.written == [[b"k0"], [b"k1"], [b"k2"]]
    await asyncio.gather(*futures)


# -- merging ---------------------------------------------------------------------------


def keys(rig: Rig) -> list[list[bytes]]:
    """What is proposed and unanswered, by entry."""
    return [[key for key, _ in ops if key[:2] != b"m/"] for _, ops, _ in rig.log.proposals]


@on_loop
async def test_what_comes_while_a_proposal_is_out_shares_the_next_one() -> None:
    rig = make(batch_max=64)
    await rig.lead()
    futures = [rig.put(b"a"), rig.put(b"b")]
    await settle()
    assert keys(rig) == [[b"a", b"b"]]  # of one tick
    for key in (b"c", b"d", b"e"):
        futures.append(rig.put(key))
        await settle()
    assert keys(rig) == [[b"a", b"b"]]  # however many ticks later
    assert rig.coalescer.overlay.get(b"d") == b"v"
    rig.log.commit()
    await settle()
    assert keys(rig) == [[b"c", b"d", b"e"]]
    rig.log.commit()
    assert await asyncio.gather(*futures) == [b"a", b"b", b"c", b"d", b"e"]
    assert rig.written == [[b"a", b"b"], [b"c", b"d", b"e"]]
    assert (rig.coalescer.waiting, rig.coalescer.stats.submissions) == (0, 6)


@on_loop
async def test_those_whom_an_answer_wakes_are_in_the_entry_that_follows_it() -> None:
    rig = make(batch_max=64)
    await rig.lead()

    async def caller(name: bytes) -> None:
        for n in range(3):
            await rig.put(b"%s%d" % (name, n))

    callers = [asyncio.ensure_future(caller(name)) for name in (b"x", b"y", b"z")]
    for n in range(3):
        await settle()
        assert keys(rig) == [[b"%s%d" % (name, n) for name in (b"x", b"y", b"z")]]
        rig.log.commit()
    await asyncio.gather(*callers)


@on_loop
async def test_a_full_group_goes_at_once_behind_what_is_out() -> None:
    rig = make(batch_max=2)
    await rig.lead()
    futures = [rig.put(b"a")]
    await settle()
    futures += [rig.put(b"%d" % n) for n in range(5)]
    await settle()
    assert keys(rig) == [[b"a"], [b"0", b"1"], [b"2", b"3"]]
    rig.log.commit(2)
    await settle()
    assert keys(rig) == [[b"2", b"3"]]  # the next answer has the last one proposed
    rig.log.commit()
    await settle()
    assert keys(rig) == [[b"4"]]
    rig.log.commit()
    assert len(await asyncio.gather(*futures)) == 6


@on_loop
async def test_bytes_fill_a_group_of_the_log_as_well() -> None:
    rig = make(batch_max=4096)
    await rig.lead()
    rig.put(b"a")
    await settle()
    for n in range(5):
        rig.coalescer.begin(GROUP_BYTES_MAX // 2).ops.append((b"%d" % n, b"v"))
    await settle()
    assert keys(rig) == [[b"a"], [b"0", b"1"], [b"2", b"3"]]


@on_loop
async def test_a_group_that_is_sealed_early_is_not_forgotten() -> None:
    rig = make(batch_max=64)
    await rig.lead()
    rig.put(b"a")
    await settle()
    rig.put(b"b")
    await settle()
    rig.coalescer.seal_full()  # it is not
    await settle()
    assert keys(rig) == [[b"a"]]
    rig.coalescer.seal_full(always=True)
    await settle()
    assert keys(rig) == [[b"a"], [b"b"]]


@on_loop
async def test_counters_are_those_of_the_moment_the_merged_group_is_sealed() -> None:
    rig = make(batch_max=64)
    await rig.lead()
    seqs = rig.coalescer._seq_source
    rig.put(b"a")
    await settle()
    rig.put(b"b")
    await settle()
    seqs.seq = 99
    rig.log.commit()
    await settle()
    ((number, ops, _),) = rig.log.proposals
    assert decode_ring(dict(ops)[ring_key(number)] or b"")[1] == 99


@on_loop
async def test_everybody_in_a_merged_group_gets_the_same_true_answer() -> None:
    for refused in (False, True):
        rig = make(batch_max=64)
        await rig.lead()
        out = [rig.put(b"a"), rig.put(b"b")]
        await settle()
        late = [rig.put(b"c"), rig.put(b"d")]
        await settle()
        if refused:
            rig.log.refuse(NotLeaderError("no", leader="there"))
            kind: type[Exception] = NotLeaderError
        else:
            rig.coalescer.depose()
            kind = CommitUnknownError
        assert [type(await outcome(future)) for future in out] == [kind] * 2
        assert [type(await outcome(future)) for future in late] == [NotLeaderError] * 2
        assert (rig.coalescer.waiting, rig.log.proposals[1:], rig.deposed) == (0, [], [True])


@on_loop
async def test_what_is_held_back_by_a_stalled_store_keeps_nobody_from_proposing() -> None:
    rig = make(batch_max=64)
    await rig.lead()
    first = rig.put(b"a")
    await settle()
    rig.store.write_errors = [StoreStalledError("stalled")]
    late = rig.put(b"b")
    rig.log.commit()
    await settle()
    rig.spawner.fire()
    await settle()
    assert keys(rig) == [[b"b"]]
    rig.log.commit()
    assert await asyncio.gather(first, late) == [b"a", b"b"]


@on_loop
async def test_close_has_what_waits_behind_a_proposal_committed() -> None:
    rig = make(batch_max=64)
    await rig.lead()
    first = rig.put(b"a")
    await settle()
    late = rig.put(b"b")
    drained = asyncio.ensure_future(rig.coalescer.drain())
    await settle()
    rig.log.commit()
    await settle()
    rig.log.commit()
    await drained
    assert await asyncio.gather(first, late) == [b"a", b"b"]


# -- losing ----------------------------------------------------------------------------


@on_loop
async def test_what_was_never_proposed_was_never_written() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"k")
    rig.log.where = "there"
    error = await outcome(future)
    assert isinstance(error, NotLeaderError)
    assert error.leader == "there"
    assert (rig.log.proposals, rig.deposed, rig.coalescer.waiting) == ([], [True], 0)


@on_loop
async def test_what_the_log_has_is_unknown_and_told_at_once() -> None:
    rig = make()
    await rig.lead()
    proposed = rig.put(b"a")
    await settle()
    late = rig.put(b"b")
    rig.log.where = "there"
    rig.coalescer.depose()
    assert isinstance(await outcome(late), NotLeaderError)
    assert isinstance(await outcome(proposed), CommitUnknownError)
    assert rig.coalescer.overlay.get(b"a") is None
    rig.coalescer.depose()
    assert rig.deposed == [True]


@on_loop
async def test_a_refused_burst_is_refused_not_unknown() -> None:
    rig = make()
    await rig.lead()
    futures = [rig.put(b"k%d" % n) for n in range(3)]
    await settle()
    for _ in range(2):
        rig.log.refuse(NotLeaderError("no", leader="there"))
    rig.log.refuse(TimeoutError())
    kinds = [type(await outcome(future)) for future in futures]
    assert kinds == [NotLeaderError, NotLeaderError, CommitUnknownError]
    assert (rig.deposed, rig.written, rig.coalescer.waiting) == ([True], [], 0)


@on_loop
async def test_a_commit_that_is_known_before_the_answer_counts() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"k")
    await settle()
    rig.coalescer.depose()
    rig.log.commit()
    assert await future == b"k"
    assert (rig.written, rig.seen, rig.coalescer.waiting) == ([[b"k"]], [2], 0)


@on_loop
async def test_a_commit_that_is_known_after_the_answer_is_applied() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"k")
    await settle()
    rig.coalescer.depose()
    assert isinstance(await outcome(future), CommitUnknownError)
    rig.log.commit()
    assert (rig.written, rig.seen, rig.coalescer.waiting) == ([[b"k"]], [2], 0)


@on_loop
async def test_a_layer_that_knows_soon_is_waited_for() -> None:
    rig = make(batch_max=2)
    rig.log.definite_s = 2.5
    await rig.lead()
    futures = [rig.put(b"%d" % n) for n in range(8)]
    await settle()
    rig.coalescer.depose()
    late = rig.put_late()
    await settle()
    assert not any(future.done() for future in futures)
    assert isinstance(late, NotLeaderError)
    rig.log.commit()
    rig.log.refuse(NotLeaderError("fenced", leader="there"))
    rig.log.refuse(TimeoutError())
    assert await asyncio.gather(*futures[:2]) == [b"0", b"1"]
    kinds = [type(await outcome(future)) for future in futures[2:6]]
    assert kinds == [NotLeaderError] * 2 + [CommitUnknownError] * 2
    assert not any(future.done() for future in futures[6:])
    assert 2.5 in rig.spawner.armed
    for timer in [timer for timer in rig.spawner.timers if timer.delay_s == 2.5]:
        timer.fire()
    assert [type(await outcome(future)) for future in futures[6:]] == [CommitUnknownError] * 2
    assert (rig.coalescer.waiting, rig.written) == (0, [[b"0", b"1"]])


@on_loop
async def test_what_two_terms_left_unanswered_is_waited_for_in_its_own_time() -> None:
    rig = make(batch_max=64)
    rig.log.definite_s = 1.5
    await rig.lead()
    first = rig.put(b"a")
    await settle()
    rig.coalescer.depose()
    await rig.lead_beside(3)
    second = rig.put(b"b")
    await settle()
    rig.coalescer.depose()
    timers = [timer for timer in rig.spawner.timers if timer.delay_s == 1.5]
    timers[0].fire()
    assert isinstance(await outcome(first), CommitUnknownError)
    await settle()
    assert not second.done()
    timers[-1].fire()
    assert isinstance(await outcome(second), CommitUnknownError)
    assert rig.coalescer.waiting == 0


@on_loop
async def test_close_waits_for_definite_answers_no_longer_than_they_may_take() -> None:
    for is_answered in (True, False):
        rig = make()
        rig.log.definite_s = 1.0
        await rig.lead()
        future = rig.put(b"k")
        await settle()
        rig.coalescer.depose()
        drained = asyncio.ensure_future(rig.coalescer.drain())
        await settle()
        assert not drained.done()
        if is_answered:
            rig.log.commit()
        else:
            rig.spawner.fire()
        await drained
        assert rig.written == ([[b"k"]] if is_answered else [])
        assert (await outcome(future) == b"k") == is_answered
        assert rig.coalescer.durable_number == rig.coalescer.applied_number


@on_loop
async def test_an_entry_of_another_leader_deposes_this_one() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"mine")
    await settle()
    rig.coalescer.apply(entry(2, 3 * BASE + 1, term=2))
    assert isinstance(await outcome(future), CommitUnknownError)
    assert (rig.written, rig.coalescer.is_following) == ([[b"k2"]], True)


@on_loop
async def test_entries_of_earlier_terms_go_before_the_first_of_this_one() -> None:
    rig = make()
    rig.log.where = "here"
    elected = rig.coalescer.elect(2)
    await settle()
    rig.coalescer.apply(entry(1, BASE + 1))
    rig.log.index = 1
    rig.log.commit()
    await elected
    assert (rig.coalescer.applied.index, rig.coalescer.applied_number) == (2, 2 * BASE + 1)


@on_loop
async def test_a_proposal_that_raises_is_answered() -> None:
    rig = make()
    await rig.lead()
    rig.log.error = RuntimeError("no such group")
    assert isinstance(await outcome(rig.put(b"k")), CommitUnknownError)
    assert rig.coalescer.is_following


@on_loop
async def test_answers_out_of_order_poison_the_shard() -> None:
    rig = make()
    await rig.lead()
    futures = [rig.put(b"a"), rig.put(b"b")]
    await settle()
    number, ops, done = rig.log.proposals[1]
    done(Entry(0, 1, 2, number, ops))
    assert [type(await outcome(f)) for f in futures] == [CommitUnknownError] * 2
    assert isinstance(rig.coalescer.failure, CommitUnknownError)
    rig.log.commit()
    assert rig.written == []


@on_loop
async def test_a_second_answer_is_ignored() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"k")
    await settle()
    number, ops, done = rig.log.proposals[0]
    rig.log.commit()
    done(Entry(0, 1, 2, number, ops))
    done(NotLeaderError("late"))
    assert await future == b"k"
    assert (rig.written, rig.deposed) == ([[b"k"]], [])


@on_loop
async def test_a_leader_whose_disk_fails_tells_everybody() -> None:
    rig = make()
    await rig.lead()
    futures = [rig.put(b"a"), rig.put(b"b")]
    await settle()
    late = rig.put(b"c")
    rig.store.write_errors = [StorageError("broken")]
    rig.log.commit()
    assert [type(await outcome(f)) for f in futures] == [CommitUnknownError] * 2
    assert isinstance(await outcome(late), StorageError)
    with pytest.raises(StoragePoisonedError):
        rig.coalescer.begin()
    assert rig.coalescer.waiting == 0


@on_loop
async def test_callers_in_line_for_room_are_not_forgotten() -> None:
    rig = make()
    await rig.lead()
    rig.coalescer.submit_queue_max = 1
    future = rig.put(b"k")
    line = asyncio.ensure_future(rig.coalescer.wait_in_line())
    await settle()
    rig.coalescer.depose()
    await line
    assert isinstance(await outcome(future), CommitUnknownError)


# -- closing ---------------------------------------------------------------------------


@on_loop
async def test_close_waits_for_the_log() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"k")
    drained = asyncio.ensure_future(rig.coalescer.drain())
    await settle()
    assert not drained.done()
    rig.log.commit()
    await drained
    assert await future == b"k"
    assert rig.coalescer.durable_number == rig.coalescer.applied_number
    with pytest.raises(ClosedError):
        rig.coalescer.begin()
    with pytest.raises(ClosedError):
        rig.coalescer.apply(entry(3, 2 * BASE + 3))


@on_loop
async def test_close_does_not_wait_for_ever() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"k")
    drained = asyncio.ensure_future(rig.coalescer.drain())
    await settle()
    rig.spawner.fire()
    await drained
    assert isinstance(await outcome(future), CommitUnknownError)
    rig.log.commit()
    assert rig.written == []


@on_loop
async def test_a_follower_closes_durable() -> None:
    rig = make()
    rig.coalescer.apply(entry(1, BASE + 1))
    await rig.coalescer.drain()
    assert rig.coalescer.durable_number == BASE + 1
    assert isinstance(rig.coalescer.failure, ClosedError)
    assert rig.spawner.armed == []


# -- a store that refuses, while roles change ------------------------------------------


@on_loop
async def test_a_layer_that_fails_in_a_retry_leaves_nobody_waiting() -> None:
    rig = make()
    await rig.lead()
    rig.store.write_errors = [StoreStalledError("stalled")]
    first = rig.put(b"a")
    await settle()
    rig.log.commit()
    late = rig.put(b"b")
    await settle()

    def broken(shard: int) -> bool:
        raise RuntimeError("no such group")

    rig.log.is_leader = broken  # type: ignore[method-assign]
    rig.spawner.fire()
    assert await outcome(first) == b"a"
    assert isinstance(await outcome(late), StorageError)
    assert isinstance(rig.coalescer.failure, CommitUnknownError)


@on_loop
async def test_what_is_committed_goes_before_what_a_new_leader_queues() -> None:
    rig = make()
    await rig.lead()
    futures = [rig.put(b"a"), rig.put(b"b")]
    await settle()
    rig.store.write_errors = [StoreStalledError("stalled")] * 3
    rig.log.commit()
    rig.coalescer.depose()
    rig.log.commit()  # both are committed, and the store takes neither
    rig.log.where = "here"
    again = rig.coalescer.elect(3)
    assert [number for number, _, _ in rig.log.proposals] == []
    rig.coalescer.depose()
    assert isinstance(await outcome(again), NotLeaderError)
    assert rig.coalescer.overlay.get(OPEN) == rig.store.get(OPEN)
    for _ in range(3):
        rig.spawner.fire()
    assert [await outcome(future) for future in futures] == [b"a", b"b"]
    assert (rig.written, rig.coalescer.waiting) == ([[b"a"], [b"b"]], 0)
    await rig.lead(4)
    last = rig.put(b"c")
    await settle()
    rig.log.commit()
    assert await last == b"c"


@on_loop
async def test_what_was_written_before_the_store_refused_again_is_synced() -> None:
    rig = make(fsync=True)
    await rig.lead()
    futures = [rig.put(b"a"), rig.put(b"b")]
    await settle()
    rig.store.write_errors = [StoreStalledError("stalled")]
    rig.log.commit(2)
    write = rig.store.write

    def write_one(ops: Any) -> None:
        write(ops)
        rig.store.write_errors = [StoreStalledError("again")]

    rig.store.write = write_one  # type: ignore[method-assign]
    for timer in [timer for timer in rig.spawner.timers if timer.delay_s < 1]:
        timer.fire()
    await settle()
    assert rig.written == [[b"a"]]
    assert [future.done() for future in futures] == [True, False]


@on_loop
async def test_a_caller_that_comes_while_leadership_ends_is_not_left_in_line() -> None:
    rig = make()
    await rig.lead()
    rig.coalescer.submit_queue_max = 1
    future = rig.put(b"k")
    await settle()
    line = asyncio.ensure_future(rig.coalescer.wait_in_line())
    rig.coalescer.depose()  # before it has had its first turn
    assert isinstance(await outcome(future), CommitUnknownError)
    await line


@on_loop
async def test_closing_over_a_store_that_refuses_tells_what_the_log_has() -> None:
    rig = make()
    await rig.lead()
    rig.store.write_errors = [StorageFullError("full")] * 1000
    future = rig.put(b"k")
    await settle()
    rig.log.commit()
    late = rig.put(b"late")
    drained = asyncio.ensure_future(rig.coalescer.drain())
    while not drained.done():
        await settle()
        for timer in [t for t in rig.spawner.timers if t.delay_s < 1]:
            timer.fire()
    assert isinstance(await outcome(future), CommitUnknownError)
    assert isinstance(await outcome(late), ClosedError | CommitUnknownError)
    assert rig.coalescer.waiting == 0


# -- waiting for those who come back -----------------------------------------------------


def waits(rig: Rig) -> list[float]:
    """Delays of the timers for those who do not come; that of a sync in time is longer."""
    return [delay_s for delay_s in rig.spawner.armed if delay_s < 0.1]


async def one_in_line(rig: Rig, *, answered: int = 2) -> tuple[list[Any], Any]:
    """So many have just had their answer, after 2 ms, and another came meanwhile."""
    await rig.lead()
    back = [rig.put(b"a%d" % at) for at in range(answered)]
    await settle()
    late = rig.put(b"late")
    rig.clock[0] += 0.002
    rig.log.commit()
    await settle()
    return back, late


@on_loop
async def test_who_is_in_line_waits_for_those_just_answered() -> None:
    rig = make(batch_max=64)
    _, late = await one_in_line(rig)
    assert rig.log.proposals == []
    again = [rig.put(b"b0"), rig.put(b"b1")]
    await settle()
    [(_, ops, _)] = rig.log.proposals
    assert [key for key, _ in ops if key[:2] != b"m/"] == [b"late", b"b0", b"b1"]
    rig.log.commit()
    assert await asyncio.gather(late, *again) == [b"late", b"b0", b"b1"]
    assert waits(rig) == []


@on_loop
async def test_a_lone_caller_does_not_wait_for_rows_that_nobody_waited_for() -> None:
    rig = make(batch_max=64)
    await rig.lead()
    first = rig.put(b"a")
    await settle()
    rig.clock[0] += 0.002
    rig.log.commit()
    await first
    group = rig.coalescer.begin_local()
    group.ops.append((b"moved", b""))
    rig.coalescer.commit_local(group)
    second = rig.put(b"b")
    await settle()
    assert len(rig.log.proposals) == 1
    rig.log.commit()
    assert await second == b"b"


@on_loop
async def test_whoever_does_not_come_back_is_not_waited_for_long() -> None:
    rig = make(batch_max=64)
    _, late = await one_in_line(rig)
    assert waits(rig) == [pytest.approx(0.0015)]
    rig.spawner.fire()
    await settle()
    rig.log.commit()
    assert await late == b"late"
    second = rig.put(b"second")  # those of the record before it did not come, either
    await settle()
    assert len(rig.log.proposals) == 1
    rig.log.commit()
    assert await second == b"second"


@on_loop
async def test_a_clock_that_stands_still_holds_nobody_up() -> None:
    rig = make(batch_max=64)
    _, late = await one_in_line(rig)
    rig.clock[0] -= 1.0
    rig.spawner.fire()
    await settle()
    assert len(rig.log.proposals) == 1
    rig.log.commit()
    assert await late == b"late"


@on_loop
async def test_who_waits_for_others_hears_that_leadership_has_ended() -> None:
    rig = make(batch_max=64)
    _, late = await one_in_line(rig)
    rig.log.where = "elsewhere"
    rig.coalescer.depose()
    assert isinstance(await outcome(late), NotLeaderError)
    assert waits(rig) == []


@on_loop
async def test_a_shard_that_fails_lets_nobody_wait_for_others() -> None:
    rig = make(batch_max=64)
    _, late = await one_in_line(rig)
    rig.coalescer.fail(OSError("the disk is gone"))
    assert isinstance(await outcome(late), StoragePoisonedError)
    assert waits(rig) == []


@on_loop
async def test_what_makes_a_record_full_waits_for_nobody() -> None:
    rig = make(batch_max=64)
    await one_in_line(rig)
    group = rig.coalescer.begin(WAIT_BYTES_MAX)
    group.ops.append((b"large", b""))
    await settle()
    assert rig.log.proposals
    assert waits(rig) == []


@on_loop
async def test_who_comes_with_those_answered_is_held_up_by_none_that_is_missing() -> None:
    rig = make(batch_max=2)  # several groups: 20 of them are waited for, and 18 come
    await rig.lead()
    first = [rig.put(b"a%d" % at) for at in range(20)]
    await settle()
    late = rig.put(b"late")
    rig.clock[0] += 0.002
    rig.log.commit(10)
    await asyncio.gather(*first)
    await settle()
    assert rig.log.proposals == []
    again = [rig.put(b"b%d" % at) for at in range(18)]
    await settle()
    assert len(rig.log.proposals) == 9  # the tenth has room, and waits for an answer as ever
    assert waits(rig) == []
    rig.log.commit(9)
    await late
    await settle()
    rig.spawner.fire()
    await settle()
    rig.log.commit()
    assert await again[-1] == b"b17"


@on_loop
async def test_a_close_does_not_lose_who_waits_for_others() -> None:
    rig = make(batch_max=64)
    _, late = await one_in_line(rig)
    closing = asyncio.ensure_future(rig.coalescer.drain())
    await settle()
    for timer in rig.spawner.timers:
        if not timer.is_over and timer.delay_s < 0.1:  # the others are bounds of the close
            timer.fire()
    await settle()
    rig.log.commit(len(rig.log.proposals))
    assert await late == b"late"
    await closing
