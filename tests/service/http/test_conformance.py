"""What holds for an engine holds for its clients: over HTTP, over the link, and with ``serve=``."""

import pytest
from conformance import test_bad_arguments, test_faces, test_operate, test_progress
from conformance import test_engine as suite
from support_http import ALL_WAYS, opening_by

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize(("anyio_backend", "transport"), ALL_WAYS)]

# Of its own: what an engine does on its own loop, which a client does not have.
_NOT_SERVED = {"test_fenced_off_from_other_threads"}
for _module in (suite, test_bad_arguments, test_faces, test_operate, test_progress):
    for _name in dir(_module):
        if _name.startswith("test_") and _name not in _NOT_SERVED:
            globals()[_name] = getattr(_module, _name)
engine, queue, shards = suite.engine, suite.queue, suite.served_shards


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A request takes more turns of the loop to get to where it waits."""
    real = suite.settle

    async def settle(n=5):
        await real(min(n * 20, 100))

    monkeypatch.setattr(suite, "settle", settle)


@pytest.fixture
def store(transport):
    return "rocks" if transport == "embedded" else "memory"


@pytest.fixture
def opening(shards, transport, tmp_path):
    with opening_by(transport, shards, tmp_path) as opening:
        yield opening
