"""What holds for an engine holds for its clients: the suite of engines, over HTTP."""

import pytest
from conformance import test_engine as suite
from support_http import ServedOpening

import lodeq.testing

pytestmark = pytest.mark.anyio

# Of its own: what an engine does on its own loop, which a client does not have.
_NOT_SERVED = {"test_fenced_off_from_other_threads"}
for _name in dir(suite):
    if _name.startswith("test_") and _name not in _NOT_SERVED:
        globals()[_name] = getattr(suite, _name)
engine, queue, shards = suite.engine, suite.queue, suite.shards


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A request takes more turns of the loop to get to where it waits."""
    real = suite.settle

    async def settle(n=5):
        await real(min(n * 20, 100))

    monkeypatch.setattr(suite, "settle", settle)


@pytest.fixture
def store():
    return "memory"


@pytest.fixture
def opening(shards):
    def opening(**options):
        return ServedOpening(lodeq.testing.open(shards=shards, **options))

    return opening
