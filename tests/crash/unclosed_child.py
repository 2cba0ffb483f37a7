"""A program that dies of its own exception while the disk syncs, and closes nothing.

``python unclosed_child.py KIND STORE``; prints the id of a task that was acknowledged.
"""

import asyncio
import sys
from functools import partial

import lodeq

SYNCING = 24 << 20  # bytes that a sync has to write: it is in flight when the program ends


class OwnError(Exception):
    """What the program dies of."""


async def work(path, spawn, checkpoint):
    engine = await lodeq.open(path, durability="fsync", shards=2, body_bytes_min=None)
    mail = engine.queue("mail")
    kept = await mail.enqueue(b"acknowledged")
    sys.stdout.write(kept.id.hex() + "\n")
    sys.stdout.flush()
    for _ in range(SYNCING >> 20):
        spawn(partial(mail.enqueue, bytes(1 << 20)))
    while not any(shard.coalescer._syncer._is_running for shard in engine._state.shards):
        await checkpoint()
    raise OwnError


async def on_asyncio(path):
    tasks = []
    await work(
        path, lambda fn: tasks.append(asyncio.ensure_future(fn())), partial(asyncio.sleep, 0)
    )


async def on_trio(path):
    import trio

    async with trio.open_nursery() as nursery:
        await work(path, nursery.start_soon, trio.lowlevel.checkpoint)


def in_a_thread(path):
    engine = lodeq.sync.open(path, durability="fsync")
    mail = engine.queue("mail")
    kept = mail.enqueue(b"acknowledged")
    sys.stdout.write(kept.id.hex() + "\n")
    sys.stdout.flush()
    state = engine._twin._state
    synced = state.shards[0].coalescer.stats.syncs
    state.spawner.call_soon_threadsafe(
        lambda: [
            asyncio.ensure_future(engine._twin.queue("mail").enqueue(bytes(1 << 20)))
            for _ in range(SYNCING >> 20)
        ]
    )
    # In flight, or over before this thread had its turn: it must not wait for the next one.
    while not (
        state.shards[0].coalescer._syncer._is_running
        or state.shards[0].coalescer.stats.syncs > synced
    ):
        pass
    raise OwnError


def main(kind, path):
    if kind == "trio":
        import trio

        trio.run(on_trio, path)
    elif kind == "asyncio":
        asyncio.run(on_asyncio(path))
    else:
        in_a_thread(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
