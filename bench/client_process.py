"""One client of a server, in a process of its own: ``KIND ADDRESS``.

``KIND`` is ``lodeq`` (``ADDRESS`` is its URL) or the name of a class in ``peers.servers``
(``ADDRESS`` is the folder its server runs in). For each measure it takes a line of JSON
(``callers``, ``batch``, ``seconds``), prints a line when all callers are connected, takes the time
to begin at, on the monotonic clock that all processes share, and answers with a line of JSON
(``done``, ``seconds``, ``cpu_s``). Neither connecting nor importing is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from load import PAYLOAD
from peers import servers
from peers.base import Peer

import lodeq
from lodeq import NewTask

RESULT = b"ok"
Order = dict[str, Any]


class Measured:
    """Tell how much callers have done by a common time."""

    def __init__(self, order: Order) -> None:
        self.callers: int = order["callers"]
        self.batch: int = order["batch"]
        self.seconds: float = order["seconds"]
        self.at = self.stop = 0.0
        self.done = 0
        self.cpu_s = 0.0

    def goes_on(self, done: int) -> bool:
        """Tell whether a caller that has done so many goes on: each does one, however late."""
        return not done or time.monotonic() < self.stop

    def begin(self) -> None:
        """All callers are connected: wait for the common start."""
        print("ready", flush=True)
        self.at = float(sys.stdin.readline())
        self.stop = self.at + self.seconds
        time.sleep(max(0.0, self.at - time.monotonic()))
        self.cpu_s = time.process_time()

    def answer(self) -> str:
        """All callers are through."""
        return json.dumps(
            {
                "done": self.done,
                "seconds": time.monotonic() - self.at,
                "cpu_s": time.process_time() - self.cpu_s,
            }
        )


async def served(url: str) -> None:
    """All callers of this process share one connection object, as a service's would."""
    async with lodeq.connect(url) as engine:
        queue = engine.queue("served")

        async def single(run: Measured) -> None:
            done = 0
            while run.goes_on(done):
                await queue.enqueue(PAYLOAD)
                for lease in await queue.claim():
                    await lease.complete(RESULT)
                    done += 1
            run.done += done

        async def many(run: Measured) -> None:
            done = 0
            while run.goes_on(done):
                await queue.enqueue_many(
                    [NewTask(bytes(bytearray(PAYLOAD))) for _ in range(run.batch)]
                )
                leases = await queue.claim(limit=run.batch)
                await engine.complete_many([(lease, RESULT) for lease in leases])
                done += len(leases)
            run.done += done

        while line := await asyncio.to_thread(sys.stdin.readline):
            run = Measured(json.loads(line))
            call = single if run.batch == 1 else many
            run.begin()
            await asyncio.gather(*(call(run) for _ in range(run.callers)))
            print(run.answer(), flush=True)


async def awaited(peer: Peer) -> None:
    """A peer whose sessions are coroutines: a session for each caller."""
    sessions: list[Any] = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        run = Measured(json.loads(line))
        while len(sessions) < run.callers:
            sessions.append(peer.session())
            await sessions[-1].take()  # nothing: it connects

        async def call(session: Any, run: Measured = run) -> None:
            done = 0
            while run.goes_on(done):
                await session.put(PAYLOAD)
                token = await session.take()
                if token is not None:
                    await session.done(token, RESULT)
                    done += 1
            run.done += done

        run.begin()
        await asyncio.gather(*(call(session) for session in sessions[: run.callers]))
        print(run.answer(), flush=True)
    for session in sessions:
        await session.close()


def threaded(peer: Peer) -> None:
    """A peer whose sessions block: a session and a thread for each caller."""
    sessions: list[Any] = []
    lock = threading.Lock()
    while line := sys.stdin.readline():
        run = Measured(json.loads(line))
        while len(sessions) < run.callers:
            sessions.append(peer.session())
            sessions[-1].take()
        run_threads(run, sessions[: run.callers], lock)
        print(run.answer(), flush=True)
    for session in sessions:
        session.close()


def run_threads(run: Measured, sessions: list[Any], lock: threading.Lock) -> None:
    """One measure by threads; the first error is raised when all have ended."""
    broken: list[BaseException] = []

    def call(session: Any) -> None:
        done = 0
        try:
            while run.goes_on(done):
                session.put(PAYLOAD)
                token = session.take()
                if token is not None:
                    session.done(token, RESULT)
                    done += 1
        except BaseException as error:  # noqa: BLE001 - raised again below
            broken.append(error)
        with lock:
            run.done += done

    run.begin()
    threads = [threading.Thread(target=call, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]


def main(kind: str, address: str) -> None:
    """Serve measures until the parent closes the pipe."""
    if kind == "lodeq":
        asyncio.run(served(address))
        return
    peer: Peer = getattr(servers, kind)(Path(address))
    if peer.is_async:
        run: Callable[[Peer], Awaitable[None]] = awaited
        asyncio.run(run(peer))  # type: ignore[arg-type]
    else:
        threaded(peer)


if __name__ == "__main__":
    main(*sys.argv[1:])
