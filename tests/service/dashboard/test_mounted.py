"""The dashboard mounted in another application, behind that one's login."""

import re
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from support_dashboard import FORM, form_token, row, tile, watch
from support_http import ServedOpening

import lodeq
import lodeq.testing
from lodeq.client.calls import engine_call
from lodeq.client.transport.transport import Target, Transport
from lodeq.dashboard import dashboard
from lodeq.service.dashboard.access.grants import mount_path
from lodeq.service.dashboard.mount import ASK_S
from lodeq.worker import App

pytestmark = pytest.mark.anyio
BROWSER = {"accept": "text/html"}


class Host:
    """An application whose ``authorize`` answers what the test has put there."""

    def __init__(self, engine, path="/jobs", answer="write", **options):
        self.answer = answer
        self.asked = 0

        async def authorize(scope):
            self.asked += 1
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        async def home(request):
            return PlainTextResponse("the host's own page")

        self.dashboard = dashboard(engine, authorize=authorize, **options)
        self.app = Starlette(routes=[Route("/", home), Mount(path, self.dashboard)])

    @asynccontextmanager
    async def browsing(self, base="http://host"):
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url=base, headers=BROWSER, follow_redirects=True
        ) as client:
            yield client


@pytest.fixture
async def task(engine):
    """A dead letter in ``mail``, beside a ready task."""
    mail = engine.queue("mail", max_attempts=1)
    await mail.enqueue(b"x")
    await (await mail.claim_one()).nack(reason="smtp")
    await mail.enqueue({"to": "ann"})
    return (await mail.dead_letters())[0]


def links(page):
    return re.findall(r'(?:href|src|action|data-live)="([^"]*)"', page.text)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/jobs", "/ops/deep/jobs", "/queues", "/live"])
async def test_every_link_of_every_page_stays_below_the_mount(engine, task, path):
    host = Host(engine, path)
    async with host.browsing() as client:
        seen, todo = set(), [f"{path}/"]
        while todo:
            at = todo.pop()
            page = await client.get(at)
            assert page.status_code == 200, (at, page.text)
            for link in links(page):
                assert not link.startswith("/"), (at, link)
                url = page.url.join(link.replace("&amp;", "&"))
                assert url.path.startswith(f"{path}/"), (at, link)
                known = url.raw_path.decode()
                if known in seen or "/live/" in known.removeprefix(path) or "logout" in known:
                    continue
                seen.add(known)
                if not known.endswith("/tasks/"):  # the form that asks for an id
                    todo.append(known)
        assert {f"{path}/queues/mail", f"{path}/tasks/{task.id}"} <= {s.split("?")[0] for s in seen}
        assert f"{path}/static/dashboard.css" in seen
        assert f"{path}/tasks/{task.id}/redrive" in seen


async def test_it_acts_and_comes_back_to_its_page(engine, task):
    async with Host(engine).browsing() as client:
        at = f"/jobs/tasks/{task.id}/redrive"
        token = form_token(await client.get(at))
        page = await client.post(at, content=f"form={token}", headers=FORM)
        assert page.url.path == f"/jobs/tasks/{task.id}"
        assert "1 task redriven." in page.text
        found = await client.get(f"/jobs/tasks/?id={task.id}")
        assert found.url.path == f"/jobs/tasks/{task.id}"
    assert (await engine.get(task.id)).state == "ready"


async def test_the_address_without_a_slash_leads_to_the_one_with_it(engine):
    board = Host(engine).dashboard

    async def bare(scope, receive, send):  # a framework that mounts at the very path
        await board({**scope, "root_path": "/jobs"}, receive, send)

    transport = httpx.ASGITransport(bare)
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        answer = await client.get("/jobs?q=mail")
        assert answer.status_code == 307
        assert answer.url.join(answer.headers["location"]).raw_path == b"/jobs/?q=mail"


# -- who may look ------------------------------------------------------------------------------


async def test_nobody_looks_whom_the_application_does_not_know(engine, task):
    host = Host(engine, answer=None)
    async with host.browsing() as client:
        for at in (
            "",
            "queues/mail",
            f"tasks/{task.id}",
            "live/",
            "static/dashboard.css",
            "queues/mail/purge",
            "none",
        ):
            answer = await client.get(f"/jobs/{at}")
            assert answer.status_code == 403, at
            assert "mail" not in answer.text
        before = await engine.queue("mail").stats()
        answer = await client.post("/jobs/queues/mail/purge", content="form=", headers=FORM)
        assert answer.status_code == 403
        assert (await engine.queue("mail").stats()).ready == before.ready
        assert host.asked == 8  # every request, none of them from memory


@pytest.mark.parametrize(
    ("login", "path", "to"),
    [
        ("/login", "/jobs/", "/login?next=/jobs/"),
        (
            "/login",
            "/jobs/queues/mail?state=dead&a=%26",
            "/login?next=/jobs/queues/mail%3Fstate%3Ddead%26a%3D%2526",
        ),
        ("/login", "/jobs//evil.example", "/login?next=/jobs//evil.example"),
        ("/login?a=1#x", "/jobs/find", "/login?a=1&next=/jobs/find#x"),
        ("/login?next=/start", "/jobs/find", "/login?next=/start"),
        ("https://id.example/login", "/jobs/", "https://id.example/login?next=/jobs/"),
    ],
)
async def test_whoever_may_not_look_is_sent_to_the_hosts_login(engine, login, path, to):
    async with Host(engine, answer=None, login_url=login).browsing() as client:
        answer = await client.get(path, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, to)


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example", "///evil.example"])
async def test_the_page_that_was_wanted_is_always_of_this_host(engine, path):
    """A dashboard at the root, asked for what a browser reads as another host."""
    board = Host(engine, answer=None, login_url="/login").dashboard
    scope = {"type": "http", "method": "GET", "headers": [(b"accept", b"text/html")]}
    scope |= {"path": path, "raw_path": path.encode(), "root_path": "", "query_string": b""}
    sent = []

    async def send(message):
        sent.append(message)

    await board(scope, None, send)
    (location,) = [value for name, value in sent[0]["headers"] if name == b"location"]
    assert location.startswith(b"/login?next=/evil.example")


async def test_others_than_browsers_are_told_where_the_login_is(engine):
    async with Host(engine, answer=None, login_url="/login").browsing() as client:
        for accept in ("*/*", "application/json", "text/event-stream"):
            answer = await client.get("/jobs/live/", headers={"accept": accept})
            assert answer.status_code == 401
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["www-authenticate"]
            doc = answer.json()
            assert (doc["status"], doc["login"]) == (401, "/login")
            assert doc["type"].endswith("access-denied")
        assert (await client.post("/jobs/queues/mail/purge", headers=FORM)).status_code == 401


@pytest.mark.parametrize("answer", [None, "write"])
async def test_who_takes_it_for_the_api_is_told_what_it_is(engine, answer):
    async with Host(engine, answer=answer).browsing() as client:
        response = await client.get("/jobs/v1/queues")
        assert response.status_code == 404
        assert "address of a dashboard" in response.json()["detail"]
        assert (await client.get("/jobs/v1x")).status_code == (404 if answer else 403)
    asgi = httpx.ASGITransport(Host(engine, answer=answer).app)
    transport = Transport(Target("http://host/jobs", None, 5.0), asgi)
    with pytest.raises(lodeq.UsageError, match="this is the address of a dashboard"):
        await transport.send(engine_call("/engine"))


@pytest.mark.parametrize("right", ["read", ("read", "ann")])
async def test_a_reader_sees_no_actions_and_can_do_none(engine, task, right):
    host = Host(engine)
    async with host.browsing() as client:
        at = "/jobs/queues/mail/purge"
        token = form_token(await client.get(at))  # made while the right was another one
        host.answer = right
        page = await client.get("/jobs/queues/mail")
        assert "read-only" in page.text
        assert "Purge" not in page.text
        assert (await client.get(at)).status_code == 403
        answer = await client.post(at, content=f"form={token}", headers=FORM)
        assert answer.status_code == 403
        assert "You may read here" in answer.text
    assert (await engine.queue("mail").stats()).ready == 1


@pytest.mark.parametrize(
    "answer", [True, 1, "admin", "", ("read",), ("admin", "ann"), ("read", None), ("read", True)]
)
async def test_an_answer_that_means_nothing_shows_nothing(engine, answer):
    host = Host(engine, answer=answer)
    with pytest.raises(lodeq.UsageError, match="'read', 'write' or None"):
        await httpx.AsyncClient(transport=httpx.ASGITransport(host.app)).get("http://host/jobs/")
    async with host.browsing() as client:
        assert (await client.get("/jobs/")).status_code == 500


async def test_what_authorize_raises_is_the_hosts_to_answer(engine):
    refusal = HTTPException(401, "who are you?", headers={"www-authenticate": "Basic"})
    async with Host(engine, answer=refusal).browsing() as client:
        answer = await client.get("/jobs/")
        assert (answer.status_code, answer.text) == (401, "who are you?")
        assert answer.headers["www-authenticate"] == "Basic"


@pytest.mark.parametrize("authorize", [None, "read", True])
async def test_public_reading_must_be_spelt_out(engine, authorize):
    with pytest.raises(lodeq.UsageError, match="anybody may read"):
        dashboard(engine, authorize=authorize)
    with pytest.raises(TypeError):
        dashboard(engine)


async def test_authorize_must_be_async(engine):
    app = dashboard(engine, authorize=lambda scope: "read")
    with pytest.raises(lodeq.UsageError, match="async def authorize"):
        await httpx.AsyncClient(transport=httpx.ASGITransport(app)).get("http://host/")


async def test_what_authorize_does_to_the_scope_stays_there(engine):
    async def authorize(scope):
        scope["path"] = "/elsewhere"
        return "read"

    app = dashboard(engine, authorize=authorize)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        assert (await client.get("http://host/")).status_code == 200


# -- forms -------------------------------------------------------------------------------------


async def test_a_form_is_of_the_user_it_was_made_for(engine, task):
    host = Host(engine, answer=("write", "ann"))
    at = "/jobs/queues/mail/pause"
    async with host.browsing() as client:
        body = f"form={form_token(await client.get(at))}"
        host.answer = ("write", "bob")  # another user of the same browser
        assert (await client.post(at, content=body, headers=FORM)).status_code == 403
        host.answer = ("write", 7)
        assert (await client.post(at, content=body, headers=FORM)).status_code == 403
        host.answer = ("write", "ann")
        assert (await client.post(at, content=body, headers=FORM)).status_code == 200
    assert (await engine.queue("mail").stats()).is_paused


async def test_a_form_is_of_the_browser_it_was_made_for(engine, task):
    host = Host(engine, answer=("write", "ann"))
    at = "/jobs/queues/mail/pause"
    async with host.browsing() as ann, host.browsing() as thief:
        body = f"form={form_token(await ann.get(at))}"
        await thief.get(at)
        assert (await thief.post(at, content=body, headers=FORM)).status_code == 403
        bare = await ann.post(at, content="", headers=FORM)
        assert bare.status_code == 403
    assert not (await engine.queue("mail").stats()).is_paused


async def test_each_mount_has_a_cookie_of_its_own(engine, task):
    names = set()
    for path in ("/jobs", "/ops/jobs"):
        async with Host(engine, path).browsing() as client:
            cookie = (await client.get(f"{path}/")).headers["set-cookie"]
            names.add(cookie.partition("=")[0])
            parts = set(cookie.split("; "))
            assert {"HttpOnly", "SameSite=strict", f"Path={path}/"} <= parts
            client.cookies.clear()
            secure = await client.get(f"{path}/", headers={"x-forwarded-proto": "https"})
            assert secure.headers["set-cookie"].startswith("__Secure-lodeq_form_")
            assert "Secure" in secure.headers["set-cookie"].split("; ")
    assert len(names) == 2
    assert not names & {"lodeq_session"}


async def test_processes_with_one_secret_take_each_others_forms(engine, task):
    at = "/jobs/queues/mail/pause"
    hosts = [Host(engine, secret="0123456789abcdef") for _ in range(2)]
    async with hosts[0].browsing() as one, hosts[1].browsing() as two:
        token = form_token(await one.get(at))
        two.cookies = one.cookies
        answer = await two.post(at, content=f"form={token}", headers=FORM)
        assert answer.status_code == 200
    async with Host(engine).browsing() as one, hosts[1].browsing() as two:
        token = form_token(await one.get(at))
        two.cookies = one.cookies
        answer = await two.post(at, content=f"form={token}", headers=FORM)
        assert answer.status_code == 403
    with pytest.raises(lodeq.UsageError, match="16 bytes"):
        Host(engine, secret="short")


async def test_a_form_that_is_too_large_is_not_read_to_its_end(engine, task):
    sent = 0

    async def endless():
        nonlocal sent
        while sent < 1 << 24:
            sent += 1 << 12
            yield b"x" * (1 << 12)

    async with Host(engine).browsing() as client:
        await client.get("/jobs/")
        answer = await client.post("/jobs/queues/mail/pause", content=endless(), headers=FORM)
        assert answer.status_code == 422
        assert "too large" in answer.text
    assert sent < 1 << 16


# -- Host and Origin ---------------------------------------------------------------------------


async def test_host_and_origin_are_checked_where_they_are_handed_over(engine):
    async with Host(engine).browsing("http://anything") as client:
        assert (await client.get("/jobs/")).status_code == 200
    host = Host(engine, hosts=["jobs.example.org"])
    async with host.browsing("http://evil") as client:
        assert (await client.get("/jobs/")).status_code == 403
    async with host.browsing("http://jobs.example.org:8443") as client:
        assert (await client.get("/jobs/")).status_code == 200
        for headers in ({"origin": "http://evil"}, {"sec-fetch-site": "cross-site"}):
            answer = await client.post("/jobs/queues/mail/pause", headers=headers)
            assert answer.status_code == 403
            assert "another" in answer.text
    with pytest.raises(lodeq.UsageError, match="list of names"):
        Host(engine, hosts="jobs.example.org")


# -- live pages --------------------------------------------------------------------------------


@asynccontextmanager
async def following(host, path="/jobs/live/"):
    """An event that is set when the stream ends; the first rendering has been sent."""
    seen, ended = [], anyio.Event()

    async def run():
        await watch(host.app, path, seen)
        ended.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            while not seen:
                await anyio.lowlevel.checkpoint()
            yield ended
            group.cancel_scope.cancel()


async def until(clock, condition):
    """Let time pass. Returns how many seconds it took."""
    for passed in range(100_000):
        if condition():
            return passed
        clock.advance(1)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
    raise AssertionError("it never happens")


async def test_a_live_page_asks_again_and_ends_with_the_right(engine, clock, task):
    host = Host(engine, answer=("read", "ann"))
    async with following(host) as ended:
        assert host.asked == 1
        assert await until(clock, lambda: host.asked == 2) >= ASK_S
        assert await until(clock, lambda: host.asked == 3) >= ASK_S
        assert not ended.is_set()
        host.answer = None
        assert await until(clock, ended.is_set) >= ASK_S - 1
        assert host.asked == 4


@pytest.mark.parametrize("answer", ["write", ("write", "bob"), ("read", "ann")])
async def test_a_live_page_ends_when_user_or_right_is_another_one(engine, clock, task, answer):
    host = Host(engine, answer=("write", "ann"))
    async with following(host) as ended:
        host.answer = answer
        assert await until(clock, ended.is_set) >= ASK_S


async def test_readers_and_writers_do_not_share_a_rendering(engine, clock, task):
    shown = {}
    for right in ("write", "read"):
        host = Host(engine, answer=right)
        async with anyio.create_task_group() as group:
            seen = shown[right] = []
            group.start_soon(watch, host.app, "/jobs/live/queues/mail", seen)
            while not seen:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert b"Pause" in shown["write"][0]
    assert b"Pause" not in shown["read"][0]
    assert b"../tasks/" in shown["read"][0]  # relative to the page, not to the stream


async def test_a_live_page_ends_with_its_server(engine, clock, task, monkeypatch):
    """uvicorn waits for answers to end when it stops, and does not say so to them."""
    import signal

    class Uvicorn:
        should_exit = False

        def handle_exit(self, *args):
            pass

    server = Uvicorn()
    monkeypatch.setattr(signal, "getsignal", lambda number: server.handle_exit)
    host = Host(engine)
    async with following(host) as ended:
        assert await until(clock, lambda: host.asked == 2) >= ASK_S
        assert not ended.is_set()
        server.should_exit = True
        await until(clock, ended.is_set)
        assert host.asked == 2


# -- what is shown -----------------------------------------------------------------------------


async def test_an_app_is_shown_once_it_is_open():
    app = App(lodeq.testing.open)

    @app.task("mail")
    async def send(to: str) -> None: ...

    host = Host(app)
    async with host.browsing() as client:
        answer = await client.get("/jobs/")
        assert answer.status_code == 503
        assert "no open store" in answer.text
        for _ in range(2):  # opened anew, its pages are made anew
            async with app:
                await send.enqueue("ann")
                assert row(await client.get("/jobs/"), "mail")[1] == "1"
        assert (await client.get("/jobs/")).status_code == 503


async def test_a_callable_is_asked_for_the_store(engine, task):
    found = {}
    host = Host(lambda: found["engine"])
    found["engine"] = engine
    async with host.browsing() as client:
        assert row(await client.get("/jobs/"), "mail")[1] == "1"


@pytest.mark.parametrize("store", [None, "var/jobs", 7], ids=repr)
async def test_what_is_no_store_is_refused_at_once(store):
    async def authorize(scope):
        return "read"

    with pytest.raises(lodeq.UsageError, match="Engine, a connected client or an App"):
        dashboard(store, authorize=authorize)


async def test_a_closed_engine_is_said():
    async with lodeq.testing.open() as engine:
        host = Host(engine)
    async with host.browsing() as client:
        answer = await client.get("/jobs/")
        assert answer.status_code == 503
        assert "closed" in answer.text


async def test_a_served_store_is_shown_through_its_client():
    async with ServedOpening(lodeq.testing.open(shards=2)) as remote:
        mail = remote.queue("mail", max_attempts=1)
        dead = await mail.enqueue({"to": "ann"}, headers={"by": "test"})
        await (await mail.claim_one()).nack(reason="smtp")
        await remote.queue("mail", tenant="acme").enqueue(b"x")
        done = await remote.queue("done").enqueue(b"x")
        await (await remote.queue("done").claim_one()).complete({"sent": True})
        async with Host(remote).browsing() as client:
            page = await client.get("/jobs/")
            assert (tile(page, "Ready"), tile(page, "Dead")) == ("1", "1")
            assert row(page, "mail")[1] == "1"
            assert "healthy" in page.text
            queue = await client.get("/jobs/queues/mail?state=dead")
            assert "smtp" in queue.text
            one = await client.get(f"/jobs/tasks/{dead.id}")
            assert "ann" in one.text
            assert "by" in one.text
            assert "sent" in (await client.get(f"/jobs/tasks/{done.id}")).text
            assert (await client.get("/jobs/queues/none")).status_code == 404
            assert (await client.get(f"/jobs/tasks/{lodeq.TaskId(bytes(16))}")).status_code == 404
            for at in ("queues/mail/pause", "queues/mail/redrive", "queues/mail/resume"):
                token = form_token(await client.get(f"/jobs/{at}"))
                answer = await client.post(f"/jobs/{at}", content=f"form={token}", headers=FORM)
                assert answer.status_code == 200, answer.text
            stats = await remote.queue("mail", tenant=lodeq.ALL_TENANTS).stats()
            assert (stats.ready, stats.dead, stats.is_paused) == (2, 0, False)


async def test_a_served_store_that_is_gone_is_said():
    async with ServedOpening(lodeq.testing.open()) as remote:
        host = Host(remote)
        await remote.close()
        async with host.browsing() as client:
            answer = await client.get("/jobs/")
            assert answer.status_code == 503
            assert "Failed" in answer.text


async def test_alone_it_answers_the_lifespan(engine):
    app = Host(engine).dashboard
    said, asked = [], iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive():
        return {"type": next(asked)}

    async def send(message):
        said.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_a_path_that_still_begins_with_the_mount_is_explained(engine):
    app = Host(engine).dashboard
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        answer = await client.get("http://host/jobs/queues/mail")
        assert answer.status_code == 404
        assert "root_path" in answer.text


# -- where it is mounted -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "mount", "inner"),
    [
        # Starlette and FastAPI: the path whole, the mount in root_path
        (("/jobs/queues/mail", "/jobs", "/jobs/queues/mail"), "/jobs", "/queues/mail"),
        (("/jobs/", "/jobs", "/jobs/"), "/jobs", "/"),
        (("/api/jobs/tasks/x", "/api/jobs", "/api/jobs/tasks/x"), "/api/jobs", "/tasks/x"),
        # older ones: the path stripped
        (("/queues/mail", "/jobs", "/jobs/queues/mail"), "/jobs", "/queues/mail"),
        (("/queues/mail", "/jobs", None), "/jobs", "/queues/mail"),
        # Litestar: stripped, without root_path, with a slash at the end
        (("/queues/mail/", "", "/jobs/queues/mail"), "/jobs", "/queues/mail"),
        (("/tasks/", "", "/jobs/tasks/"), "/jobs", "/tasks/"),
        (("/", "", "/jobs/"), "/jobs", "/"),
        (("/queues/mail/", "/api", "/api/jobs/queues/mail"), "/api/jobs", "/queues/mail"),
        # a path that begins as its mount does
        (("/queues/mail", "/queues", "/queues/queues/mail"), "/queues", "/queues/mail"),
        (("/queues/queues/mail", "/queues", "/queues/queues/mail"), "/queues", "/queues/mail"),
        (("/queues-of/x", "/queues", "/queues/queues-of/x"), "/queues", "/queues-of/x"),
        # not mounted at all
        (("/queues/mail", "", "/queues/mail"), "", "/queues/mail"),
        (("/", "", "/"), "", "/"),
    ],
)
def test_the_path_is_cut_where_the_mount_ends(scope, mount, inner):
    path, root, raw = scope
    given = {"path": path, "root_path": root}
    if raw is not None:
        given["raw_path"] = raw.encode()
    found = mount_path(given)
    assert (found.mount, found.inner, found.is_bare) == (mount, inner, False)


def test_the_mount_of_an_application_behind_a_proxy_that_strips():
    """FastAPI(root_path="/api"): not in the path, and not in the raw one."""
    scope = {"path": "/jobs/queues/mail", "root_path": "/api/jobs", "app_root_path": "/api"}
    found = mount_path({**scope, "raw_path": b"/jobs/queues/mail"})
    assert (found.mount, found.inner) == ("/api/jobs", "/queues/mail")


@pytest.mark.parametrize(
    "scope",
    [
        {"path": "/jobs", "root_path": "/jobs", "raw_path": b"/jobs"},
        {"path": "/", "root_path": "", "raw_path": b"/jobs"},
        {"path": "", "root_path": "/jobs", "raw_path": b"/jobs"},
        {"path": "", "root_path": "/jobs"},
    ],
)
def test_a_mount_without_a_slash(scope):
    assert mount_path(scope)[:] == ("/jobs", "/", True)
