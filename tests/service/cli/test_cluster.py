"""Commands over a cluster: its address stands where a store's does."""

import anyio
import pytest
from click.testing import CliRunner
from support_cluster_client import cluster

from lodeq import NewTask
from lodeq.service.cli.app import lodeq as command

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


async def told(*words):
    result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(command, [*words]))
    assert result.exit_code == 0, result.output
    return result.output


async def test_commands_take_the_address_of_a_cluster():
    async with cluster() as nodes:
        for n, name in enumerate(nodes.names):
            await nodes.engines[name].queue("mail").enqueue_many([NewTask(n)] * 2)
        assert "6" in await told("stats", nodes.url)
        assert "mail" in await told("ls", nodes.url)
        await told("pause", nodes.url, "mail")
        assert await nodes.engines[nodes.names[2]].queue("mail").claim() == []
        await told("resume", nodes.url, "mail")
        await told("purge", nodes.url, "mail", "--yes")
        for engine in nodes.engines.values():
            assert (await engine.queue("mail").stats()).ready == 0
