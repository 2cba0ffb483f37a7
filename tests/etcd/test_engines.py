"""Real engines over a real etcd: what one has acknowledged, the next leader has."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from support_etcd import Raw, fresh_name, log_of, until

import lodeq
from lodeq.replication.replicator import LogReplicator

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("how", ["close", "expire"])
async def test_the_next_leader_has_what_was_acknowledged(servers, tmp_path, how):
    url = servers.url(fresh_name())
    engines, layers, stacks = {}, {}, {}
    raw = Raw(url)
    for name in ("a", "b"):
        stacks[name] = AsyncExitStack()
        layers[name] = LogReplicator(log_of(url), node=name, shards=1)
        engines[name] = await stacks[name].enter_async_context(
            lodeq.open(tmp_path / name, shards=1, replicator=layers[name])
        )

    def leader() -> str:
        roles = {name: layers[name].status().shards[0].role for name in engines}
        return next((name for name, role in roles.items() if role == "leading"), "")

    try:
        await until(leader)
        first = leader()
        other = "b" if first == "a" else "a"
        queue = engines[first].queue("work")
        receipts = await asyncio.gather(*(queue.enqueue(b"%d" % n) for n in range(50)))
        assert len({receipt.id for receipt in receipts}) == 50
        if how == "close":
            await stacks[first].aclose()
            del engines[first]
        else:
            await raw.expire(first)
            await until(lambda: leader() != first)
        await until(lambda: leader() == other if how == "close" else leader())
        queue = engines[leader()].queue("work")
        claimed = []
        while leases := await queue.claim(limit=10):
            for lease in leases:
                claimed.append(lease.payload)
                await lease.complete()
        assert sorted(claimed, key=int) == [b"%d" % n for n in range(50)]
    finally:
        for stack in stacks.values():
            await stack.aclose()
        await raw.close()
