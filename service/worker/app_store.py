"""The store of an app: one that it opens, or one that is open already."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from threading import Event, Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ... import sync
from ...client.cluster.address import absolute_address
from ...client.connect import connect
from ...engine.files.paths import absolute_path
from ...engine.runtime.clock import SystemClock
from ...errors import LockedError, UnreachableError, UsageError
from ...repository.api.open import open_engine
from ...repository.api.serve_options import Serve, ServeAs
from .run.backend import WorkerBackend, backend_of
from .shared_store import JOIN_WAIT_S, RETRY_S, SharedStore, note_joined, options_of_connect

if TYPE_CHECKING:
    from ...repository.api.engine import Engine

__all__ = ["Store", "StoreBinding"]

Store = str | os.PathLike[str] | Callable[[], AbstractAsyncContextManager[Any]] | None


class StoreBinding:
    """The part of an ``App`` that opens its store.

    Args:
        store: as ``App``.
        open_options: passed to ``lodeq.open`` or ``lodeq.connect``.
        serve: how an opened store is served to other processes; None: not.
        is_joining: connect to the process that has the store open, if there is one.
    """

    def __init__(
        self,
        store: Store,
        open_options: dict[str, Any],
        serve: ServeAs = None,
        *,
        is_joining: bool = False,
    ) -> None:
        is_folder = isinstance(store, os.PathLike) or "://" not in str(store)
        if (serve or is_joining) and (callable(store) or not is_folder):
            raise UsageError("serve= and join= are for a store that the app opens: give its folder")
        if is_joining and not serve:
            raise UsageError(
                "join=True needs serve=: a process that joins may become the owner, and then has "
                "to serve the others"
            )
        self._store = _as_meant_now(store)
        self._serve = serve
        self._is_joining = is_joining
        self._open_options = open_options
        self._bound: WorkerBackend | None = None
        self._stack = AsyncExitStack()
        self._blocking: Any = None  # the store of ``with app:``, or of the first blocking call
        self._blocking_pid = 0
        self._opening = Lock()

    @property
    def store(self) -> Store:
        """A folder, an address, or what makes a store; relative paths are made absolute."""
        return self._store

    @store.setter
    def store(self, store: Store) -> None:
        self._store = _as_meant_now(store)

    def use_token(self, token: str | None) -> None:
        """Connect to a service with this token, unless the app names one itself."""
        if token and isinstance(self.store, str) and "://" in self.store:
            self._open_options.setdefault("token", token)

    def adopt(self) -> None:
        """Say to the store that was opened what belongs to the app."""

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

    @property
    def _is_others(self) -> bool:
        """Whether the store is served by another process, or may be."""
        return self._is_joining or (isinstance(self.store, str) and "://" in self.store)

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

    # -- without an event loop ---------------------------------------------------------

    def sync_engine(self) -> Any:
        """Return the store for calls that block: the open one, or the served one, connected now.

        Raises:
            UsageError: an event loop runs in this thread, or the app has no store to reach.
        """
        _check_no_loop()
        if self._bound is not None:
            return self._bound.engine.sync
        with self._opening:
            if self._blocking is not None and self._blocking_pid == os.getpid():
                return self._blocking
            if not (isinstance(self.store, str) and "://" in self.store):
                raise UsageError(
                    "the app has no open store: use it inside 'with app:', or 'async with app:' "
                    "where there is an event loop"
                )
            engine = self._open_blocking()
            atexit.register(engine.close)
            return engine

    def _open_blocking(self) -> Any:
        self.forget()
        store = self.store
        if isinstance(store, str) and "://" in store:
            self._blocking = sync.connect(store, **self._open_options)
        elif isinstance(store, str | os.PathLike):
            self._blocking = self._open_or_join(store)
        else:
            raise UsageError("'with app:' takes a folder or an address as the app's store")
        self._blocking_pid = os.getpid()
        return self._blocking

    def _open_or_join(self, path: str | os.PathLike[str]) -> Any:
        """Open the folder; a process that joins is a client here, and does not become the owner.

        It waits as long as ``SharedStore`` for an owner that opens the store, or has just died.
        """
        clock = SystemClock()
        give_up = clock.mono() + JOIN_WAIT_S
        while True:
            try:
                return sync.open(path, serve=self._serve, **self._open_options)
            except LockedError as error:
                if not self._is_joining:
                    raise
                held = error
            try:
                if held.address is not None:
                    return self._joined(path, held)
                if clock.mono() >= give_up:
                    raise held
            except UnreachableError:
                if clock.mono() >= give_up:
                    raise
            Event().wait(RETRY_S)

    def _joined(self, path: str | os.PathLike[str], held: LockedError) -> Any:
        token = self._serve.token if isinstance(self._serve, Serve) else None
        options = options_of_connect(self._open_options)
        client = sync.connect(held.address or "", token=token, **options)
        note_joined(path, held)
        return client

    def __enter__(self) -> Self:
        _check_no_loop()
        with self._opening:
            if self._bound is not None or self._blocking is not None:
                raise UsageError("the app is open already")
            self._open_blocking()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._opening:
            engine, self._blocking = self._blocking, None
            self.forget()
        engine.close()

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
        if self._is_joining:
            return SharedStore(store, self._serve, self._open_options)
        return open_engine(store, serve=self._serve, **self._open_options)

    @asynccontextmanager
    async def use(self, engine: Any) -> AsyncIterator[Self]:
        """Use this store instead: an open ``Engine`` or client, or a context manager of one.

        An engine that is open already stays open.
        """
        if self._bound is not None:
            raise UsageError("the app is open already")
        async with AsyncExitStack() as stack:
            opening = engine
            if not hasattr(engine, "claim"):
                engine = await stack.enter_async_context(engine)
            self._bound = backend_of(engine)
            if isinstance(opening, SharedStore):
                self._bound.owns_store = opening.owns_store
            self.adopt()
            try:
                yield self
            finally:
                self._bound = None
                self.forget()


def _as_meant_now(store: Store) -> Store:
    """The store, wherever the process goes before it is opened, or opened again."""
    if isinstance(store, str) and "://" in store:
        return absolute_address(store)
    return absolute_path(store) if isinstance(store, str | os.PathLike) else store


def _check_no_loop() -> None:
    """Raise ``UsageError`` in a thread that runs an event loop, which the call would stop."""
    trio = sys.modules.get("trio")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if trio is None or not trio.lowlevel.in_trio_run():
            return
    raise UsageError(
        "an event loop runs in this thread, and the call would block it: await enqueue() and "
        "result() here, without _sync"
    )
