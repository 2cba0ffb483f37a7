"""A process that only connects to a served store loads no store."""

import json
import subprocess
import sys

import anyio.to_thread
import pytest
from support_http import serving, socket_path

import lodeq
import lodeq.testing

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),  # sockets are served on asyncio
]

ASYNC = """
import anyio

async def main():
    async with lodeq.connect(URL) as engine:
        mail = engine.queue("mail", backoff=lodeq.Backoff("fixed", base=0.1))
        receipt = await mail.enqueue({"to": "a"}, headers={"h": 1}, dedup_key="k")
        await mail.enqueue_many([lodeq.NewTask(b"x"), lodeq.NewTask(b"y")])
        assert isinstance(await engine.get(receipt.id), lodeq.Task)
        leases = await mail.claim(limit=3, worker="w")
        assert len(leases) == 3
        async with leases[0]:
            assert leases[0].payload is not None
        await leases[1].heartbeat()
        await leases[1].nack(reason="no", delay=0)
        await engine.complete_many([(leases[2], {"done": True})])
        assert isinstance(await engine.result(leases[2].task_id, wait=5), lodeq.Result)
        assert isinstance(await engine.stats(), lodeq.EngineStats)
        assert isinstance(await engine.verify(), lodeq.VerifyReport)
        assert await engine.health() == lodeq.Health(True)
        assert await engine.queues() and await mail.stats() and await mail.list("ready")
        async with mail.leases(wait=0.01) as stream:
            async for lease in stream:
                await lease.complete()
                break
        try:
            await leases[0].complete({"other": 1})
        except lodeq.LeaseLostError:
            pass

anyio.run(main)
"""
BLOCKING = """
with lodeq.sync.connect(URL) as engine:
    mail = engine.queue("mail")
    mail.enqueue_many([lodeq.NewTask({"n": n}) for n in range(3)])
    for lease in mail.leases(limit=1, wait=0.01):
        with lease:
            assert "n" in lease.payload
        if not mail.stats().pending:
            break
    assert isinstance(engine.stats(), lodeq.EngineStats)
    assert isinstance(engine.result(lease.task_id, wait=5), lodeq.Result)
    assert isinstance(engine.verify(), lodeq.VerifyReport) and engine.queues()
"""
# Ids, names, the values that users see, and the loop. None of them knows a store.
ENGINE = {
    "engine",
    "engine.records",
    "engine.records.compression",  # of a value that its owner compressed
    "engine.records.face",  # packs what a caller shows of a task
    "engine.records.fixed_fields",  # of the records that are here
    "engine.records.frame",
    "engine.records.keyspace",  # checks names
    "engine.records.patterns",
    "engine.records.policy",
    "engine.records.queues",
    "engine.records.queues.queue_settings",  # how a limit of each key is written
    "engine.records.task",  # how many attempts a record counts
    "engine.runtime",
    "engine.runtime.clock",
    "engine.runtime.current_loop",  # which runs the heartbeats of a stream
    "engine.runtime.event_loop",
    "engine.runtime.ids",
    "engine.runtime.on_asyncio",
    "engine.runtime.shielded",
    "engine.runtime.task_id",
    "engine.values",
}
REPOSITORY = {"repository", "repository.model"}


@pytest.mark.parametrize("script", [ASYNC, BLOCKING], ids=["async", "blocking"])
async def test_a_client_loads_no_store(script):
    script = (
        "import sys, json, lodeq\nURL = sys.argv[1]\n"
        f"{script}\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    with socket_path() as path:
        async with lodeq.testing.open() as engine, serving(engine, path=path) as url:
            done = await anyio.to_thread.run_sync(
                lambda: subprocess.run(
                    [sys.executable, "-W", "error", "-c", script, url],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=60,
                )
            )
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert not [name for name in loaded if name.partition(".")[0] == "rocksdict"]
    ours = {name.removeprefix("lodeq.") for name in loaded if name.startswith("lodeq.")}
    by_package = {
        package: {name for name in ours if name.partition(".")[0] == package}
        for package in ("coalescer", "engine", "replication", "repository", "segments", "service")
    }
    assert by_package.pop("engine") <= ENGINE
    assert {
        name for name in by_package.pop("repository") if not name.startswith("repository.model.")
    } == REPOSITORY
    assert not any(by_package.values()), by_package
