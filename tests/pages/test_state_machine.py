"""Every row of the table in ``docs/state_machine.md`` is walked; the drawing shows the same."""

import pytest
from support_loop import on_loop
from support_states import NONE, Row, Walk, edges_drawn, table

from lodeq.testing import ManualClock
from lodeq.testing import open as open_testing


@pytest.mark.usefixtures("no_history")
@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row[0]}, {row[1]}")
@on_loop
async def test_the_row_is_true(row: Row) -> None:
    start, by, end, attempts, place = row
    clock = ManualClock()
    async with open_testing(clock=clock) as engine:
        # The result of a dead letter outlives it, and `get` would still tell of it.
        is_gone = start == "dead" and end == NONE
        walk = Walk(engine, clock, retention=0 if is_gone else 1000)
        await walk.bring_to(start, by)
        before = await engine.get(walk.id)
        assert (before.state if before else NONE) == start
        other = (await walk.mail.enqueue(b"", dedup_key="other")).id if place else None
        await walk.move(by)
        task = await engine.get(walk.id)
        assert (task.state if task else NONE) == end
        if task is None:
            return
        had = before.attempts if before else 0
        assert task.attempts == {"same": had, "+1": had + 1, "−1": had - 1, "0": 0}[attempts]
        if end == "ready":
            order = [found.id for found in await walk.mail.list("ready")]
            ids = [walk.id, other] if place == "its old place" else [other, walk.id]
            assert order == ids
        if end in {"completed", "dead", "expired", "cancelled"}:
            result = await engine.result(walk.id)
            assert result is not None
            assert result.status == end
        if by != "claim of a damaged record":  # which stays where it is
            assert (await engine.verify()).ok


def test_the_drawing_shows_the_same_edges() -> None:
    assert edges_drawn() == {(start, end) for start, _, end, _, _ in table()}
