"""Find tasks, act on all that was found, watch it and stop it."""

import csv
import importlib.util
import io
import json
import re
import sys
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import anyio
import anyio.lowlevel
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from support_dashboard import FORM, TOKEN, app_of, browsing, form_token, row, tile, watch
from support_http import ServedOpening, asgi_client

import lodeq
import lodeq.testing
from lodeq import NewTask, TaskFilter
from lodeq.dashboard import dashboard
from lodeq.repository.tasks.operators import bulk_acts
from lodeq.service.dashboard.pages import runs as runs_module
from lodeq.service.dashboard.pages import search as search_module
from lodeq.service.dashboard.routes import Dashboard
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings

pytestmark = pytest.mark.anyio
HOSTILE = "<script>alert(1)</script>"


async def fill(engine, n=40):
    """Of mail: ``n`` dead letters of two functions, and some that are ready."""
    mail = engine.queue("mail", tenant="acme", max_attempts=1)
    for i in range(n):
        await mail.enqueue(
            b"%d" % i,
            function=f"send{i % 2}",
            preview=f"n={i} {HOSTILE}",
            labels={"customer": f"c{i % 4}"},
        )
    while leases := await mail.claim(limit=100):
        for lease in leases:
            await lease.bury(f"timeout after {int(lease.payload) % 2} s")
    await engine.queue("sms").enqueue(b"x", delay=600, function="send0")
    return mail


@pytest.fixture
async def mail(engine):
    return await fill(engine)


async def confirmed(client, path, **fields):
    """The page that asks, answered with yes; the page of the run."""
    page = await client.get(path)
    assert page.status_code == 200, page.text
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.text))
    begun = await client.post(path, content=urlencode(hidden | fields), headers=FORM)
    assert begun.status_code == 303, begun.text
    return page, begun.headers["location"]


async def ended(client, path):
    """The page of a run once it is over."""
    for _ in range(1000):
        page = await client.get(path)
        if 'badge ">running' not in page.text:
            return page
        await anyio.lowlevel.checkpoint()
    raise AssertionError(page.text)


def heading(page):
    return re.search(r'<h2 id="found">(.*?)</h2>', page.text)[1]


def ids(page):
    return re.findall(r'<tr data-key="([0-9a-f-]{36})">', page.text)


async def test_a_form_that_asks_for_nothing_searches_nothing(engine, mail, monkeypatch):
    monkeypatch.setattr(bulk_acts, "find", None)
    async with browsing(engine) as client:
        page = await client.get("/find")
    assert page.status_code == 200
    assert 'id="found"' not in page.text
    assert "data-live" not in page.text


@pytest.mark.parametrize(
    ("query", "n"),
    [
        ("all=1", 41),
        ("queue=mail", 40),
        ("queue=mail&state=ready", 0),
        ("state=dead&state=delayed", 41),
        ("tenant=acme", 40),
        ("no_tenant=1", 1),
        ("function=send0", 21),
        ("label=customer%3Dc1", 10),
        ("argument=n%3D3*", 11),
        ("argument=n%3D3*&argument=", 11),
        ("label=customer%3Dc1&label=&reason=TIMEOUT+after+1", 10),
        ("label=customer%3Dc1&label=customer%3Dc2", 10),  # the last one of a key
        ("older_than=1h", 0),
        ("newer_than=1.5h&reason=after+0", 20),
        ("finished_newer_than=1h&state=dead&state=ready", 40),
        ("finished_newer_than=1h", 40),
        ("finished_older_than=1h", 0),
        ("id_prefix=ffff", 0),
    ],
)
async def test_every_field_narrows_the_search(engine, mail, query, n):
    async with browsing(engine) as client:
        page = await client.get(f"/find?{query}")
        assert page.status_code == 200
        assert heading(page) == f"{n} task{'' if n == 1 else 's'}"
        found = ids(page)
        assert len(found) == min(n, search_module.PAGE)
        while more := re.search(r'rel="next" href="([^"]*)"', page.text):
            page = await client.get(more[1].replace("&amp;", "&"))
            found += ids(page)
            assert heading(page) == f"{n} tasks"
        assert len(found) == len(set(found)) == n


async def test_of_one_label_with_two_values_a_page_names_the_one_that_counts(engine, mail):
    async with browsing(engine) as client:
        page = await client.get("/find/redrive?label=customer%3Dc1&label=customer%3Dc2")
        assert "customer=c2" in page.text
        assert "customer=c1" not in page.text


async def test_the_form_shows_what_was_asked_and_the_rows_what_was_found(engine, mail):
    async with browsing(engine) as client:
        query = "queue=mail&state=dead&label=customer%3Dc1&older_than=0"
        page = await client.get(f"/find?{query}")
        assert 'name="queue" value="mail"' in page.text
        assert 'name="label" value="customer=c1"' in page.text
        assert 'value="dead" checked' in page.text
        assert HOSTILE not in page.text
        cells = row(page, ids(page)[0])
        assert cells[1:4] == ["dead", "mail", "acme"]
        assert re.match(r"send1\(n=\d+ &lt;script", cells[4])
        assert cells[8] == "timeout after 1 s"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("state=asleep", "not one of ready"),
        ("label=customer", "expected label as key=value"),
        ("older_than=soon", "expected a duration like 90"),
        ("id_prefix=xyz", "hex digits"),
        ("queue=Mail", "queue"),
        ("tenant=a&no_tenant=1", "not both"),
        ("function=" + "f" * 300, "1 to 256"),
        ("queue=mail&cursor=x", "cursor"),
        ("argument=to", "expected argument as name=pattern"),
        ("argument=a-b%3D1", "cannot be the name"),
        ("&".join(f"label=k{n}%3Dv" for n in range(9)), "8 labels at most"),
    ],
)
async def test_a_field_that_is_wrong_is_named(engine, mail, query, text):
    async with browsing(engine) as client:
        page = await client.get(f"/find?{query}")
        assert page.status_code == 422
        assert text in page.text
        assert "<h1>" in page.text


async def test_a_search_for_text_says_that_previews_were_cut(engine, mail):
    await mail.enqueue(b"x", preview=f"body='{'x' * 300}', to='ann'")
    async with browsing(engine) as client:
        for text, n in (("bob", 1), ("to='ann'", 0)):
            page = await client.get("/find", params={"text": text})
            assert page.text.count("labels are for what must be found") == n


async def test_a_format_that_is_not_installed_is_not_offered(engine, mail, monkeypatch):
    async with browsing(engine) as client:
        for is_there in (importlib.util.find_spec("pyarrow") is not None, False):
            page = await client.get("/find?queue=mail")
            assert ">CSV</a>" in page.text
            assert (">Parquet</a>" in page.text) is is_there
            monkeypatch.setitem(sys.modules, "pyarrow", None)
        refused = await client.get("/find/export?queue=mail&format=parquet")
        assert refused.status_code == 422
        assert "Parquet needs pyarrow" in refused.text


async def test_a_count_that_is_cut_can_go_on(engine, mail, monkeypatch):
    monkeypatch.setattr(search_module, "COUNT_LOOKS", 1)
    await engine.queue("mail").enqueue_many([NewTask(b"x") for _ in range(300)])
    async with browsing(engine) as client:
        page = await client.get("/find?queue=mail")
        assert re.fullmatch(r"At least \d+ tasks", heading(page))
        further = re.search(r'href="([^"]*count=all)"', page.text)[1].replace("&amp;", "&")
        assert heading(await client.get(further)) == "340 tasks"


async def test_dead_letters_and_tasks_link_to_those_like_them(engine, mail):
    (dead, *_) = await mail.dead_letters()
    async with browsing(engine) as client:
        for path in ("/queues/mail?state=dead", f"/tasks/{dead.id}"):
            page = await client.get(path)
            found = re.findall(r'href="(/find\?[^"]*)">(same \w+)<', page.text)
            links = {text: link.replace("&amp;", "&") for link, text in found}
            found = await client.get(links["same function"])
            assert heading(found) == "20 tasks"
            assert links["same reason"].endswith("reason=timeout%20after%20%2A%20s")
            assert heading(await client.get(links["same reason"])) == "40 tasks"


async def test_a_misspelt_name_of_an_argument_is_noted(engine, mail):
    await mail.enqueue(b"x", function="send", preview="recipient='ann'")
    async with browsing(engine) as client:
        page = await client.get("/find?queue=mail&argument=recipiant%3Dann")
        assert "did you mean &#39;recipient&#39;?" in page.text
        page = await client.get("/find?queue=mail&argument=recipient%3Dbob")
        assert "has an argument" not in page.text


# -- acts ----------------------------------------------------------------------------------------


async def test_forty_like_it_are_sent_back(engine, mail):
    path = "/find/redrive?queue=mail&state=dead&reason=timeout"
    async with browsing(engine) as client:
        page = await client.get("/find?queue=mail&state=dead&reason=timeout")
        assert 'href="/find/redrive?queue=mail&amp;reason=timeout&amp;state=dead"' in page.text
        asked, run = await confirmed(client, path)
        assert "Redrive 40 tasks?" in asked.text
        assert "reason with timeout" in asked.text
        over = await ended(client, run)
        assert (tile(over, "Done"), tile(over, "Refused"), tile(over, "Of")) == ("40", "0", "40")
        assert 'badge good">done' in over.text
        assert "data-live" not in over.text  # it changes no more
        assert f'href="{run}"' in (await client.get("/find")).text
    assert (await engine.count(TaskFilter(state="ready"))).count == 40


async def test_rows_are_chosen_and_only_they_are_sent_back(engine, mail):
    async with browsing(engine) as client:
        page = await client.get("/find?queue=mail&state=dead")
        assert page.text.count('type="checkbox" name="id"') == 25
        assert 'formaction="/find/redrive"' in page.text
        chosen = urlencode([("chosen", 1), *(("id", one) for one in ids(page)[:3])])
        asked, run = await confirmed(client, f"/find/redrive?{chosen}")
        assert "Redrive 3 tasks?" in asked.text
        assert tile(await ended(client, run), "Done") == "3"
        again = await client.get(f"/find?{chosen}")
        assert sorted(ids(again)) == sorted(ids(page)[:3])
        assert again.text.count('name="id" value="' + ids(page)[0] + '" aria-label') == 1
        nothing = await client.get("/find/redrive?chosen=1")
        assert (nothing.status_code, "no task was chosen" in nothing.text) == (422, True)
        many = "&".join(["id=" + "0" * 32] * 1 + [f"id={n:032x}" for n in range(1, 30)])
        assert "25 tasks can be chosen" in (await client.get(f"/find?{many}")).text
    assert (await engine.count(TaskFilter(state="ready"))).count == 3


async def test_asking_does_nothing(engine, mail):
    async with browsing(engine) as client:
        for act in ("redrive", "delete"):
            assert "40 tasks?" in (await client.get(f"/find/{act}?queue=mail")).text
        assert "1 task?" in (await client.get("/find/cancel?all=1")).text
    assert (await engine.count(TaskFilter(state="dead"))).count == 40


async def test_cancel_delete_and_another_priority(engine, mail):
    async with browsing(engine) as client:
        _, run = await confirmed(client, "/find/reprioritise?queue=sms", priority="9")
        assert tile(await ended(client, run), "Done") == "1"
        (task,) = await engine.find(TaskFilter(queue="sms"))
        assert task.priority == 9
        _, run = await confirmed(client, "/find/cancel?queue=sms")
        assert tile(await ended(client, run), "Done") == "1"
        _, run = await confirmed(client, "/find/delete?label=customer%3Dc2")
        assert tile(await ended(client, run), "Done") == "10"
        page = await client.get("/find/cancel?queue=sms")
        assert "There is nothing to do" in page.text
        assert 'name="form"' not in page.text.partition("<main")[2]
    assert (await engine.count(TaskFilter(state="dead"))).count == 30


async def test_a_redrive_takes_the_policy_of_today_if_it_is_asked_to(engine):
    await engine.publish_functions([lodeq.PublishedFunction("mail", "send", max_attempts=7)])
    mail = engine.queue("mail", max_attempts=1)
    await mail.enqueue(b"x", headers={"lodeq.task": "send"})
    await (await mail.claim_one()).bury("no")
    async with browsing(engine) as client:
        page, run = await confirmed(client, "/find/redrive?queue=mail", policy="current")
        assert 'value="current"' in page.text
        await ended(client, run)
    assert (await engine.find(TaskFilter())).tasks[0].max_attempts == 7


@pytest.mark.parametrize(
    ("path", "fields", "status", "text"),
    [
        ("/find/burn?queue=mail", {}, 404, "there is no act"),
        ("/find/redrive?state=ready", {}, 422, "redrive applies to tasks that are dead"),
        ("/find/delete?queue=Mail", {}, 422, "queue"),
        ("/find/redrive?queue=mail", {"policy": "newest"}, 422, "policy"),
        ("/find/reprioritise?queue=sms", {"priority": "10"}, 422, "priority"),
        ("/find/reprioritise?queue=sms", {}, 422, "priority"),
        ("/runs/0123456789abcdef/stop", {}, 404, "not known any more"),
        ("/runs/0123456789abcdef", None, 404, "not known any more"),
    ],
)
async def test_what_is_refused(engine, mail, path, fields, status, text):
    async with browsing(engine) as client:
        if fields is None:
            answer = await client.get(path)
        else:
            token = form_token(await client.get("/queues/mail/pause"))
            body = urlencode({"form": token, **fields})
            answer = await client.post(path, content=body, headers=FORM)
        assert answer.status_code == status, answer.text
        assert text in answer.text
    assert (await engine.count(TaskFilter(state="dead"))).count == 40


async def test_who_may_only_read_finds_and_cannot_act(engine, mail):
    async with browsing(engine, "read") as client:
        page = await client.get("/find?queue=mail")
        assert heading(page) == "40 tasks"
        assert "/find/redrive" not in page.text
        assert 'type="checkbox" name="id"' not in page.text
        assert "/find/export" in page.text
        for path in ("/find/redrive?queue=mail", "/runs/0/stop"):
            assert (await client.get(path)).status_code == 403
            done = await client.post(path, content="form=0", headers=FORM)
            assert done.status_code == 403
    assert (await engine.count(TaskFilter(state="dead"))).count == 40


@pytest.mark.parametrize("form", ["", f"form={'0' * 64}"])
async def test_a_form_without_its_token_does_nothing(engine, mail, form):
    async with browsing(engine) as client:
        await client.get("/")
        done = await client.post("/find/delete?queue=mail", content=form, headers=FORM)
        assert done.status_code == 403
    assert (await engine.count(TaskFilter(state="dead"))).count == 40


# -- runs ----------------------------------------------------------------------------------------


@pytest.fixture
def slices(engine, monkeypatch):
    """Slices of four tasks, each of which waits until the test lets it begin."""
    gates = [anyio.Event() for _ in range(20)]
    real, n = engine.act, 0

    async def act(*args, **more):
        nonlocal n
        n += 1
        await gates[n - 1].wait()
        return await real(*args, **more)

    monkeypatch.setattr(runs_module, "SLICE", 4)
    monkeypatch.setattr(type(engine), "act", lambda self, *a, **o: act(*a, **o))
    return gates


async def test_a_run_is_seen_live_and_stopped(engine, mail, slices):
    slices[0].set()
    app = app_of(engine)
    async with asgi_client(app, accept="text/html") as client:
        _, path = await confirmed(client, "/find/redrive?queue=mail")
        await anyio.wait_all_tasks_blocked()
        page = await client.get(path)
        assert (tile(page, "Done"), tile(page, "Of")) == ("4", "40")
        assert "10 % done" in page.text
        assert f'data-live="/live{path}"' in page.text
        seen = []
        async with anyio.create_task_group() as group:
            group.start_soon(watch, app, f"/live{path}", seen)
            await anyio.wait_all_tasks_blocked()
            assert json.loads(seen[0].split(b"data: ")[1])
            assert b"form" not in seen[0]  # a live page is shared by those who look
            group.cancel_scope.cancel()
        ask = await client.get(f"{path}/stop")
        assert "ends with the slice" in ask.text
        body = f"form={form_token(ask)}"
        stopped = await client.post(f"{path}/stop", content=body, headers=FORM)
        assert stopped.headers["location"] == path
        assert "stopping" in (await client.get(path)).text
        slices[1].set()
        page = await ended(client, path)
        assert 'badge warn">stopped' in page.text
        assert tile(page, "Done") == "8"
    assert (await engine.count(TaskFilter(state="dead"))).count == 32


async def test_a_run_ends_with_its_store_and_says_so(clock, monkeypatch):
    gate = anyio.Event()
    real = lodeq.Engine.act

    async def act(self, *args, **more):
        await gate.wait()
        return await real(self, *args, **more)

    monkeypatch.setattr(lodeq.Engine, "act", act)
    async with lodeq.testing.open(clock=clock) as engine:
        await fill(engine)
        board = Dashboard(engine, access="write")
        app = make_app(engine, board.guarded(Settings()), routes=board.routes)
        async with asgi_client(app, accept="text/html") as client:
            await confirmed(client, "/find/redrive?queue=mail")
    (run,) = board._search._runs.known
    assert not run.is_over
    gate.set()
    await anyio.wait_all_tasks_blocked()
    assert run.state == "failed"
    assert "closed" in run.problem


async def test_a_run_that_fails_says_what_became_of_it(engine, mail, monkeypatch):
    async def act(self, *args, **more):
        raise lodeq.StorageError("the disk is gone")

    monkeypatch.setattr(type(engine), "act", act)
    async with browsing(engine) as client:
        _, path = await confirmed(client, "/find/redrive?queue=mail")
        page = await ended(client, path)
        assert "the disk is gone. What was done stays done" in page.text
        assert 'badge bad">failed' in page.text


async def test_a_run_that_fails_within_a_slice_counts_that_too(engine, mail, monkeypatch):
    async def act(self, *args, **more):
        error = lodeq.StorageError("the disk is gone")
        error.done = 128
        raise error

    monkeypatch.setattr(type(engine), "act", act)
    async with browsing(engine) as client:
        _, path = await confirmed(client, "/find/redrive?queue=mail")
        assert tile(await ended(client, path), "Done") == "128"


async def test_so_many_runs_at_once_and_no_more(engine, mail, slices):
    async with browsing(engine) as client:
        n = runs_module.RUNNING_MAX
        paths = [(await confirmed(client, "/find/redrive?queue=mail"))[1] for _ in range(n)]
        asked = await client.get("/find/redrive?queue=mail")
        body = f"form={form_token(asked)}"
        refused = await client.post("/find/redrive?queue=mail", content=body, headers=FORM)
        assert refused.status_code == 503
        assert "8 runs go on already" in refused.text
        for gate in slices:
            gate.set()
        for path in paths:
            await ended(client, path)


async def test_old_runs_are_forgotten(engine, mail, monkeypatch):
    monkeypatch.setattr(runs_module, "KEPT_MAX", 2)
    async with browsing(engine) as client:
        paths = []
        for _ in range(4):
            paths.append((await confirmed(client, "/find/redrive?all=1"))[1])
            await ended(client, paths[-1])
            await mail.enqueue(b"x")
            await (await mail.claim_one()).bury("again")
        statuses = [(await client.get(path)).status_code for path in paths]
        assert statuses == [404, 404, 200, 200]


async def test_tasks_that_are_refused_are_named(engine):
    mail = engine.queue("mail", max_attempts=1)
    await mail.enqueue(b"1", dedup_key="a")
    await (await mail.claim_one()).bury("broken")
    await mail.enqueue(b"2", dedup_key="a")
    (dead,) = await mail.dead_letters()
    async with browsing(engine) as client:
        _, path = await confirmed(client, "/find/redrive?queue=mail")
        page = await ended(client, path)
        assert tile(page, "Refused") == "1"
        assert str(dead.id) in page.text
        assert "dedup key is held" in page.text


async def test_all_that_are_refused_are_counted_and_the_first_are_named(engine, monkeypatch):
    monkeypatch.setattr(runs_module, "REFUSED_MAX", 2)
    mail = engine.queue("mail", max_attempts=1)
    tasks = [lodeq.NewTask(b"x", dedup_key=f"k{n}") for n in range(3)]
    await mail.enqueue_many(tasks)
    for lease in await mail.claim(limit=3):
        await lease.bury("broken")
    await mail.enqueue_many(tasks)
    async with browsing(engine) as client:
        _, path = await confirmed(client, "/find/redrive?queue=mail")
        page = await ended(client, path)
        assert [tile(page, "Refused"), tile(page, "Had changed")] == ["3", "0"]
        assert "The first 2 of them" in page.text


# -- elsewhere -----------------------------------------------------------------------------------


@asynccontextmanager
async def mounted(engine):
    """Below a path of another application; a client that follows links as a browser does."""

    async def authorize(scope):
        return "write", "ann"

    host = Starlette(routes=[Mount("/ops/jobs", dashboard(engine, authorize=authorize))])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(host), base_url="http://host/ops/jobs/"
    ) as client:
        yield client


@pytest.mark.parametrize("kind", ["embedded", "served"])
async def test_the_same_below_a_path_and_for_a_served_store(kind):
    opening = lodeq.testing.open(shards=2)
    async with opening if kind == "embedded" else ServedOpening(opening) as engine:
        await fill(engine)
        async with mounted(engine) as client:
            page = await client.get("find?queue=mail&state=dead&function=send1")
            assert heading(page) == "20 tasks"
            assert 'href="/' not in page.text
            link = re.search(r'href="([^"]*/redrive\?[^"]*)"', page.text)[1].replace("&amp;", "&")
            asked = await client.get(page.url.join(link))
            assert "Redrive 20 tasks?" in asked.text
            body = f"form={form_token(asked)}"
            begun = await client.post(asked.url, content=body, headers=FORM)
            run = asked.url.join(begun.headers["location"])
            assert run.path.startswith("/ops/jobs/runs/")
            page = await ended(client, run)
            assert tile(page, "Done") == "20"
            assert 'href="/' not in page.text
            file = await client.get("find/export?state=dead&format=csv")
            assert len(file.text.splitlines()) == 21


async def test_a_login_opens_these_pages(engine, mail):
    async with browsing(engine, token=TOKEN) as client:
        assert (await client.get("/find")).status_code != 200
        body = urlencode({"token": TOKEN})
        assert (await client.post("/login", content=body, headers=FORM)).status_code == 303
        for path in ("/find?queue=mail", "/functions", "/workers", "/cron", "/find/redrive?all=1"):
            assert (await client.get(path)).status_code == 200, path
        _, run = await confirmed(client, "/find/redrive?queue=mail")
        assert tile(await ended(client, run), "Done") == "40"


# -- export --------------------------------------------------------------------------------------


async def test_what_was_found_as_a_file(engine, mail):
    async with browsing(engine, "read") as client:
        query = "queue=mail&label=customer%3Dc1"
        lines = await client.get(f"/find/export?{query}&format=jsonl")
        assert lines.headers["content-type"] == "application/x-ndjson"
        assert lines.headers["content-disposition"] == 'attachment; filename="found.jsonl"'
        docs = [json.loads(line) for line in lines.text.splitlines()]
        assert len(docs) == 10
        assert {doc["function"] for doc in docs} == {"send1"}
        assert docs[0]["labels"] == {"customer": "c1"}
        assert "payload" not in docs[0]
        table = list(
            csv.DictReader(
                io.StringIO((await client.get(f"/find/export?{query}&format=csv&payload=1")).text)
            )
        )
        assert [one["id"] for one in table] == [doc["id"] for doc in docs]
        assert "payload" not in table[0]
        wrong = await client.get(f"/find/export?{query}&format=xml")
        assert wrong.status_code == 422
        assert "jsonl, csv, parquet" in wrong.text


async def test_all_of_a_queue_is_cancelled_from_its_page(engine):
    """Counted first, asked, then seen as a run; dead letters stay, and so do other tenants."""
    mail = engine.queue("mail", max_attempts=1)
    for delay in (0, 0, 0, 600):
        await mail.enqueue(b"x", delay=delay)
    await engine.queue("mail", tenant="acme").enqueue(b"x")
    await mail.claim_one()
    await (await mail.claim_one()).bury("no")
    async with browsing(engine) as client:
        page = await client.get("/queues/mail?tenant=")
        (link,) = re.findall(r'href="(/find/cancel[^"]*)">Cancel all 3…', page.text)
        asked, run = await confirmed(client, link.replace("&amp;", "&"))
        assert "Cancel 3 tasks?" in asked.text
        over = await ended(client, run)
        assert (tile(over, "Done"), tile(over, "Of")) == ("3", "3")
    async with browsing(engine) as client:
        assert "Cancel all" not in (await client.get("/queues/mail?tenant=")).text
        assert "Cancel all 1…" in (await client.get("/queues/mail")).text
    stats = await mail.stats()
    assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 1)
    async with browsing(engine, access="read") as client:
        assert "Cancel all" not in (await client.get("/queues/mail")).text


async def test_what_is_leased_shows_how_far_it_is(engine):
    mail = engine.queue("mail")
    await mail.enqueue(b"x", function="send")
    lease = await mail.claim_one()
    await lease.progress(0.4, f"page 3 {HOSTILE}")
    async with browsing(engine) as client:
        page = await client.get("/find?queue=mail")
    assert "<td>leased <small>40 % page 3 &lt;script&gt;" in page.text
