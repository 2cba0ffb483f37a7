"""Real engines over a real etcd: what one has acknowledged, the next leader has."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from support_etcd import Raw, fresh_name, log_of, until

import lodeq
from lodeq.engine.runtime.clock import SystemClock
from lodeq.replication.etcd.session import Session
from lodeq.replication.replicator import LogReplicator
from lodeq.repository.api.open import open_in_memory

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

    def shard(name: str):
        return layers[name].status().shards[0]

    def leader(after: int = 0) -> str:
        """Who leads, in a later term than this."""
        leading = [name for name in engines if shard(name).role == "leading"]
        return next((name for name in leading if shard(name).term > after), "")

    try:
        await until(leader)
        first = leader()
        before = shard(first).term
        other = "b" if first == "a" else "a"
        queue = engines[first].queue("work")
        receipts = await asyncio.gather(*(queue.enqueue(b"%d" % n) for n in range(50)))
        assert len({receipt.id for receipt in receipts}) == 50
        if how == "close":
            await stacks[first].aclose()
            del engines[first]
        else:
            await raw.expire(first)  # it may well lead again, in a term of its own
        await until(lambda: leader(before) == other if how == "close" else leader(before))
        queue = engines[leader(before)].queue("work")
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


async def test_a_node_joins_again_although_its_lease_ends_before_it_has(servers, monkeypatch):
    """It stood still between the two: its session is begun anew, whatever etcd answers."""
    url, granted = servers.url(fresh_name()), []
    grant = Session._grant

    async def grant_and_stand_still(self, lease):
        ttl_s = await grant(self, lease)
        granted.append(lease)
        if len(granted) == 2:
            await self._revoke(lease)
        return ttl_s

    monkeypatch.setattr(Session, "_grant", grant_and_stand_still)
    layer = LogReplicator(log_of(url), node="a", shards=1)
    async with open_in_memory(clock=SystemClock(), shards=1, replicator=layer):
        await until(lambda: layer.status().shards[0].role == "leading")
        raw = Raw(url)
        await raw.expire("a")
        await raw.close()
        await until(lambda: len(granted) == 3)
        await until(lambda: layer.status().shards[0].role == "leading")
