"""A worker over a cluster: its tasks end once, although leaders change under it."""

import asyncio

import pytest
from support_cluster_client import cluster

from lodeq.worker import App, current

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
TASKS = 40


@pytest.mark.slow
async def test_every_task_ends_once_over_moves_of_all_shards():
    async with cluster() as nodes:
        app = App(nodes.url)
        begun: list[tuple[int, int]] = []
        is_half, may_go_on = asyncio.Event(), asyncio.Event()

        @app.task(queue="mail")
        async def send(n: int) -> int:
            begun.append((n, current().attempt))
            if len(begun) == TASKS // 2:
                is_half.set()
            await may_go_on.wait()
            return n

        async with app, app.work(concurrency=TASKS // 2):
            receipts = [await send.enqueue(n) for n in range(TASKS)]
            await is_half.wait()
            await nodes.lead(1, 2, 0, 1, 2, 0)
            may_go_on.set()
            results = [await app.engine.result(one.id, wait=20) for one in receipts]
            assert [one.value for one in results] == [*range(TASKS)]
            await nodes.lead(2, 0, 1, 2, 0, 1)
            assert (await (await send.enqueue(99)).result(wait=20)).value == 99
            stats = await app.engine.queue("mail").stats()
    assert sorted(begun) == [*((n, 1) for n in range(TASKS)), (99, 1)]
    assert (stats.pending, stats.leased, stats.dead) == (0, 0, 0)
