"""What the fuzz targets of importers do not look at: memory, and the store that takes it in."""

import random
import tracemalloc

import pytest
from fuzz.import_targets import IMPORTS, laid_out, source_of
from fuzz.mutate import mutated

from lodeq.errors import LodeqError
from lodeq.service.transfer.import_run import import_tasks
from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
INPUTS = 40
names = pytest.mark.parametrize("name", IMPORTS)


@names
async def test_the_store_is_sound_whatever_is_imported(name, tmp_path):
    """And what an import has brought, it does not bring again."""
    target, rng = IMPORTS[name], random.Random(name)
    seeds = [target.example(rng) for _ in range(6)]
    brought, said = 0, []
    for n in range(INPUTS):
        folder = tmp_path / str(n)
        laid_out(mutated(rng, target, seeds) if n else seeds[0], folder)
        async with open_testing(clock=ManualClock(), shards=2, seed=n) as engine:
            first = None
            for _ in range(2):
                try:
                    report = await import_tasks(engine, source_of(name, folder), queue="mail")
                except LodeqError as exc:
                    said.append(str(exc))
                    break
                found = await engine.verify()
                assert found.ok, found.findings
                first = first or report
                brought += report.imported
            if first is not None:
                assert report.imported == 0 or report is first
            for state in ("ready", "delayed", "dead"):
                await engine.queue("mail").list(state)
    assert brought
    assert not [line for line in said if "\n" in line]


@names
def test_no_source_takes_more_memory_than_a_bound(name):
    target, rng = IMPORTS[name], random.Random(name)
    seeds = [target.example(rng) for _ in range(6)]
    inputs = [mutated(rng, target, seeds) for _ in range(INPUTS)]
    tracemalloc.start()
    try:
        for raw in inputs:
            try:
                target.decode(raw)
            except target.errors:
                continue
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
