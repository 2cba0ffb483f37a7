"""The main address of a store that several processes have: where it leads those who ask."""

import httpx
import pytest

from lodeq.service.http.admission import Refusals
from lodeq.service.http.guard import Settings
from lodeq.service.processes.front import Front

pytestmark = pytest.mark.anyio
URLS = ("unix:///run/a.0.sock", "unix:///run/a.1.sock")


@pytest.fixture
def anyio_backend():
    return "asyncio"


def client_of(settings):
    front = Front(None, URLS, list, settings, "off", Refusals())
    over = httpx.ASGITransport(front.app)
    return httpx.AsyncClient(transport=over, base_url="http://localhost")


@pytest.mark.parametrize("is_sized", [True, False])
async def test_an_upload_is_led_to_the_processes_whatever_its_size(is_sized):
    async def parts():
        for _ in range(4):
            yield b"x" * 1024

    body = b"x" * 4096 if is_sized else parts()
    headers = {"content-type": "application/octet-stream"}
    async with client_of(Settings(body_bytes_max=2048)) as client:
        answer = await client.post("/v1/queues/mail/tasks/stream", content=body, headers=headers)
    assert answer.status_code == 421
    assert all(url in answer.json()["detail"] for url in URLS)


async def test_another_body_that_is_too_large_is_refused_for_it():
    async with client_of(Settings(body_bytes_max=2048)) as client:
        answer = await client.post("/v1/queues/mail/tasks", content=b"x" * 4096)
    assert answer.status_code == 413
