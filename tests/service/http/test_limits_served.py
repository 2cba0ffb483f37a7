"""What holds for the limits of an engine holds for its clients: over HTTP and over the link."""

import pytest
from conformance import test_engine as engines
from conformance import test_limits as suite
from support_http import WAYS, LinkedOpening, ServedOpening

import lodeq
import lodeq.testing
from lodeq.client import calls

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize(("anyio_backend", "transport"), WAYS)]

_NOT_SERVED = {"test_settings_outlive_the_engine"}  # that store is in memory
for _name in dir(suite):
    if _name.startswith("test_") and _name not in _NOT_SERVED:
        globals()[_name] = getattr(suite, _name)
engine, shards = engines.engine, engines.served_shards


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A request takes more turns of the loop to get to where it waits."""
    real = engines.settle

    async def settle(n=5):
        await real(min(n * 20, 100))

    monkeypatch.setattr(engines, "settle", settle)


@pytest.fixture
def store():
    return "memory"


@pytest.fixture
def opening(shards, transport):
    kind = LinkedOpening if transport == "link" else ServedOpening

    def opening(**options):
        return kind(lodeq.testing.open(shards=shards, **options))

    return opening


async def test_an_older_server_is_named(engine):
    engine.session.takes_queue_settings = False
    with pytest.raises(lodeq.UsageError, match="upgrade the server"):
        await engine.settings("mail")
    with pytest.raises(lodeq.UsageError, match="upgrade the server"):
        calls.queue_settings(engine.session, "mail", {})
