"""Behaviour is tested on asyncio; the other loops pass the conformance suite."""

import pytest
from support_behaviour import StillClock


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def clock():
    return StillClock()
