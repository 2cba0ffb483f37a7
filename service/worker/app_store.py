"""The store of an app: one that it opens, or one that is open already."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ...client.connect import connect
from ...errors import UsageError
from ...repository.api.open import open_engine
from .run.backend import WorkerBackend, backend_of

if TYPE_CHECKING:
    from ...repository.api.engine import Engine

__all__ = ["Store", "StoreBinding"]

Store = str | os.PathLike[str] | Callable[[], AbstractAsyncContextManager[Any]] | None


class StoreBinding:
    """The part of an ``App`` that opens its store.

    Args:
        store: as ``App``.
        open_options: passed to ``lodeq.open`` or ``lodeq.connect``.
    """

    def __init__(self, store: Store, open_options: dict[str, Any]) -> None:
        self.store = store
        self._open_options = open_options
        self._bound: WorkerBackend | None = None
        self._stack = AsyncExitStack()

    def forget(self) -> None:
        """Drop everything that belongs to the store, which is closed."""

    @property
    def engine(self) -> Engine:
        """The open store: an ``Engine``, or a client with the same methods.

        Raises:
            UsageError: the app has no open store.
        """
        return self.backend().engine

    def backend(self) -> WorkerBackend:
        """Return the open store with its clock; raise ``UsageError`` if there is none."""
        if self._bound is None:
            raise UsageError("the app has no open store: use it inside 'async with app:'")
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
            raise UsageError("this app has no store: App('var/jobs'), or 'async with app.use(…)'")
        if not isinstance(store, str | os.PathLike):
            return store()
        if isinstance(store, str) and "://" in store:
            return connect(store, **self._open_options)
        return open_engine(store, **self._open_options)

    @asynccontextmanager
    async def use(self, engine: Any) -> AsyncIterator[Self]:
        """Use this store instead: an open ``Engine`` or client, or a context manager of one.

        An engine that is open already stays open.
        """
        if self._bound is not None:
            raise UsageError("the app is open already")
        async with AsyncExitStack() as stack:
            if not hasattr(engine, "claim"):
                engine = await stack.enter_async_context(engine)
            self._bound = backend_of(engine)
            try:
                yield self
            finally:
                self._bound = None
                self.forget()
