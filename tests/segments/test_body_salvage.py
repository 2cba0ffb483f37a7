"""Rows of payloads that are gone: a strict open tells, a salvage finds them in the files again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support_bodies import SIZE, Opened, Rig, as_v1, crash_image, names, payloads, rewrite
from support_loop import on_loop

import lodeq
from lodeq.engine.records.keyspace import BODY, BODY_AT, BODY_AT_END, BODY_END
from lodeq.engine.records.rows import decode_body, encode_body
from lodeq.engine.store.rocks import RocksStore
from lodeq.repository.background.body_gc import BodyGC

FIVE = [b"%03d" % i for i in range(5)]


def salvaged(root: Path) -> Opened:
    return Opened(root, recovery="salvage")


def drop_rows(store: RocksStore) -> None:
    """No row of a payload is left."""
    for lower, upper in ((BODY, BODY_END), (BODY_AT, BODY_AT_END)):
        store.write([(key, None) for key, _ in store.scan(lower, upper, 10_000)])


def damage_rows(store: RocksStore) -> None:
    """They are there, and cannot be read."""
    for lower, upper in ((BODY, BODY_END), (BODY_AT, BODY_AT_END)):
        store.write([(key, b"\xff" + raw[1:]) for key, raw in store.scan(lower, upper, 10_000)])


async def reports(rig: Rig) -> str:
    return "; ".join((await rig.engine.stats()).recoveries)


async def fill(root: Path, formats: str) -> None:
    """Five tasks, in the older format if it is ``both``, then three that share a payload."""
    async with Opened(root) as rig:
        await rig.fill(5)
    if formats == "both":
        as_v1(root)
    async with Opened(root) as rig:
        await rig.queue.enqueue_many([lodeq.NewTask(b"all" + bytes(SIZE))] * 3)
    assert names(root) == ["1.rdq" if formats == "both" else "1.sqs", "2.sqs"]


@pytest.mark.parametrize("lose", [drop_rows, damage_rows])
@pytest.mark.parametrize("formats", ["v2", "both"])
@on_loop
async def test_lost_rows_are_found_again(
    tmp_path: Path, formats: str, lose: Callable[[RocksStore], None]
) -> None:
    await fill(tmp_path, formats)
    rewrite(tmp_path, lose)
    async with salvaged(tmp_path) as rig:
        assert await payloads(rig) == [*FIVE, b"all", b"all", b"all"]
        assert rig.rows() == 8
        assert "of lost payloads 8 found again, 0 not" in await reports(rig)
        assert (await rig.engine.verify()).ok
        await rig.end(8)
        rig.bodies.files.seal()
        await rig.look()
        assert rig.files() == []
    async with salvaged(tmp_path) as rig:
        assert "payloads" not in await reports(rig)


@pytest.mark.parametrize("formats", ["v2", "both"])
@on_loop
async def test_until_then_they_are_told_and_no_file_goes(tmp_path: Path, formats: str) -> None:
    await fill(tmp_path, formats)
    rewrite(tmp_path, drop_rows)
    files = names(tmp_path)
    async with Opened(tmp_path) as rig:
        report = await rig.engine.verify()
        assert [finding.detail for finding in report.findings] == [
            "no row says where its payload lies"
        ] * 8
        (first, *_) = await rig.queue.list("ready")
        assert first.payload is None
        with pytest.raises(lodeq.RecordCorruptError, match="no row says"):
            rig.body(first.id)
        assert await rig.queue.claim(limit=8) == []
        assert len(await rig.queue.dead_letters()) == 8
        assert (await rig.engine.health()).reasons
        await rig.look()
        assert names(tmp_path) == files
    async with salvaged(tmp_path) as rig:
        dead = await rig.queue.dead_letters()
        found = [task.payload[:3] for task in dead]
        assert sorted(found) == [*FIVE, b"all", b"all", b"all"]
        await rig.queue.redrive([task.id for task in dead])
        leases = await rig.queue.claim(limit=8)
        assert sorted(lease.payload[:3] for lease in leases) == sorted(found)


async def copied_twice(root: Path, monkeypatch: pytest.MonkeyPatch, *, is_old: bool) -> None:
    """A store in ``crashed``: a crash came between a copy and the move of the rows."""
    async with Opened(root) as rig:
        await rig.fill(10)
    if is_old:
        as_v1(root)
    async with Opened(root) as rig:
        await rig.end(7)

        async def crash(*_: Any) -> None:
            raise lodeq.StorageError("crash")

        with monkeypatch.context() as patch:
            patch.setattr(BodyGC, "_move", crash)
            with pytest.raises(lodeq.StorageError, match="crash"):
                await rig.look()
        crash_image(root, root / "crashed")
    rewrite(root / "crashed", drop_rows)


def places(rig: Rig) -> set[int]:
    rows = rig.shard.store.scan(BODY, BODY_END, 100)
    return {decode_body(raw).file for _, raw in rows}


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("is_copy_whole", [True, False])
@on_loop
async def test_of_a_record_and_its_copy_the_newest_that_is_whole_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool, is_copy_whole: bool
) -> None:
    await copied_twice(tmp_path, monkeypatch, is_old=is_old)
    root = tmp_path / "crashed"
    assert names(root) == ["1.rdq" if is_old else "1.sqs", "2.sqs"]
    if not is_copy_whole:
        path = root / "s" / "bodies0" / "2.sqs"
        data = bytearray(path.read_bytes())
        for at in (100, SIZE + 200, 2 * SIZE + 300):
            data[at] ^= 1
        path.write_bytes(data)
    async with salvaged(root) as rig:
        assert await payloads(rig) == [b"007", b"008", b"009"]
        assert places(rig) == {2 if is_copy_whole else 1}
        assert (await rig.engine.verify()).ok


@on_loop
async def test_what_is_in_no_file_is_told_as_lost(tmp_path: Path) -> None:
    await fill(tmp_path, "both")
    rewrite(tmp_path, drop_rows)
    (tmp_path / "s" / "bodies0" / "1.rdq").unlink()
    for _ in range(2):  # and told again: it is still not there
        async with salvaged(tmp_path) as rig:
            found = [task.payload and task.payload[:3] for task in await rig.queue.list("ready")]
            assert found == [*[None] * 5, *[b"all"] * 3]
            text = await reports(rig)
            assert "5 not" in text
    async with salvaged(tmp_path) as rig:
        leases = await rig.queue.claim(limit=8)
        assert [lease.payload[:3] for lease in leases] == [b"all"] * 3
        assert len(await rig.queue.dead_letters()) == 5
    async with Opened(tmp_path) as rig:  # what is known to be lost holds nothing else up
        rig.keeper.stop()
        await rig.keeper.run()
        rig.keeper._is_stopping = False
        assert (await rig.engine.health()).ok
        with pytest.raises(lodeq.RecordCorruptError, match="a salvage has not found"):
            rig.body((await rig.queue.dead_letters())[0].id)
        await rig.end(3)
        await rig.look()
        assert rig.files() == []
        assert rig.rows() == 5
        assert (await rig.engine.verify()).ok
        assert await rig.queue.purge() == 5
        assert rig.rows() == 0


@on_loop
async def test_what_was_lost_is_found_once_its_file_is_back(tmp_path: Path) -> None:
    await fill(tmp_path, "both")
    rewrite(tmp_path, drop_rows)
    (tmp_path / "s" / "bodies0" / "1.rdq").rename(tmp_path / "kept")
    async with salvaged(tmp_path) as rig:
        assert "5 not" in await reports(rig)
    (tmp_path / "kept").rename(tmp_path / "s" / "bodies0" / "1.rdq")
    async with salvaged(tmp_path) as rig:
        assert "5 found again, 0 not" in await reports(rig)
        assert await payloads(rig) == [*FIVE, *[b"all"] * 3]
        assert (await rig.engine.verify()).ok


@on_loop
async def test_a_row_into_a_file_that_is_gone_counts_as_lost(tmp_path: Path) -> None:
    await fill(tmp_path, "both")

    def elsewhere(store: RocksStore) -> None:
        rows = [(key, decode_body(raw)) for key, raw in store.scan(BODY, BODY_END, 100)]
        store.write([(key, encode_body(row._replace(file=9))) for key, row in rows])

    rewrite(tmp_path, elsewhere)
    async with salvaged(tmp_path) as rig:
        assert await payloads(rig) == [*FIVE, b"all", b"all", b"all"]
        assert "8 found again, 0 not" in await reports(rig)
        assert (await rig.engine.verify()).ok


@on_loop
async def test_damage_in_a_file_costs_a_salvage_what_is_damaged(tmp_path: Path) -> None:
    await fill(tmp_path, "both")
    rewrite(tmp_path, drop_rows)
    path = tmp_path / "s" / "bodies0" / "1.rdq"
    path.write_bytes(path.read_bytes()[:-100])
    async with salvaged(tmp_path) as rig:
        assert "7 found again, 1 not" in await reports(rig)
        found = [task.payload and task.payload[:3] for task in await rig.queue.list("ready")]
        assert found == [*FIVE[:4], None, *[b"all"] * 3]


@on_loop
async def test_a_row_that_leads_to_the_payload_of_another_is_never_followed(tmp_path: Path) -> None:
    await fill(tmp_path, "v2")

    def swap(store: RocksStore) -> None:
        rows = store.scan(BODY, BODY_END, 100)
        (one, first), (other, second), *_ = [r for r in rows if decode_body(r[1]).file == 1]
        store.write([(one, second), (other, first)])

    rewrite(tmp_path, swap)
    async with Opened(tmp_path) as rig:
        details = {finding.detail for finding in (await rig.engine.verify()).findings}
        assert "its row leads to another's payload" in details
        found = [task.payload and task.payload[:3] for task in await rig.queue.list("ready")]
        assert found == [None, None, *FIVE[2:], *[b"all"] * 3]
    async with salvaged(tmp_path) as rig:
        assert "2 found again, 0 not" in await reports(rig)
        assert await payloads(rig) == [*FIVE, *[b"all"] * 3]
        assert (await rig.engine.verify()).ok


@on_loop
async def test_with_rows_missing_the_keeper_removes_nothing_by_itself(tmp_path: Path) -> None:
    await fill(tmp_path, "both")
    rewrite(tmp_path, drop_rows)
    files = names(tmp_path)
    async with Opened(tmp_path) as rig:
        rig.keeper.stop()
        await rig.keeper.run()  # what it does at first
        rig.keeper._is_stopping = False
        await rig.look()
        assert names(tmp_path) == files
        assert "salvage" in (await rig.engine.health()).reasons[-1]
    async with salvaged(tmp_path) as rig:
        assert await payloads(rig) == [*FIVE, *[b"all"] * 3]
        assert (await rig.engine.health()).ok


@on_loop
async def test_a_record_bears_an_id_that_nobody_is_told(tmp_path: Path) -> None:
    """Else a payload could hold a record under it, for a scan behind damage to find."""
    async with Opened(tmp_path) as rig:
        ids = await rig.fill(3)
        record_ids = {decode_body(rig.shard.overlay.get(BODY + i) or b"").record_id for i in ids}
        assert len(record_ids) == 3
        assert not record_ids.intersection(ids)
