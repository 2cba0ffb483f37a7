"""Many tasks through one engine that is never closed: ``python tests/soak/one_life.py``.

The steady half of the soak opens its engine anew every minute, and so never sees what is let go of
only at close. Here one lease is held all the time, one poll waits all the time, and in front of
both large payloads come and go in every way there is. After each round what is left of them is
counted; that must not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support_memory import only_new, payloads_held

import lodeq
from lodeq.testing import ManualClock

HELD_S = 3600.0
LEFT_MAX = 8  # of a commit that has just ended; a round has many more

Way = Callable[[lodeq.Engine, lodeq.Queue, int], Awaitable[None]]


async def claim_and_end(engine: lodeq.Engine, queue: lodeq.Queue, size: int) -> None:
    """Each end of a lease, one task each."""
    ends: list[Callable[[lodeq.Lease], Awaitable[None]]] = [
        lodeq.Lease.complete,
        lodeq.Lease.bury,
        lodeq.Lease.cancel,
        lambda lease: lease.nack(delay=HELD_S),
        lambda lease: lease.release(delay=HELD_S),
    ]
    for end in ends:
        await queue.enqueue(os.urandom(size))
        (lease,) = await queue.claim(lease=HELD_S)
        await lease.heartbeat(HELD_S / 2)
        await end(lease)


async def poll(engine: lodeq.Engine, queue: lodeq.Queue, size: int) -> None:
    """A poll that is served, and one that gives up."""
    served = asyncio.ensure_future(queue.claim(wait=HELD_S, lease=HELD_S))
    gone = asyncio.ensure_future(queue.claim(wait=HELD_S, lease=HELD_S))
    await asyncio.sleep(0)
    await queue.enqueue(os.urandom(size))
    await engine.complete_many([(lease, b"") for lease in await served])
    gone.cancel()


async def stream(engine: lodeq.Engine, queue: lodeq.Queue, size: int) -> None:
    """The stream of leases that are kept alive."""
    async with queue.leases(limit=2, lease=HELD_S) as leases:
        for _ in range(3):
            await queue.enqueue(os.urandom(size))
            async with await anext(leases):
                pass


async def forgotten(engine: lodeq.Engine, queue: lodeq.Queue, size: int) -> None:
    """A lease whose holder is gone, and that is reaped."""
    await queue.enqueue(os.urandom(size), max_attempts=1)
    await queue.claim(lease=0.001)


WAYS: list[Way] = [claim_and_end, poll, stream, forgotten]


async def one_life(path: Path, rounds: int, *, size: int, times: int = 10) -> list[int]:
    """How many payloads were left after each round."""
    left: list[int] = []
    clock = ManualClock()
    with only_new():
        async with lodeq.open(path, block_cache_bytes=8 << 20, clock=clock) as engine:
            queue = engine.queue("work", retention=1, dead_retention=1)
            idle = asyncio.ensure_future(engine.queue("idle").claim(wait=HELD_S))
            await queue.enqueue(b"held")
            (held,) = await queue.claim(lease=HELD_S)
            for _ in range(rounds):
                for way in WAYS * times:
                    await way(engine, queue, size)
                clock.advance(1.0)  # the forgotten are reaped
                assert (await queue.stats()).leased == 1
                left.append(payloads_held(size))
            idle.cancel()
            await held.complete()
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--size", type=int, default=20_000, help="bytes of a payload")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lodeq-life-") as folder:
        left = asyncio.run(one_life(Path(folder) / "s", args.rounds, size=args.size))
    sys.stdout.write(f"{args.rounds} rounds, payloads left: {min(left)} to {max(left)}\n")
    return int(max(left) > LEFT_MAX)


if __name__ == "__main__":
    sys.exit(main())
