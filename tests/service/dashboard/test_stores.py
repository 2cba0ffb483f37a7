"""A store on disk: RocksDB's figures, the disk, and the events of a lifecycle journal."""

import re

import anyio
import pytest
from support_dashboard import browsing, row, tile

import lodeq
from lodeq.service.dashboard.pages import task_trace

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
    monkeypatch.setattr(task_trace, "FRESH_S", 0.0)


async def test_figures_of_the_store_and_its_disk(tmp_path):
    async with lodeq.open(tmp_path / "jobs") as engine:
        await engine.queue("mail").enqueue(b"x" * 1000)
        async with browsing(engine) as client:
            page = await client.get("/")
            assert re.fullmatch(r"[\d.]+ [KMGT]iB", tile(page, "Disk free"))
            assert tile(page, "Compaction backlog") == "0 B"
            shard = row(page, "0")
            assert re.fullmatch(r"[\d.]+ (B|KiB|MiB)", shard[12])
            assert str(tmp_path / "jobs") in page.text


@pytest.mark.slow
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
            assert "There may be more" not in page.text


@pytest.mark.slow
async def test_a_long_journal_is_searched_at_both_ends(tmp_path, at_once, monkeypatch):
    monkeypatch.setattr(task_trace, "FORWARD_MAX", 2)
    monkeypatch.setattr(task_trace, "BACK_MAX", 2)
    monkeypatch.setattr(task_trace, "SLICE", 1)
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
            assert "There may be more" in (await client.get(path)).text


@pytest.mark.slow
async def test_a_task_with_many_events_shows_its_first_and_its_last(tmp_path, at_once, monkeypatch):
    monkeypatch.setattr(task_trace, "EVENTS_MAX", 4)
    async with lodeq.open(tmp_path / "jobs", journal="audit") as engine:
        mail = engine.queue("mail", max_attempts=100)
        receipt = await mail.enqueue(b"x")
        for n in range(10):
            lease = await mail.claim_one(worker=f"w{n}")
            await lease.nack(reason=f"no {n}" + "." * 1000, delay=0)
        await mail.claim_one(worker="last")
        async with browsing(engine) as client:
            path = f"/tasks/{receipt.id}"
            await shown_events(client, path, ["enqueued", "claimed", "nacked", "claimed"])
            with anyio.fail_after(30):
                while ">last</td>" not in (page := await client.get(path)).text:
                    await anyio.lowlevel.checkpoint()
            assert events_of(page) == ["enqueued", "claimed", "nacked", "claimed"]
            assert "There may be more" in page.text
            assert "604 characters more" in page.text


async def test_without_a_journal_there_are_no_events(tmp_path):
    async with lodeq.open(tmp_path / "jobs") as engine:
        receipt = await engine.queue("mail").enqueue(b"x")
        async with browsing(engine) as client:
            assert "Events" not in (await client.get(f"/tasks/{receipt.id}")).text
