"""Progress rows in the store: written by reports, gone with the lease, read again at open."""

import pytest

import lodeq
import lodeq.testing
from lodeq.engine.records.keyspace import PROGRESS, PROGRESS_END
from lodeq.engine.records.progress import ProgressRecord, decode_progress, encode_progress
from lodeq.errors import RecordCorruptError

pytestmark = pytest.mark.anyio


def rows(engine):
    return [
        key
        for shard in engine._state.shards
        for key, _ in shard.overlay.scan(PROGRESS, PROGRESS_END, 100)[0]
    ]


@pytest.mark.parametrize("end", ["complete", "nack", "release", "bury", "cancel"])
async def test_a_row_goes_in_the_batch_that_ends_the_lease(end):
    async with lodeq.testing.open(shards=2) as engine:
        queue = engine.queue("jobs")
        await queue.enqueue_many([lodeq.NewTask(b"x")] * 4)
        leases = await queue.claim(limit=4)
        for lease in leases:
            await lease.progress(0.5, "half")
        assert rows(engine) == sorted(rows(engine), key=lambda key: key[2:])
        assert len(rows(engine)) == 4
        for n, lease in enumerate(leases, 1):
            await getattr(lease, end)()
            assert len(rows(engine)) == 4 - n
        assert not engine._state.progress


async def test_exported_leases_keep_it_over_a_restart_and_others_lose_it(tmp_path):
    async with lodeq.open(tmp_path / "store") as engine:
        queue = engine.queue("jobs")
        await queue.enqueue_many([lodeq.NewTask(b"x")] * 2)
        (kept,) = await queue.claim(exported=True)
        (lost,) = await queue.claim()
        await kept.progress(0.25, "still on it")
        await lost.progress(0.75, "nearly")
        proof = kept.task_id, kept.epoch, kept.token
    async with lodeq.open(tmp_path / "store") as engine:
        assert (await engine.get(kept.task_id)).progress[:2] == (0.25, "still on it")
        assert (await engine.get(lost.task_id)).progress is None
        assert rows(engine) == [PROGRESS + proof[0]]
        assert not (await engine.verify()).findings
        assert await engine.cancel(kept.task_id)
        assert rows(engine) == []


async def test_a_damaged_row_is_a_finding_and_shows_nothing(tmp_path):
    async with lodeq.testing.open() as engine:
        await engine.queue("jobs").enqueue(b"x")
        (lease,) = await engine.queue("jobs").claim()
        await lease.progress(0.5, "half")
        await engine.queue("jobs").stats()
        await engine.get(lease.task_id)
        store = engine._state.shards[0].store
        (key,) = rows(engine)
        raw = bytearray(store.get(key))
        raw[10] ^= 1
        store.write([(key, bytes(raw))])
        (found,) = (await engine.verify()).findings
        assert "progress row: checksum mismatch" in found.detail
        await lease.complete()
        assert not (await engine.verify()).findings


@pytest.mark.parametrize("fraction", [None, 0.0, 0.5, 1.0])
def test_a_record_comes_back(fraction):
    record = ProgressRecord(7, fraction, "läuft".encode())
    assert decode_progress(encode_progress(record)) == record


@pytest.mark.parametrize(
    "record", [ProgressRecord(7, 1.5, b""), ProgressRecord(7, 1.0, b"x" * 257)]
)
def test_what_no_report_writes_is_damage(record):
    with pytest.raises(RecordCorruptError):
        decode_progress(encode_progress(record))
