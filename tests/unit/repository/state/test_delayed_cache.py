"""The delayed cache beside a plain dictionary of all rows."""

from __future__ import annotations

import random

import pytest

from lodeq.repository.state.caches import delayed_cache
from lodeq.repository.state.caches.delayed_cache import DelayedCache, held_bytes_of


def row(n, record=b"r" * 10):
    return (n.to_bytes(4, "big"), b"id", 5, 0, 0, 0, 10, record, b"value")


@pytest.mark.parametrize("seed", range(20))
def test_below_the_edge_is_all_there_is(monkeypatch, seed):
    monkeypatch.setattr(delayed_cache, "CACHE_ROWS", 8)
    rng = random.Random(seed)
    cache, there, held = DelayedCache(None), {}, 0
    for _ in range(2000):
        kind = rng.randrange(8)
        one = row(rng.randrange(400), rng.choice([None, b"r" * 10]))
        if kind < 4 and one[0] not in there:
            there[one[0]] = one
            if cache.put(one):
                held += held_bytes_of(one)
        elif kind == 4 and there:
            key = rng.choice(list(there))
            gone = cache.discard(key)
            assert (gone is None) == (cache.edge is not None and key >= cache.edge)
            held -= 0 if gone is None else held_bytes_of(gone)
            del there[key]
        elif kind == 5:
            taken = cache.take_below(one[0], rng.choice([1, 3, 100]))
            for gone in taken:
                held -= held_bytes_of(gone)
                del there[gone[0]]
        elif kind == 6 and rng.random() < 0.1:
            cache.cut(one[0])
        elif kind == 7 and not cache.rows:  # as a scan from the edge finds it
            cache.edge = min((key for key in there), default=None)
        held -= cache.lost_bytes
        cache.lost_bytes = 0
        below = [r for key, r in sorted(there.items()) if cache.edge is None or key < cache.edge]
        assert cache.rows == below
        assert held == sum(map(held_bytes_of, below))
        assert len(below) <= 16


def test_a_row_at_the_edge_is_not_held():
    cache = DelayedCache(row(5)[0])
    assert not cache.put(row(5))
    assert cache.put(row(4))
    assert cache.discard(row(5)[0]) is None
    assert cache.take_below(row(9)[0], 10) == [row(4)]
