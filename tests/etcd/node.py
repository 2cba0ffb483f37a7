"""A process that is a node: an engine in memory, its replication layer with the probe, and a port.

Says what it is for the one shard, whenever that changes.
"""

import asyncio
import sys

from lodeq.engine.runtime.clock import SystemClock
from lodeq.engine.runtime.ids import SystemRng
from lodeq.replication.etcd.address import parse_address
from lodeq.replication.etcd.log import EtcdLog
from lodeq.replication.probe import SocketConnector
from lodeq.replication.replicator import LogReplicator
from lodeq.repository.api.open import open_in_memory


async def main(url: str, name: str) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    layer = LogReplicator(
        EtcdLog(parse_address(url), clock=SystemClock(), rng=SystemRng()),
        node=name,
        url=f"tcp://127.0.0.1:{port}",
        connector=SocketConnector(),
    )
    stdin = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with open_in_memory(clock=SystemClock(), shards=1, replicator=layer) as engine:
        said = ""
        while not stdin.done():
            role = layer.status().shards[0].role
            if role == "leading" and role != said:
                await engine.queue("work").enqueue(name.encode())
            if role != said:
                said = role
                sys.stdout.write(f"{role}\n")
                sys.stdout.flush()
            await asyncio.sleep(0.01)
    server.close()


asyncio.run(main(*sys.argv[1:]))
