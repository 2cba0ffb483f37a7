"""A storm in small; ``make storm`` is the long one."""

import asyncio
import os

import pytest
from cluster.storm import QUEUE, storm
from cluster.told import ATTEMPTS, Told
from support_etcd import looked
from support_nodes import nodes_of

import lodeq

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(420)]
SECONDS = float(os.environ.get("LODEQ_STORM_S", "20"))


async def test_nothing_acknowledged_is_lost_or_done_twice_in_a_storm(capsys):
    found = await storm(SECONDS, 1)
    assert found.faults.total() > 2
    assert len(found.judge.acknowledged) > 50
    assert found.judge.completed
    assert found.told.broken is None
    assert found.told.history.acked > 100


@pytest.mark.parametrize("is_log_alone", [False, True])
async def test_a_heartbeat_of_a_cancelled_task_is_refused_and_found_where_only_the_log_fences(
    servers, is_log_alone
):
    altered = dict.fromkeys("abc", ("--no-session-check",)) if is_log_alone else {}
    told = Told(QUEUE, 1, may_break=True)
    async with nodes_of(servers, shards=1, altered=altered) as nodes:
        (old,) = await nodes.led()
        async with nodes.connect_to(old, timeout=60) as direct:
            await told.enqueue(direct.queue(QUEUE, max_attempts=ATTEMPTS), b"x", None)
            (lease,) = await told.claim(direct.queue(QUEUE), limit=1, lease_s=60, wait_s=5)
            nodes.freeze(old)
            found = await looked(nodes.leaders, lambda names: names not in (None, [old]), 30)
            async with nodes.connect_to(found[0], timeout=30) as other:
                assert await told.cancel(other, lease)
            beat = asyncio.ensure_future(told.call(lease, "heartbeat"))
            await asyncio.sleep(0.5)
            nodes.thaw(old)
            (answer,) = await asyncio.gather(beat, return_exceptions=True)
    assert isinstance(answer, lodeq.NotLeaderError) is not is_log_alone, answer
    assert (told.broken is not None) is is_log_alone
