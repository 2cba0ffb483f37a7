"""An engine on a clock that is moved by hand."""

import pytest

import lodeq.testing
from lodeq.testing import ManualClock


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def engine(clock):
    async with lodeq.testing.open(clock=clock, shards=2) as engine:
        yield engine
