"""Microbenchmarks of the parts a task's microseconds go to: ``pytest bench/test_micro.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lodeq.coalescer.group import Group
from lodeq.engine.records.keyspace import decode_index_key, ready_key
from lodeq.engine.records.result import ResultRecord, Status, decode_result, encode_result
from lodeq.engine.runtime.ids import IdSource, SystemRng
from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory
from lodeq.repository.state.caches.ready_cache import ReadyCache, Row

IDS = IdSource(SystemRng())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    """A store on disk."""
    opened = RocksStore.open(str(tmp_path / "s"), shared=SharedMemory(64 << 20), create=True)
    yield opened
    opened.close()


def test_new_id(benchmark: Any) -> None:
    benchmark(IDS.new, 1_700_000_000_000, 77)


def test_ready_key(benchmark: Any) -> None:
    key = benchmark(ready_key, b"q/mail\0\0", 5, 1 << 50, bytes(16))
    assert decode_index_key(key).seq == 1 << 50


def test_result_record(benchmark: Any) -> None:
    record = ResultRecord(
        0, Status.COMPLETED, 5, 1, 1, 1, 1, 1, 1, 1, 3_600_000, 0, b"mail", b"", b"", b"", b"ok"
    )
    assert decode_result(benchmark(encode_result, record)) == record


def test_window_put_and_pop(benchmark: Any) -> None:
    window = ReadyCache(is_complete=True, edge=b"")
    row: Row = (b"q/mail\0\0r\4" + bytes(24), bytes(16), 0, 0, 0, 200, None)

    def run() -> None:
        window.put(row)
        window.rows.popleft()

    benchmark(run)


def test_write_of_a_group_of_64_enqueues(benchmark: Any, store: RocksStore) -> None:
    def group() -> tuple[tuple[list[Any]], dict[str, Any]]:
        made = Group(1)
        for _ in range(64):
            task_id = IDS.new(1_700_000_000_000, IDS.slot())
            made.ops.append((b"t/" + task_id, bytes(230)))
            made.ops.append((ready_key(b"q/mail\0\0", 5, 1 << 50, task_id), bytes(28)))
        made.seal(1)
        return (made.ops,), {}

    benchmark.pedantic(store.write, setup=group, rounds=500)
