"""A store that several processes of one service share: one opens and serves it, the others join.

``App("var/jobs", serve=True, join=True)`` in each of them. Whoever gets the store's lock is the
owner. The others connect to it, and look once a second whether the lock is free. If it is, because
the owner has ended or died, one of them opens the store and serves it *at the same address*: its
own client and those of the others reconnect there, and nothing else changes for them.
"""

from __future__ import annotations

import inspect
import logging
import os
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import anyio

from ...client.connect import connect
from ...engine.files.paths import lock_path, normal_path
from ...engine.runtime.clock import SystemClock
from ...engine.runtime.current_loop import current_spawner
from ...engine.runtime.shielded import await_shielded
from ...errors import LockedError, LodeqError, StorePathError, UnreachableError
from ...repository.api.open import open_engine
from ...repository.api.serve_options import Serve, ServeAs

if TYPE_CHECKING:
    from ...client.engine import RemoteEngine
    from ...engine.runtime.event_loop import TaskHandle
    from ...repository.api.engine import Engine

__all__ = ["SharedStore", "note_joined", "options_of_connect"]

JOIN_WAIT_S: Final = 30.0  # for an owner that opens the store, or has just died
RETRY_S: Final = 0.1
LOOK_S: Final = 1.0  # a joined process learns within this time that there is no owner
FAILED_LOOK_S: Final = 15.0  # … and tries again so long after an open that failed
log = logging.getLogger("lodeq.worker")


def options_of_connect(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options of ``lodeq.open`` that ``lodeq.connect`` has, too."""
    known = inspect.signature(connect).parameters
    return {name: value for name, value in options.items() if name in known}


def note_joined(path: str | os.PathLike[str], held: LockedError) -> None:
    """Log that this process uses the store of another one."""
    folder = os.fspath(path)
    fields = {"event": "store_joined", "path": folder, "address": held.address}
    log.info(
        "process %s has %r open: joined it at %r", held.pid, folder, held.address, extra=fields
    )


class SharedStore:
    """Opens the store, or joins the process that has it open; an async context manager.

    Args:
        path: the store's folder.
        serve: how the owner serves it.
        options: further options of ``lodeq.open``; those that ``lodeq.connect`` has, too, are
            passed to it.
    """

    def __init__(
        self, path: str | os.PathLike[str], serve: ServeAs, options: dict[str, Any]
    ) -> None:
        self._path = path
        self._serve = serve if isinstance(serve, Serve) else Serve(address=serve or True)
        self._options = options
        self._owned: Engine | None = None
        self._client: RemoteEngine | None = None
        self._task: TaskHandle | None = None
        self._stop = anyio.Event()
        self._last_refusal = ""

    def owns_store(self) -> bool:
        """Whether this process has the store open: it did not join, or has taken over since."""
        return self._owned is not None

    async def __aenter__(self) -> Engine | RemoteEngine:
        clock = SystemClock()
        give_up = clock.mono() + JOIN_WAIT_S
        while True:
            try:
                self._owned = await open_engine(self._path, serve=self._serve, **self._options)
                return self._owned
            except LockedError as error:
                held = error
            try:
                if held.address is not None:
                    self._client = await self._connected(held.address)
                    break
                if clock.mono() >= give_up:
                    raise held
            except UnreachableError:  # it has just died, or ends
                if clock.mono() >= give_up:
                    raise
            await anyio.sleep(RETRY_S)
        note_joined(self._path, held)
        self._serve = replace(self._serve, address=held.address)
        self._task = current_spawner().spawn(self._stand_by, "lodeq-stand-by")
        return self._client

    async def _connected(self, address: str) -> RemoteEngine:
        options = options_of_connect(self._options)
        return await connect(address, token=self._serve.token, **options)

    async def _stand_by(self) -> None:
        """Open and serve the store once nobody has it."""
        pause_s = LOOK_S
        while not self._stop.is_set():
            with anyio.move_on_after(pause_s):
                await self._stop.wait()
                return
            pause_s = LOOK_S
            try:
                self._check_folder()
                self._owned = await open_engine(self._path, serve=self._serve, **self._options)
            except LockedError:
                continue
            except LodeqError as error:
                pause_s = FAILED_LOOK_S
                self._note_refusal(error)
            else:
                fields = {"event": "store_taken_over", "path": os.fspath(self._path)}
                log.warning(
                    "the owner of %r is gone: this process has opened it, and serves it at %r",
                    os.fspath(self._path),
                    self._serve.address,
                    extra=fields,
                )
                return

    def _check_folder(self) -> None:
        """Refuse where the store was: an open would make an empty one there."""
        if not os.path.lexists(lock_path(normal_path(self._path))):
            raise StorePathError(f"{os.fspath(self._path)}: the store is not there any more")

    def _note_refusal(self, error: LodeqError) -> None:
        if str(error) == self._last_refusal:
            return
        self._last_refusal = str(error)
        log.error(
            "the owner of %r is gone, and this process cannot open it: %r",
            os.fspath(self._path),
            error,
            extra={"event": "take_over_failed", "path": os.fspath(self._path)},
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        cancelled = await await_shielded(self._close)
        if cancelled is not None:
            raise cancelled

    async def _close(self) -> None:
        """Close client and engine, in this order. If cancelled it is called again."""
        self._stop.set()
        if self._task is not None:
            await self._task.join()
        if self._client is not None:
            await self._client.close()
            self._client = None
        if self._owned is not None:
            await self._owned.close()
