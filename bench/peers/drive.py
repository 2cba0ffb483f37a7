"""Full cycles through a session, by one caller or many, for a while."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from .base import Peer

__all__ = ["BATCH", "batches", "cycles"]

PAYLOAD = bytes(range(100))
RESULT = b"ok"
BATCH = 100


class _Count:
    """The count of all callers, from the moment the first begins."""

    def __init__(self, seconds: float) -> None:
        self.done = 0
        self.started = time.perf_counter()
        self.stop = self.started + seconds

    @property
    def rate(self) -> float:
        return self.done / (time.perf_counter() - self.started)


def cycles(peer: Peer, callers: int, seconds: float) -> float:
    """Put, take, done, each by itself; cycles per second of all callers together."""
    if peer.is_async:
        return asyncio.run(_async(peer, callers, seconds, batch=1))
    return _threads(peer, callers, seconds, batch=1)


def batches(peer: Peer, seconds: float) -> float:
    """One caller, a hundred at a time."""
    if peer.is_async:
        return asyncio.run(_async(peer, 1, seconds, batch=BATCH))
    return _threads(peer, 1, seconds, batch=BATCH)


def _threads(peer: Peer, callers: int, seconds: float, *, batch: int) -> float:
    sessions = [peer.session() for _ in range(callers)]
    for session in sessions:
        session.take()  # nothing: it connects, if it has not
    lock = threading.Lock()
    broken: list[BaseException] = []
    count = _Count(seconds)

    def call(session: Any) -> None:
        done = 0
        try:
            while time.perf_counter() < count.stop:
                if batch == 1:
                    session.put(PAYLOAD)
                    token = session.take()
                    if token is not None:
                        session.done(token, RESULT)
                        done += 1
                else:
                    session.put_many([PAYLOAD] * batch)
                    tokens = session.take_many(batch)
                    session.done_many(tokens, RESULT)
                    done += len(tokens)
        except BaseException as error:  # noqa: BLE001 - raised again below
            broken.append(error)
        with lock:
            count.done += done

    threads = [threading.Thread(target=call, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = count.rate
    for session in sessions:
        session.close()
    if broken:
        raise broken[0]
    return rate


async def _async(peer: Peer, callers: int, seconds: float, *, batch: int) -> float:
    await peer.enter()
    sessions = [peer.session() for _ in range(callers)]
    try:
        for session in sessions:
            await session.take()  # as above
        count = _Count(seconds)

        async def call(session: Any) -> None:
            while time.perf_counter() < count.stop:
                if batch == 1:
                    await session.put(PAYLOAD)
                    token = await session.take()
                    if token is not None:
                        await session.done(token, RESULT)
                        count.done += 1
                else:
                    await session.put_many([PAYLOAD] * batch)
                    tokens = await session.take_many(batch)
                    await session.done_many(tokens, RESULT)
                    count.done += len(tokens)

        await asyncio.gather(*(call(session) for session in sessions))
        return count.rate
    finally:
        for session in sessions:
            await session.close()
        await peer.leave()
