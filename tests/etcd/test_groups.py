"""Two log groups in etcd: their keys are apart, and neither is taken for the other."""

import pytest
from support_etcd import fresh_name, log_of, shared_servers
from support_shared_log import record_of

from lodeq.errors import UsageError
from lodeq.replication.groups import LogGroups
from lodeq.replication.port import Genesis, Member

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_each_group_has_the_logs_of_its_shards():
    servers = shared_servers()
    urls = [servers.url(fresh_name()) for _ in range(2)]
    log = LogGroups([log_of(url) for url in urls])
    genesis = await log.connect(Genesis("orders", 4, bytes(16)))
    assert (genesis.group, genesis.groups) == (0, 2)
    await log.join(Member("a"))
    for shard in range(4):
        won = await log.campaign(shard)
        assert won is not None
        await log.append(record_of(shard, won.term, 1, ((b"k", b"%d" % shard),)))
    assert [(state.leader, state.last) for state in await log.states()] == [("a", 1)] * 4
    for number, one in enumerate(log.groups):
        lasts = [state.last for state in await one.states()]
        assert lasts == [int(shard % 2 == number) for shard in range(4)]
    for shard in range(4):
        (record,) = await log.read(shard, 0)
        assert record.shard == shard
    assert [one.node for one in await log.members()] == ["a"]
    assert 0 < (await log.space()).share < 1
    await log.close()
    swapped = LogGroups([log_of(url) for url in reversed(urls)])
    with pytest.raises(UsageError, match="in the order"):
        await swapped.connect(Genesis("orders", 4, bytes(16)))
    await swapped.close()
