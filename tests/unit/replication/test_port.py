"""The commit loop behind a replicated log: order, roles, answers, replay, refusals, close."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from support_loop import FaultyStore, ManualSpawner, Seq, on_loop, settle

from lodeq.coalescer.replicated import ReplicatedCoalescer
from lodeq.coalescer.sync import Syncer
from lodeq.engine.records.keyspace import APPLIED, OPEN, ring_key
from lodeq.engine.records.rows import Applied, decode_applied, decode_open, encode_applied
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
from lodeq.replication.port import Done, Entry

BASE = 1 << 40


@dataclass
class Script:
    """A replication layer that does what the test says, one proposal at a time."""

    where: str | None = "elsewhere"
    proposals: list[tuple[int, tuple[Op, ...], Done]] = field(default_factory=list)
    index: int = 0
    error: Exception | None = None
    is_instant: bool = False

    def attach(self, replica: Any) -> None:
        raise AssertionError("not at this level")

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
    co: ReplicatedCoalescer
    seen: list[int]
    deposed: list[bool]

    async def lead(self, incarnation: int = 2) -> None:
        self.log.where = "here"
        future = self.co.elect(incarnation)
        await settle()
        if self.log.proposals:
            self.log.commit()
        await future
        self.co.serve()
        self.store.batches.clear()

    def put(self, key: bytes) -> Any:
        group = self.co.begin()
        group.ops.append((key, b"v"))
        return self.co.wait(group, key)

    @property
    def written(self) -> list[list[bytes]]:
        return [[key for key, _ in batch if key[:2] != b"m/"] for batch in self.store.batches]


def make(*, fsync: bool = False, store: FaultyStore | None = None, first: int = BASE + 1) -> Rig:
    store, spawner, log = store or FaultyStore(), ManualSpawner(), Script()
    seen: list[int] = []
    deposed: list[bool] = []
    syncer = Syncer(
        store, spawner, first_number=first, interval_s=1.0, write_watermark=lambda number: None
    )
    co = ReplicatedCoalescer(
        store,
        spawner,
        shard=0,
        first_number=first,
        seq_source=Seq(7),
        syncer=syncer,
        is_fsync=fsync,
        submit_queue_max=1024,
        tick_work=None,
        on_writes_end=lambda: None,
        replicator=log,
        on_entry=lambda entry: seen.append(entry.index),
        on_deposed=lambda: deposed.append(True),
    )
    return Rig(store, spawner, log, co, seen, deposed)


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
        rig.co.begin()
    assert caught.value.leader == "elsewhere"
    await settle()
    assert (rig.co.waiting, rig.store.batches, rig.log.proposals) == (0, [], [])
    rig.log.where = None
    with pytest.raises(NotLeaderError, match="not known") as caught:
        rig.co.begin()
    assert caught.value.leader is None


@on_loop
async def test_an_entry_is_applied_with_its_index_in_one_batch() -> None:
    rig = make()
    rig.co.apply(entry(1, BASE + 1))
    rig.co.apply(entry(2, BASE + 2, term=4))
    assert rig.written == [[b"k1"], [b"k2"]]
    assert rig.store.batches[1][-1] == (APPLIED, encode_applied(Applied(4, 2)))
    assert (rig.co.applied, rig.co.applied_number) == (Applied(4, 2), BASE + 2)
    assert (rig.seen, rig.co.waiting) == ([1, 2], 0)


@on_loop
async def test_replay_changes_nothing() -> None:
    rig = make()
    entries = [entry(n, BASE + n) for n in (1, 2, 3)]
    for one in [*entries, *entries, entries[0]]:
        rig.co.apply(one)
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
        rig.co.apply(entry(1, BASE + 1))
        with pytest.raises(InvariantError, match=why):
            rig.co.apply(wrong)
        rig.co.apply(entry(2, BASE + 2))
        assert rig.written == [[b"k1"], [b"k2"]]

    main()


@on_loop
async def test_the_position_survives_a_restart() -> None:
    rig = make()
    rig.co.apply(entry(1, BASE + 1, term=5))
    again = make(store=rig.store, first=BASE + 2)
    assert again.co.applied == Applied(5, 1)
    again.co.apply(entry(1, BASE + 1, term=5))
    again.co.apply(entry(2, 3 * BASE + 1, term=6))
    assert again.co.applied == Applied(6, 2)


@on_loop
async def test_a_store_that_refuses_takes_the_entry_later_and_no_second_one() -> None:
    rig = make()
    rig.store.write_errors = [StorageFullError("full"), StoreStalledError("stalled")]
    rig.co.apply(entry(1, BASE + 1))
    assert (rig.written, rig.co.applied) == ([], Applied())
    with pytest.raises(StorageFullError):
        rig.co.apply(entry(2, BASE + 2))
    rig.spawner.fire()
    with pytest.raises(StoreStalledError):
        rig.co.apply(entry(2, BASE + 2))
    rig.spawner.fire()
    rig.co.apply(entry(1, BASE + 1))
    rig.co.apply(entry(2, BASE + 2))
    assert rig.written == [[b"k1"], [b"k2"]]
    assert rig.store.batches[0].count((APPLIED, encode_applied(Applied(1, 1)))) == 1


@on_loop
async def test_a_follower_whose_disk_fails_is_out() -> None:
    rig = make()
    rig.store.write_errors = [StorageError("broken")]
    with pytest.raises(StoragePoisonedError):
        rig.co.apply(entry(1, BASE + 1))
    with pytest.raises(StoragePoisonedError):
        rig.co.apply(entry(1, BASE + 1))
    with pytest.raises(StoragePoisonedError):
        rig.co.begin()
    assert not rig.co.is_following


@on_loop
async def test_a_follower_syncs_what_it_applies() -> None:
    rig = make(fsync=True)
    rig.co.apply(entry(1, BASE + 1))
    barrier = rig.co.commit_barrier()
    assert barrier is not None
    await barrier
    assert rig.co.durable_number == BASE + 1
    assert rig.co.waiting == 0


# -- leading ---------------------------------------------------------------------------


@on_loop
async def test_nobody_is_served_before_memory_is_built() -> None:
    rig = make()
    rig.log.where = "here"
    elected = rig.co.elect(2)
    with pytest.raises(NotLeaderError):
        rig.co.begin()
    await settle()
    ((number, ops, _),) = rig.log.proposals
    assert number == 2 * BASE + 1
    assert [key for key, _ in ops] == [OPEN, ring_key(number)]
    rig.log.commit()
    await elected
    assert decode_open(rig.store.get(OPEN) or b"") == 2
    with pytest.raises(NotLeaderError):
        rig.co.begin()
    with rig.co.loading():
        rig.co.begin()
    rig.co.serve()
    rig.co.begin()
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
    assert (rig.store.batches, rig.store.get(b"k0"), rig.co.overlay.get(b"k0")) == ([], None, b"v")
    assert not any(future.done() for future in futures)
    rig.log.commit(2)
    assert [future.done() for future in futures] == [True, True, False]
    rig.log.commit()
    assert rig.written == [[b"k0"], [b"k1"], [b"k2"]]
    assert decode_applied(rig.store.get(APPLIED) or b"").index == 4
    assert (await asyncio.gather(*futures), rig.co.waiting) == ([b"k0", b"k1", b"k2"], 0)


@on_loop
async def test_a_log_that_commits_inside_the_call() -> None:
    rig = make()
    rig.log.is_instant = True
    await rig.lead()
    assert await asyncio.gather(*(rig.put(b"k%d" % n) for n in range(300)))
    assert rig.written == [[b"k%d" % n] for n in range(300)]
    assert not rig.co.commit_now(rig.co.begin())


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
    assert (rig.log.proposals, rig.deposed, rig.co.waiting) == ([], [True], 0)


@on_loop
async def test_what_the_log_has_is_unknown_and_told_at_once() -> None:
    rig = make()
    await rig.lead()
    proposed = rig.put(b"a")
    await settle()
    late = rig.put(b"b")
    rig.log.where = "there"
    rig.co.depose()
    assert isinstance(await outcome(late), NotLeaderError)
    assert isinstance(await outcome(proposed), CommitUnknownError)
    assert rig.co.overlay.get(b"a") is None
    rig.co.depose()
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
    assert (rig.deposed, rig.written, rig.co.waiting) == ([True], [], 0)


@on_loop
async def test_a_commit_that_is_known_before_the_answer_counts() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"k")
    await settle()
    rig.co.depose()
    rig.log.commit()
    assert await future == b"k"
    assert (rig.written, rig.seen, rig.co.waiting) == ([[b"k"]], [2], 0)


@on_loop
async def test_a_commit_that_is_known_after_the_answer_is_applied() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"k")
    await settle()
    rig.co.depose()
    assert isinstance(await outcome(future), CommitUnknownError)
    rig.log.commit()
    assert (rig.written, rig.seen, rig.co.waiting) == ([[b"k"]], [2], 0)


@on_loop
async def test_an_entry_of_another_leader_deposes_this_one() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"mine")
    await settle()
    rig.co.apply(entry(2, 3 * BASE + 1, term=2))
    assert isinstance(await outcome(future), CommitUnknownError)
    assert (rig.written, rig.co.is_following) == ([[b"k2"]], True)


@on_loop
async def test_entries_of_earlier_terms_go_before_the_first_of_this_one() -> None:
    rig = make()
    rig.log.where = "here"
    elected = rig.co.elect(2)
    await settle()
    rig.co.apply(entry(1, BASE + 1))
    rig.log.index = 1
    rig.log.commit()
    await elected
    assert (rig.co.applied.index, rig.co.applied_number) == (2, 2 * BASE + 1)


@on_loop
async def test_a_proposal_that_raises_is_answered() -> None:
    rig = make()
    await rig.lead()
    rig.log.error = RuntimeError("no such group")
    assert isinstance(await outcome(rig.put(b"k")), CommitUnknownError)
    assert rig.co.is_following


@on_loop
async def test_answers_out_of_order_poison_the_shard() -> None:
    rig = make()
    await rig.lead()
    futures = [rig.put(b"a"), rig.put(b"b")]
    await settle()
    number, ops, done = rig.log.proposals[1]
    done(Entry(0, 1, 2, number, ops))
    assert [type(await outcome(f)) for f in futures] == [CommitUnknownError] * 2
    assert isinstance(rig.co.failure, CommitUnknownError)
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
        rig.co.begin()
    assert rig.co.waiting == 0


@on_loop
async def test_callers_in_line_for_room_are_not_forgotten() -> None:
    rig = make()
    await rig.lead()
    rig.co.submit_queue_max = 1
    future = rig.put(b"k")
    line = asyncio.ensure_future(rig.co.wait_in_line())
    await settle()
    rig.co.depose()
    await line
    assert isinstance(await outcome(future), CommitUnknownError)


# -- closing ---------------------------------------------------------------------------


@on_loop
async def test_close_waits_for_the_log() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"k")
    drained = asyncio.ensure_future(rig.co.drain())
    await settle()
    assert not drained.done()
    rig.log.commit()
    await drained
    assert await future == b"k"
    assert rig.co.durable_number == rig.co.applied_number
    with pytest.raises(ClosedError):
        rig.co.begin()
    with pytest.raises(ClosedError):
        rig.co.apply(entry(3, 2 * BASE + 3))


@on_loop
async def test_close_does_not_wait_for_ever() -> None:
    rig = make()
    await rig.lead()
    future = rig.put(b"k")
    drained = asyncio.ensure_future(rig.co.drain())
    await settle()
    rig.spawner.fire()
    await drained
    assert isinstance(await outcome(future), CommitUnknownError)
    rig.log.commit()
    assert rig.written == []


@on_loop
async def test_a_follower_closes_durable() -> None:
    rig = make()
    rig.co.apply(entry(1, BASE + 1))
    await rig.co.drain()
    assert rig.co.durable_number == BASE + 1
    assert isinstance(rig.co.failure, ClosedError)
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
    assert isinstance(rig.co.failure, CommitUnknownError)


@on_loop
async def test_what_is_committed_goes_before_what_a_new_leader_queues() -> None:
    rig = make()
    await rig.lead()
    futures = [rig.put(b"a"), rig.put(b"b")]
    await settle()
    rig.store.write_errors = [StoreStalledError("stalled")] * 3
    rig.log.commit()
    rig.co.depose()
    rig.log.commit()  # both are committed, and the store takes neither
    rig.log.where = "here"
    again = rig.co.elect(3)
    assert [number for number, _, _ in rig.log.proposals] == []
    rig.co.depose()
    assert isinstance(await outcome(again), NotLeaderError)
    assert rig.co.overlay.get(OPEN) == rig.store.get(OPEN)
    for _ in range(3):
        rig.spawner.fire()
    assert [await outcome(future) for future in futures] == [b"a", b"b"]
    assert (rig.written, rig.co.waiting) == ([[b"a"], [b"b"]], 0)
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
    rig.co.submit_queue_max = 1
    future = rig.put(b"k")
    await settle()
    line = asyncio.ensure_future(rig.co.wait_in_line())
    rig.co.depose()  # before it has had its first turn
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
    drained = asyncio.ensure_future(rig.co.drain())
    while not drained.done():
        await settle()
        for timer in [t for t in rig.spawner.timers if t.delay_s < 1]:
            timer.fire()
    assert isinstance(await outcome(future), CommitUnknownError)
    assert isinstance(await outcome(late), ClosedError | CommitUnknownError)
    assert rig.co.waiting == 0
