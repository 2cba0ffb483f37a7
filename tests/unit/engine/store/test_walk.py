"""Walking over rows, past deleted ones and behind damage."""

import pytest

from lodeq.engine.store import walk as module
from lodeq.engine.store.memory import MemoryStore
from lodeq.engine.store.walk import Walk
from lodeq.errors import CorruptionError

KEYS = [b"t/" + (n << 76).to_bytes(16, "big") for n in range(1 << 40, (1 << 40) + 400)]


class Rotten(MemoryStore):
    """Cannot read some of its keys, and gives up where three in a row were deleted."""

    def __init__(self, bad=(), gone=()):
        super().__init__()
        self.write([(key, b"v") for key in KEYS if key not in gone])
        self.bad, self.gone, self.parts = bad, list(gone), 0

    def scan_part(self, lower, upper, limit):
        self.parts += 1
        gone = [key for key in self.gone if lower <= key < upper]
        rows = self.scan(lower, upper, limit)
        if len(gone) > 3 and (not rows or gone[3] < rows[0][0]):
            return [], gone[3]
        for at, (key, _) in enumerate(rows):
            if key in self.bad:
                if not at:
                    raise CorruptionError("block checksum mismatch")
                return rows[:at], key
        return rows, rows[-1][0] + b"\0" if len(rows) == limit else None


def walked(walk, lower=b"t/", upper=b"t0"):
    return [key for page in walk.pages(lower, upper) for key, _ in page]


def test_all_pages_are_all_rows():
    store = Rotten()
    assert walked(Walk(store)) == KEYS
    assert walked(Walk(store), KEYS[7], KEYS[9]) == KEYS[7:9]
    assert walked(Walk(store), KEYS[9], KEYS[9]) == []
    store.close()


def test_what_cannot_be_read_is_stepped_over_and_named():
    store = Rotten(bad=KEYS[50:90] + KEYS[200:203] + KEYS[-1:])
    walk = Walk(store)
    assert walked(walk) == KEYS[:50] + KEYS[90:200] + KEYS[203:-1]
    assert len(walk.unreadable) == 3
    lost = [key for key in KEYS if walk.is_lost(key)]
    assert lost == store.bad
    assert walk.has_lost(KEYS[0], KEYS[60])
    assert walk.has_lost(KEYS[60], KEYS[61])
    assert not walk.has_lost(KEYS[100], KEYS[110])
    assert walk.has_lost(KEYS[100], KEYS[202])
    parts = store.parts
    assert walked(walk, KEYS[60], KEYS[100]) == KEYS[90:100]
    assert len(walk.unreadable) == 3
    assert store.parts < parts + 3  # nothing is looked for twice
    store.close()


def test_a_first_row_that_cannot_be_read():
    store = Rotten(bad=KEYS[:3])
    walk = Walk(store)
    assert walked(walk) == KEYS[3:]
    assert walk.is_lost(b"t/")
    store.close()


@pytest.mark.parametrize("is_fixed", [True, False])
def test_deleted_rows_are_passed_over_once_in_a_view_that_is_fixed(is_fixed):
    store = Rotten(gone=KEYS[:300])
    walk = Walk(store, is_fixed=is_fixed)
    assert walked(walk) == KEYS[300:]
    first, store.parts = store.parts, 0
    assert len(walk.splits) == 99
    assert walked(walk, b"t") == KEYS[300:]
    assert store.parts <= (6 if is_fixed else first + 1)
    assert first > 60
    store.close()


def test_pages_are_small(monkeypatch):
    monkeypatch.setattr(module, "PAGE_ROWS", 7)
    store = Rotten()
    assert {len(page) for page in Walk(store).pages(b"t/", b"t0")} == {7, 1}
    store.close()
