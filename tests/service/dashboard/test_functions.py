"""The pages of functions, workers and cron, and a call from a form."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from support_dashboard import FORM, browsing, form_token, row

import lodeq
from lodeq import FunctionParameter, PublishedFunction, WorkerReport

pytestmark = pytest.mark.anyio
HOSTILE = "<script>alert(1)</script>"
AT = datetime(2030, 1, 1, tzinfo=UTC)
SEND = PublishedFunction(
    "mail",
    "send/it",
    max_attempts=3,
    priority=7,
    parameters=(
        FunctionParameter("to", "required", "to: str"),
        FunctionParameter("times", "optional", "times: int = 1"),
    ),
    doc=f"Send it. {HOSTILE}",
)
SWEEP = PublishedFunction("cron", "sweep", parameters=(), cron="*/5 * * * *", tz="UTC")
REST = PublishedFunction("mail", "rest", parameters=(FunctionParameter("more", "rest", "**more"),))


async def send(client, path, **fields):
    page = await client.get(path)
    body = urlencode({"form": form_token(page), **fields})
    return await client.post(path, content=body, headers=FORM)


async def test_nothing_published_says_so(engine):
    async with browsing(engine) as client:
        assert "Workers publish theirs when they start" in (await client.get("/functions")).text
        assert "No worker has reported" in (await client.get("/workers")).text
        assert "No cron functions" in (await client.get("/cron")).text
        assert (await client.get("/functions/mail?name=send")).status_code == 404


async def test_a_function_is_shown_and_called(engine):
    await engine.publish_functions([SEND, REST])
    async with browsing(engine) as client:
        page = await client.get("/functions")
        assert HOSTILE not in page.text
        path = "mail?name=send%2Fit"
        assert row(page, path)[:3] == ["send/it(to: str, times: int = 1)", "mail", "3"]
        done = await send(client, f"/functions/{path}", **{"arg.to": "5", "arg.times": "2"})
        assert done.status_code == 303
        task = await engine.get(done.headers["location"].rpartition("/")[2])
        assert (task.payload, task.priority) == ({"to": "5", "times": 2}, 7)
        assert task.max_attempts == 3
        done = await send(client, "/functions/mail?name=rest", more='{"a": [1]}')
        task = await engine.get(done.headers["location"].rpartition("/")[2])
        assert task.payload == {"a": [1]}
        page = await client.get("/functions?q=rest")
        assert "send/it" not in page.text


async def test_wrong_arguments_are_said_on_the_form(engine):
    await engine.publish_functions([REST, replace(SEND, parameters=None)])
    async with browsing(engine) as client:
        page = await send(client, "/functions/mail?name=rest", more="[1]")
        assert page.status_code == 422
        assert "a JSON object" in page.text
        assert (await engine.stats()).enqueued_total == 0


async def test_only_who_may_write_calls(engine):
    await engine.publish_functions([SEND])
    async with browsing(engine, access="read") as client:
        assert (await client.get("/functions/mail?name=send%2Fit")).status_code == 403
        assert "Enqueue…" not in (await client.get("/functions")).text
    async with browsing(engine) as client:
        body = urlencode({"form": "00", "arg.to": "a"})
        page = await client.post("/functions/mail?name=send%2Fit", content=body, headers=FORM)
        assert page.status_code == 403
    assert (await engine.stats()).enqueued_total == 0


async def test_workers_and_their_ticks(engine, clock):
    await engine.publish_functions([SWEEP])
    tick = lodeq.CronTick("cron", "sweep", AT, AT, "01b8dac5-b400-7212-8441-ac37ea8ff29d")
    run = lodeq.RunningTask("01b8", "send", "mail", seconds=3.0, progress=0.5, note=HOSTILE)
    report = WorkerReport("w1", ("mail",), "v1", 1, AT, 2, 1, (run,), (tick,))
    await engine.beat(report)
    await engine.beat(replace(report, name="w2", version="v2", started_at=AT.replace(year=2031)))
    clock.advance(20)
    async with browsing(engine) as client:
        page = await client.get("/workers")
        assert HOSTILE not in page.text
        cells = row(page, "w1")
        assert cells[:3] == ["w1", "mail", "2"]
        assert "not the newest" in cells[3]
        assert cells[5] == "20.0 s ago late"
        assert "send 3.0 s 50 %" in cells[7]
        assert "not the newest" not in row(page, "w2")[3]
        cells = row(await client.get("/cron"), "cron?name=sweep")
        assert cells[2] == "*/5 * * * * UTC"
        assert "2030-01-01" in cells[3]
        assert "2030-01-01" in cells[4]
        ahead = tuple(AT + timedelta(minutes=5 * n) for n in range(5))
        ticking = replace(tick, next_at=ahead[0], upcoming=ahead)
        await engine.beat(replace(report, ticks=(ticking,)))
        await engine.publish_functions([replace(SWEEP, tz="Asia/Kolkata")])
        cells = row(await client.get("/cron"), "cron?name=sweep")
        assert cells[3].count("UTC") == cells[3].count("+0530") == 5
        assert f"{ahead[4]:%Y-%m-%d %H:%M:%S} UTC" in cells[3]
        done = await send(client, "/functions/cron?name=sweep")
        assert done.status_code == 303


async def test_stranded_tasks_and_who_knows_them_are_shown(engine):
    await engine.publish_functions([SEND])
    unknown = lodeq.UnknownFunction("mail", SEND.name, 3, 2, AT)
    known = lodeq.KnownFunction("mail", SEND.name, "abc")
    await engine.beat(WorkerReport(HOSTILE, ("mail",), unknown=(unknown,)))
    async with browsing(engine) as client:
        page = (await client.get("/workers")).text
        assert "2 stranded of 3 tasks of queue" in page
        assert "by no worker listed" in page
        assert HOSTILE not in page
        await engine.beat(WorkerReport("w2", ("mail",), known=(known,)))
        assert "version abc is in w2" in (await client.get("/workers")).text
