"""Write the golden stores: what a release leaves on disk, kept so that every later one reads it.

``python tests/golden/make.py FOLDER`` writes one archive per store and ``expected.json``, what is
in them, into FOLDER. Run it once for each format version, on the last commit that writes it, and
never again: the archives under ``v<N>/`` are evidence, not output.
"""

import asyncio
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tarfile
import tempfile
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lodeq
from lodeq.testing import ManualClock

START = datetime(2026, 11, 23, 12, tzinfo=UTC)
BIG = 40 << 10  # above body_bytes_min: lies in a body file
WEEK = 7 * 86_400

Facts = dict[str, Any]


def payload(n: int, size: int = 0) -> bytes:
    return (b"%06d:" % n).ljust(size, b".")


async def fill(engine: lodeq.Engine, facts: Facts) -> None:
    """Put tasks into every state, on two queues and a tenant, and say where each one is."""
    mail = engine.queue("mail", retention=WEEK)
    acme = engine.queue("mail", tenant="acme", retention=WEEK)
    audit = engine.queue("audit", retention=WEEK)

    def note(receipt: lodeq.Receipt, state: str, **more: Any) -> None:
        facts["tasks"][str(receipt.id)] = {"state": state, **more}

    for n in range(40):  # to be completed
        note(await mail.enqueue(payload(n), headers={"n": n}), "completed", value=n)
    for lease in await mail.claim(limit=40, worker="maker"):
        await lease.complete(lease.headers["n"])
    for n in range(40, 60):  # dead, after two attempts or buried
        note(await audit.enqueue(payload(n), max_attempts=1), "dead", attempts=1)
    leases = await audit.claim(limit=20)
    for n, lease in enumerate(leases):
        await (lease.nack(reason="no luck") if n % 2 else lease.bury("no use"))
    for n in range(60, 70):
        receipt = await mail.enqueue(payload(n))
        assert await engine.cancel(receipt.id)
        note(receipt, "cancelled")
    for n in range(100, 300):  # ready, below the highest priority
        queue = (mail, acme, audit)[n % 3]
        receipt = await queue.enqueue(payload(n), priority=n % 9, headers={"n": n})
        note(receipt, "ready", payload=payload(n).decode(), priority=n % 9)
    for n in range(300, 340):
        receipt = await acme.enqueue(payload(n), delay=3600 + n)
        note(receipt, "delayed", payload=payload(n).decode())
    for n in range(340, 380):  # dedup: held by a live task, and by a window alone
        key = f"key:{n}"
        receipt = await mail.enqueue(payload(n), dedup_key=key, dedup_window=WEEK)
        note(receipt, "ready", payload=payload(n).decode(), key=key, queue="mail", tenant="")
    for n in range(380, 400):
        key = f"key:{n}"
        receipt = await acme.enqueue(payload(n), dedup_key=key, dedup_window=WEEK, priority=9)
        note(receipt, "completed", value=n, key=key, queue="mail", tenant="acme")
    for lease in await acme.claim(limit=20):
        await lease.complete(int(lease.payload[:6]))
    for n in range(400, 420):  # payloads in body files; some records shared, some dead
        receipt = await mail.enqueue(payload(n, BIG))
        note(receipt, "ready", payload=payload(n).decode(), size=BIG)
    shared = payload(420, BIG)
    for receipt in await mail.enqueue_many([lodeq.NewTask(shared) for _ in range(3)]):
        note(receipt, "ready", payload=payload(420).decode(), size=BIG)
    for n in range(421, 431):
        receipt = await mail.enqueue(payload(n, BIG), priority=9)
        note(receipt, "completed", value=n)
    for lease in await mail.claim(limit=10):
        assert int(lease.payload[:6]) >= 421
        await lease.complete(int(lease.payload[:6]))
    for n in range(440, 450):  # moved: nacked with a delay, and released
        receipt = await audit.enqueue(payload(n), priority=9)
        is_late = n % 2
        state = "delayed" if is_late else "ready"
        note(receipt, state, payload=payload(n).decode(), attempts=is_late)
    for lease in await audit.claim(limit=10):
        late = int(lease.payload[:6]) % 2
        await (lease.nack(delay=7200, reason="later") if late else lease.release())
    ttl = await mail.enqueue(payload(450), ttl=WEEK)
    note(ttl, "ready", payload=payload(450).decode())
    face: Any = {"function": "send", "preview": "n=460", "labels": {"customer": "7"}}
    for n, state in ((460, "ready"), (461, "delayed"), (462, "completed"), (463, "dead")):
        late = 3600 if state == "delayed" else None
        receipt = await audit.enqueue(payload(n), priority=9, delay=late, **face)
        note(receipt, state, face=face)
        if state in ("completed", "dead"):
            (lease,) = [one for one in await audit.claim(limit=20) if await _is(one, n)]
            await (lease.complete(n) if state == "completed" else lease.bury("no use"))
    await engine.queue("held").enqueue(payload(451))
    await engine.queue("held").pause()
    facts["paused"] = ["held"]


async def _is(lease: lodeq.Lease, n: int) -> bool:
    """Whether it is of this task; any other goes back."""
    if int(lease.payload[:6]) == n:
        return True
    await lease.release()
    return False


def stage(path: Path, job: str, first: int, facts: Facts | None) -> None:
    tasks = [
        lodeq.NewTask(payload(n), priority=n % 10, dedup_key=f"load:{n}" if n % 2 else None)
        for n in range(first, first + 30)
    ]
    with lodeq.Stage(path, job, clock=ManualClock(START)) as staged:
        ids = staged.add(tasks, queue="loaded")
        assert staged.publish()
    for n, task_id in zip(range(first, first + 30), ids, strict=True):
        if facts is not None:
            fact: Facts = {"state": "ready", "payload": payload(n).decode(), "priority": n % 10}
            facts["tasks"][str(task_id)] = fact
            if n % 2:
                fact |= {"key": f"load:{n}", "queue": "loaded", "tenant": ""}


async def closed(path: Path, facts: Facts, shards: int, mode: Any) -> None:
    """Every state, a load that is in, a lifecycle journal; closed."""
    clock = ManualClock(START)
    how: Any = {"shards": shards, "durability": mode, "journal": "tasks", "inbox": False}
    async with lodeq.open(path, clock=clock, **how) as engine:
        await fill(engine, facts)
        stage(path, "backfill-1", 1000, facts)
        report = await engine.ingest()
        assert (report.ok, report.tasks) == (True, 30), report
        assert (await engine.verify()).ok
    async with lodeq.open(path, clock=clock, journal="tasks", inbox=False) as engine:
        assert (await engine.verify()).ok


async def killed(path: Path, facts: Facts, shards: int, mode: Any) -> None:
    """The same, with leases live, ended by a SIGKILL: logs to be replayed."""
    await closed(path, facts, shards, mode)
    clock = ManualClock(START)
    engine = await lodeq.open(path, clock=clock, inbox=False)
    first = await engine.queue("late").enqueue_many(
        [lodeq.NewTask(payload(n)) for n in range(500, 540)]
    )
    held = {str(lease.task_id) for lease in await engine.queue("late").claim(limit=20)}
    for n, receipt in enumerate(first, 500):
        fact = {"state": "ready", "payload": payload(n).decode()}
        fact["attempts"] = int(str(receipt.id) in held)
        facts["tasks"][str(receipt.id)] = fact
    await engine.fsync()
    (path.parent / "facts.json").write_text(json.dumps(facts))
    os.kill(os.getpid(), signal.SIGKILL)


async def waiting(path: Path, facts: Facts) -> None:
    """Two loads that nobody has taken in: one with dedup keys, one without."""
    async with lodeq.open(path, clock=ManualClock(START), inbox=False):
        pass
    stage(path, "keyed", 2000, None)
    with lodeq.Stage(path, "plain", clock=ManualClock(START)) as staged:
        staged.add([lodeq.NewTask(payload(n)) for n in range(2100, 2130)], queue="loaded")
        assert staged.publish()


async def checkpoint(path: Path, facts: Facts) -> None:
    """A checkpoint of a store with every state."""
    source = path.parent / "source"
    clock = ManualClock(START)
    async with lodeq.open(source, clock=clock, shards=4, inbox=False) as engine:
        await fill(engine, facts)
        await engine.checkpoint(path)
    shutil.rmtree(source)


async def journal(path: Path, facts: Facts) -> None:
    """A journal by itself, with a named tailer that has read 40 of 100 records."""
    async with lodeq.journal.open(path, roll=lodeq.journal.Roll(bytes=4096)) as log:
        for n in range(100):
            await log.append(payload(n, 100))
        tailer = log.tailer("half")
        count = 0
        async for _ in tailer:
            count += 1
            if count == 40:
                break
        tailer.store()
    facts["journal"] = {"records": 100, "read": 40}


STORES: dict[str, Callable[[Path, Facts], Coroutine[Any, Any, None]]] = {
    "closed-1": lambda path, facts: closed(path, facts, 1, "nosync"),
    "closed-4": lambda path, facts: closed(path, facts, 4, "fsync"),
    "killed-1": lambda path, facts: killed(path, facts, 1, "nosync"),
    "killed-4": lambda path, facts: killed(path, facts, 4, "fsync"),
    "waiting": waiting,
    "checkpoint": checkpoint,
    "journal": journal,
}


def run(name: str, folder: str) -> None:
    facts: Facts = {"tasks": {}}
    path = Path(folder) / "store"
    asyncio.run(STORES[name](path, facts))
    (path.parent / "facts.json").write_text(json.dumps(facts))


def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without RocksDB's own logs: they name the machine, and no open reads them."""
    if Path(info.name).name.startswith("LOG"):
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def main(target: Path) -> None:
    expected = {}
    for name in STORES:
        with tempfile.TemporaryDirectory() as folder:
            child = multiprocessing.get_context("spawn").Process(target=run, args=(name, folder))
            child.start()
            child.join()
            assert child.exitcode == (-signal.SIGKILL if name.startswith("killed") else 0)
            expected[name] = json.loads((Path(folder) / "facts.json").read_text())
            with tarfile.open(target / f"{name}.tar.xz", "w:xz") as archive:
                archive.add(Path(folder) / "store", "store", filter=anonymous)
    text = json.dumps({"start": START.isoformat(), "stores": expected}, sort_keys=True)
    (target / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
