"""Where an app lives: a store that it opens, or one that is open."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ...client.connect import connect
from ...errors import UsageError
from ...repository.api.open import open_engine
from .run.backend import WorkerBackend, ground_of

if TYPE_CHECKING:
    from ...repository.api.engine import Engine

__all__ = ["Store", "StoreBinding"]

Store = str | os.PathLike[str] | Callable[[], AbstractAsyncContextManager[Any]] | None


class StoreBinding:
    """The part of an ``App`` that has to do with its store."""

    def __init__(self, store: Store, opening: dict[str, Any]) -> None:
        self.store = store
        self._opening = opening
        self._bound: WorkerBackend | None = None
        self._stack = AsyncExitStack()

    def forget(self) -> None:
        """The store is gone."""

    @property
    def engine(self) -> Engine:
        """The open store: an ``Engine``, or a client with the same methods.

        Raises:
            UsageError: there is none.
        """
        return self.ground().engine

    def ground(self) -> WorkerBackend:
        """The open store and its time; ``UsageError`` if there is none."""
        if self._bound is None:
            raise UsageError("the app has no store: use it inside 'async with app:'")
        return self._bound

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.use(self._open()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    def _open(self) -> AbstractAsyncContextManager[Any]:
        if self._bound is not None:
            raise UsageError("the app is open already")
        store = self.store
        if store is None:
            raise UsageError("this app names no store: App('var/jobs'), or 'async with app.use(…)'")
        if not isinstance(store, str | os.PathLike):
            return store()
        if isinstance(store, str) and "://" in store:
            return connect(store, **self._opening)
        return open_engine(store, **self._opening)

    @asynccontextmanager
    async def use(self, engine: Any) -> AsyncIterator[Self]:
        """Live in this store instead: an open ``Engine`` or client, or what gives one.

        An open one is left open.
        """
        if self._bound is not None:
            raise UsageError("the app is open already")
        async with AsyncExitStack() as stack:
            if not hasattr(engine, "claim"):
                engine = await stack.enter_async_context(engine)
            self._bound = ground_of(engine)
            try:
                yield self
            finally:
                self._bound = None
                self.forget()
