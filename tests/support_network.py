"""A path to the members of etcd that loses packets.

In a network namespace of its own, where one can be made: both directions of a veth pair lose
packets (``tc netem``), and TCP repeats them. Elsewhere proxies on loopback do what that looks like
to a connection: they stand still for a while, and cut now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from support_etcd import Proxy

__all__ = ["LossyPath", "lossy_path"]

HERE_IP, THERE_IP = "10.213.77.1", "10.213.77.2"
STALL_S = (0.2, 0.8)  # the first two repetitions of TCP
CUTS = 0.01  # of the stalls


@dataclass
class LossyPath:
    """The path.

    Attributes:
        how: what it is made of, and why it is not a namespace.
        endpoints: where the members are reached at its end.
        command: what a process at its end is started with.
        heal: called without arguments, it loses nothing any more.
    """

    how: str
    endpoints: list[str]
    heal: Callable[[], object]
    command: list[str] = field(default_factory=list)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


class _Namespace:
    """A namespace behind a veth pair."""

    def __init__(self, loss_percent: int) -> None:
        self.name = f"lodeq-{os.getpid()}"
        self._link = f"lq{os.getpid()}"
        self._loss = f"{loss_percent}%"

    def make(self) -> None:
        there = ("ip", "-n", self.name)
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "eth0", "netns", self.name)
        _run("ip", "addr", "add", f"{HERE_IP}/30", "dev", self._link)
        _run("ip", "link", "set", self._link, "up")
        _run(*there, "addr", "add", f"{THERE_IP}/30", "dev", "eth0")
        _run(*there, "link", "set", "eth0", "up")
        _run(*there, "link", "set", "lo", "up")
        _run("tc", "qdisc", "add", "dev", self._link, "root", "netem", "loss", self._loss)
        lossy = ("qdisc", "add", "dev", "eth0", "root", "netem", "loss", self._loss)
        _run("tc", "-n", self.name, *lossy)

    def heal(self) -> None:
        _run("tc", "qdisc", "del", "dev", self._link, "root")
        _run("tc", "-n", self.name, "qdisc", "del", "dev", "eth0", "root")

    def remove(self) -> None:
        for words in (("link", "del", self._link), ("netns", "del", self.name)):
            with contextlib.suppress(OSError):
                _run("ip", *words)


class _Stalling(Proxy):
    """A proxy that stands still, and cuts."""

    def __init__(self, port: int, loss_percent: int) -> None:
        super().__init__(port)
        self.loss = loss_percent / 100
        self._draw = random.Random(port)

    async def _take(self, data: bytes, *, is_answer: bool) -> bytes:
        if self._draw.random() < self.loss:
            if self._draw.random() < CUTS:
                raise ConnectionError("cut")
            await asyncio.sleep(self._draw.choice(STALL_S))
        return data


@contextlib.asynccontextmanager
async def lossy_path(ports: Sequence[int], loss_percent: int) -> AsyncIterator[LossyPath]:
    """A path to servers at these ports of loopback that loses so much in each direction."""
    namespace = _Namespace(loss_percent)
    async with contextlib.AsyncExitStack() as stack:
        try:
            stack.callback(namespace.remove)
            namespace.make()
        except OSError as error:
            namespace.remove()
            stalling = [_Stalling(port, loss_percent) for port in ports]
            for one in stalling:
                await stack.enter_async_context(one)

            def heal() -> None:
                for one in stalling:
                    one.loss = 0.0

            how = f"proxies that stall {loss_percent} % of what they pass ({error})"
            yield LossyPath(how, [f"127.0.0.1:{one.port}" for one in stalling], heal)
            return
        proxies = [Proxy(port, host=HERE_IP) for port in ports]
        for one in proxies:
            await stack.enter_async_context(one)
        yield LossyPath(
            f"a namespace that loses {loss_percent} % of packets each way",
            [f"{HERE_IP}:{one.port}" for one in proxies],
            namespace.heal,
            ["ip", "netns", "exec", namespace.name],
        )
