"""Facts of each row for an audit, as arrays: a few numbers a row, whatever its size.

Rows are read page by page and let go. A row that does not decode is reported, and left out. Ids and
hashes are two numbers each; ``Keys`` finds one set of them among another by their mixture, and
believes a find only if both numbers agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from ....errors import CorruptionError, RecordCorruptError
from ...records import keyspace as ks
from ...records.attempts import decode_attempts
from ...records.keyspace import ID_AT, SEQ_AT
from ...records.lease import DEAD_LEASE
from ...records.result import HAS_ATTEMPTS
from ...records.rows import decode_body, decode_body_at, decode_expiry, decode_moved
from ...records.workflow import MEMBER_LEASE, MEMBER_RESULT, MEMBER_ROW
from ...recovery.health import Census
from ...runtime.ids import SLOTS
from ...store.port import Rows
from ..reader import ShardReader
from .leases import LeasePage
from .page import Numbers, Page
from .results import ResultPage
from .rows import DeadPage, DelayedPage, GhostPage, IndexPage, ReadyPage
from .tasks import TaskPage

__all__ = ["Facts", "Keys", "Table", "TenantQueues", "slots_of"]

Report = Callable[[str, str, "bytes | None"], None]
_PAGES: Final[dict[bytes, type[Page]]] = {
    b"r": ReadyPage,
    b"d": DelayedPage,
    b"x": DeadPage,
    b"t/": TaskPage,
    b"l/": LeasePage,
    b"r/": ResultPage,
    b"g/": GhostPage,
}
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_ENTRY: Final = np.dtype([("kind", "u1"), ("ref", "V16")])


class Keys:
    """Some ids, or hashes, of 16 bytes."""

    def __init__(self, raw: bytes) -> None:
        pairs = np.frombuffer(raw, ">u8").astype(np.uint64)
        self.high, self.low = pairs[::2], pairs[1::2]

    def __len__(self) -> int:
        return len(self.high)

    def bytes(self, place: int) -> bytes:
        """One of them."""
        return int(self.high[place]).to_bytes(8, "big") + int(self.low[place]).to_bytes(8, "big")

    @cached_property
    def mixed(self) -> Numbers:
        """One number each."""
        return self.low ^ (self.high * _MIX)

    @cached_property
    def order(self) -> Numbers:
        """Places, by ``mixed``; of equal ones the first comes first."""
        return np.argsort(self.mixed, kind="stable")

    @cached_property
    def _sorted(self) -> Numbers:
        return self.mixed[self.order]

    def find(self, wanted: Keys) -> Numbers:
        """The place of each of ``wanted`` among these, or -1."""
        if not len(self):
            return np.full(len(wanted), -1, np.int64)
        at = np.minimum(np.searchsorted(self._sorted, wanted.mixed), len(self) - 1)
        places = self.order[at]
        is_found = (self.high[places] == wanted.high) & (self.low[places] == wanted.low)
        return np.where(is_found, places, -1)


def slots_of(ids: Keys) -> Numbers:
    """The slot that each id says."""
    return (ids.high & np.uint64(SLOTS - 1)).astype(np.int64)


class TenantQueues:
    """(queue, tenant) as numbers."""

    def __init__(self) -> None:
        self.names: list[tuple[bytes, bytes]] = []
        self._numbers: dict[tuple[bytes, bytes], int] = {}
        self._known: dict[bytes, int] = {}  # as they stand in rows

    def number(self, queue: bytes, tenant: bytes) -> int:
        """Number of one tenant queue; a new name gets the next."""
        found = self._numbers.setdefault((queue, tenant), len(self.names))
        if found == len(self.names):
            self.names.append((queue, tenant))
        return found

    def of_records(self, page: Page, sizes_at: int) -> Numbers:
        """Numbers of records in which the sizes of both names stand at ``sizes_at``."""
        at, known, size = page.head.itemsize, self._known, page.head.itemsize
        whole = page.field("queue").astype(np.int64) + page.field("tenant")
        out = []
        for value, end in zip(page.values, (whole + size).tolist(), strict=True):
            text = value[sizes_at : sizes_at + 2] + value[at:end]
            number = known.get(text)
            if number is None:
                cut = 2 + text[0]
                number = known[text] = self.number(text[2:cut], text[cut:])
            out.append(number)
        return np.array(out, np.int64)

    def of_prefixes(self, prefixes: list[bytes]) -> Numbers:
        """Numbers of index keys without their ends."""
        out = []
        for text in prefixes:
            number = self._known.get(text)
            if number is None:
                queue, tenant, _ = text[2:].split(b"\0")
                number = self._known[text] = self.number(queue, tenant)
            out.append(number)
        return np.array(out, np.int64)


class Table:
    """One family: ids, and fields, arrays of the same length."""

    def __init__(self, ids: Keys, fields: dict[str, Numbers]) -> None:
        self.ids = ids
        self._fields = fields

    def __getitem__(self, name: str) -> Numbers:
        return self._fields[name]

    def __len__(self) -> int:
        return len(self.ids)


class Facts:
    """Reads the families of one shard.

    Args: reader: of the shard. report: called with rows that do not decode and ranges that
    cannot be read, by kind, words, id.
    """

    def __init__(self, reader: ShardReader, report: Report) -> None:
        self._reader = reader
        self._report = report
        self.tenant_queues = TenantQueues()
        self.rows = 0
        self.is_whole = True  # every block could be read

    # -- pages -------------------------------------------------------------------------

    def sound_rows(self, lower: bytes, upper: bytes) -> Iterator[Rows]:
        """Rows of a range that decode; the others are reported."""
        return (self._sound(rows) for rows in self.batches(lower, upper))

    def batches(self, lower: bytes, upper: bytes) -> Iterator[Rows]:
        """Rows of a range. Behind a damaged block it goes on with the next file of rows."""
        while True:
            at = lower
            try:
                for rows in self._reader.batches(lower, upper):
                    at = rows[-1][0] + b"\0"
                    self.rows += len(rows)
                    yield rows
                return
            except CorruptionError as exc:
                self.is_whole = False
                self._report("unreadable", f"from {at!r} on: {exc}", None)
                starts = [f.first_key for f in self._reader.files() if at < f.first_key < upper]
                if not starts:
                    return
                lower = starts[0]

    def _pages(self, page: type[Page], lower: bytes, upper: bytes) -> Iterator[Page]:
        for rows in self.batches(lower, upper):
            try:
                yield self._page(page, rows)
            except RecordCorruptError:
                if sound := self._sound(rows):
                    yield self._page(page, sound)

    def _page(self, kind: type[Page], rows: Rows) -> Page:
        page = kind(self._reader, rows, verify=True)
        if isinstance(page, IndexPage):
            _ = page.ends  # refuses keys that are none
        return page

    def _sound(self, rows: Rows) -> Rows:
        """Those that decode; the others are reported."""
        kept, census = [], Census()
        for key, value in rows:
            try:
                census.add(key, value)
            except RecordCorruptError as exc:
                self._report("damaged", f"{key!r}: {exc}", key)
                continue
            kept.append((key, value))
        return kept

    def _table(self, pages: Iterator[Page], fields: Callable[[Page], dict[str, Numbers]]) -> Table:
        ids: list[bytes] = []
        parts: list[dict[str, Numbers]] = []
        for page in pages:
            ids.append(page.ids)
            parts.append(fields(page))
        names = parts[0] if parts else ()
        joined = {name: np.concatenate([part[name] for part in parts]) for name in names}
        return Table(Keys(b"".join(ids)), joined)

    # -- families ----------------------------------------------------------------------

    def tasks(self, lower: bytes, upper: bytes) -> Table:
        """Rows of ``t/``. ``ghost`` is the place of each in ``dedup_entries``."""

        def fields(page: Page) -> dict[str, Numbers]:
            flags = page.field("flags")
            ghosts = np.frombuffer(b"".join(page.slices(72, np.int64(16))), ">u8")
            records = [
                v[-24:-8] if f & 16 else b""
                for v, f in zip(page.values, flags.tolist(), strict=True)
            ]
            return {
                "tenant_queue": self.tenant_queues.of_records(page, 6),
                "priority": page.field("priority").astype(np.int64),
                "is_ready": page.field("first") == ord("r"),
                "seq": page.field("seq").astype(np.int64),
                "due": page.field("due").astype(np.int64),
                "ghost_high": ghosts[::2].astype(np.uint64),
                "ghost_low": ghosts[1::2].astype(np.uint64),
                "has_body": flags & 16 != 0,
                "record": np.array([_hash_of(one) for one in records], np.uint64),
            }

        return self._table(self._pages(TaskPage, lower, upper), fields)

    def index(self) -> Table:
        """Rows of ``q/``, all kinds. ``at``: due or died, ``seq``: of those that have one."""

        def fields(page: Page) -> dict[str, Numbers]:
            if not isinstance(page, IndexPage):
                raise TypeError(page)
            size, flags = page.tail.itemsize, page.field("flags")
            seqs = np.frombuffer(b"".join([key[SEQ_AT:ID_AT] for key in page.keys]), ">i8")
            return {
                "tenant_queue": self.tenant_queues.of_prefixes([key[:-size] for key in page.keys]),
                "kind": np.full(page.count, page.letter[0], np.uint8),
                "priority": page.field("priority").astype(np.int64),
                "at": page.ends["at"].astype(np.int64),
                "seq": seqs.astype(np.int64),
                "is_moved": flags & 1 != 0,
                "is_member": flags & MEMBER_ROW != 0,
                "expires": page.field("expires").astype(np.int64),
            }

        return self._table(self._index_pages(), fields)

    def _index_pages(self) -> Iterator[Page]:
        for rows in self.batches(ks.INDEX, ks.INDEX_END):
            kinds: dict[bytes, Rows] = {}
            for row in rows:
                key = row[0]
                kind = key[key.find(b"\0", key.find(b"\0", 2) + 1) + 1 :][:1]
                kinds.setdefault(kind if kind in _PAGES else b"", []).append(row)
            self._sound(kinds.pop(b"", []))
            for kind, some in kinds.items():
                try:
                    yield self._page(_PAGES[kind], some)
                except RecordCorruptError:
                    if sound := self._sound(some):
                        yield self._page(_PAGES[kind], sound)

    def leases(self) -> Table:
        """Rows of ``l/``."""

        def fields(page: Page) -> dict[str, Numbers]:
            return {
                "tenant_queue": self.tenant_queues.of_records(page, 128),
                "is_moved": page.field("flags") & 2 != 0,
                "is_member": page.field("flags") & MEMBER_LEASE != 0,
                "is_dead": page.field("flags") & DEAD_LEASE != 0,
                "expires": page.field("expires").astype(np.int64),
                "leased": page.field("leased").astype(np.int64),
            }

        return self._table(self._pages(LeasePage, ks.LEASE, ks.LEASE_END), fields)

    def results(self) -> Table:
        """Rows of ``r/``. ``due``: when it is forgotten, milliseconds, 0: never."""

        def fields(page: Page) -> dict[str, Numbers]:
            if not isinstance(page, ResultPage):
                raise TypeError(page)
            return {
                "tenant_queue": self.tenant_queues.of_records(page, 78),
                "status": page.field("status").astype(np.int64),
                "is_member": page.field("flags") & MEMBER_RESULT != 0,
                "has_attempts": page.field("flags") & HAS_ATTEMPTS != 0,
                "due": page.due_ms,
            }

        return self._table(self._pages(ResultPage, ks.RESULT, ks.RESULT_END), fields)

    def ghosts(self) -> tuple[Table, Keys]:
        """Rows of ``g/``: by the id of who holds the key, and the hashes of the keys."""
        hashes: list[bytes] = []

        def fields(page: Page) -> dict[str, Numbers]:
            hashes.append(b"".join([key[ID_AT:] for key in page.keys]))
            return {"expires": page.field("expires").astype(np.int64)}

        table = self._table(self._pages(GhostPage, ks.GHOST, ks.GHOST_END), fields)
        return table, Keys(b"".join(hashes))

    def _plain(self, lower: bytes, upper: bytes, take: Callable[[bytes, bytes], _Row]) -> Table:
        """Table of a family without pages: it has few rows, or its values are no records."""
        ids: list[bytes] = []
        rows: list[dict[str, Any]] = []
        for batch in self.batches(lower, upper):
            for key, value in batch:
                try:
                    task_id, row = take(key, value)
                except RecordCorruptError as exc:
                    self._report("damaged", f"{key!r}: {exc}", key)
                    continue
                ids.append(task_id)
                rows.append(row)
        names = rows[0] if rows else ()
        return Table(
            Keys(b"".join(ids)), {name: np.array([row[name] for row in rows]) for name in names}
        )

    def moved(self) -> Table:
        """Rows of ``s/``."""

        def take(key: bytes, value: bytes) -> _Row:
            at = ks.decode_index_key(decode_moved(value).key)
            if at.task_id != key[ks.ROW_ID]:
                raise RecordCorruptError("moved row: names the key of another task")
            return key[ks.ROW_ID], {
                "tenant_queue": self.tenant_queues.number(at.queue, at.tenant),
                "kind": at.kind[0],
                "priority": at.priority,
                "at": at.at,
                "seq": at.seq,
            }

        return self._plain(ks.MOVED, ks.MOVED_END, take)

    def attempts(self) -> Table:
        """Rows of ``a/``: whose they are."""

        def take(key: bytes, value: bytes) -> _Row:
            decode_attempts(value)
            return key[ks.ROW_ID], {}

        return self._plain(ks.ATTEMPTS, ks.ATTEMPTS_END, take)

    def bodies(self) -> Table:
        """Rows of ``b/``. ``place``: a hash of where the payload lies, 0: it is lost."""

        def take(key: bytes, value: bytes) -> _Row:
            row = decode_body(value)
            place = _place_of(row.file, row.offset, row.size) if row.size else 0
            return key[ks.ROW_ID], {
                "place": np.uint64(place),
                "record": np.uint64(_hash_of(row.record_id)),
            }

        return self._plain(ks.BODY, ks.BODY_END, take)

    def body_places(self) -> Table:
        """Rows of ``o/``."""

        def take(key: bytes, value: bytes) -> _Row:
            file, offset, task_id = ks.decode_body_at_key(key)
            return task_id, {"place": np.uint64(_place_of(file, offset, decode_body_at(value)))}

        return self._plain(ks.BODY_AT, ks.BODY_AT_END, take)

    def expiries(self) -> dict[int, Table]:
        """Entries of ``e/`` by kind, with their buckets; the earliest of each comes first."""
        found: dict[int, list[tuple[bytes, Numbers]]] = {}
        for batch in self.batches(ks.EXPIRY, ks.EXPIRY_END):
            packed, buckets, counts = [], [], []
            for key, value in batch:
                try:
                    bucket = ks.decode_expiry_key(key)[0]
                    decode_expiry(value)
                except RecordCorruptError as exc:
                    self._report("damaged", f"{key!r}: {exc}", key)
                    continue
                packed.append(value[4:-8])
                buckets.append(bucket)
                counts.append((len(value) - 12) // 17)
            entries = np.frombuffer(b"".join(packed), _ENTRY)
            due = np.repeat(np.array(buckets, np.int64), np.array(counts, np.int64))
            for kind in np.unique(entries["kind"]).tolist():
                mask = entries["kind"] == kind
                as_kind = ord("r") if kind in b"cvh" else kind
                found.setdefault(as_kind, []).append((entries["ref"][mask].tobytes(), due[mask]))
        return {
            kind: Table(
                Keys(b"".join(raw for raw, _ in parts)),
                {"bucket": np.concatenate([due for _, due in parts])},
            )
            for kind, parts in found.items()
        }


_Row = tuple[bytes, dict[str, Any]]


def _hash_of(raw: bytes) -> int:
    """0 for nothing."""
    return xxh3_64_intdigest(raw) if raw else 0


def _place_of(file: int, offset: int, size: int) -> int:
    """One number for where a payload lies."""
    return xxh3_64_intdigest(b"%d/%d/%d" % (file, offset, size)) | 1
