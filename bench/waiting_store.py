"""A store in which so many tasks wait, made in a process of its own: ``PATH N``.

They come by enqueue_many, as a service's would, and go to disk as they come. A store that has some
of them is topped up, so an interrupted build goes on, and a kept store is used again.
"""

from __future__ import annotations

import asyncio
import sys

from bursts import refill
from settling import settled

import lodeq

QUEUE = "waiting"


async def fill(path: str, n: int) -> None:
    """Open, top up, let compactions end, close."""
    async with lodeq.open(path) as engine:
        await refill(engine.queue(QUEUE), n)
        await settled([engine])


if __name__ == "__main__":
    asyncio.run(fill(sys.argv[1], int(sys.argv[2])))
