"""Ranges that cannot be read: found by few probes, remembered, stepped behind."""

import gc
import random

import pytest

from lodeq.coalescer.overlay import Overlay
from lodeq.coalescer.unreadable import MIRROR_ROWS_MAX, PROBES_MAX, Unreadable
from lodeq.engine.store.memory import MemoryStore
from lodeq.errors import CorruptionError, StorageError

TOP = b"q/\x05"


def key(seq, family=b"q/\x04"):
    return family + seq.to_bytes(8, "big") + (seq * 7919 % 251).to_bytes(16, "big")


def block(keys, first, last):
    """What a table's index says of a block with these keys: up to its last one, or to the end."""
    return keys[first], keys[last - 1] + b"\0" if last < len(keys) else TOP


class Rotten:
    """A store of which some blocks fail every scan that touches them."""

    def __init__(self, keys, *damage):
        self.inner = MemoryStore()
        self.inner.write([(k, b"v") for k in keys])
        self.damage = list(damage)
        self.failed = self.calls = 0

    def scan(self, lower, upper, limit):
        self.calls += 1
        rows = self.inner.scan(lower, upper, limit)
        last = rows[-1][0] if len(rows) == limit else upper
        for low, high in self.damage:
            if low <= last and lower < high and low < upper:
                self.failed += 1
                raise CorruptionError(f"block checksum mismatch: offset {low!r}")
        return rows

    def get(self, key):
        return self.inner.get(key)

    def scan_part(self, lower, upper, limit):
        rows = self.scan(lower, upper, limit)
        return rows, rows[-1][0] + b"\0" if len(rows) == limit else None

    def scan_last(self, lower, upper):
        self.calls += 1
        row = self.inner.scan_last(lower, upper)
        if row is not None and any(low <= row[0] < high for low, high in self.damage):
            self.failed += 1
            raise CorruptionError("block checksum mismatch")
        return row

    def write(self, ops):
        self.inner.write(ops)


def walk(overlay, lower=b"q/\x04", upper=TOP, limit=50):
    found, at = [], lower
    for _ in range(10_000):
        rows, at = overlay.scan_readable(at, upper, limit)
        found += [k for k, _ in rows]
        if at is None:
            return found
    raise AssertionError("it never ended")


def overlay_of(store):
    return Overlay(store, lambda: ())


@pytest.mark.parametrize("step", [1, 1000, 3_600_000_000])  # µs between two tasks
@pytest.mark.parametrize(("first", "last"), [(0, 40), (200, 330), (960, 1000), (500, 501)])
def test_all_rows_but_those_of_a_damaged_block_are_found(step, first, last):
    start = 1_700_000_000_000_000
    keys = [key(start + n * step) for n in range(1000)]
    store = Rotten(keys, block(keys, first, last))
    overlay = overlay_of(store)
    assert walk(overlay) == keys[:first] + keys[last:]
    failed, calls = store.failed, store.calls
    assert failed <= PROBES_MAX
    assert overlay.unreadable.starts() in ([keys[first - 1] + b"\0"], [b"q/\x04"])
    assert walk(overlay) == keys[:first] + keys[last:]
    assert store.failed - failed <= 8  # at most to find the last row before it; no probe behind
    assert store.calls - calls <= 60


def test_no_call_probes_more_often_than_it_may():
    keys = [key(10**15 + n * 1000) for n in range(2000)]
    store = Rotten(keys, *(block(keys, n, n + 20) for n in range(100, 1900, 100)))
    overlay = overlay_of(store)
    found, at = [], b"q/\x04"
    for _ in range(200):
        before = store.calls
        rows, at = overlay.scan_readable(at, TOP, 512)
        found += [k for k, _ in rows]
        assert store.calls - before <= PROBES_MAX + 12  # and the scans between them
        if at is None:
            break
    damaged = {k for n in range(100, 1900, 100) for k in keys[n : n + 20]}
    assert found == [k for k in keys if k not in damaged]


def test_a_part_of_a_call_does_not_get_probes_of_its_own():
    keys = [key(10**15 + n * 1000) for n in range(600)]
    store = Rotten(keys, *(block(keys, n, n + 20) for n in range(50, 550, 50)))
    overlay = overlay_of(store)
    rows, at = overlay.scan_readable(b"q/\x04", TOP, 64, renew=False)
    while at is not None and rows:
        rows, at = overlay.scan_readable(at, TOP, 64, renew=False)
    assert store.failed <= PROBES_MAX
    assert at is not None  # the other ranges are for the next calls
    assert overlay.scan_readable(at, TOP, 64, renew=True)[0]


@pytest.mark.parametrize("seed", range(30))
def test_several_damaged_blocks_hide_what_is_in_them(seed):
    rng = random.Random(seed)
    seqs = sorted(rng.sample(range(10**15, 10**15 + 10 ** rng.randint(4, 11)), 2000))
    keys = [key(seq) for seq in seqs]
    firsts = [n + rng.randint(0, 100) for n in (0, 500, 1000, 1500)]
    damage = [block(keys, n, n + rng.randint(30, 150)) for n in firsts]
    overlay = overlay_of(Rotten(keys, *damage))
    found = walk(overlay, limit=512)
    assert found == [k for k in keys if not any(a <= k < b for a, b in damage)]


@pytest.mark.parametrize("seed", range(30))
def test_what_is_not_found_lies_in_a_range_that_is_known(seed):
    """Where blocks lie close together the probes may take them for one: never more than that."""
    rng = random.Random(seed)
    keys = [key(seq) for seq in sorted(rng.sample(range(10**15, 10**15 + 10**6), 600))]
    cuts = sorted(rng.sample(range(len(keys)), 8))
    damage = [block(keys, a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    overlay = overlay_of(Rotten(keys, *damage))
    found = walk(overlay, limit=rng.choice([1, 7, 64, 512]))
    readable = [k for k in keys if not any(a <= k < b for a, b in damage)]
    missing = set(readable) - set(found)
    assert found == [k for k in readable if k not in missing]
    assert all(overlay.unreadable.hides(k) for k in missing)


def test_what_is_written_into_a_known_range_is_found():
    keys = [key(10**15 + n) for n in range(100)]
    store = Rotten(keys, (keys[60], TOP))
    overlay = overlay_of(store)
    assert walk(overlay) == keys[:60]
    fresh = key(10**15 + 10**9)
    for ops in ([(fresh, b"new"), (b"t/x", b"elsewhere")], [(key(10**15 + 10**8), b"old")]):
        store.write(ops)
        overlay.unreadable.applied(ops)
    assert walk(overlay)[60:] == [key(10**15 + 10**8), fresh]
    assert walk(overlay, limit=1)[60:] == [key(10**15 + 10**8), fresh]
    overlay.unreadable.applied([(fresh, None), (fresh, None)])
    assert walk(overlay)[60:] == [key(10**15 + 10**8)]


def test_the_mirror_is_bounded_and_says_what_it_dropped(monkeypatch):
    monkeypatch.setattr("lodeq.coalescer.unreadable.MIRROR_ROWS_MAX", 3)
    store = Rotten([key(1)], (key(1), TOP))
    overlay = overlay_of(store)
    assert walk(overlay) == []
    overlay.unreadable.applied([(key(n), b"v") for n in range(2, 7)])
    assert walk(overlay) == [key(n) for n in (2, 3, 4)]
    assert overlay.unreadable.dropped == 2
    assert MIRROR_ROWS_MAX > 3


def test_ranges_that_touch_are_one():
    keys = [key(n, b"q/\x04") for n in range(50)]
    store = Rotten(keys, (keys[20], b"r"))
    overlay = overlay_of(store)
    for priority in range(4, 9):
        lower = b"q/" + bytes((priority,))
        walk(overlay, lower + b"\0", b"q/" + bytes((priority + 1,)))
    assert len(overlay.unreadable.starts()) == 1
    assert overlay.unreadable.overlaps(b"q/\x07", b"q/\x08")
    assert not overlay.unreadable.overlaps(b"q/\x03", b"q/\x04")


def test_only_damage_is_stepped_behind():
    class Gone(Rotten):
        def scan(self, lower, upper, limit):
            raise StorageError("the disk is gone")

    overlay = overlay_of(Gone([]))
    with pytest.raises(StorageError):
        overlay.scan_readable(b"a", b"b", 1)
    assert overlay.unreadable is None


def test_a_plain_scan_still_raises():
    store = Rotten([key(n) for n in range(9)], (key(3), key(4) + b"\0"))
    overlay = overlay_of(store)
    with pytest.raises(CorruptionError):
        overlay.scan(b"q/", b"q0", 100)
    assert len(walk(overlay)) == 7
    with pytest.raises(CorruptionError):
        overlay.scan(b"q/", b"q0", 100)


def test_a_single_read_that_fails_is_counted_and_says_which_row():
    store = MemoryStore()
    overlay = Overlay(store, lambda: ())
    store.write([(b"t/1", b"v")])
    assert (overlay.has(b"t/1"), overlay.has(b"t/2"), overlay.get_sound(b"t/1")) == (
        True,
        False,
        b"v",
    )

    class Broken(MemoryStore):
        def get(self, key):
            raise CorruptionError("block checksum mismatch")

    overlay = Overlay(Broken(), lambda: ())
    with pytest.raises(CorruptionError, match=r"t/1.*block checksum"):
        overlay.get(b"t/1")
    assert overlay.has(b"t/1")
    assert overlay.get_sound(b"t/1") is None
    assert overlay.failed_reads == {b"t/": 3}
    assert isinstance(Unreadable(store).starts(), list)


def test_rows_between_two_damaged_blocks_are_found_though_the_later_one_was_met_first():
    keys = [key(10**15 + n * 1000) for n in range(600)]
    store = Rotten(keys, block(keys, 300, 350))
    overlay = overlay_of(store)
    assert walk(overlay, lower=keys[250]) == keys[250:300] + keys[350:]
    store.damage.append(block(keys, 100, 150))
    intact = keys[:100] + keys[150:300] + keys[350:]
    assert walk(overlay) == intact
    assert walk(overlay) == intact


@pytest.mark.parametrize("count", [600, 30_000])
@pytest.mark.parametrize("step", [1, 1000])  # µs between two tasks
def test_a_damaged_block_at_the_head_costs_what_is_in_it_when_one_row_is_asked_for(step, count):
    start = 1_700_000_000_000_000
    keys = [key(start + n * step, b"q/mail\0\0r\x04") for n in range(count)]
    bounds = b"q/mail\0\0r", b"q/mail\0\0s"
    store = Rotten(keys, (keys[0], keys[99] + b"\0"))
    overlay = overlay_of(store)
    rows, at = overlay.scan_readable(*bounds, 1)
    while not rows:
        rows, at = overlay.scan_readable(at, bounds[1], 1)
    assert rows[0][0] == keys[100]
    assert store.failed <= PROBES_MAX
    assert walk(overlay, *bounds) == keys[100:]


class Deleted(Rotten):
    """One in which a stretch of deleted rows takes a turn to pass over."""

    def __init__(self, keys, gap, *damage):
        super().__init__(keys, *damage)
        self.gap = gap

    def scan(self, lower, upper, limit):
        begin, end = self.gap
        assert not (begin <= lower < end and upper > end), "it walks through all that was deleted"
        return super().scan(lower, upper, limit)

    def scan_part(self, lower, upper, limit):
        begin, end = self.gap
        if begin <= lower < end:
            return [], min(end, upper)
        return super().scan_part(lower, upper, limit)


def test_deleted_rows_are_passed_over_in_parts_once_there_is_damage():
    keys = [key(10**15 + n * 1000) for n in range(600)]
    gap = keys[200], keys[300]
    store = Deleted(keys[:200] + keys[300:], gap, block(keys, 100, 150))
    overlay = overlay_of(store)
    intact = keys[:100] + keys[150:200] + keys[300:]
    assert walk(overlay) == intact
    rows, resume = overlay.scan_readable(keys[200], TOP, 50)
    assert (rows, resume) == ([], keys[300])
    assert walk(overlay) == intact


def test_a_range_does_not_reach_over_what_can_be_read_to_another_block():
    mail = [key(10**15 + n * 1000, b"q/mail\0\0r\x04") for n in range(300)]
    news = [key(10**15 + n * 1000, b"q/news\0\0r\x04") for n in range(300)]
    results = [b"r/" + n.to_bytes(16, "big") for n in range(300)]
    damage = (mail[200], b"q/n"), (results[0], results[50])  # up to what parts it from the next
    overlay = overlay_of(Rotten(mail + news + results, *damage))
    assert walk(overlay, b"q/mail\0\0r\x04", b"q/mail\0\0r\x05") == mail[:200]
    assert walk(overlay, b"q/news\0\0r\x04", b"q/news\0\0r\x05") == news


def test_a_large_row_that_was_written_into_a_range_is_found_and_not_held():
    keys = [key(10**15 + n * 1000) for n in range(300)]
    store = Rotten(keys, block(keys, 100, 150))
    overlay = overlay_of(store)
    walk(overlay)
    small, large = keys[110] + b"\1", keys[110] + b"\2"
    payload = b"x" * 100_000
    ops = [(small, b"new"), (large, payload)]
    store.write(ops)
    ops[1] = large, bytes(bytearray(payload))
    overlay.unreadable.applied(ops)
    new = [(small, b"new"), (large, payload)]
    assert overlay.scan_readable(keys[99], keys[151], 3)[0][1:] == new
    assert overlay.scan_readable(keys[99], keys[151], 2)[0][1:] == new[:1]
    held = gc.get_referents(overlay.unreadable._mirror)
    assert max(len(value) for value in held if type(value) is bytes) < 1000
    assert not overlay.unreadable.hides(large)
    store.write([(large, None)])
    overlay.unreadable.applied([(large, None)])
    assert overlay.unreadable.hides(large)
    assert walk(overlay) == [*keys[:100], small, *keys[150:]]


def batch(slot, count):
    """Ids of one batch follow one another, and lie far from those of the next."""
    first = b"t/\x01\x8b\xcf\xe5\x68\x00" + slot.to_bytes(2, "big") + b"\x8e\x59" * 3
    return [first + n.to_bytes(2, "big") for n in range(1, count + 1)]


@pytest.mark.parametrize("callers", [1, 3])
def test_a_damaged_block_in_the_first_of_batches_costs_what_is_in_it(callers):
    keys = [*batch(0x7437, 1500), *batch(0x7736, 600)]
    store = Rotten(keys, (keys[0], keys[99] + b"\0"))
    overlay = overlay_of(store)
    uppers = [b"t0", b"t1", b"t2"][:callers]
    at = dict.fromkeys(uppers, b"t/")
    for _ in range(8):  # several callers look for its end in turn, each with 64 probes a call
        for upper in uppers:
            failed = store.failed
            overlay.scan_readable(at[upper], upper, 1)
            assert store.failed - failed <= PROBES_MAX
    assert walk(overlay, b"t/", b"t0") == keys[100:]
