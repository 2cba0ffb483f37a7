"""A dashboard over an engine in memory, through ASGI."""

import re
from contextlib import asynccontextmanager

import anyio
from support_http import asgi_client

from lodeq.engine.runtime.ids import SeededRng
from lodeq.service.dashboard.routes import Dashboard
from lodeq.service.http.app import make_app
from lodeq.service.http.guard import Settings

FORM = {"content-type": "application/x-www-form-urlencoded"}
TOKEN = "correct-horse-battery-staple"


def app_of(engine, access="write", token=None):
    dashboard = Dashboard(engine, access=access, token=token, rng=SeededRng(1))
    return make_app(engine, dashboard.guarded(Settings(token=token)), routes=dashboard.routes)


@asynccontextmanager
async def browsing(engine, access="write", token=None):
    """A client that keeps cookies and asks for pages, as a browser does."""
    async with asgi_client(app_of(engine, access, token), accept="text/html") as client:
        yield client


def form_token(page):
    return re.search(r'name="form" value="([0-9a-f]+)"', page.text)[1]


async def ask(client, path):
    """The page that asks, answered with yes; what follows."""
    page = await client.get(path)
    assert page.status_code == 200, page.text
    body = f"form={form_token(page)}"
    return await client.post(path, content=body, headers=FORM)


def tile(page, label):
    """What a tile says."""
    found = re.search(rf"<dt>{label}</dt><dd>(.*?)</dd>", page.text)
    return re.sub(r"<[^>]*>", "", found[1]).strip()


def row(page, key):
    """The cells of a table's row."""
    found = re.search(rf'<tr data-key="{re.escape(key)}">(.*?)</tr>', page.text, re.DOTALL)
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", found[1], re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", "", cell).split()) for cell in cells]


async def watch(app, path, seen):
    """Follow a live page, as a server asks for it, until cancelled: ``seen`` gets its events."""
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "root_path": "",
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "scheme": "http",
        "headers": [(b"host", b"lodeq")],
        "server": ("lodeq", 80),
        "client": ("browser", 1),
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }

    async def send(message):
        if message["type"] == "http.response.body":
            seen.append(message["body"])
        else:
            assert message["status"] == 200, message

    await app(scope, anyio.sleep_forever, send)
