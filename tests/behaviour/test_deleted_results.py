"""Results that a bulk act deletes before their time: nothing is left that counts them again."""

import pytest

import lodeq
import lodeq.testing
from lodeq import Limits, TaskFilter
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("history_s", [0, 100])
@pytest.mark.parametrize("retention", [0, 10, 200])
@pytest.mark.parametrize("wait", [0, 50])
async def test_a_deleted_result_is_not_counted_out_again(history_s, retention, wait):
    clock = ManualClock()
    limits = Limits(history_s=history_s)
    async with lodeq.testing.open(clock=clock, shards=2, limits=limits) as engine:
        queue = engine.queue("mail", retention=retention)
        for n in range(40):
            await queue.enqueue(b"%d" % n)
        leases = await queue.claim(limit=40)
        await engine.complete_many([(lease, {"n": n}) for n, lease in enumerate(leases[:30])])
        for lease in leases[30:]:
            await lease.complete(keep=False)
        clock.advance(wait)
        stored = (await queue.stats()).results
        report = await engine.act("delete", TaskFilter(id_prefix=str(leases[0].task_id)))
        assert report.done == (min(1, stored))
        report = await engine.act("delete", TaskFilter(state="completed"), limit=10)
        assert report.done == min(10, max(0, stored - 1))
        left = (await queue.stats()).results
        assert left == max(0, stored - 11)
        assert (await engine.verify()).ok
        await queue.enqueue(b"next")
        clock.advance(1000)
        assert (await queue.stats()).results == 0
        assert (await engine.verify()).ok
        assert (await engine.stats()).anomalies == ()
        await (await queue.claim_one()).complete()
