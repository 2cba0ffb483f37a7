"""Who may look where the server has a token, and what every answer says to the browser."""

import re

import pytest
from support_dashboard import FORM, TOKEN, ask, browsing, form_token

import lodeq
from lodeq.engine.runtime.ids import SeededRng
from lodeq.service.dashboard.access.sessions import ENDED_MAX, SESSION_S, Sessions
from lodeq.service.dashboard.routes import Dashboard
from lodeq.service.http.guard import Settings

pytestmark = pytest.mark.anyio
PAGES = ["/", "/queues/mail", "/live/", "/live/queues/mail"]


@pytest.fixture
async def client(engine):
    await engine.queue("mail").enqueue(b"x")
    async with browsing(engine, token=TOKEN) as client:
        yield client


async def login(client, token=TOKEN):
    return await client.post("/login", content=f"token={token}", headers=FORM)


@pytest.mark.parametrize("path", PAGES)
async def test_a_browser_without_a_session_is_sent_to_log_in(client, path):
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    script = await client.get(path, headers={"accept": "text/event-stream"})
    assert script.status_code == 401


async def test_the_page_to_log_in_needs_no_session(client):
    assert "Token" in (await client.get("/login")).text
    for name in ("dashboard.css", "dashboard.js", "icon.svg"):
        assert (await client.get(f"/static/{name}")).status_code == 200
    assert (await client.get("/static/../board.py")).status_code in (303, 401, 404)


async def test_log_in_look_act_log_out(client, engine):
    answer = await login(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "mail" in (await client.get("/")).text
    await ask(client, "/queues/mail/pause")
    assert (await engine.queue("mail").stats()).is_paused
    cookie, page = client.cookies["lodeq_session"], await client.get("/")
    out = await client.post("/logout", content=f"form={form_token(page)}", headers=FORM)
    assert (out.status_code, out.headers["location"]) == (303, "/login")
    assert "lodeq_session" not in client.cookies
    client.cookies.set("lodeq_session", cookie)  # kept by somebody
    assert (await client.get("/")).status_code == 303


async def test_nobody_is_logged_out_by_another_page(client):
    await login(client)
    out = await client.post("/logout", content="form=0", headers=FORM)
    assert out.status_code == 403
    assert (await client.get("/")).status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", "%C3%A9", "%00"])
async def test_another_token_opens_nothing(client, token):
    answer = await login(client, token)
    assert answer.status_code == 403
    assert "not this server" in answer.text
    assert "lodeq_session" not in client.cookies
    assert TOKEN not in answer.text


async def test_the_cookie_is_for_this_server_and_no_script(client):
    answer = await login(client)
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forwarded-proto": "https"},
        {"x-forwarded-proto": "http, https"},
        {"forwarded": 'for=192.0.2.1;proto="https"'},
    ],
    ids=str,
)
async def test_over_tls_the_cookie_is_of_this_host_alone(engine, headers):
    async with browsing(engine, token=TOKEN) as client:
        answer = await client.post("/login", content=f"token={TOKEN}", headers=FORM | headers)
        name, _, value = answer.headers["set-cookie"].partition("; ")[0].partition("=")
        parts = set(answer.headers["set-cookie"].split("; ")[1:])
        assert name == "__Host-lodeq_session"
        assert {"HttpOnly", "SameSite=strict", "Path=/", "Secure"} <= parts
        assert not any(part.startswith("Domain") for part in parts)
        client.cookies.clear()
        cookie = {"cookie": f"{name}={value}"} | headers
        page = await client.get("/", headers=cookie)
        assert page.status_code == 200
        # One without the prefix, which a page of another port could have set, does not replace it.
        both = {"cookie": f"lodeq_session=0; {name}={value}"} | headers
        assert (await client.get("/", headers=both)).status_code == 200
        out = await client.post(
            "/logout", content=f"form={form_token(page)}", headers=FORM | cookie
        )
        assert any("__Host-lodeq_session" in one for one in out.headers.get_list("set-cookie"))
        assert (await client.get("/", headers=cookie)).status_code == 303


@pytest.mark.parametrize("headers", [{}, {"x-forwarded-proto": "https, http"}], ids=str)
async def test_without_tls_it_is_not(engine, headers):
    async with browsing(engine, token=TOKEN) as client:
        answer = await client.post("/login", content=f"token={TOKEN}", headers=FORM | headers)
        assert answer.headers["set-cookie"].startswith("lodeq_session=")
        assert "Secure" not in answer.headers["set-cookie"]


async def test_a_session_opens_pages_and_not_the_interface(client):
    await login(client)
    for path in ("/v1/stats", "/v1/queues", "/metrics"):
        answer = await client.get(path, headers={"accept": "*/*"})
        assert answer.status_code == 401, path
    answer = await client.post(
        "/v1/queues/mail/purge", content="{}", headers={"content-type": "application/json"}
    )
    assert answer.status_code == 401


async def test_the_token_opens_pages_as_well(client):
    bearer = {"authorization": f"Bearer {TOKEN}"}
    page = await client.get("/", headers=bearer)
    assert page.status_code == 200
    assert "set-cookie" not in page.headers


async def test_a_session_ends(client, clock):
    await login(client)
    clock.advance(SESSION_S - 1)
    assert (await client.get("/")).status_code == 200
    clock.advance(1)
    assert (await client.get("/")).status_code == 303


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c[:-1],
        lambda c: c + "0",
        lambda c: "é" + c,
        lambda c: "..",
        lambda c: "",
        lambda c: re.sub(r"\.\d+\.", ".99999999999.", c),
        lambda c: c.partition(".")[2],
    ],
)
async def test_a_cookie_that_was_changed_opens_nothing(client, change):
    await login(client)
    cookie = change(client.cookies["lodeq_session"])
    client.cookies.clear()
    answer = await client.get("/", headers={"cookie": f"lodeq_session={cookie}".encode()})
    assert answer.status_code == 303


async def test_another_process_knows_nothing_of_it(client, engine):
    await login(client)
    cookie = client.cookies["lodeq_session"]
    other = Sessions(engine._state.clock, SeededRng(2), TOKEN)
    assert other.known({b"cookie": f"lodeq_session={cookie}".encode()}) is None


async def test_without_a_token_there_is_nothing_to_log_in_to(engine):
    async with browsing(engine) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/login")).headers["location"] == "/"
        assert (await login(client, "")).headers["location"] == "/"


@pytest.mark.parametrize("path", ["/", "/queues/none", "/static/dashboard.css", "/tasks/?id=x"])
async def test_every_answer_says_what_the_browser_must_not_do(engine, path):
    async with browsing(engine) as client:
        headers = (await client.get(path)).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] in ("no-store", "no-cache")


async def test_no_page_has_a_script_or_a_style_of_its_own(engine):
    receipt = await engine.queue("mail").enqueue(b"x")
    async with browsing(engine) as client:
        for path in ("/", "/queues/mail", f"/tasks/{receipt.id}", "/queues/mail/pause", "/x"):
            page = (await client.get(path)).text
            assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page), path
            assert re.findall(r"<script[^>]*>", page) in (
                [],
                ['<script src="/static/dashboard.js" defer>'],
            )
            assert not re.search(r'(?:src|href|action)="(?!/|#)', page), path


@pytest.mark.parametrize("tokens", [(TOKEN, None), (None, TOKEN)])
async def test_the_dashboard_and_its_server_agree_on_the_token(engine, tokens):
    with pytest.raises(lodeq.UsageError, match="same token"):
        Dashboard(engine, token=tokens[0]).guarded(Settings(token=tokens[1]))


def headers_of(cookie):
    return {b"cookie": f"lodeq_session={cookie}".encode()}


async def test_what_is_kept_of_logouts_is_bounded_and_no_cookie_comes_back(engine, clock):
    sessions = Sessions(engine._state.clock, SeededRng(3), TOKEN)
    out = []
    for _ in range(3 * ENDED_MAX):
        out.append(sessions.new())
        sessions.end(out[-1])
        if len(out) % 64 == 0:
            clock.advance(1)
    assert len(sessions._ended) <= ENDED_MAX
    assert not any(sessions.known(headers_of(cookie)) for cookie in out)
    mine = sessions.new()
    assert sessions.known(headers_of(mine)) == mine


async def test_a_session_begun_after_a_thousand_logouts_in_one_second_is_good(engine):
    sessions = Sessions(engine._state.clock, SeededRng(4), TOKEN)
    for _ in range(ENDED_MAX + 1):
        sessions.end(sessions.new())
    mine = sessions.new()
    assert sessions.known(headers_of(mine)) == mine
    assert len(sessions._ended) <= ENDED_MAX


async def test_where_nobody_logs_in_nothing_is_kept_of_who_logs_out(engine):
    """Anybody may log out there, as often as they like; a session opens nothing."""
    await engine.queue("mail").enqueue(b"x")
    async with browsing(engine) as client:
        page = await client.get("/queues/mail/pause")
        sent = f"form={form_token(page)}"
        assert (await client.post("/logout", content=sent, headers=FORM)).status_code == 303
    sessions = Sessions(engine._state.clock, SeededRng(5), None)
    for _ in range(10):
        sessions.end(sessions.new())
    assert not sessions._ended
