"""The file of tokens: what is refused at the start, and what a change of it does."""

import contextlib
import logging
import os
from datetime import datetime

import anyio
import anyio.lowlevel
import httpx
import msgpack
import pytest
from anyio.lowlevel import checkpoint
from support_http import asgi_client, serving, socket_path
from support_roles import entry, token_of, write_tokens
from support_wire import pack, wired

import lodeq
import lodeq.testing
from lodeq.repository.api.view import EngineView
from lodeq.service.http.access import tokens_file
from lodeq.service.http.access.tokens_file import FILE_BYTES_MAX, LOOK_S, TokensFile
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings
from lodeq.service.http.routes import find
from lodeq.service.store_server.server import make_server
from lodeq.testing import ManualClock

pytestmark = pytest.mark.anyio
GOOD = entry("web", "producer")
DIGEST = f'"{"0" * 64}"'


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def engine(clock):
    async with lodeq.testing.open(clock=clock) as engine:
        yield engine


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tokens.toml"


# -- at the start ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "neither a [[token]] nor a [jwt]"),
        ("[[token]", "is not TOML"),
        ("\xff", "is not TOML"),
        (f"size = {'9' * 5000}", "is not TOML"),
        ("[token]\nname = 'x'\n", "array"),
        (f"[[token]]\nsha256 = {DIGEST}\nroles = ['worker']\n", "`name`"),
        (f"[[token]]\nname = 'a b'\nsha256 = {DIGEST}\nroles = ['worker']\n", "name"),
        ("[[token]]\nname = 'x'\nsha256 = 'plain'\nroles = ['worker']\n", "sha256"),
        (f"[[token]]\nname = 'x'\nsha256 = {DIGEST}\nroles = []\n", "roles"),
        (f"[[token]]\nname = 'x'\nsha256 = {DIGEST}\nroles = ['boss']\n", "'boss' is not one of"),
        (entry("web", "worker", queues=[]), "queues"),
        (entry("web", "worker", queues=["Mail"]), "queues"),
        (entry("web", "worker", queues=["m[a]il"]), "queues"),
        (entry("web\\n", "worker"), "name"),
        (entry("web", "worker", tenants=["a b"]), "tenants"),
        (entry("web", "worker", queue=["mail"]), "`queue`"),
        (GOOD + GOOD, "is there twice"),
        ("#" * (FILE_BYTES_MAX + 1), "larger than"),
    ],
)
def test_a_wrong_file_is_refused(file, text, said):
    file.write_bytes(text.encode("latin-1"))
    file.chmod(0o600)
    with pytest.raises(lodeq.UsageError) as raised:
        TokensFile(file)
    assert said in str(raised.value)
    assert str(file) in str(raised.value)


def test_the_same_digest_under_two_names_is_refused(file):
    write_tokens(file, GOOD, GOOD.replace('"web"', '"other"'))
    with pytest.raises(lodeq.UsageError, match="is there twice"):
        TokensFile(file)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o601])
def test_a_file_that_others_can_read_is_refused(file, mode):
    write_tokens(file, GOOD, mode=mode)
    with pytest.raises(lodeq.UsageError, match="chmod 600"):
        TokensFile(file)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(lodeq.UsageError, match="cannot be read"):
        TokensFile(tmp_path / "missing")
    with pytest.raises(lodeq.UsageError, match="is not a file"):
        TokensFile(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(lodeq.UsageError, match="is not a file"):
        TokensFile(tmp_path / "pipe")


def test_no_store_is_opened_with_a_wrong_file(tmp_path, file):
    with pytest.raises(lodeq.UsageError, match="cannot be read"):
        lodeq.open(tmp_path / "s", serve=lodeq.Serve(tokens=file))
    assert not (tmp_path / "s").exists()


# -- a change --------------------------------------------------------------------------------


async def statuses(app, *names):
    found = {}
    for name in names:
        headers = {"authorization": f"Bearer {token_of(name)}"}
        async with asgi_client(app, **headers) as client:
            answer = await client.post("/v1/tasks", json={"queue": "mail", "tasks": []})
            found[name] = answer.status_code
    return found


async def test_a_change_counts_a_second_later(engine, clock, file):
    write_tokens(file, entry("web", "producer"), entry("old", "producer"))
    app = make_app(engine, Settings(tokens=TokensFile(file)))
    assert await statuses(app, "web", "old", "new") == {"web": 200, "old": 200, "new": 401}
    write_tokens(file, entry("web", "reader"), entry("new", "producer"))
    assert (await statuses(app, "old"))["old"] == 200  # it was looked at just now
    clock.advance(LOOK_S)
    assert await statuses(app, "web", "old", "new") == {"web": 403, "old": 401, "new": 200}


async def test_a_file_behind_links_is_followed_to_another(engine, clock, tmp_path):
    """As Kubernetes mounts a secret: all its versions are folders, and a link names the last."""
    for version, name in (("one", "web"), ("two", "new")):
        (tmp_path / version).mkdir()
        write_tokens(tmp_path / version / "tokens.toml", entry(name, "producer"), mode=0o400)
    (tmp_path / "data").symlink_to("one")
    (tmp_path / "tokens.toml").symlink_to("data/tokens.toml")
    app = make_app(engine, Settings(tokens=TokensFile(tmp_path / "tokens.toml")))
    assert await statuses(app, "web", "new") == {"web": 200, "new": 401}
    (tmp_path / "fresh").symlink_to("two")
    os.replace(tmp_path / "fresh", tmp_path / "data")
    clock.advance(LOOK_S)
    assert await statuses(app, "web", "new") == {"web": 401, "new": 200}


async def test_between_two_looks_the_file_is_not_asked(engine, clock, file, monkeypatch):
    asked = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda *args, **options: asked.append(args) or stat(*args))
    app = make_app(engine, Settings(tokens=TokensFile(write_tokens(file, GOOD))))
    for _ in range(3):
        await statuses(app, "web", "web")
        clock.advance(LOOK_S)
    assert len([args for args in asked if args[0] == str(file)]) == 1 + 3


@pytest.mark.parametrize("wrong", ["text", "mode", "missing"])
async def test_a_wrong_change_keeps_the_last_good_file(engine, clock, file, wrong, caplog):
    tokens = TokensFile(write_tokens(file, GOOD))
    app = make_app(engine, Settings(tokens=tokens))
    assert await statuses(app, "web") == {"web": 200}
    if wrong == "missing":
        file.unlink()
    else:
        text = "[[token]" if wrong == "text" else entry("new", "producer")
        write_tokens(file, text, mode=0o644 if wrong == "mode" else 0o600)
    with caplog.at_level(logging.ERROR, logger="lodeq.http"):
        for _ in range(3):
            clock.advance(LOOK_S)
            assert await statuses(app, "web", "new") == {"web": 200, "new": 401}
    assert [record.event for record in caplog.records] == ["tokens_not_read"]  # said once
    assert tokens.problem is not None
    write_tokens(file, entry("new", "producer"))
    clock.advance(LOOK_S)
    assert await statuses(app, "web", "new") == {"web": 401, "new": 200}
    assert tokens.problem is None


async def test_a_wrong_file_is_not_read_each_second(engine, clock, file, monkeypatch):
    tokens = TokensFile(write_tokens(file, GOOD))
    n_reads, real = [], tokens_file.read_secret_file
    monkeypatch.setattr(
        tokens_file, "read_secret_file", lambda path: n_reads.append(path) or real(path)
    )
    write_tokens(file, "[[token]")
    for _ in range(20):
        clock.advance(LOOK_S)
        tokens.look(clock)
    assert len(n_reads) == 1
    clock.advance(tokens_file.RETRY_S)  # it may have been the system that had no descriptor left
    tokens.look(clock)
    assert len(n_reads) == 2


async def test_a_file_that_is_right_after_a_chmod_is_read(engine, clock, file):
    tokens = TokensFile(write_tokens(file, GOOD))
    app = make_app(engine, Settings(tokens=tokens))
    write_tokens(file, entry("new", "producer"), mode=0o644)
    clock.advance(LOOK_S)
    assert await statuses(app, "web", "new") == {"web": 200, "new": 401}
    file.chmod(0o600)
    clock.advance(LOOK_S)
    assert await statuses(app, "web", "new") == {"web": 401, "new": 200}


# -- who is connected ------------------------------------------------------------------------


async def test_links_of_a_removed_token_end_and_others_go_on(engine, clock, file):
    write_tokens(file, entry("old", "worker"), entry("same", "worker"), entry("less", "admin"))
    with socket_path() as path:
        settings = Settings(tokens=TokensFile(file))
        async with (
            serving(engine, path=path, settings=settings) as url,
            wired(url, token=token_of("old")) as old,
            wired(url, token=token_of("less")) as less,
            wired(url, token=token_of("same")) as same,
        ):
            for wire in (old, less, same):
                wire.send([0, 0, pack({"queue": "mail"})], [3, 1, 0, 1, None, 30.0, "w"])
                wire.send([7, 2, [], None])
                assert (await wire.answer(2))[0] == 0  # so the claim before it waits
            write_tokens(file, entry("same", "worker"), entry("less", "worker"))
            clock.advance(LOOK_S)  # the server's own tick sees it: nobody asks anything
            for wire in (old, less):
                assert await wire.answer(1) == [0, []]  # its claim waits no more
                assert await wire.answer(0) == [3, 2]  # status 3: it takes no more requests
                assert await wire.is_closed()
            await engine.queue("mail").enqueue(b"x")
            status, leases = await same.answer(1)
            assert (status, len(leases)) == (0, 1)
            async with wired(url, token=token_of("old"), greet=False) as again:
                _, (is_welcome, problem) = await again.hello(token_of("old"))
                assert (is_welcome, problem["status"]) == (False, 401)


async def test_a_call_that_waits_on_a_revoked_link_gets_nothing(engine, clock, file):
    write_tokens(file, entry("old", "worker"), entry("other", "worker"))
    with socket_path() as path:
        settings = Settings(tokens=TokensFile(file))
        async with (
            serving(engine, path=path, settings=settings) as url,
            wired(url, token=token_of("old")) as old,
        ):
            document = pack({"queues": ["mail", "other"], "wait": 30.0})
            old.send([8, 1, "POST", "/leases/claim", {}, document, None])
            old.send([7, 2, [], None])
            assert (await old.answer(2))[0] == 0
            write_tokens(file, entry("other", "worker"))
            clock.advance(LOOK_S)
            assert await old.answer(0) == [3, 2]
            status, body = await old.answer(1)
            assert (status, msgpack.unpackb(body)) == (0, {"leases": []})
            assert await old.is_closed()
            await engine.queue("mail").enqueue(b"x")
            assert (await engine.queue("mail").stats()).ready == 1


async def test_a_poll_over_http_of_a_revoked_token_is_answered_empty(engine, clock, file):
    tokens = TokensFile(write_tokens(file, entry("old", "worker"), entry("other", "reader")))
    app = make_app(engine, Settings(tokens=tokens))
    answers = []

    async def poll():
        async with asgi_client(app, authorization=f"Bearer {token_of('old')}") as client:
            document = {"queues": ["mail"], "wait": 30}
            answers.append(await client.post("/v1/leases/claim", json=document))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(poll)
            while not app.state.hub._polls:
                await checkpoint()
            write_tokens(file, entry("other", "reader"))
            clock.advance(LOOK_S)
            await statuses(app, "other")  # somebody's request sees it, or the server's tick
    assert [(one.status_code, one.json()) for one in answers] == [(200, {"leases": []})]


async def test_health_names_a_file_that_does_not_count(tmp_path, file):
    write_tokens(file, entry("reader", "reader"))
    clock = ManualClock(datetime.fromisoformat("2030-01-01T00:00:00Z"))
    with socket_path() as path:
        serve = lodeq.Serve(address=path, tokens=file)
        async with lodeq.open(tmp_path / "s", serve=serve, clock=clock) as engine:
            assert (await engine.health()).ok
            with contextlib.suppress(FileNotFoundError):
                file.unlink()
            clock.advance(LOOK_S)
            url = f"unix://{path}"
            async with lodeq.connect(url, token=token_of("reader")) as client:
                found = await client.health()
                assert not found.ok
                assert any("the tokens are those from before" in one for one in found.reasons)
                with pytest.raises(lodeq.AccessDeniedError):
                    await client.queue("mail").enqueue(b"x")


async def test_an_export_of_a_revoked_token_breaks_off(engine, clock, file, monkeypatch):
    tokens = TokensFile(write_tokens(file, entry("old", "reader"), entry("other", "reader")))
    app = make_app(engine, Settings(tokens=tokens))
    monkeypatch.setattr(find, "FOUND_MAX", 1)
    for _ in range(2):
        await engine.queue("mail").enqueue(b"x")
    real, n_pages = EngineView.find, []

    async def slow(view, *args):
        if n_pages:  # the second page
            write_tokens(file, entry("other", "reader"))
            clock.advance(LOOK_S)
            await statuses(app, "other")
        n_pages.append(1)
        return await real(view, *args)

    monkeypatch.setattr(EngineView, "find", slow)
    async with asgi_client(app, authorization=f"Bearer {token_of('old')}") as client:
        with pytest.raises(lodeq.AccessDeniedError, match="the export is not whole"):
            await client.post("/v1/tasks/export", json={})
    assert len(n_pages) == 2


async def test_a_client_hears_that_its_token_is_gone(engine, clock, file):
    write_tokens(file, entry("old", "worker"), entry("other", "worker"))
    with socket_path() as path:
        settings = Settings(tokens=TokensFile(file))
        async with (
            serving(engine, path=path, settings=settings) as url,
            lodeq.connect(url, token=token_of("old")) as client,
        ):
            assert await client.queue("mail").claim() == []
            write_tokens(file, entry("other", "worker"))
            clock.advance(LOOK_S)

            async def claim_on():
                while True:  # until the tick has seen it
                    assert await client.queue("mail").claim() == []

            with anyio.fail_after(10), pytest.raises(lodeq.AccessDeniedError):
                await claim_on()


async def test_pages_are_for_the_one_token(tmp_path, file):
    write_tokens(file, entry("admin", "admin"), entry("reader", "reader"))
    found = {}
    for one in (None, token_of("one")):
        with socket_path() as path:
            serve = lodeq.Serve(address=path, token=one, tokens=file)
            transport = httpx.AsyncHTTPTransport(uds=path)
            async with (
                lodeq.open(tmp_path / "s", serve=serve),
                httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
            ):
                for name in ("one", "admin", "reader"):
                    headers = {"authorization": f"Bearer {token_of(name)}"}
                    found[one is None, name] = [
                        (await client.get(path, headers=headers)).status_code
                        for path in ("/", "/workers", "/login", "/v1/stats", "/metrics")
                    ]
    assert found == {
        (True, "one"): [401, 401, 401, 401, 401],
        (True, "admin"): [403, 403, 403, 200, 200],
        (True, "reader"): [403, 403, 403, 200, 200],
        (False, "one"): [200, 200, 200, 200, 200],
        (False, "admin"): [403, 403, 200, 200, 200],
        (False, "reader"): [403, 403, 200, 200, 200],
    }


def test_a_file_of_tokens_keeps_strangers_out_elsewhere_than_on_loopback(tmp_path, file):
    with pytest.raises(lodeq.UsageError, match="other machines"):
        make_server(tmp_path / "s", lodeq.Serve(address="0.0.0.0:0"))()._where.check(
            str(tmp_path / "s"), None, is_probed=False
        )
    server = make_server(
        tmp_path / "s", lodeq.Serve(address="0.0.0.0:0", tokens=write_tokens(file, GOOD))
    )()
    server._where.check(str(tmp_path / "s"), server._required, is_probed=False)
