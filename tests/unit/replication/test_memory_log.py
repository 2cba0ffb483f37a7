"""The log in memory, as simulations use it: what it does is repeated by a seed."""

import asyncio

from support_behaviour import StillClock, settle
from support_loop import on_loop

from lodeq.engine.runtime.current_loop import current_spawner
from lodeq.errors import LodeqError
from lodeq.replication.memory.log import MemoryLog


@on_loop
async def test_who_waits_when_a_connection_is_closed_hears_of_it_in_the_order_of_asking() -> None:
    log = MemoryLog(current_spawner(), StillClock())
    client = log.client("a")
    log.network.freeze("a")
    heard: list[int] = []
    calls = [asyncio.ensure_future(client.state(0)) for _ in range(64)]
    for n, call in enumerate(calls):
        call.add_done_callback(lambda _, n=n: heard.append(n))
    await settle()
    await client.close()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, LodeqError) for answer in answers)
    assert heard == [*range(64)]
