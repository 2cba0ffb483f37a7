"""An encoder that raises in the middle of an operation: nothing half-built is ever committed.

Every operation is run again and again on a fresh engine, and each time another one of the calls
that make its keys and values raises. Either the operation has left no trace, or nothing of its
group is written and its shard says so; the rows on disk keep every rule of the store after each
single commit.
"""

import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support_behaviour import drain, settle
from support_faults import Rig, faulty

import lodeq
import lodeq.repository
from lodeq import NewTask, StoragePoisonedError
from lodeq.coalescer.event_buffer import EventBuffer
from lodeq.coalescer.group import Group
from lodeq.engine.recovery.verify import verify
from lodeq.repository.bulk.imported_tasks import ImportedTask, encode_imported, enqueue_imported
from lodeq.repository.model.encoded_tasks import TaskTemplate

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not hasattr(Group.__init__, "__code__"),
        reason="names inside compiled modules cannot be replaced",
    ),
]

_HOMES = tuple(
    f"lodeq.engine.{name}"
    for name in (
        "records.keyspace",
        "records.rows",
        "records.result",
        "records.lease",
        "records.events",
        "records.frame",
        "records.policy",
    )
)
_BUILT_IN = {
    "checksum",
    "pack_one",
    "pack_result_head",
    "pack_task_times",
    "token_hash",
    "xxh3_64_digest",
}


class InjectedError(Exception):
    pass


def encoders() -> list[tuple[Any, str]]:
    """Where the modules of operations keep what makes keys and values."""
    found = []
    for info in pkgutil.walk_packages(lodeq.repository.__path__, "lodeq.repository."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            home = getattr(value, "__module__", "")
            is_encoder = name.startswith(("encode_", "pack_")) or name.endswith("_key")
            if name in _BUILT_IN or (
                home in _HOMES and (is_encoder or name in ("checksum", "token_hash", "seal"))
            ):
                found.append((module, name))
    return found


class Fault:
    """The n-th encode raises, while it is armed."""

    def __init__(self, patch: pytest.MonkeyPatch, n: int) -> None:
        self.left, self.is_armed = n, False
        for module, name in encoders():
            patch.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_armed:
                self.left -= 1
                if self.left == 0:
                    raise InjectedError
            return real(*args, **kwargs)

        return call


Act = Callable[[], Awaitable[object]]
Scenario = Callable[[Rig], Awaitable[Act]]


async def lease_of(rig: Rig, *tasks: NewTask) -> list[lodeq.Lease]:
    await rig.queue.enqueue_many(tasks or [NewTask(b"held")])
    return await rig.queue.claim(limit=len(tasks) or 1, lease=5)


async def enqueue_plain(rig: Rig) -> Act:
    return lambda: rig.queue.enqueue(b"new")


async def enqueue_with_options(rig: Rig) -> Act:
    return lambda: rig.queue.enqueue(b"new", delay=9, ttl=60, dedup_key="k", dedup_window=60)


async def enqueue_many_plain(rig: Rig) -> Act:
    return lambda: rig.queue.enqueue_many([NewTask(b"%d" % i) for i in range(3)])


async def enqueue_many_mixed(rig: Rig) -> Act:
    tasks = [NewTask(b"a", ttl=9), NewTask(b"b", dedup_key="k"), NewTask(b"c", delay=3)]
    return lambda: rig.queue.enqueue_many(tasks)


async def enqueue_atomic(rig: Rig) -> Act:
    tasks = [NewTask(b"a", ttl=9), NewTask(b"b", priority=7), NewTask(b"c", delay=3)]
    return lambda: rig.queue.enqueue_many(tasks, atomic=True)


async def replace(rig: Rig) -> Act:
    await rig.queue.enqueue(b"old", dedup_key="k", priority=3)
    return lambda: rig.queue.enqueue(b"new", dedup_key="k", on_conflict="replace")


async def claim(rig: Rig) -> Act:
    await rig.queue.enqueue(b"plain")
    return lambda: rig.queue.claim()


async def claim_keyed(rig: Rig) -> Act:
    await rig.queue.enqueue_many([NewTask(b"k", dedup_key="k"), NewTask(b"l", ttl=9)])
    return lambda: rig.queue.claim(limit=2)


async def claim_expired(rig: Rig) -> Act:
    await rig.queue.enqueue(b"short", ttl=1)
    rig.clock.step_wall(5)
    return lambda: rig.queue.claim()


async def complete(rig: Rig) -> Act:
    (lease,) = await lease_of(rig)
    return lambda: lease.complete({"ok": 1})


async def complete_then(rig: Rig) -> Act:
    (lease,) = await lease_of(rig, NewTask(b"held", dedup_key="k", dedup_window=9))
    return lambda: lease.complete({"ok": 1}, then=[NewTask(b"1"), NewTask(b"2", delay=1)])


async def complete_many(rig: Rig) -> Act:
    leases = await lease_of(rig, NewTask(b"1"), NewTask(b"2", dedup_key="k"), NewTask(b"3"))
    return lambda: rig.engine.complete_many([(lease, b"done") for lease in leases])


async def nack(rig: Rig) -> Act:
    (lease,) = await lease_of(rig, NewTask(b"held", ttl=60))
    return lambda: lease.nack(delay=3, reason="busy")


async def nack_to_death(rig: Rig) -> Act:
    (lease,) = await lease_of(rig, NewTask(b"held", max_attempts=1, dedup_key="k"))
    return lambda: lease.nack(reason="no use")


async def release(rig: Rig) -> Act:
    (lease,) = await lease_of(rig)
    return lambda: lease.release()


async def bury(rig: Rig) -> Act:
    (lease,) = await lease_of(rig)
    return lambda: lease.bury("bad")


async def cancel_ready(rig: Rig) -> Act:
    receipt = await rig.queue.enqueue(b"x", dedup_key="k", dedup_window=9)
    return lambda: rig.engine.cancel(receipt.id)


async def cancel_leased(rig: Rig) -> Act:
    (lease,) = await lease_of(rig)
    return lambda: rig.engine.cancel(lease.task_id)


async def redrive(rig: Rig) -> Act:
    for lease in await lease_of(rig, NewTask(b"1", dedup_key="k", dedup_window=99), NewTask(b"2")):
        await lease.bury("bad")
    return lambda: rig.queue.redrive()


async def purge(rig: Rig) -> Act:
    await rig.queue.enqueue_many([NewTask(b"1"), NewTask(b"2", delay=9), NewTask(b"3", ttl=99)])
    return lambda: rig.queue.purge()


async def pause(rig: Rig) -> Act:
    return lambda: rig.queue.pause()


async def reap(rig: Rig) -> Act:
    await lease_of(rig, NewTask(b"1", max_attempts=1), NewTask(b"2"), NewTask(b"3", ttl=2))
    return lambda: rig.clock.advance(6)


async def promote(rig: Rig) -> Act:
    await rig.queue.enqueue_many([NewTask(b"1", delay=3), NewTask(b"2", delay=3)])
    return lambda: rig.clock.advance(4)


async def sweep(rig: Rig) -> Act:
    await rig.queue.enqueue_many([NewTask(b"1", ttl=3), NewTask(b"2", dedup_key="k", ttl=2)])
    return lambda: rig.clock.advance(10)


async def import_past(rig: Rig) -> Act:
    now_us = rig.clock.wall_us()
    until_ms = now_us // 1000 + 60_000
    tasks = [
        ImportedTask(b"1", "1", until_ms, attempts=2, reason="busy"),
        ImportedTask(b"2", "2", until_ms, attempts=1, died_ms=now_us // 1000 - 5, reason="dead"),
        ImportedTask(b"3", "3", until_ms, attempts=1, due_ms=now_us // 1000 + 5000),
        ImportedTask(b"", "4", until_ms, is_over=True),
        ImportedTask(b"5", "5", until_ms, expires_ms=until_ms),
    ]
    shared = TaskTemplate(b"mail", b"")
    items = [(task, encode_imported(rig.state, shared, task, now_us)) for task in tasks]
    return lambda: enqueue_imported(rig.state, items)


SCENARIOS = [
    enqueue_plain,
    enqueue_with_options,
    enqueue_many_plain,
    enqueue_many_mixed,
    enqueue_atomic,
    replace,
    claim,
    claim_keyed,
    claim_expired,
    complete,
    complete_then,
    complete_many,
    nack,
    nack_to_death,
    release,
    bury,
    cancel_ready,
    cancel_leased,
    redrive,
    purge,
    pause,
    reap,
    promote,
    sweep,
    import_past,
]


async def run_with_fault(scenario: Scenario, n: int) -> bool:
    """One life; returns whether the fault was met."""
    with pytest.MonkeyPatch.context() as patch:
        fault = Fault(patch, n)
        async with faulty(shards=1) as rig:
            rig.state.shards[0].coalescer.events = EventBuffer(0)
            findings = rig.verify_every_commit()
            await rig.queue.enqueue_many([NewTask(b"before %d" % i, priority=0) for i in range(2)])
            act = await scenario(rig)
            await settle()
            fault.is_armed = True
            try:
                await act()
                await settle()
            except (InjectedError, StoragePoisonedError):
                pass
            finally:
                fault.is_armed = False
            await settle()
            assert not findings, (n, findings)
            shard = rig.state.shards[0]
            if shard.coalescer.takes_writes:
                if scenario is enqueue_atomic:
                    here = {
                        task.payload
                        for state in ("ready", "delayed")
                        for task in await rig.queue.list(state)
                    }
                    assert len(here & {b"a", b"b", b"c"}) in (0, 3)
                await rig.clock.advance(40)  # what the reaper could not do, it does now
                await rig.queue.resume()
                assert (await rig.engine.verify()).ok
                await rig.queue.enqueue(b"after")
                left = set(await drain(rig.queue))
                assert b"after" in left
                assert {b"before 0", b"before 1"} <= left or scenario is purge
                assert not (await rig.queue.stats()).leased
                assert (await rig.engine.verify()).ok
            else:  # what is on disk is what an open will find
                assert not verify(rig.store.inner, 0, 1)
                with pytest.raises(StoragePoisonedError):
                    await rig.queue.enqueue(b"refused")
            assert not findings, (n, findings)
        return fault.left <= 0


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
async def test_no_encode_that_fails_leaves_anything_half_built(scenario: Scenario) -> None:
    n = 1
    while await run_with_fault(scenario, n):
        n += 1
    assert n > 1, "nothing was encoded: the test injects nothing"
