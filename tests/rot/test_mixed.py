"""Files that do not belong together, as after a restore or a mount that got one folder wrong.

Every part of a store, each way: ``mixed.py`` says what may come of it. ``make rot`` runs them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fault.judge import BrokenError
from rot import mixed
from rot.mixed import CASES, Case, Fact, Made
from support_loop import on_loop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Made]:
    """The stores of so many shards, made once."""
    known: dict[int, Made] = {}

    def of(shards: int) -> Made:
        if shards not in known:
            mixed.make_now(tmp_path_factory.mktemp(f"of-{shards}"), shards, known)
        return known[shards]

    return of


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_does_not_belong_together_is_refused_and_nothing_comes_twice(
    made: Callable[[int], Made], tmp_path: Path, case: Case
) -> None:
    stores = made(case.shards)

    @on_loop
    async def run() -> None:
        outcome = await mixed.judge(case, stores, tmp_path)
        is_lost = "all back" not in outcome and not case.is_log
        assert outcome.startswith("refused") or not is_lost, outcome

    run()


def test_the_judge_finds_a_task_that_is_gone_without_a_word(
    made: Callable[[int], Made], tmp_path: Path
) -> None:
    stores = made(1)
    facts = {**stores.facts, 999: Fact(shard=0, is_large=False, is_done=False)}
    expecting, case = stores._replace(facts=facts), Case("the journal", "missing", 1)

    @on_loop
    async def run() -> None:
        with pytest.raises(BrokenError, match="gone without a word"):
            await mixed.judge(case, expecting, tmp_path)

    run()
