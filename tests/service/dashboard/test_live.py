"""Server-sent events: a page follows its store without being asked for again."""

import json

import anyio
import anyio.lowlevel
import httpx
import pytest
from support_dashboard import TOKEN, app_of, row, watch
from support_http import serving

import lodeq.testing
from lodeq.service.dashboard.live.streams import SHARE, STREAMS_MAX, Streams, _Stream
from lodeq.service.dashboard.renderer import Pages
from lodeq.service.dashboard.routes import Dashboard
from lodeq.service.http.access.roles import Access
from lodeq.service.http.guard import Settings
from lodeq.service.http.server_state import ServerState
from lodeq.service.shared.origin import CONNECTION

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(engine):
    """(address, dashboard) of a server on loopback."""
    board = Dashboard(engine)
    settings = board.guarded(Settings())
    async with serving(engine, settings=settings, routes=board.routes) as url:
        yield url, board


class Shown:
    """What an event says."""

    def __init__(self, text):
        self.text = text


async def events(lines):
    async for line in lines:
        if line.startswith("data: "):
            yield Shown(json.loads(line[6:]))


@pytest.fixture
async def follow(served):
    url, _ = served
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        yield lambda path: client.stream("GET", path)


async def until(condition):
    with anyio.fail_after(30):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def test_a_stream_shows_what_has_changed(engine, clock, follow):
    mail = engine.queue("mail")
    await mail.enqueue(b"x")
    async with follow("/live/") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "no-store" in answer.headers["cache-control"]
        shown = events(answer.aiter_lines())
        assert row(await anext(shown), "mail")[1] == "1"
        await mail.enqueue(b"y")
        clock.advance(1)
        assert row(await anext(shown), "mail")[1] == "2"


async def test_a_task_is_followed_to_its_end(engine, clock, follow):
    mail = engine.queue("mail")
    receipt = await mail.enqueue(b"x")
    async with follow(f"/live/tasks/{receipt.id}") as answer:
        shown = events(answer.aiter_lines())
        assert ">ready</span>" in (await anext(shown)).text
        lease = await mail.claim_one()
        clock.advance(1)
        assert ">leased</span>" in (await anext(shown)).text
        await lease.complete()
        clock.advance(1)
        assert ">completed</span>" in (await anext(shown)).text


async def test_a_stream_of_a_page_follows_that_page(engine, follow):
    mail = engine.queue("mail", tenant="acme")
    await mail.enqueue(b"x", delay=60)
    async with follow("/live/queues/mail?tenant=acme&state=delayed") as answer:
        shown = await anext(events(answer.aiter_lines()))
        assert 'aria-current="page">Delayed' in shown.text
        assert "tenant acme" in shown.text


async def test_what_stays_the_same_is_not_sent_again_but_silence_is_broken(engine, clock, follow):
    await engine.queue("mail").pause()  # nothing on its page grows older
    seen = []

    async def pass_time():
        while True:
            clock.advance(1)
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(30):
        async with follow("/live/queues/mail") as answer, anyio.create_task_group() as group:
            group.start_soon(pass_time)
            async for line in answer.aiter_lines():
                seen.append(line)
                if line == ": still here":
                    break
            group.cancel_scope.cancel()
    shown = [line for line in seen if line.startswith("data: ")]
    assert 1 <= len(shown) == len(set(shown)) <= 2  # once more when there are rates


async def test_a_client_that_goes_leaves_nothing_behind(engine, served, follow):
    _, board = served
    async with follow("/live/") as answer:
        await anext(events(answer.aiter_lines()))
        assert board._streams.open == 1
    await until(lambda: board._streams.open == 0)


async def test_there_is_an_end_to_how_many_watch(engine, served, follow):
    _, board = served
    board._streams.open = STREAMS_MAX
    async with follow("/live/") as answer:
        assert answer.status_code == 503


async def test_a_server_that_stops_ends_its_streams(engine, served):
    board = Dashboard(engine)
    async with httpx.AsyncClient(timeout=30) as client:
        async with serving(engine, settings=board.guarded(Settings()), routes=board.routes) as url:
            stream = client.stream("GET", f"{url}/live/")
            answer = await stream.__aenter__()
            lines = answer.aiter_lines()
            await anext(events(lines))
        assert [line async for line in lines if line.startswith("data")] == []
        await stream.__aexit__(None, None, None)
    assert board._streams.open == 0


async def test_a_stream_ends_with_its_session(engine, clock):
    board = Dashboard(engine, token=TOKEN)
    settings = board.guarded(Settings(token=TOKEN))
    async with (
        serving(engine, settings=settings, routes=board.routes) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        await client.post("/login", data={"token": TOKEN})
        cookie = client.cookies["lodeq_session"]
        async with client.stream("GET", "/live/") as answer:
            shown = events(answer.aiter_lines())
            await anext(shown)
            board._auth._sessions.end(cookie)
            clock.advance(1)
            assert [event async for event in shown] == []


async def test_a_stream_ends_with_its_engine(clock):
    async with lodeq.testing.open(clock=clock) as engine:
        board = Dashboard(engine)
        async with (
            serving(engine, settings=board.guarded(Settings()), routes=board.routes) as url,
            httpx.AsyncClient(base_url=url, timeout=30) as client,
        ):
            async with client.stream("GET", "/live/") as answer:
                shown = events(answer.aiter_lines())
                await anext(shown)
                await engine.close()
                clock.advance(1)
                assert [event async for event in shown] == []
            assert (await client.get("/")).status_code == 503


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/live/queues/none", 404),
        ("/live/queues/mail?state=asleep", 422),
        ("/live/tasks/x", 422),
    ],
)
async def test_what_cannot_be_shown_is_no_stream(engine, follow, path, status):
    """A browser asks for a stream that ended again and again; not after another answer."""
    await engine.queue("mail").enqueue(b"x")
    async with follow(path) as answer:
        assert answer.status_code == status


async def test_a_head_of_a_stream_has_no_body(engine, served):
    url, board = served
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        assert (await client.head("/live/")).status_code == 200
    assert board._streams.open == 0


@pytest.fixture
def renders(monkeypatch):
    """The templates that were rendered, one after another."""
    found, plain = [], Pages.render

    def render(pages, template, context):
        found.append(template)
        return plain(pages, template, context)

    monkeypatch.setattr(Pages, "render", render)
    return found


async def test_what_many_watch_is_rendered_once_for_all(engine, clock, renders):
    mail = engine.queue("mail")
    await mail.enqueue(b"x")
    app, seen = app_of(engine), [[] for _ in range(STREAMS_MAX)]
    async with anyio.create_task_group() as group:
        for events in seen:
            group.start_soon(watch, app, "/live/", events)
        await until(lambda: all(len(events) == 1 for events in seen))
        assert len(renders) <= 2  # one that was begun before some of them came
        for n in range(2, 5):
            renders.clear()
            await mail.enqueue(b"x")
            clock.advance(1)
            await until(lambda n=n: all(len(events) == n for events in seen))
            assert len(renders) == 1
            assert len({events[-1] for events in seen}) == 1
        group.cancel_scope.cancel()


async def test_what_a_newcomer_sees_is_not_older_than_its_request(engine, clock, renders):
    mail = engine.queue("mail")
    app, first, second = app_of(engine), [], []
    async with anyio.create_task_group() as group:
        group.start_soon(watch, app, "/live/", first)
        await until(lambda: first)
        await mail.enqueue(b"x")
        clock.advance(0.95)  # the streams have not had their turn, but a look may be taken
        group.start_soon(watch, app, "/live/", second)
        await until(lambda: second)
        page = Shown(json.loads(second[0].split(b"data: ")[1]))
        assert row(page, "mail")[1] == "1"
        clock.advance(0.05)  # who was there before has it at its turn, and nothing is rendered
        await until(lambda: len(first) == 2)
        assert len(renders) == 2
        group.cancel_scope.cancel()


async def test_many_pages_take_a_twentieth_of_the_loop_together(engine, clock, monkeypatch):
    await engine.queue("mail").enqueue(b"x")
    app, seen, cost_s, spent = app_of(engine), [[] for _ in range(STREAMS_MAX)], 0.005, []

    def render(pages, template, context):
        clock.advance(cost_s)
        spent.append(cost_s)
        return f"{len(spent)}"

    monkeypatch.setattr(Pages, "render", render)
    async with anyio.create_task_group() as group:
        for n, events in enumerate(seen):
            group.start_soon(watch, app, f"/live/queues/mail?n={n}", events)  # asks no thread
        await until(lambda: all(seen))
        spent.clear()
        begun = clock.now
        while (passed := (clock.now - begun).total_seconds()) < 30:
            clock.advance(0.1)
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
        assert all(len(events) >= 4 for events in seen)
        # And once what they came to at the same time.
        assert sum(spent) <= passed / SHARE + STREAMS_MAX * cost_s
        group.cancel_scope.cancel()


async def test_no_more_watch_than_may_though_they_come_at_once(engine):
    app, seen = app_of(engine), []
    async with anyio.create_task_group() as group:

        async def come():
            with pytest.raises(AssertionError, match="503"):
                await watch(app, "/live/", [])
            seen.append(503)

        for _ in range(STREAMS_MAX):
            group.start_soon(watch, app, "/live/", [])
        for _ in range(3):
            group.start_soon(come)
        await until(lambda: len(seen) == 3)
        group.cancel_scope.cancel()


async def test_a_page_that_nobody_watches_is_forgotten(engine, clock):
    receipt = await engine.queue("mail").enqueue(b"x")
    board = Dashboard(engine)
    async with serving(engine, settings=board.guarded(Settings()), routes=board.routes) as url:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            for path in ("/live/tasks/x", "/live/queues/none", "/live/queues/mail?state=asleep"):
                await client.get(path)
            assert not board._streams._pages
            async with client.stream("GET", f"/live/tasks/{receipt.id}") as answer:
                await anext(events(answer.aiter_lines()))
                assert len(board._streams._pages) == 1
        await until(lambda: not board._streams._pages)
    assert board._streams.open == 0


@pytest.mark.parametrize("is_ours", [False, True])
async def test_a_stream_touches_no_state_of_the_application_and_serves_nobody_who_has_gone(is_ours):
    sent, left = [], []

    class Ended:
        has_ended, is_polling = True, False

    class Left:
        def leave(self, name):
            left.append(name)

    async def shown():
        yield b"event"

    async def receive():
        await anyio.sleep_forever()

    async def send(message):
        sent.append(message)

    state = {CONNECTION: Ended()} if is_ours else {"connection": object()}
    scope = {"type": "http", "state": state, "asgi": {"spec_version": "2.4"}}
    await _Stream(Left(), "page", shown())(scope, receive, send)
    assert left == ["page"]
    assert sent[0]["status"] == (204 if is_ours else 200)


async def test_a_stream_that_is_rendered_while_the_server_stops_ends_as_well(
    engine, clock, monkeypatch
):
    app, seen = app_of(engine), []
    real = Streams._render

    async def render(self, page, draw, wanted):
        if wanted > 1:
            app.state.hub.close_polls()
        await real(self, page, draw, wanted)

    monkeypatch.setattr(Streams, "_render", render)
    async with anyio.create_task_group() as group:
        group.start_soon(watch, app, "/live/", seen)
        await until(lambda: seen)
        clock.advance(1)
        await until(lambda: seen[-1] == b"")  # the answer is whole
        group.cancel_scope.cancel()


async def test_a_poll_of_a_token_that_has_just_lost_its_rights_does_not_wait(engine):
    server = ServerState(engine, Settings())
    access = Access("worker", ())
    access.is_over = True
    scope = anyio.CancelScope()
    with server.polling(scope, access):
        assert scope.cancel_called
