"""What holds for searches and bulk acts, over HTTP and over the link, and for blocking clients."""

import pytest
from conformance import test_bulk_acts as suite
from conformance.test_engine import served_shards
from support_http import WAYS, LinkedOpening, ServedOpening

import lodeq.testing

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize(("anyio_backend", "transport"), WAYS)]

for _name in dir(suite):
    if _name.startswith("test_") and not _name.startswith("test_filters"):
        globals()[_name] = getattr(suite, _name)
engine, shards = suite.engine, served_shards


@pytest.fixture
def store():
    return "memory"


@pytest.fixture
def opening(shards, transport):
    kind = LinkedOpening if transport == "link" else ServedOpening

    def opening(**options):
        return kind(lodeq.testing.open(shards=shards, **options))

    return opening
