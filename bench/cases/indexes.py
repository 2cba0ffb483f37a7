"""The cost of an index of jobs, in a prototype: rows by function, by label or by state.

There is no index in the product (ADR 20261126-no-index-of-jobs). Here its rows join the batches
behind the engine's back, where a store writes them: their keys are as an index would have them, an
empty value each. What is measured is building a key and writing a row, in CPU and in bytes of the
log; what decides which rows there are would come on top. The base looks at the operations of every
batch as well, and adds none.

A life is one put and one delete a row: for each task that ends, the rows of one that ended
``KEPT`` tasks ago go, as if its history were over. A row that has the state in its key is put
anew, and deleted, at the end as well.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from cases.faces import CALLERS, FACE, HEADERS, cycles, log_bytes
from results import Bench, Goal, Result

import lodeq
from lodeq import Engine
from lodeq.engine.records.keyspace import RESULT, TASK
from lodeq.engine.store.rocks import RocksStore

KEPT: Final = 1000
COST: Final = Goal("ratio", most=1.03)
INDEX: Final = b"i/"
FUNCTION: Final = INDEX + b"f" + str(FACE["function"]).encode() + b"\0"
LABEL: Final = INDEX + b"l" + b"customer=4711" + b"\0"
ENDED: Final = b"c"
# Which rows a task has from its enqueue on, and whether its state is in their keys.
WAYS: Final[dict[str, tuple[tuple[bytes, ...], bool]]] = {
    "none": ((), False),
    "by function": ((FUNCTION,), False),
    "by function and one label": ((FUNCTION, LABEL), False),
    "by function, with the state": ((FUNCTION,), True),
}


class Prototype:
    """A store's ``write`` that adds the rows of an index."""

    def __init__(self) -> None:
        self.prefixes: tuple[bytes, ...] = ()
        self.has_state = False
        self._ended: deque[bytes] = deque()
        self._write = RocksStore.write

    def use(self, way: str) -> None:
        """Write the rows of this way from now on."""
        self.prefixes, self.has_state = WAYS[way]
        self._ended.clear()

    def write(self, store: RocksStore, ops: Iterable[Any]) -> None:
        """Stand in for ``RocksStore.write``."""
        ops = list(ops)
        added = []
        prefixes, ended = self.prefixes, self._ended
        for key, value in ops:
            if value is None:
                continue
            if key.startswith(TASK):
                added += [(prefix + key[2:], b"") for prefix in prefixes]
            elif key.startswith(RESULT) and prefixes:
                task_id = key[2:]
                if self.has_state:
                    added += [(prefix + task_id, None) for prefix in prefixes]
                    added += [(prefix + ENDED + task_id, b"") for prefix in prefixes]
                    task_id = ENDED + task_id
                ended.append(task_id)
                if len(ended) > KEPT:
                    old = ended.popleft()
                    added += [(prefix + old, None) for prefix in prefixes]
        self._write(store, ops + added)

    def __enter__(self) -> Prototype:
        prototype = self

        def write(store: RocksStore, ops: Iterable[Any]) -> None:
            prototype.write(store, ops)

        RocksStore.write = write  # type: ignore[method-assign]
        return self

    def __exit__(self, *exc: object) -> None:
        RocksStore.write = self._write  # type: ignore[method-assign]


async def indexes(bench: Bench) -> None:
    """CPU and bytes that rows of an index add to a cycle; beside it, a search without one."""
    n = max(CALLERS, int(12_800 * bench.scale) // CALLERS * CALLERS)
    options = {**HEADERS, **FACE}
    with Prototype() as prototype:
        async with lodeq.open(bench.folder / "indexes") as engine:

            async def with_rows(way: str, measure: Any) -> float:
                prototype.use(way)
                took: float = await measure(engine, n, options)
                return took

            for unit, measure in (("CPU µs/cycle", cycles), ("bytes/cycle", log_bytes)):
                runs = await bench.rounds({way: partial(with_rows, way, measure) for way in WAYS})
                for way in list(WAYS)[1:]:
                    bench.add(
                        Result(
                            "rows of an index",
                            {"rows": way, "callers": CALLERS},
                            unit,
                            runs[way],
                            "no rows",
                            runs["none"],
                            goal=COST if measure is cycles else None,
                        )
                    )
            searches = await bench.rounds({"search": partial(search, engine)})
    bench.add(Result("a search that an index would save", {}, "CPU µs/job", searches["search"]))


async def search(engine: Engine) -> float:
    """CPU microseconds a job that a search by function passes over, of those the cycles left."""
    kept = (await engine.stats()).results
    begun, cursor = time.process_time(), None
    while True:
        page = await engine.find(
            lodeq.TaskFilter(state="completed", function="none"), cursor=cursor, payloads=False
        )
        cursor = page.cursor
        if cursor is None:
            return (time.process_time() - begun) / max(1, kept) * 1e6
