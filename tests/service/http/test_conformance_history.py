"""The history as clients see it: the suite, over HTTP, over the link, and with ``serve=``."""

import pytest
from conformance import test_history as suite
from conformance.test_engine import served_shards
from support_http import ALL_WAYS, opening_by

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize(("anyio_backend", "transport"), ALL_WAYS)]

for _name in dir(suite):
    if _name.startswith("test_"):
        globals()[_name] = getattr(suite, _name)
engine, queue, shards = suite.engine, suite.queue, served_shards


@pytest.fixture
def store(transport):
    return "rocks" if transport == "embedded" else "memory"


@pytest.fixture
def opening(shards, transport, tmp_path):
    with opening_by(transport, shards, tmp_path) as opening:
        yield opening
