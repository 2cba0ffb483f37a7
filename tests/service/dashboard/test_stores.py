"""A store on disk: RocksDB's figures, the disk, and the events of a lifecycle journal."""

import re

import anyio
import pytest
from support_dashboard import browsing, row, tile

import lodeq
from lodeq.service.dashboard import tracing

pytestmark = pytest.mark.anyio


def events_of(page):
    table = page.text.partition('aria-label="Events"')[2].partition("</table>")[0]
    return re.findall(r'<th scope="row">(\w+)</th>', table)


async def shown_events(client, path, wanted):
    """The journal is written a moment after what it tells of."""
    with anyio.fail_after(30):
        while True:
            found = events_of(await client.get(path))
            if found == wanted:
                return
            await anyio.lowlevel.checkpoint()


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(tracing, "FRESH_S", 0.0)


async def test_figures_of_the_store_and_its_disk(tmp_path):
    async with lodeq.open(tmp_path / "jobs") as engine:
        await engine.queue("mail").enqueue(b"x" * 1000)
        async with browsing(engine) as client:
            page = await client.get("/")
            assert re.fullmatch(r"[\d.]+ [KMGT]iB", tile(page, "Disk free"))
            assert tile(page, "Compaction debt") == "0 B"
            shard = row(page, "0")
            assert re.fullmatch(r"[\d.]+ (B|KiB|MiB)", shard[12])
            assert str(tmp_path / "jobs") in page.text


async def test_the_events_of_a_task(tmp_path, at_once):
    async with lodeq.open(tmp_path / "jobs", journal="audit") as engine:
        mail = engine.queue("mail", max_attempts=2)
        receipt = await mail.enqueue(b"x")
        await mail.enqueue(b"another")
        lease = await mail.claim_one(worker="w1")
        await lease.nack(reason="<b>broken</b>", delay=0)
        async with browsing(engine) as client:
            path = f"/tasks/{receipt.id}"
            await shown_events(client, path, ["enqueued", "claimed", "nacked"])
            page = await client.get(path)
            assert "&lt;b&gt;broken&lt;/b&gt;" in page.text
            assert ">w1</td>" in page.text
            assert "only its parts" not in page.text


async def test_a_long_journal_is_searched_at_both_ends(tmp_path, at_once, monkeypatch):
    monkeypatch.setattr(tracing, "FORWARD_MAX", 2)
    monkeypatch.setattr(tracing, "BACK_MAX", 2)
    monkeypatch.setattr(tracing, "SLICE", 1)
    async with lodeq.open(tmp_path / "jobs", journal="audit") as engine:
        mail = engine.queue("mail")
        receipt = await mail.enqueue(b"first")
        for _ in range(6):
            await engine.queue("other").enqueue(b"x")
        lease = await mail.claim_one(worker="w1")
        await lease.complete()
        async with browsing(engine) as client:
            path = f"/tasks/{receipt.id}"
            await shown_events(client, path, ["enqueued", "claimed", "completed"])
            assert "only its parts" in (await client.get(path)).text


async def test_without_a_journal_there_are_no_events(tmp_path):
    async with lodeq.open(tmp_path / "jobs") as engine:
        receipt = await engine.queue("mail").enqueue(b"x")
        async with browsing(engine) as client:
            assert "Events" not in (await client.get(f"/tasks/{receipt.id}")).text
