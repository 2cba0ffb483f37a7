"""Unreadable ranges of a store, and how a live engine goes on around them.

A damaged table fails block by block: a seek into a damaged block fails, a seek behind it works.
A block is a range of keys, so unreadable ranges of keys are kept. Their ends are found by probes:
seeks at growing distances until one works, then at half the distance again and again. A call makes
few probes (``PROBES_MAX``), and a range is remembered until the store is closed.

A seek into such a range also misses rows that were written there later, to another table. So rows
that are written into a known range are *mirrored* here, and scans find them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from typing import Final

from ..engine.records.keyspace import FAMILY_BOUNDS
from ..engine.store.port import Op, Rows, Store
from ..errors import CorruptionError

__all__ = ["MIRROR_ROWS_MAX", "PROBES_MAX", "Unreadable"]

PROBES_MAX: Final = 64
MIRROR_ROWS_MAX: Final = 65_536
_VALUE_BYTES_MAX: Final = 1024  # of a larger value only the key is kept; a get finds it
_LEAST_PROBES: Final = 32  # with fewer left a search would not end
_WIDTH: Final = 18  # bytes of a key that are taken for a number: all of an id, behind its family
_STRIDE: Final = 16  # bits between two long steps of a search
_STEP_BACK: Final = 8  # bits between two steps back from the last row
_DOUBLINGS: Final = 12  # short steps before the long ones: a block is a few hundred rows
_FEW: Final = 8
_SEARCHES_MAX: Final = 256
_LAST: Final = b"\xff"
_PRECISION: Final = 256  # parts of the distance of two rows: so exact is the end of a range


class Unreadable:
    """The unreadable ranges of one store; none until a scan has met damage."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._starts: list[bytes] = []  # ranges are disjoint and sorted
        self._ends: list[bytes] = []
        self._keys: list[bytes] = []  # of mirrored rows, sorted
        self._mirror: dict[bytes, bytes | None] = {}  # None: the value is large
        self._probes_left = PROBES_MAX
        self._last_spacing = b"", 0  # of rows with this prefix
        self._searches: dict[tuple[bytes, bytes], tuple[int, int, int]] = {}  # unfinished
        self.dropped = 0  # rows written into a range while the mirror was full
        self.report: Callable[[bytes, bytes, CorruptionError], None] = lambda *_: None

    def __len__(self) -> int:
        return len(self._starts)

    def starts(self) -> list[bytes]:
        """Where each range begins."""
        return list(self._starts)

    def renew(self) -> None:
        """Grant ``PROBES_MAX`` probes to a call that begins."""
        self._probes_left = PROBES_MAX

    def overlaps(self, lower: bytes, upper: bytes) -> bool:
        """Whether some of ``[lower, upper)`` cannot be read."""
        at = bisect_right(self._ends, lower)
        return at < len(self._ends) and self._starts[at] < upper

    def applied(self, ops: Iterable[Op]) -> None:
        """Mirror the rows of a batch that lie in a known range; it has just been written."""
        for key, value in ops:
            if self._covers(key):
                self.mirror(key, value)

    def mirror(self, key: bytes, value: bytes | None) -> None:
        """Keep a row of a known range, or forget one (None)."""
        if value is None:
            if key in self._mirror:
                del self._mirror[key]
                del self._keys[bisect_left(self._keys, key)]
            return
        if key not in self._mirror:
            if len(self._keys) >= MIRROR_ROWS_MAX:
                self.dropped += 1
                return
            insort(self._keys, key)
        self._mirror[key] = value if len(value) <= _VALUE_BYTES_MAX else None

    @property
    def mirror_left(self) -> int:
        """How many more rows can be mirrored."""
        return max(0, MIRROR_ROWS_MAX - len(self._keys))

    def hides(self, key: bytes) -> bool:
        """Whether a row with this key would not be found: in a known range, and not mirrored."""
        return self._covers(key) and key not in self._mirror

    def _covers(self, key: bytes) -> bool:
        at = bisect_right(self._starts, key) - 1
        return at >= 0 and key < self._ends[at]

    # -- scanning --------------------------------------------------------------------------

    def scan(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bytes | None]:
        """Up to ``limit`` rows of ``[lower, upper)`` that can be read, and where to go on.

        The second value is None when the range is exhausted. It is ``lower`` itself, and there
        are no rows, if more probes were needed than one call may make: the next call goes on.
        """
        rows: Rows = []
        at, stem = lower, _stem(lower, upper)
        while at < upper and len(rows) < limit:
            left = limit - len(rows)
            nth = bisect_right(self._ends, at)
            start = self._starts[nth] if nth < len(self._starts) else upper
            if start <= at:
                end = min(self._ends[nth], upper)
                rows += self._mirrored(at, end, left)
                at = end
                continue
            stop = min(start, upper)
            try:
                found, following = self._store.scan_part(at, stop, left)
            except CorruptionError as error:
                found, is_all = self._before_damage(at, stop, left)
                rows += found
                self._spacing_near(found, lower, stem)
                at = found[-1][0] + b"\0" if found else at
                if not is_all or not self._find(at, stop, rows, error, is_all=stop == upper):
                    return rows, at
                continue
            rows += found
            self._spacing_near(found, lower, stem)
            if following is not None and len(found) < left:
                return rows, following  # deleted rows: passing over them took its time
            at = stop
        if len(rows) >= limit:  # there may be no more, which the next scan finds
            return rows, rows[-1][0] + b"\0"
        return rows, None

    def _mirrored(self, lower: bytes, upper: bytes, limit: int) -> Rows:
        rows: Rows = []
        for nth in range(bisect_left(self._keys, lower), bisect_left(self._keys, upper)):
            if len(rows) >= limit:
                break
            key = self._keys[nth]
            value = self._mirror[key]
            if value is None:
                try:
                    value = self._store.get(key)
                except CorruptionError:  # compacted into a damaged block meanwhile
                    continue
            if value is not None:
                rows.append((key, value))
        return rows

    def _before_damage(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bool]:
        """The rows before the damage, and whether these are all of them; ``limit`` are too many.

        A scan that fails returns nothing of what it had read, so this scans for fewer rows.
        """
        rows: Rows = []
        fails = limit
        while fails > len(rows) + 1 and self._probes_left > 0:
            count = (len(rows) + fails) // 2 if rows else 1  # mostly it begins right here
            self._probes_left -= 1
            try:
                rows = self._store.scan(lower, upper, count)
            except CorruptionError:
                fails = count
        return rows, fails == len(rows) + 1

    # -- finding the end of a range ----------------------------------------------------------

    def _find(
        self, lower: bytes, upper: bytes, before: Rows, error: CorruptionError, *, is_all: bool
    ) -> bool:
        """Find and note the range that begins at ``lower``. False: too few probes are left.

        Args:
            lower: the first key that could not be read.
            upper: the end of the keys that were scanned, excluded.
            before: the rows read just before it.
            error: of the read that has failed.
            is_all: False if another known range begins at ``upper``. Mostly it is the same one, met
                in its middle; but there may be rows between the two.
        """
        if self._probes_left < _LEAST_PROBES:
            return False
        end = self._next_readable(lower, upper, before)
        if end is None:
            return False
        if end == upper and is_all:
            end = self._family_end(upper)
        at = bisect_left(self._starts, lower)
        touches_next = at < len(self._starts) and self._starts[at] <= end + b"\0"
        if touches_next:
            self._starts[at] = lower
            end = self._ends[at] = max(end, self._ends[at])
        elif at and self._ends[at - 1] + b"\0" >= lower:
            self._ends[at - 1] = end
        else:
            self._starts.insert(at, lower)
            self._ends.insert(at, end)
        self.report(lower, end, error)
        return True

    def _family_end(self, upper: bytes) -> bytes:
        """The end of the last key family that the damaged block reaches into.

        Rows that are written there have to be mirrored, too. The block is the same as long as
        RocksDB reports the same error: before another block there may be readable rows.
        """
        block = self._block_at(upper)
        for boundary in FAMILY_BOUNDS[bisect_left(FAMILY_BOUNDS, upper) :]:
            if block is None or self._block_at(boundary) != block:
                break
            upper = boundary
        return upper

    def _block_at(self, key: bytes) -> str | None:
        """The error of the damaged block that a seek to ``key`` meets, or None."""
        if self._probes_left <= 0:
            return None
        self._probes_left -= 1
        try:
            self._store.scan_part(key, _LAST, 1)
        except CorruptionError as error:
            return str(error)
        return None

    def _next_readable(self, lower: bytes, upper: bytes, before: Rows) -> bytes | None:
        """The least key found behind ``lower`` that a seek can go to; ``upper`` if there is none.

        None: it is not known closely enough and no probes are left; the next call goes on.

        Behind their common prefix, keys are taken for numbers, and a block for a distance. The rows
        ``before`` show how far apart rows are: the first steps are a few times that.
        """
        stem = _stem(lower, upper)
        first, top = _number(lower, stem), _number(upper, stem)
        spacing = self._spacing_near(before, lower, stem)
        fails = works = 0
        is_bounded = False  # on both sides, so closely that halving does the rest
        begun = self._searches.pop((lower, upper), None)
        if begun is not None:
            fails, works, spacing = begun
            is_bounded = True
        elif not spacing:  # nothing before it: long steps to rows behind it, which show it as well
            most = (top - first - 1).bit_length()
            for bits in (*range(0, most, _STRIDE), most - 1):
                if self._is_readable(lower, upper, stem, first + (1 << bits), top):
                    works = 1 << bits
                    break
                fails = 1 << bits
            else:
                return upper
            spacing = _spacing(self._behind(_key(lower, stem, first + works), upper), lower, stem)
            if not spacing:  # those long steps went past all rows: so many would seem unreadable
                fails, works = self._back_from_last(lower, upper, stem, fails, works)
                behind = self._behind(_key(lower, stem, first + works), upper)
                spacing, is_bounded = _spacing(behind, lower, stem), True
        distance = 0 if is_bounded else 4 * spacing
        if distance:
            fails = 0  # those long steps may have met another block
        while distance and (not works or distance < works) and first + distance < top:
            if self._is_readable(lower, upper, stem, first + distance, top):
                works = distance
                break
            fails = distance
            distance *= 2 if distance < spacing << _DOUBLINGS else 1 << _STRIDE
        if not works:
            return upper
        while fails and works // fails > 2:  # which power of two, where the steps were long
            distance = 1 << (works.bit_length() + fails.bit_length() - 1) // 2
            if self._is_readable(lower, upper, stem, first + distance, top):
                works = distance
            else:
                fails = distance
        while works - fails > 1 + spacing // _PRECISION and self._probes_left > 0:
            distance = (works + fails) // 2
            if self._is_readable(lower, upper, stem, first + distance, top):
                works = distance
            else:
                fails = distance
        if works - fails > 1 + spacing // _PRECISION:
            if len(self._searches) >= _SEARCHES_MAX:
                del self._searches[next(iter(self._searches))]
            self._searches[lower, upper] = fails, works, spacing
            return None
        return _key(lower, stem, first + works)

    def _back_from_last(
        self, lower: bytes, upper: bytes, stem: int, fails: int, works: int
    ) -> tuple[int, int]:
        """Closer bounds, as distances from ``lower``, by growing steps back from the last row.

        So the distance of the rows decides, and not how far ``lower`` is from the first of them.
        """
        first, top = _number(lower, stem), _number(upper, stem)
        self._probes_left -= 1
        try:
            row = self._store.scan_last(lower, _key(lower, stem, first + works))
        except CorruptionError:
            return fails, works
        last = _number(row[0], stem) - first if row is not None else 0
        if not fails < last < works:
            return fails, works
        for bits in range(0, (last - fails).bit_length(), _STEP_BACK):
            distance = last - (1 << bits)
            if distance <= fails:
                break
            if not self._is_readable(lower, upper, stem, first + distance, top):
                return distance, works
            works = distance
        return fails, works

    def _spacing_near(self, rows: Rows, lower: bytes, stem: int) -> int:
        """Mean distance of rows: of those just read, else of those read last in this family."""
        if len(rows) >= _FEW:
            self._last_spacing = lower[:stem], _spacing(rows, lower, stem)
        elif self._last_spacing[0] != lower[:stem]:
            return _spacing(rows, lower, stem)
        return self._last_spacing[1]

    def _behind(self, lower: bytes, upper: bytes) -> Rows:
        """The first few rows of a range; none if they cannot be read."""
        self._probes_left -= 1
        try:
            return self._store.scan_part(lower, upper, _FEW)[0]
        except CorruptionError:
            return []

    def _is_readable(self, lower: bytes, upper: bytes, stem: int, number: int, top: int) -> bool:
        if number >= top:
            return False
        self._probes_left -= 1
        try:
            self._store.scan_part(_key(lower, stem, number), upper, 1)
        except CorruptionError:
            return False
        return True


def _number(key: bytes, stem: int) -> int:
    return int.from_bytes(key[stem : stem + _WIDTH].ljust(_WIDTH, b"\0"), "big")


def _key(lower: bytes, stem: int, number: int) -> bytes:
    return lower[:stem] + number.to_bytes(_WIDTH, "big")


def _stem(lower: bytes, upper: bytes) -> int:
    """The length of the common prefix."""
    stem = 0
    for one, other in zip(lower, upper, strict=False):
        if one != other:
            break
        stem += 1
    return stem


def _spacing(rows: Rows, lower: bytes, stem: int) -> int:
    """Mean distance of these rows; 0 if they are too few, or begin otherwise than ``lower``."""
    if len(rows) < 2 or rows[0][0][:stem] != lower[:stem]:
        return 0
    return (_number(rows[-1][0], stem) - _number(rows[0][0], stem)) // (len(rows) - 1)
