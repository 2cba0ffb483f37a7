"""A process that leads a shard and appends when it is told to."""

import asyncio
import sys

from lodeq.engine.runtime.clock import SystemClock
from lodeq.engine.runtime.ids import SystemRng
from lodeq.errors import LodeqError
from lodeq.replication.etcd.address import parse_address
from lodeq.replication.etcd.log import EtcdLog
from lodeq.replication.port import Genesis, Member
from lodeq.replication.record import Batch, LogRecord


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main(url: str, node: str) -> None:
    log = EtcdLog(parse_address(url), clock=SystemClock(), rng=SystemRng())
    await log.connect(Genesis("any", 2, bytes(16)))
    await log.join(Member(node))
    term, last = await log.campaign(0)
    batch = (Batch(1, ((b"k", b"v"),)),)
    await log.append(LogRecord(bytes(16), 0, term, last + 1, batch))
    say(f"leads {term}")
    await asyncio.to_thread(sys.stdin.readline)
    say("session holds" if log.session_until() else "session over")
    try:
        await log.append(LogRecord(b"x" * 16, 0, term, last + 2, batch))
        say("added")
    except LodeqError as error:
        say(type(error).__name__)
    await log.close()


asyncio.run(main(*sys.argv[1:]))
