"""What the pages do: after a question, with a form of their own, and only where it is allowed."""

import pytest
from support_dashboard import FORM, ask, browsing, form_token

import lodeq

pytestmark = pytest.mark.anyio


@pytest.fixture
async def mail(engine):
    """Two ready, one delayed, one leased, two dead."""
    mail = engine.queue("mail", max_attempts=1)
    for _ in range(5):
        await mail.enqueue(b"x")
    leases = await mail.claim(limit=3)
    await leases[0].nack(reason="broken")
    await leases[1].bury("broken")
    await mail.enqueue(b"later", delay=600)
    return mail


async def counts(queue):
    stats = await queue.stats()
    return stats.ready, stats.delayed, stats.leased, stats.dead


async def test_a_purge_that_fails_in_the_middle_says_what_is_done(engine, mail, monkeypatch):
    async def purge(self, state=None):
        error = lodeq.StorageFullError("the disk is full")
        error.done = 128
        raise error

    monkeypatch.setattr(type(mail), "purge", purge)
    async with browsing(engine) as client:
        page = await ask(client, "/queues/mail/purge")
        assert "128 tasks were changed before that: do the same again for the rest" in page.text


async def test_redrive(engine, mail):
    async with browsing(engine) as client:
        page = await client.get("/queues/mail/redrive")
        assert "2 dead" in page.text
        assert await counts(mail) == (2, 1, 1, 2)  # asking does nothing
        done = await ask(client, "/queues/mail/redrive")
        assert done.status_code == 303
        assert await counts(mail) == (4, 1, 1, 0)
        after = await client.get(done.headers["location"])
        assert "2 tasks redriven." in after.text


@pytest.mark.parametrize(
    ("state", "left", "said"),
    [
        ("ready", (0, 1, 1, 2), "2 tasks"),
        ("delayed", (2, 0, 1, 2), "1 task"),
        ("dead", (2, 1, 1, 0), "2 tasks"),
        ("", (0, 0, 1, 0), "5 tasks"),
    ],
)
async def test_purge(engine, mail, state, left, said):
    async with browsing(engine) as client:
        done = await ask(client, f"/queues/mail/purge?state={state}")
        assert await counts(mail) == left
        assert f"{said} deleted." in (await client.get(done.headers["location"])).text


async def test_a_purge_of_what_cannot_be_purged_is_refused(engine, mail):
    async with browsing(engine) as client:
        refused = await ask(client, "/queues/mail/purge?state=delayed")
        assert refused.status_code == 303
        token = form_token(await client.get("/queues/mail/purge?state=dead"))
        refused = await client.post(
            "/queues/mail/purge?state=leased", content=f"form={token}", headers=FORM
        )
        assert refused.status_code == 422
        assert await counts(mail) == (2, 0, 1, 2)


async def test_a_page_that_asks_about_no_state_there_is_says_so(engine, mail):
    async with browsing(engine) as client:
        assert (await client.get("/queues/mail/purge?state=asleep")).status_code == 422


async def test_pause_and_resume(engine, mail):
    async with browsing(engine) as client:
        await ask(client, "/queues/mail/pause")
        assert (await mail.stats()).is_paused
        assert await mail.claim() == []
        page = await client.get("/queues/mail?done=pause")
        assert "Paused." in page.text
        await ask(client, "/queues/mail/resume")
        assert len(await mail.claim(limit=9)) == 2


async def test_resume_of_all_tenants_is_also_for_those_paused_one_by_one(engine):
    acme, beta = (engine.queue("mail", tenant=name) for name in ("acme", "beta"))
    await acme.enqueue(b"1")
    await beta.enqueue(b"2")
    async with browsing(engine) as client:
        await ask(client, "/queues/mail/pause?tenant=acme")
        assert [(await one.stats()).is_paused for one in (acme, beta)] == [True, False]
        await ask(client, "/queues/mail/resume")
        assert len(await acme.claim()) == 1


async def test_the_resume_of_a_tenant_says_that_the_queue_is_still_paused(engine):
    acme = engine.queue("mail", tenant="acme")
    await acme.enqueue(b"1")
    async with browsing(engine) as client:
        await ask(client, "/queues/mail/pause")
        done = await ask(client, "/queues/mail/resume?tenant=acme")
        assert "Still paused" in (await client.get(done.headers["location"])).text
        assert await acme.claim() == []
        await ask(client, "/queues/mail/resume")
        assert len(await acme.claim()) == 1


async def test_a_tenant_is_acted_on_alone(engine):
    acme, beta = (engine.queue("mail", tenant=name) for name in ("acme", "beta"))
    await acme.enqueue(b"1")
    await beta.enqueue(b"2")
    async with browsing(engine) as client:
        page = await client.get("/queues/mail/purge?tenant=acme&state=ready")
        assert "tenant acme" in page.text
        done = await ask(client, "/queues/mail/purge?tenant=acme&state=ready")
        assert done.headers["location"] == "/queues/mail?tenant=acme&done=purge&n=1"
    assert [(await one.stats()).ready for one in (acme, beta)] == [0, 1]


async def test_cancel(engine, mail):
    (task, *_) = await mail.list("ready")
    async with browsing(engine) as client:
        done = await ask(client, f"/tasks/{task.id}/cancel")
        assert (await engine.result(task.id)).status == "cancelled"
        assert "Cancelled." in (await client.get(done.headers["location"])).text
        again = await ask(client, f"/tasks/{task.id}/cancel")
        assert "over already" in (await client.get(again.headers["location"])).text


async def test_redrive_of_one(engine, mail):
    first, second = await mail.dead_letters()
    async with browsing(engine) as client:
        done = await ask(client, f"/tasks/{first.id}/redrive")
        assert "1 task redriven." in (await client.get(done.headers["location"])).text
        assert [task.id for task in await mail.dead_letters()] == [second.id]
        again = await ask(client, f"/tasks/{first.id}/redrive")
        assert again.status_code == 404


@pytest.mark.parametrize("path", ["/queues/mail/redrive", "/tasks/ID/redrive"])
async def test_a_redrive_takes_the_policy_of_today_if_it_is_asked_to(engine, path):
    await engine.publish_functions([lodeq.PublishedFunction("mail", "send", max_attempts=7)])
    mail = engine.queue("mail", max_attempts=1)
    receipt = await mail.enqueue(b"x", headers={"lodeq.task": "send"})
    path = path.replace("ID", str(receipt.id))
    for policy, status, attempts in (("", 422, 1), ("stored", 303, 1), ("current", 303, 7)):
        for lease in await mail.claim():
            await lease.bury("no")
        async with browsing(engine) as client:
            asked = await client.get(path)
            assert 'name="policy"' in asked.text
            body = f"form={form_token(asked)}&policy={policy}"
            done = await client.post(path, content=body, headers=FORM)
            assert done.status_code == status
        assert (await engine.get(receipt.id)).max_attempts == attempts


async def test_a_redrive_that_cannot_be_says_why(engine):
    mail = engine.queue("mail", max_attempts=1)
    await mail.enqueue(b"1", dedup_key="a")
    lease = await mail.claim_one()
    await lease.bury("broken")
    await mail.enqueue(b"2", dedup_key="a")
    (dead,) = await mail.dead_letters()
    async with browsing(engine) as client:
        refused = await ask(client, f"/tasks/{dead.id}/redrive")
        assert refused.status_code == 409
        assert "dedup key is held" in refused.text


# -- read only -----------------------------------------------------------------------------------


ACTIONS = [
    "/queues/mail/pause",
    "/queues/mail/resume",
    "/queues/mail/redrive",
    "/queues/mail/purge?state=ready",
    "/tasks/ID/cancel",
    "/tasks/ID/redrive",
]


@pytest.mark.parametrize("path", ACTIONS)
async def test_a_dashboard_that_only_shows_does_nothing(engine, mail, path):
    (task, *_) = await mail.dead_letters()
    path, before = path.replace("ID", str(task.id)), await counts(mail)
    async with browsing(engine, "read") as client:
        page = await client.get("/queues/mail")
        assert f'href="{path}' not in page.text
        assert "read-only" in page.text
        asked = await client.get(path)
        assert asked.status_code == 403
        assert "--dashboard write" in asked.text
        for form in ("", "form=0", f"form={'0' * 64}"):
            done = await client.post(path, content=form, headers=FORM)
            assert done.status_code == 403
    assert await counts(mail) == before


async def test_read_only_is_what_one_gets_without_asking(engine):
    from lodeq.service.dashboard.routes import Dashboard

    assert "read-only" in Dashboard(engine)._pages.render(
        "problem.html", {"text": "", "status": 404, "form_token": ""}
    )
    with pytest.raises(lodeq.UsageError):
        Dashboard(engine, access="admin")


# -- forms of other pages ------------------------------------------------------------------------


@pytest.mark.parametrize("path", ACTIONS)
@pytest.mark.parametrize("form", ["", "form=%C3%A9", f"form={'0' * 64}"])
async def test_a_form_without_its_token_does_nothing(engine, mail, path, form):
    (task, *_) = await mail.dead_letters()
    path, before = path.replace("ID", str(task.id)), await counts(mail)
    async with browsing(engine) as client:
        await client.get("/")
        done = await client.post(path, content=form, headers=FORM)
        assert done.status_code == 403
        assert "belongs to another session" in done.text
    assert await counts(mail) == before


async def test_a_form_made_for_somebody_else_does_nothing(engine, mail):
    async with browsing(engine) as theirs:
        token = form_token(await theirs.get("/queues/mail/pause"))
        cookie = theirs.cookies["lodeq_session"]
        theirs.cookies.clear()
        own = await theirs.get("/queues/mail/pause")
        assert theirs.cookies["lodeq_session"] != cookie
        assert form_token(own) != token
        done = await theirs.post("/queues/mail/pause", content=f"form={token}", headers=FORM)
        assert done.status_code == 403
        theirs.cookies.clear()  # and none at all
        done = await theirs.post("/queues/mail/pause", content=f"form={token}", headers=FORM)
        assert done.status_code == 403
    assert not (await mail.stats()).is_paused


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"host": "evil.example"},
        {"origin": "http://lodeq:81"},
    ],
)
async def test_a_page_of_another_site_gets_nowhere(engine, mail, headers):
    async with browsing(engine) as client:
        token = form_token(await client.get("/queues/mail/pause"))
        done = await client.post(
            "/queues/mail/pause", content=f"form={token}", headers=FORM | headers
        )
        assert done.status_code == 403
        assert (await client.get("/", headers=headers)).status_code == 403
    assert not (await mail.stats()).is_paused


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "text/plain", ""])
async def test_another_media_type_is_no_form(engine, mail, kind):
    async with browsing(engine) as client:
        token = form_token(await client.get("/queues/mail/pause"))
        done = await client.post(
            "/queues/mail/pause", content=f"form={token}", headers={"content-type": kind}
        )
        assert done.status_code == 422
    assert not (await mail.stats()).is_paused


@pytest.mark.parametrize("body", [b"\xff", b"&".join([b"a=1"] * 50), b"a" * (17 << 10)])
async def test_a_form_that_is_none_is_refused(engine, mail, body):
    async with browsing(engine) as client:
        await client.get("/")
        done = await client.post("/queues/mail/pause", content=body, headers=FORM)
        assert done.status_code == 422
    assert not (await mail.stats()).is_paused


@pytest.mark.parametrize(
    "query", ["done=%3Cb%3E", "done=purge&n=%3Cb%3E", "done=purge&n=" + "9" * 99]
)
async def test_what_the_page_after_says_is_one_of_ours(engine, mail, query):
    async with browsing(engine) as client:
        page = await client.get(f"/queues/mail?{query}")
        said = page.text.partition("<main")[2].partition('<div id="live">')[0].partition(">")[2]
        assert "<b>" not in said
        assert "999" not in said
