"""Which dedup hashes a shard surely does not hold, without a read.

One bit for each value of the first bits of a hash. A bit that is not set proves that no entry with
such a hash exists, queued or on disk; one that is set proves nothing. That rests on three facts
(ADR dedup-filter):

- Every entry that this process queues has its bit set first (``take``), from the moment the shard
  is open: only ``Shard.put_dedup`` and ``option_path`` put one.
- Every entry that was on disk before is met by one scan of the whole range, a page at a time.
  Until it has come to the end the filter says nothing (``is_complete``).
- Rows that come to the disk by other ways begin the scan anew: a load says so before it
  moves its files in. A replica's entries do, too: its shards never ask.

Bits are never taken back, so entries that have gone fill it up. When many have come since the last
scan it begins another, into a second array; the first goes on answering until that one is complete.
"""

from __future__ import annotations

from typing import Final, Protocol

from ....engine.records.keyspace import FAMILY_BYTES, GHOST, GHOST_END
from ....engine.store.port import Rows
from ....errors import LodeqError

__all__ = ["FILTER_BYTES", "DedupFilter", "Scanned"]

FILTER_BYTES = 8 << 20  # of all shards together; twice that while one is built anew
PAGE_ROWS = 128
PAGES = 24  # scanned in one step
_BITS_END: Final = FAMILY_BYTES + 4  # the bits of an entry: the first bytes of its hash


class Scanned(Protocol):
    """An ``Overlay``, as far as it is needed here."""

    def scan(self, lower: bytes, upper: bytes, limit: int) -> tuple[Rows, bytes | None]:
        """Rows of a range, queued or on disk, and where to go on."""


class DedupFilter:
    """See the module's essay."""

    __slots__ = (
        "_filled_max",
        "_lower",
        "bits",
        "filled",
        "is_complete",
        "is_off",
        "mask",
        "next_bits",
        "next_filled",
    )

    def __init__(self, shards: int) -> None:
        n_bytes = 1 << max(10, (FILTER_BYTES // shards).bit_length() - 1)
        self.mask = 8 * n_bytes - 1
        self.bits = bytearray(n_bytes)  # zeroed when a page is first touched
        self.filled = 0  # bits that are set
        self._filled_max = self.mask >> 2  # beyond, another scan is worth while
        self.next_bits: bytearray | None = None  # what a later scan builds
        self.next_filled = 0
        self._lower: bytes | None = GHOST  # where the scan goes on; None: none is under way
        self.is_complete = False
        self.is_off = False  # for good: some entries cannot be read, or come by other ways

    def take(self, ghost: bytes) -> bool:
        """Set the bit of an entry that may be queued. True proves that there is none yet.

        False proves nothing. (``option_path.submit_keyed`` has this once more, for new keys.)
        """
        at = int.from_bytes(ghost[:4], "little") & self.mask
        byte, bit = at >> 3, 1 << (at & 7)
        bits = self.bits
        if self.next_bits is not None and not self.next_bits[byte] & bit:
            self.next_bits[byte] |= bit
            self.next_filled += 1
        if bits[byte] & bit:
            return False
        bits[byte] |= bit
        self.filled += 1
        return self.is_complete

    def may_hold(self, ghost: bytes) -> bool:
        """Whether an entry with this hash may exist."""
        at = int.from_bytes(ghost[:4], "little") & self.mask
        return not self.is_complete or bool(self.bits[at >> 3] & 1 << (at & 7))

    def restart(self) -> None:
        """Entries are going to come in by another way: what is known is not all there is."""
        if not self.is_off:
            self.is_complete, self.next_bits, self._lower = False, None, GHOST

    def turn_off(self) -> None:
        """Prove nothing from now on."""
        self.is_complete, self.is_off = False, True
        self.bits, self.next_bits, self._lower, self.mask = bytearray(1), None, None, 7

    def step(self, overlay: Scanned) -> None:
        """Scan some pages more, where that is worth while: a few milliseconds at most.

        Queued entries are scanned, too: a second array knows nothing of those that were queued
        before it was begun.
        """
        if self.is_off:
            return
        if self._lower is None:
            if self.filled <= self._filled_max:
                return
            self.next_bits, self.next_filled, self._lower = bytearray(len(self.bits)), 0, GHOST
        for _ in range(PAGES):
            try:
                rows, self._lower = overlay.scan(self._lower, GHOST_END, PAGE_ROWS)
            except LodeqError:
                self.turn_off()
                return
            self._note([key for key, _ in rows])
            if self._lower is None:
                self._conclude()
                return
            if not rows:  # deleted ones, many
                return

    def _conclude(self) -> None:
        """The scan has come to the end."""
        self.is_complete = True
        if self.next_bits is not None:
            self.bits, self.filled, self.next_bits = self.next_bits, self.next_filled, None
            self._filled_max = max(self.mask >> 2, 2 * self.filled)

    def _note(self, keys: list[bytes]) -> None:
        """Set the bits of entries that were met by the scan."""
        mask, is_next = self.mask, self.next_bits is not None
        bits = self.bits if self.next_bits is None else self.next_bits
        more = 0
        for key in keys:
            at = int.from_bytes(key[FAMILY_BYTES:_BITS_END], "little") & mask
            byte, bit = at >> 3, 1 << (at & 7)
            if not bits[byte] & bit:
                bits[byte] |= bit
                more += 1
        if is_next:
            self.next_filled += more
        else:
            self.filled += more
