"""pytest plugin, found by itself where lodeq is installed: the fixture ``lodeq_worker``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from .bench import Bench

__all__ = ["lodeq_worker"]


@pytest.fixture
def lodeq_worker() -> Callable[..., AbstractAsyncContextManager[Bench]]:
    """Return ``lodeq.testing.worker``; the test enters it, on its own event loop."""

    def make(*args: Any, **kwargs: Any) -> AbstractAsyncContextManager[Bench]:
        from .bench import worker  # noqa: PLC0415 - every pytest run imports this module

        return worker(*args, **kwargs)

    return make
