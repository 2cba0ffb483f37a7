"""A compiled injector and a nursery under it, once for all fault tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.nursery import Nursery
from fault.injector import compiled, preloaded
from fault.sites import scratch


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = compiled(tmp_path_factory.mktemp("injector"))
    if made is None:
        pytest.skip("no C compiler: NO FAULT WAS INJECTED")
    return made


@pytest.fixture(scope="session")
def faulty_nursery(library: Path) -> Iterator[Nursery]:
    with preloaded(library) as one:
        yield one


@pytest.fixture
def place() -> Iterator[Path]:
    """Like ``tmp_path``, in memory where that can be."""
    with tempfile.TemporaryDirectory(dir=scratch(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)
