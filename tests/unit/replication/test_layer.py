"""Parts of the replication layer: cut records, the line of nodes, floors, the note."""

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_behaviour import StillClock

from lodeq.errors import CorruptionError, RecordCorruptError
from lodeq.replication.fragments import Head, cut_record, join_fragments, read_stored
from lodeq.replication.members import Members, in_line
from lodeq.replication.node import Node
from lodeq.replication.options import LogOptions
from lodeq.replication.port import NO_COPY, Checkpoint, Member, Placement, ShardState
from lodeq.replication.record import Batch, LogRecord
from lodeq.replication.replica_note import NOTE, ReplicaNote, read_note, write_note
from lodeq.replication.truncation import LogBytes, floor_of
from lodeq.replication.waiting import Waiting

# -- fragments ---------------------------------------------------------------------------


def record(size: int, first: int = 1) -> LogRecord:
    ops = ((b"k", b"\x00" * size), (b"gone", None))
    return LogRecord(bytes(16), 3, 7, first, (Batch(1 << 40, ops), Batch(2 << 40, ((b"x", b""),))))


@given(st.integers(0, 3000), st.integers(64, 900))
def test_a_record_that_was_cut_is_the_same_put_together(size, bytes_max):
    whole = record(size)
    stored, fragments = cut_record(whole, bytes_max)
    assert all(len(part) <= bytes_max for part in (stored, *fragments))
    found = read_stored(stored)
    if fragments:
        assert isinstance(found, Head)
        assert (found.first, found.last, found.fragments) == (1, 2, len(fragments))
        assert join_fragments(found, fragments) == whole
    else:
        assert found == whole


def test_fragments_that_are_not_those_of_the_head_are_damage():
    stored, fragments = cut_record(record(500), 100)
    other = cut_record(record(500, first=9), 100)
    head = read_stored(stored)
    assert isinstance(head, Head)
    for wrong in (fragments[:-1], fragments[::-1], other.fragments, (*fragments, b"x"), ()):
        with pytest.raises(RecordCorruptError):
            join_fragments(head, wrong)


def test_every_flipped_bit_of_a_head_is_damage():
    stored, _ = cut_record(record(500), 100)
    for at in range(len(stored) * 8):
        bad = bytearray(stored)
        bad[at // 8] ^= 1 << at % 8
        with pytest.raises(RecordCorruptError):
            read_stored(bytes(bad))


# -- members -----------------------------------------------------------------------------


def test_a_node_that_goes_moves_nothing_but_what_it_led():
    names = ["a", "b", "c", "d"]
    for shard in range(64):
        line = in_line(shard, names)
        assert sorted(line) == names
        assert in_line(shard, names[1:]) == [name for name in line if name != "a"]
    firsts = [in_line(shard, names)[0] for shard in range(400)]
    assert min(firsts.count(name) for name in names) > 60


def members_at(clock: StillClock, **ahead_ms: int) -> Members:
    members = Members("me", clock)
    own = clock.wall_us() // 1000
    members.see([Member(name, clock_ms=own + ms) for name, ms in ahead_ms.items()])
    return members


def test_of_two_clocks_nobody_can_say_which_is_wrong():
    assert members_at(StillClock(), other=3_600_000).skew_ms() == 0


def test_the_clock_that_differs_from_the_median_is_wrong():
    clock = StillClock()
    members = members_at(clock, me=0, b=10, c=-10)
    assert abs(members.skew_ms()) <= 1
    assert abs(members_at(clock, b=10, c=3_600_000).skew_ms() + 10) <= 1
    clock.step_wall(3600)
    assert members.skew_ms() == pytest.approx(3_600_000, abs=20)
    clock.step_wall(-7200)
    assert members.skew_ms() == pytest.approx(-3_600_000, abs=20)


def test_late_news_of_a_clock_does_not_make_it_late():
    clock = StillClock()
    members = members_at(clock, b=0, c=0)
    told = clock.wall_us() // 1000 + 1
    clock.jump(2)
    members.see([Member("b", clock_ms=told), Member("c", clock_ms=told)])
    assert abs(members.skew_ms()) <= 1


def test_a_first_report_may_be_of_any_age():
    clock = StillClock()
    node = Node(
        "me", None, None, Waiting(None, clock), LogOptions(), None, Members("me", clock), None, ()
    )
    told = clock.wall_us() // 1000
    clock.jump(0.8)
    node.members.see([Member("b", clock_ms=told), Member("c", clock_ms=told)])
    assert not node.check_clock()
    assert not node.problems  # it leads nothing yet; an operator has nothing to put right
    node.members.see([Member("b", clock_ms=told + 810), Member("c", clock_ms=told + 800)])
    assert node.check_clock()
    clock.step_wall(3600)
    assert not node.check_clock()
    assert "differs by +3599990 ms" in node.problems["clock"]


def test_a_clock_is_wrong_only_if_late_news_does_not_explain_it():
    """A node that polls sees each report at its next look, always as late."""
    clock = StillClock()
    node = Node(
        "me", None, None, Waiting(None, clock), LogOptions(), None, Members("me", clock), None, ()
    )

    def look(late_s: float) -> None:
        """One look, two seconds after the last, at reports that were made so long before it."""
        clock.jump(2 - late_s)
        told = clock.wall_us() // 1000 - node_ahead_ms
        clock.jump(late_s)
        node.members.see([Member("b", clock_ms=told), Member("c", clock_ms=told)])

    node_ahead_ms = 0
    for _ in range(20):
        look(late_s=0.8)
        assert not node.check_clock()
        assert not node.problems
    look(late_s=0)
    assert node.check_clock()
    node_ahead_ms = 3_600_000
    for _ in range(10):
        look(late_s=0.8)
    assert not node.check_clock()
    assert "differs by +3600800 ms" in node.problems["clock"]


def test_where_shards_are_placed_their_copies_are_in_line_and_nobody_else():
    clock = StillClock()
    members = members_at(clock, a=0, b=0, c=0)
    assert members.rank(0) is not None
    members.placements = {0: Placement(0, ("b", "me", "a")), 1: Placement(1, ("a", "b"))}
    assert members.line(0, {"a", "b", "c"}) == ["b", "a"]
    assert members.rank(0) == 1
    assert members.rank(0, gone={"b"}) == 0
    assert members.rank(1) is None
    assert members.rank(2) is None


# -- truncation --------------------------------------------------------------------------


def floor(
    *,
    durable: dict[str, int],
    reached: dict[str, int],
    last: int = 100,
    copies_min: int = 2,
    entries_max: int = 1000,
    first_kept: int = 0,
    more: Sequence[Member] = (),
) -> int:
    return floor_of(
        ShardState(0, "a", 1, last, floor=3),
        [*more, *(Member(n, applied=(at,), durable=(at,)) for n, at in durable.items())],
        [Checkpoint(name, "", "", (index,)) for name, index in reached.items()],
        copies_min=copies_min,
        entries_max=entries_max,
        first_kept=first_kept,
    )


ALL = {"a": 90, "b": 80, "c": 70}


def test_a_floor_is_behind_what_two_live_nodes_can_restore():
    assert floor(durable=ALL, reached={}) == 3
    assert floor(durable=ALL, reached={"a": 50}) == 3
    assert floor(durable=ALL, reached={"a": 50, "b": 40}) == 41
    assert floor(durable=ALL, reached={"a": 50, "b": 40, "c": 45}) == 46
    assert floor(durable=ALL, reached={"a": 50, "gone": 40}) == 3


def test_a_floor_leaves_what_is_not_durable_everywhere():
    assert floor(durable=ALL, reached={"a": 99, "b": 99}) == 71
    assert floor(durable={"a": 90, "b": 0}, reached={"a": 99, "b": 99}) == 3


def test_who_is_too_far_behind_is_left_to_a_restore():
    far = {"a": 90, "b": 0}
    assert floor(durable=far, reached={"a": 99, "b": 99}, entries_max=20) == 81
    assert floor(durable=far, reached={"a": 40, "b": 50}, entries_max=20) == 41


def test_who_is_too_many_bytes_behind_is_left_to_a_restore():
    far = {"a": 90, "b": 0}
    assert floor(durable=far, reached={"a": 99, "b": 99}, first_kept=61) == 61
    assert floor(durable=far, reached={"a": 40, "b": 50}, first_kept=61) == 41
    counted = LogBytes(10 << 20)
    for index in range(1, 11):
        counted.add(index, 1 << 20)
    assert counted.first_kept == 0
    counted.add(11, 1 << 20)
    assert counted.first_kept == 2
    for index in range(12, 10_000):
        counted.add(index, 100_000)
        below = (index - counted.first_kept + 1) * 100_000
        assert index < 200 or 10 << 20 <= below < 12 << 20
    assert len(counted._marks) <= 13


def test_only_nodes_that_have_a_copy_count():
    some = {"a": 90, "b": 80, "c": NO_COPY}
    assert floor(durable=some, reached={"a": 50, "b": 40, "c": NO_COPY}) == 41
    assert floor(durable=some, reached={"a": 50, "b": 40, "c": 60}) == 41  # of one it had before
    assert floor(durable={"a": 90, "c": NO_COPY}, reached={"a": 50, "c": NO_COPY}) == 3
    making = [Member("c", applied=(NO_COPY,), durable=(20,))]
    assert floor(durable={"a": 90, "b": 80}, reached={"a": 50, "b": 40}, more=making) == 21


def test_one_live_copy_truncates_only_where_that_is_allowed():
    assert floor(durable={"a": 90}, reached={"a": 50}) == 3
    assert floor(durable={"a": 90}, reached={"a": 50}, copies_min=1) == 51


def test_the_floors_of_all_shards_are_reached_by_the_same_checkpoints():
    """A checkpoint is restored as a whole."""
    live = [Member(name, durable=(90, 90)) for name in "ab"]
    given = [Checkpoint("a", "", "", (50, 10)), Checkpoint("b", "", "", (30, 40))]

    def floors(checkpoints, start):
        states = [ShardState(shard, "a", 1, 100, floor=at) for shard, at in enumerate(start)]
        return [
            floor_of(one, live, checkpoints, copies_min=1, entries_max=1000, floors=start)
            for one in states
        ]

    assert floors(given[:1], [1, 1]) == [51, 11]
    assert floors(given, [1, 1]) == [31, 41]
    assert floors(given, [51, 11]) == [51, 11]  # what the second has cannot be restored any more
    assert floors([given[1], Checkpoint("a", "", "", (60, 45))], [51, 11]) == [61, 46]


# -- the note ----------------------------------------------------------------------------


def test_a_note_comes_back_and_damage_is_told(tmp_path):
    root = str(tmp_path)
    assert read_note(root) is None
    note = ReplicaNote("lodeq", "a", 4, bytes(range(16)), 17, 1 << 63)
    write_note(root, note)
    assert read_note(root) == note
    some = replace(note, hosted=(0, 3), later=((1 << 63, 8), (5, 9)))
    write_note(root, some)
    assert read_note(root) == some
    write_note(root, note)
    path = os.path.join(root, NOTE)
    with open(path, "rb") as file:
        raw = file.read()
    for bad in (raw.replace(b'"shards": 4', b'"shards": 5'), raw[:-9], b"", b"[]", b"{}"):
        with open(path, "wb") as file:
            file.write(bad)
        with pytest.raises(CorruptionError, match="damaged"):
            read_note(root)
