"""What tests of the command line start from."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support_service import MAKERS, Cli, Place


@pytest.fixture
def cli() -> Cli:
    return Cli()


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Place]:
    return lambda name: MAKERS[name](tmp_path / name)


@pytest.fixture(params=sorted(MAKERS))
def place(request: pytest.FixtureRequest, make: Callable[[str], Place]) -> Place:
    return make(request.param)
