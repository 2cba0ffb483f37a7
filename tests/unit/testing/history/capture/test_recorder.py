"""The recorder tells what happened; the judge accepts it, and not with one record altered."""

import asyncio
import copy
import random

import pytest
import trio

import lodeq
from lodeq.testing import (
    BrokenError,
    History,
    HistoryFile,
    ManualClock,
    Recorder,
    check,
    read_history,
)

EXPECTED = (lodeq.LeaseLostError, lodeq.DuplicateTaskError, lodeq.TaskNotFoundError)


class Life:
    """A random load on an engine in memory."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.records: list[list] = []
        self.clock = ManualClock()
        self.shards = self.draw.choice((1, 3))
        self.held: list[lodeq.Lease] = []
        self.ids: list[lodeq.TaskId] = []

    def task(self) -> lodeq.NewTask:
        draw = self.draw
        key = draw.choice((None, None, "a", b"b"))
        return lodeq.NewTask(
            b"x",
            priority=draw.choice((5, 5, 0, 9)),
            delay=draw.choice((None, None, 0.5)),
            ttl=draw.choice((None, None, None, 2.0)),
            dedup_key=key,
            headers={"mine": 1},
            on_conflict=draw.choice(("return", "raise", "replace")) if key else "return",
            shard_key=None if key else draw.choice((None, None, "s")),
            max_attempts=2,
        )

    async def settle(self, lease: lodeq.Lease) -> None:
        draw, rec = self.draw, self.rec
        how = draw.randrange(7)
        if how == 0:
            await rec.nack(lease, delay=draw.choice((None, 0, 0.5)), reason="no")
        elif how == 1:
            await rec.release(lease, delay=draw.choice((None, 0.5)))
        elif how == 2:
            await rec.bury(lease)
        elif how == 3:
            then = [lodeq.NewTask(b"next"), lodeq.NewTask(b"other", "beta", "t")]
            await rec.complete(lease, then=then, durable=draw.choice((None, True)))
        elif how == 4:
            await rec.heartbeat(lease, draw.choice((None, 3)))
            self.held.append(lease)
        elif how == 5:
            self.held.append(lease)
        else:
            await rec.complete(lease, {"n": 1}, keep=draw.random() < 0.5)

    async def one(self) -> None:
        draw, rec = self.draw, self.rec
        queue = draw.choice(self.queues)
        dice = draw.random()
        rec.in_payload = draw.random() < 0.5
        if dice < 0.35:
            receipt = await rec.enqueue(queue, self.task())
            self.ids.append(receipt.id)
        elif dice < 0.45:
            await rec.enqueue_many([lodeq.NewTask(b"y") for _ in range(4)], queue=queue)
        elif dice < 0.75:
            leases = await rec.claim(
                draw.choice((queue, self.queues, self.every)),
                limit=draw.choice((1, 3)),
                lease=draw.choice((None, 1.0)),
                wait=draw.choice((0, 0.3)),
            )
            for lease in leases:
                await self.settle(lease)
        elif dice < 0.85:
            some, self.held = self.held[:3], self.held[3:]
            await rec.complete_many([(lease, b"r") for lease in some])
        elif dice < 0.9 and self.ids:
            await rec.cancel(draw.choice(self.ids))
        elif dice < 0.93:
            await rec.redrive(queue)
        elif dice < 0.95:
            await rec.redrive(queue, [task.id for task in await queue.dead_letters(2)])
        elif dice < 0.97:
            await rec.purge(queue, draw.choice((None, "ready", "dead")))
        else:
            await rec.fsync()

    async def quietly(self) -> None:
        try:
            await self.one()
        except EXPECTED:
            pass

    async def run(self) -> list[list]:
        draw, clock = self.draw, self.clock
        async with lodeq.testing.open(clock=clock, shards=self.shards, seed=1) as engine:
            self.rec = Recorder(engine, self.records.append)
            self.queues = [
                engine.queue("alpha", backoff=lodeq.Backoff("fixed", base=0.5)),
                engine.queue("beta", tenant="t", retention=2, boost_after=1),
            ]
            self.every = [engine.queue("beta", tenant=lodeq.ALL_TENANTS)]
            running: list[asyncio.Task] = []
            for _ in range(80):
                running.append(asyncio.create_task(self.quietly()))
                for _ in range(draw.randrange(4)):
                    await asyncio.sleep(0)
                if draw.random() < 0.1:
                    draw.choice(running).cancel()
                if draw.random() < 0.3:
                    clock.advance(draw.choice((0.1, 0.6, 1.5)))
                if draw.random() < 0.03:
                    self.rec.emit("wall")
                    clock.step_wall(draw.choice((-2, 5)))
            for _ in range(60):
                await asyncio.sleep(0)
            clock.advance(60)
            for outcome in await asyncio.gather(*running, return_exceptions=True):
                assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome

            async def idle() -> None:
                clock.advance(1)

            await self.rec.drain(self.queues, within=3600, idle=idle)
        return self.records


def judged(life: Life, records: list[list]):
    return check(records, shards=life.shards)


@pytest.mark.parametrize("seed", range(6))
def test_what_an_engine_does_is_judged_to_be_well(seed: int) -> None:
    life = Life(seed)
    report = judged(life, asyncio.run(life.run()))
    assert report.ok, report.broken
    assert report.records == len(life.records)
    assert report.delivered > 20
    assert report.looks == 1
    # Unknown: a redrive that was refused one of its tasks may have moved others.
    told = report.acknowledged + report.refused + report.cancelled + report.unknown
    assert report.invoked == told


def alter(records: list[list], what: str) -> list[list]:
    """One record changed, the first that fits."""
    records = copy.deepcopy(records)
    kinds = {r[1]: r[2] for r in records if r[0] == "i"}
    for record in records:
        kind = kinds.get(record[1]) if record[0] == "a" else None
        if what == "epoch" and kind == "claim" and record[2]:
            record[2][0][3] = 0
        elif what == "attempt" and kind == "claim" and record[2]:
            record[2][0][2] += 1
        elif what == "number" and kind == "claim" and record[2]:
            record[2][0][0] = 10_000
        elif what == "found" and record[0] == "found" and record[1]["results"]:
            record[1]["results"][0] = ["00" * 16, "completed", 1]
        elif what == "finding" and record[0] == "found":
            record[1]["findings"] = ["planted"]
        elif what == "counter" and record[0] == "found":
            record[1]["counted"] = {"alpha": {"ready": 1}}
        else:
            continue
        return records
    raise AssertionError(f"nothing to alter: {what}")


@pytest.mark.parametrize("what", ["epoch", "attempt", "number", "found", "finding", "counter"])
def test_one_record_altered_is_found(what: str) -> None:
    life = Life(3)
    records = asyncio.run(life.run())
    assert judged(life, records).ok
    report = judged(life, alter(records, what))
    assert not report.ok
    assert report.rule > 0


def of(params: dict) -> int | None:
    """The number of the task a call is about."""
    return params["tasks"][0]["n"] if "tasks" in params else params.get("n")


@pytest.mark.parametrize("kind", ["enqueue", "complete"])
def test_an_operation_that_was_not_told_is_found(kind: str) -> None:
    life = Life(3)
    records = asyncio.run(life.run())
    claims = {r[1] for r in records if r[:1] == ["i"] and r[2] == "claim"}
    delivered = {x[0] for r in records if r[0] == "a" and r[1] in claims for x in r[2]}
    op = next(r[1] for r in records if r[0] == "i" and r[2] == kind and of(r[3]) in delivered)
    assert not judged(life, [r for r in records if r[0] == "found" or r[1:2] != [op]]).ok


async def short_life(tell, **first) -> tuple[int, int]:
    async with lodeq.testing.open(clock=ManualClock()) as engine:
        recorder = Recorder(engine, tell, **first)
        queue = engine.queue("mail")
        await recorder.enqueue(queue, {"to": "a"}, priority=7)
        (lease,) = await recorder.claim(queue)
        assert lease.payload == {"to": "a"}
        assert recorder.number_of(lease) == first.get("first_number", 1)
        await recorder.complete(lease)
        await recorder.look()
        return recorder.next_number, recorder.next_op


def on_trio(life):
    async def main():
        return await life

    return trio.run(main)


def test_it_runs_on_every_loop() -> None:
    for run in (asyncio.run, on_trio):
        told: list[list] = []
        assert run(short_life(told.append)) == (2, 4)
        assert check(told).ok


def test_a_history_file_goes_on_where_a_process_died(tmp_path) -> None:
    path = tmp_path / "history"
    with HistoryFile(path) as file:
        asyncio.run(short_life(file))
    whole = list(read_history(path))
    assert check(whole).ok
    with open(path, "ab") as torn:
        torn.write(b'["i",4,"cla')
    assert list(read_history(path)) == whole
    with HistoryFile(path) as file:
        file(["kill"])
    assert list(read_history(path)) == [*whole, ["kill"]]
    assert path.stat().st_mode & 0o777 == 0o600
    history = History()
    history.take_all(read_history(path))
    assert (history.next_number, history.next_op) == (2, 4)


def test_errors_say_what_has_happened() -> None:
    told: list[list] = []

    async def main() -> None:
        limits = lodeq.Limits(pending_max=2)
        async with lodeq.testing.open(limits=limits) as engine:
            recorder = Recorder(engine, told.append)
            queue = engine.queue("mail")
            first = await recorder.enqueue(queue, b"1", dedup_key="k")
            with pytest.raises(lodeq.DuplicateTaskError):
                await recorder.enqueue(queue, b"2", dedup_key="k", on_conflict="raise")
            assert told[-1][:4] == ["e", 2, "DuplicateTaskError", first.id.hex()]
            with pytest.raises(lodeq.UsageError):
                await recorder.enqueue(queue, b"3", priority=99)
            assert told[-1][:4] == ["e", 3, "UsageError", None]
            with pytest.raises(lodeq.DuplicateTaskError):
                await recorder.enqueue_many(
                    [
                        lodeq.NewTask(b"4"),
                        lodeq.NewTask(b"5", dedup_key="k", on_conflict="raise"),
                    ],
                    queue=queue,
                )
            assert told[-1][:3] == ["u", 4, "DuplicateTaskError"]
            with pytest.raises(lodeq.QueueFullError):
                await recorder.enqueue(queue, b"6")
            assert told[-1][:3] == ["e", 5, "QueueFullError"]
            with pytest.raises(lodeq.UsageError):
                await recorder.enqueue(queue, b"7", headers={"history": 1})
            await recorder.pause(queue)
            assert await recorder.claim(queue) == []
            await recorder.resume(queue)
            await recorder.drain([queue])

    asyncio.run(main())
    report = check(told)
    assert report.ok, report.broken
    assert (report.refused, report.unknown, report.delivered) == (3, 1, 2)


def test_what_does_not_drain_is_told() -> None:
    async def main() -> None:
        clock = ManualClock()
        async with lodeq.testing.open(clock=clock) as engine:
            recorder = Recorder(engine, [].append)
            queue = engine.queue("mail")
            await recorder.enqueue(queue, b"1", delay=3600)

            async def idle() -> None:
                clock.advance(10)

            with pytest.raises(BrokenError, match="rule 12") as caught:
                await recorder.drain([queue], within=60, idle=idle)
            assert caught.value.rule == 12

    asyncio.run(main())
