"""The code of docs/how-to/mount-dashboard.md, as it stands there, in each framework.

A framework that is not installed is skipped by name; CI installs all of them (requirements/ci.txt).
"""

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from support_pages import blocks
from support_sources import ROOT

PAGE = ROOT / "docs" / "how-to" / "mount-dashboard.md"
FILES = {block.title: block.text for block in blocks(PAGE.read_text("utf-8")) if block.title}
# What a browser does: it is refused, logs in, reads every kind of page, acts, and logs out.
VISIT = '''
import asyncio, re, sys
from urllib.parse import urljoin

import httpx

PREFIX = sys.argv[2]


async def visit(web, engine_of, log_in, log_out):
    def client(**cookies):
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(web, root_path=PREFIX), base_url="http://127.0.0.1",
            cookies=cookies, headers={"accept": "text/html"}, follow_redirects=True,
        )

    queue = engine_of().queue("reports")  # the worker of the page takes only mail
    receipt = await queue.enqueue({"to": "ann"})
    async with client() as browser:
        refused = await browser.get(f"{PREFIX}/jobs/", follow_redirects=False)
        assert refused.status_code in (303, 403), refused.text
        assert "reports" not in refused.text
    name, value = await log_in()
    async with client(**{name: value}) as browser:
        if "with_django" not in sys.modules:  # there Django has what has no slash, as the page says
            bare = await browser.get(f"{PREFIX}/jobs")
            assert bare.url.path == f"{PREFIX}/jobs/", bare.url
        seen, todo = set(), [f"{PREFIX}/jobs/"]
        while todo:
            page = await browser.get(todo.pop())
            assert page.status_code == 200, (page.url, page.text)
            for link in re.findall(r'(?:href|src)="([^"]*)"', page.text):
                at = urljoin(str(page.url), link.replace("&amp;", "&")).removeprefix("http://127.0.0.1")
                assert at.startswith(f"{PREFIX}/jobs/"), (page.url, link)
                if at not in seen:
                    seen.add(at)
                    todo.append(at)
        for one in (f"queues/reports", f"tasks/{receipt.id}", "static/dashboard.js"):
            assert f"{PREFIX}/jobs/{one}" in seen, seen
        found = await browser.get(f"{PREFIX}/jobs/tasks/?id={receipt.id}")
        assert found.url.path == f"{PREFIX}/jobs/tasks/{receipt.id}", found.url
        at = f"{PREFIX}/jobs/queues/reports/pause"
        token = re.search(r'name="form" value="([0-9a-f]+)"', (await browser.get(at)).text)[1]
        assert not (await queue.stats()).is_paused
        forged = await browser.post(at, data={"form": "0" * 64})
        assert forged.status_code == 403, forged.status_code
        done = await browser.post(at, data={"form": token})
        assert done.status_code == 200 and "Paused." in done.text, done.text
        assert done.url.path == f"{PREFIX}/jobs/queues/reports"
        assert (await queue.stats()).is_paused
        await log_out()
        again = await browser.get(f"{PREFIX}/jobs/", follow_redirects=False)
        assert again.status_code in (303, 403)
    print("visited", len(seen))


async def alive(web):
    """Runs an application's lifespan, as a server does."""
    asked, said = asyncio.Queue(), asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}, "root_path": PREFIX}
    running = asyncio.create_task(web(scope, asked.get, said.put))
    for phase in ("startup", "shutdown"):
        await asked.put({"type": f"lifespan.{phase}"})
        message = await asyncio.wait_for(said.get(), 30)
        assert message["type"] == f"lifespan.{phase}.complete", message
        if phase == "startup":
            yield
    await running


async def main(module):
    web = module.web
    async def nothing(): ...
    turns = alive(web)
    await anext(turns)
    jobs = getattr(module, "jobs", web.state)
    engine_of = lambda: jobs.engine
    if module.__name__ == "with_django":
        from django.contrib.auth import get_user_model
        from django.contrib.sessions.backends.db import SessionStore
        from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY, BACKEND_SESSION_KEY

        user = await get_user_model().objects.acreate_superuser("ann", password="x")
        session = SessionStore()

        async def log_in():
            await session.aset(SESSION_KEY, str(user.pk))
            await session.aset(BACKEND_SESSION_KEY, "django.contrib.auth.backends.ModelBackend")
            await session.aset(HASH_SESSION_KEY, user.get_session_auth_hash())
            await session.asave()
            return "sessionid", session.session_key

        log_out = session.adelete
    else:
        module.sessions["a-session"] = "ann"

        async def log_in():
            return "session", "a-session"

        async def log_out():
            module.sessions.clear()

    await visit(web, engine_of, log_in, log_out)
    async for _ in turns:
        pass


if sys.argv[1] == "with_django":
    import with_django
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
asyncio.run(main(__import__(sys.argv[1])))
'''


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "/intranet"], ids=["alone", "behind a prefix"])
@pytest.mark.parametrize(
    ("framework", "file"),
    [
        ("fastapi", "service.py"),
        ("starlette", "with_starlette.py"),
        ("litestar", "with_litestar.py"),
        ("django", "with_django.py"),
    ],
)
def test_the_page_works_in_each_framework(
    framework: str, file: str, prefix: str, tmp_path: Path
) -> None:
    if find_spec(framework) is None:
        if os.environ.get("LOCKED"):
            pytest.fail(f"{framework} is in requirements/ci.txt and is not installed")
        pytest.skip(f"{framework} is not installed: its part of {PAGE.name} is not tried")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "visit.py").write_text(VISIT, "utf-8")
    run = subprocess.run(
        [sys.executable, "visit.py", file.removesuffix(".py"), prefix],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "visited" in run.stdout


@pytest.mark.slow
def test_an_open_page_does_not_hold_up_the_end_of_its_server(tmp_path: Path) -> None:
    """uvicorn waits for all answers, and a live page has no end of its own."""
    text = FILES["service.py"].replace("user = sessions.get", 'user = "ann" or sessions.get')
    (tmp_path / "service.py").write_text(text, "utf-8")
    server = subprocess.Popen(
        [Path(sys.executable).parent / "uvicorn", "service:web", "--port", "0"],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert server.stderr is not None
        found = None
        while found is None:
            line = server.stderr.readline()
            assert line
            found = re.search(r"running on (http://\S+)", line)
        with httpx.stream("GET", f"{found[1]}/jobs/live/", timeout=30) as answer:
            lines = answer.iter_lines()
            while not next(lines).startswith("event: show"):
                pass
            server.send_signal(signal.SIGINT)
            for _ in lines:  # to its end
                pass
        _, rest = server.communicate(timeout=30)
    finally:
        server.kill()
        server.wait()
    assert "Finished server process" in rest
    assert "Traceback" not in rest


def test_the_page_shows_all_four() -> None:
    assert set(FILES) == {
        "service.py",
        "with_starlette.py",
        "with_litestar.py",
        "with_django.py",
        "settings.py",
    }
