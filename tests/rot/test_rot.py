"""Whatever rots in a closed store, what is intact comes back and what is not is named or counted.

``LODEQ_ROT`` (100) cases, by number: ``make rot ARGS="--case 17"`` repeats one. What failed once is
in ``regressions.txt``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.nursery import Nursery
from fault.judge import BrokenError
from fault.sites import scratch
from rot.cases import STORES, Rig, Store
from rot.judge import damage_of, drawn, judge
from rot.tables import blocks
from support_seeds import FIRST

from lodeq.engine.store.rocks import RocksStore
from lodeq.engine.store.rocks_options import SharedMemory

CASES = int(os.environ.get("LODEQ_ROT", "100"))
CROSS_SECTION = 200  # from so many on every kind of file is among them, and every outcome
REGRESSIONS = Path(__file__).with_name("regressions.txt")

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240 + 4 * CASES)]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Nursery() as nursery, tempfile.TemporaryDirectory(dir=scratch()) as folder:
        yield Rig(nursery, Path(folder))


def numbers(store: Store) -> list[int]:
    """Cases of this store: those of the suite, and those that failed once."""
    kept = [int(line) for line in REGRESSIONS.read_text().split()]
    at = STORES.index(store)
    return [n for n in [*range(FIRST, FIRST + CASES), *kept] if n % len(STORES) == at]


@pytest.mark.sample
@pytest.mark.parametrize("store", STORES, ids=lambda s: f"{s.mode}-{s.shards}-{s.is_merged}")
def test_what_is_intact_comes_back_and_what_is_not_is_named(rig: Rig, store: Store) -> None:
    outcomes = rig.run(store, numbers(store))
    assert outcomes.total() == len(numbers(store))
    if CASES < CROSS_SECTION:
        return
    seen = Counter(outcome.partition(": ")[2] for outcome in outcomes.elements())
    assert {"harmless", "refused", "reported"} <= seen.keys(), outcomes
    kinds = {outcome.partition(" ")[0] for outcome in outcomes}
    assert {"data", "index", "filter", "footer", "table", "CURRENT", "MANIFEST"} <= kinds, outcomes


def test_the_oracle_reads_the_same_rows_as_the_store(rig: Rig, tmp_path: Path) -> None:
    """Every row that the store has lies in a block of one of its tables."""
    base = rig.base(STORES[1])
    found = {key for path in base.path.rglob("*.sst") for b in blocks(path) for key in b.keys}
    shutil.copytree(base.path / "shard0", tmp_path / "copy")
    memory = SharedMemory(16 << 20)
    store = RocksStore.open(tmp_path / "copy", shared=memory, create=False)
    try:
        rows = {key for key, _ in store.scan(b"", b"\xff", 1 << 20)}
    finally:
        store.close()
    assert len(rows) > 500
    # What this open has written lies in its log.
    assert {key for key in rows - found if not key.startswith(b"m/")} == set()


def test_the_judge_finds_a_task_that_is_gone_without_a_word(rig: Rig) -> None:
    base = rig.base(STORES[0])
    case, target = next(
        (case, target)
        for case, target in (drawn(base, n) for n in range(1000))
        if target.kind == "data t/" and damage_of(base, case, target).records
    )
    sound = {
        "claimed": {t: True for t, (kind, _) in base.facts.items() if kind != "completed"},
        "results": {t: n for t, (kind, n) in base.facts.items() if kind == "completed"},
        "dead": [],
        "recoveries": [],
        "findings": [],
        "reasons": [],
        "errors": [],
    }
    assert judge(base, case, target, sound, sound, sound) == "harmless"
    records = damage_of(base, case, target).records
    lost = {**sound, "claimed": {t: True for t in sound["claimed"] if t not in records}}
    with pytest.raises(BrokenError, match="without a word"):
        judge(base, case, target, lost, sound, sound)
    with pytest.raises(BrokenError, match="neither named nor counted"):
        judge(base, case, target, sound, lost, sound)
    others = {**sound, "claimed": dict.fromkeys(sorted(sound["claimed"])[::2], True)}
    with pytest.raises(BrokenError, match="intact is gone"):
        judge(base, case, target, sound, others, sound)
    again = {**sound, "claimed": {**sound["claimed"], next(iter(base.completed)): True}}
    with pytest.raises(BrokenError, match="done again"):
        judge(base, case, target, again, sound, sound)
    refused = {"refused": ["ValueError", "Exception", "no"]}
    with pytest.raises(BrokenError, match="untyped"):
        judge(base, case, target, refused, sound, sound)
