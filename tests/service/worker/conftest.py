"""Workers are tested on asyncio, one file on trio as well."""

import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"
