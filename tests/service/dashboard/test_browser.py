"""The dashboard in a real browser: eyes, keyboard, phone, day and night."""

import asyncio
import base64
import re
import socket
from contextlib import asynccontextmanager, nullcontext

import anyio
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from support_browser import CONTRASTS, FLAWS, LOOKS, LOW, find_browser
from support_dashboard import TOKEN
from support_http import serving

import lodeq
import lodeq.testing
from lodeq.dashboard import dashboard
from lodeq.service.dashboard.routes import Dashboard
from lodeq.service.http.guard import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
HOSTILE = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>"
WIDE, PHONE = (1280, 800), (360, 740)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def browser():
    path = find_browser()
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path)
        yield browser
        await browser.close()


@pytest.fixture
async def engine():
    """A store with something of everything."""
    async with lodeq.testing.open(shards=2) as engine:
        mail = engine.queue("mail", max_attempts=1)
        for number in range(4):
            await mail.enqueue({"to": "ann@example.org", "number": number}, headers={"by": "test"})
        for lease in await mail.claim(limit=3, worker="worker-1"):
            if lease.payload["number"] == 0:
                await lease.nack(reason=f"smtp: connection refused {HOSTILE}")
            elif lease.payload["number"] == 1:
                await lease.complete({"sent": True})
        await mail.enqueue(HOSTILE, delay=600)
        await engine.queue("images.resize", tenant="acme").enqueue(b"\x00\x01binary")
        await engine.queue("images.resize", tenant="beta").enqueue(b"text")
        await engine.queue("reports").enqueue(b"x")
        await engine.queue("reports").pause()
        yield engine


@asynccontextmanager
async def hosting(engine):
    """The address of the dashboard in another application, served by uvicorn."""

    async def authorize(scope):
        return "write", "ann"

    host = Starlette(routes=[Mount("/ops/jobs", dashboard(engine, authorize=authorize))])

    class Server(uvicorn.Server):
        def capture_signals(self):
            return nullcontext()  # those are the tests' own

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(uvicorn.Config(host, log_config=None, timeout_graceful_shutdown=5))
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [listener])
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/ops/jobs"
            server.should_exit = True


@pytest.fixture(params=["served", "mounted"])
async def url(engine, request):
    if request.param == "mounted":
        async with hosting(engine) as url:
            yield url
        return
    board = Dashboard(engine, access="write")
    settings = board.guarded(Settings())
    async with serving(engine, settings=settings, routes=board.routes) as url:
        yield url


@pytest.fixture
async def opened(browser, url):
    """Opens pages; whatever one has complained of fails the test."""
    complaints, contexts = [], []

    async def open_page(path="/", *, size=WIDE, scheme="light", base=url):
        context = await browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
        )
        contexts.append(context)
        page = await context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda one: complaints.append(f"{one.type}: {one.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda one: note_failure(one))
        go = page.goto
        page.goto = lambda path: go(f"{base}{path}")  # as links do, not to the root of the host
        await page.goto(path)
        return page

    def note_failure(request):
        if request.failure != "net::ERR_ABORTED":  # what a page asks for ends with it
            complaints.append(f"{request.failure}: {request.url}")

    yield open_page
    for context in contexts:
        await context.close()
    assert complaints == []


async def is_live(page):
    await page.wait_for_selector('#pulse[data-state="live"]')


async def ids(engine):
    mail = engine.queue("mail")
    return {state: (await mail.list(state))[0].id for state in ("dead", "leased", "delayed")}


async def paths(engine):
    return [
        "/",
        "/queues/mail?state=dead",
        "/queues/images.resize?state=ready&tenant=acme",
        f"/tasks/{(await ids(engine))['dead']}",
        "/queues/mail/purge?state=ready",
        "/find",
        "/find?queue=mail&label=a%3Db&older_than=0",
        "/find?all=1",
        "/find/redrive?queue=mail&reason=smtp",
        "/find/reprioritise?all=1",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
async def test_every_page_can_be_read_and_seen(engine, opened, browser, size, scheme, tmp_path):
    """The pictures stay in the test's folder, for who wants to look."""
    page, looker = None, await (await browser.new_context()).new_page()
    for path in await paths(engine):
        if page is None:
            page = await opened(path, size=size, scheme=scheme)
        else:
            await page.goto(path)
        assert await page.evaluate(FLAWS) == [], path
        texts = await page.evaluate(CONTRASTS)
        assert len(texts) > 5
        assert [one for one in texts if one["ratio"] < one["need"]] == [], path
        assert await page.evaluate("document.documentElement.scrollWidth") <= size[0], path
        assert await page.evaluate(LOW) == [], path
        name = re.sub(r"\W+", "-", path).strip("-") or "overview"
        png = await page.screenshot(path=str(tmp_path / f"{name}.png"), full_page=True)
        check_picture(await looker.evaluate(LOOKS, base64.b64encode(png).decode()), size, scheme)
    await looker.context.close()


def check_picture(seen, size, scheme):
    assert seen["width"] == size[0]
    assert size[1] <= seen["height"] <= 6 * size[1]
    assert seen["colours"] > 20
    assert 0.01 < seen["ink"] < 0.9
    assert seen["bands"][0] > 0.005  # the header
    assert (seen["brightness"] > 0.9) == (scheme == "light")
    assert (seen["brightness"] < 0.2) == (scheme == "dark")


@pytest.mark.smoke
async def test_an_update_comes_without_a_reload(engine, opened):
    page = await opened("/")
    await is_live(page)
    await page.evaluate("window.stayed = true")
    await page.focus('tr[data-key="mail"] a')
    await page.fill("#part", "half typed")
    await page.focus('tr[data-key="mail"] a')
    await engine.queue("mail").enqueue(b"new")
    await engine.queue("brand-new").enqueue(b"new")
    await page.wait_for_selector('tr[data-key="brand-new"]')
    assert await page.text_content('tr[data-key="mail"] td:nth-of-type(1)') == "2"
    assert await page.evaluate("window.stayed") is True
    assert await page.input_value("#part") == "half typed"
    focused = await page.evaluate("document.activeElement.textContent")
    assert focused == "mail"


async def test_an_update_keeps_the_focus(engine, opened):
    """The first one, when it comes late, and one by which the rows above are gone."""
    page = await opened()
    focused = asyncio.Event()

    async def hold(route):
        await focused.wait()
        await route.continue_()

    await page.route("**/live/**", hold)
    dead = await engine.queue("mail").list("dead")
    await page.goto("/queues/mail?state=dead")
    link = page.get_by_text("Redrive 1 dead…")
    await link.evaluate("node => { window.was = node; node.focus(); }")
    focused.set()
    await is_live(page)
    assert await page.evaluate("document.activeElement === window.was")
    await page.goto("/queues/mail?state=ready")
    await is_live(page)
    await engine.queue("mail").redrive()
    row = page.locator(f'tr[data-key="{dead[0].id}"]')
    await row.wait_for()
    await row.locator("a").evaluate("node => { window.was = node; node.focus(); }")
    await (await engine.queue("mail").claim_one()).complete()
    await page.wait_for_selector("tbody tr:only-child")
    assert await page.evaluate("document.activeElement === window.was")
    await (await engine.queue("mail").claim_one()).complete()
    await page.wait_for_selector("text=No ready tasks.")  # what had it is gone, and so its table
    assert await page.evaluate("document.activeElement.id") == "main"


async def test_opened_details_stay_open(engine, opened):
    page = await opened("/queues/images.resize")
    await is_live(page)
    await page.click("summary")
    await engine.queue("images.resize", tenant="gamma").enqueue(b"x")
    await page.wait_for_selector('li[data-key="gamma"]')
    assert await page.is_visible('li[data-key="gamma"]')


@pytest.mark.smoke
async def test_a_task_is_seen_to_end(engine, opened):
    queue = engine.queue("thumbnails")
    receipt = await queue.enqueue(b"x")
    page = await opened(f"/tasks/{receipt.id}")
    await is_live(page)
    await (await queue.claim_one()).complete({"ok": True})
    await page.wait_for_selector('.badge:text("completed")')
    assert '"ok": true' in await page.inner_text("pre")


async def test_a_server_that_is_gone_is_told(engine, browser):
    board = Dashboard(engine)
    context = await browser.new_context()
    page = await context.new_page()
    async with serving(engine, settings=board.guarded(Settings()), routes=board.routes) as url:
        await page.goto(url)
        await is_live(page)
    await page.wait_for_selector('#pulse[data-state="lost"]')
    assert "mail" in await page.inner_text("#live")
    await context.close()


async def test_all_of_it_by_keyboard(engine, opened):
    page = await opened("/")
    await is_live(page)
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.textContent") == "Skip to content"
    box = await page.locator(":focus").bounding_box()
    assert box["x"] >= 0
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "main"

    async def tab_to(text):
        for _ in range(60):
            await page.keyboard.press("Tab")
            found = await page.evaluate(
                "(() => { const s = getComputedStyle(document.activeElement); return ["
                "document.activeElement.textContent.trim(), s.outlineStyle, s.outlineWidth]; })()"
            )
            assert found[1:] == ["solid", "2px"]  # where one is can be seen
            if re.fullmatch(text, found[0]):
                return
        raise AssertionError(text)

    async def go():
        async with page.expect_navigation():
            await page.keyboard.press("Enter")

    await tab_to("mail")
    await go()
    assert await page.inner_text("h1") == "mail"
    await tab_to("Dead 1")
    await go()
    await tab_to("Redrive 1 dead…")
    await go()
    assert await page.inner_text("h1") == "Redrive queue mail?"
    await tab_to("Redrive all")
    await go()
    assert await page.inner_text(".done") == "1 task redriven."
    assert (await engine.queue("mail").stats()).dead == 0


async def test_a_purge_asks_and_can_be_left(engine, opened):
    page = await opened("/queues/mail?state=delayed")
    await page.click("text=Purge 1 delayed…")
    assert "1 delayed now" in await page.inner_text("main")
    await page.click("text=Back")
    assert (await engine.queue("mail").stats()).delayed == 1
    await page.goto("/queues/mail?state=delayed")
    await page.click("text=Purge 1 delayed…")
    await page.click("text=Delete them")
    assert await page.inner_text(".done") == "1 task deleted."
    assert (await engine.queue("mail").stats()).delayed == 0


async def test_dead_letters_like_one_are_found_and_sent_back(engine, opened, monkeypatch):
    """From the list of dead letters to the end of the run, which is seen without a reload."""
    mail = engine.queue("mail", max_attempts=1)
    for _ in range(5):
        await mail.enqueue(b"x", function="send", preview="to='ann'")
    for lease in await mail.claim(limit=6):
        await lease.bury("smtp: connection refused")
    gate, begun = asyncio.Event(), asyncio.Event()
    real = type(engine).act

    async def act(self, *args, **more):
        begun.set()
        await gate.wait()
        return await real(self, *args, **more)

    monkeypatch.setattr(type(engine), "act", act)
    page = await opened("/queues/mail?state=dead")
    await page.click("text=same function >> nth=0")
    assert await page.inner_text("#found") == "5 tasks"
    assert await page.input_value("#f-function") == "send"
    assert await page.is_checked('input[value="dead"]')
    await page.fill("#f-reason", "REFUSED")
    await page.click("form.search button")
    assert await page.inner_text("#found") == "5 tasks"
    assert "reason=REFUSED" in page.url
    await page.click("text=Redrive all…")
    assert await page.inner_text("h1") == "Redrive 5 tasks?"
    await page.select_option("#policy", "current")
    await page.click("text=Redrive them")
    await begun.wait()
    await is_live(page)
    await page.evaluate("window.stayed = true")
    assert await page.inner_text(".badge") == "running"
    gate.set()
    await page.wait_for_selector('.badge:text("done")')
    assert await page.evaluate("window.stayed") is True
    assert "5" in await page.inner_text(".tile:first-child")
    assert await page.evaluate(FLAWS) == []
    assert (await engine.count(lodeq.TaskFilter(function="send", state="ready"))).count == 5


async def test_without_scripts_a_search_and_its_acts_work(engine, browser, url):
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(f"{url}/find")
    await page.fill("#f-queue", "mail")
    await page.check('input[value="delayed"]')
    await page.click("form.search button")
    assert await page.inner_text("#found") == "1 task"
    async with page.expect_download() as file:
        await page.click("text=CSV")
    assert (await file.value).suggested_filename == "found.csv"
    await page.click("text=Cancel all…")
    await page.click("button.final")
    for _ in range(100):
        if await page.inner_text(".badge") == "done":
            break
        await page.reload()
    assert await page.inner_text(".badge") == "done"
    assert (await engine.queue("mail").stats()).delayed == 0
    await context.close()


async def test_what_users_stored_runs_nowhere(engine, opened):
    found = await ids(engine)
    for path in (
        f"/tasks/{found['delayed']}",
        f"/tasks/{found['dead']}",
        "/queues/mail?state=dead",
    ):
        page = await opened(path)
        await is_live(page)
        assert HOSTILE in await page.inner_text("main")
        assert await page.evaluate("window.pwned") is None
        assert await page.query_selector("main img, main script") is None


async def test_logging_in_and_out(engine, opened):
    board = Dashboard(engine, token=TOKEN)
    settings = board.guarded(Settings(token=TOKEN))
    async with serving(engine, settings=settings, routes=board.routes) as base:
        page = await opened("/", base=base)
        assert await page.inner_text("h1") == "Log in"
        assert await page.evaluate("document.activeElement.id") == "token"
        assert await page.evaluate(FLAWS) == []
        await page.keyboard.type(TOKEN)
        await page.keyboard.press("Enter")
        await page.wait_for_selector('tr[data-key="mail"]')
        await is_live(page)
        await page.click("text=Log out")
        assert await page.inner_text("h1") == "Log in"
        await page.context.close()  # before its server: what is still asked for would be refused
