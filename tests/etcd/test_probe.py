"""A killed leader among processes: replaced long before its session ends."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support_etcd import fresh_name, until

pytestmark = pytest.mark.anyio
TTL_S = 10.0


class Node:
    """A process, and what it said last."""

    def __init__(self, child) -> None:
        self.child = child
        self.role = ""
        self._hearing = asyncio.ensure_future(self._hear())

    async def _hear(self) -> None:
        while line := await self.child.stdout.readline():
            self.role = line.decode().strip()

    async def end(self) -> None:
        if self.child.returncode is None:
            self.child.send_signal(signal.SIGCONT)
            self.child.kill()
        await self.child.wait()
        await self._hearing
        self.child._transport.close()


@pytest.mark.parametrize(
    ("how", "least_s", "most_s"), [(signal.SIGKILL, 0, 3), (signal.SIGSTOP, 3, TTL_S + 4)]
)
async def test_only_a_leader_whose_port_refuses_is_replaced_before_its_ttl(
    servers, how, least_s, most_s
):
    url = servers.url(fresh_name()).partition("?")[0] + f"?ttl={TTL_S:.0f}"
    nodes = {}
    try:
        for name in "abc":
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__).with_name("node.py")),
                url,
                name,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            nodes[name] = Node(child)
        await until(lambda: all(node.role for node in nodes.values()), 20)
        await until(lambda: any(node.role == "leading" for node in nodes.values()), 20)
        await asyncio.sleep(1.5)  # the others have looked at its port
        old = next(name for name, node in nodes.items() if node.role == "leading")
        loop = asyncio.get_running_loop()
        nodes[old].child.send_signal(how)
        at = loop.time()
        await until(
            lambda: any(n.role == "leading" for name, n in nodes.items() if name != old), most_s
        )
        assert loop.time() - at >= least_s
    finally:
        for node in nodes.values():
            await node.end()
