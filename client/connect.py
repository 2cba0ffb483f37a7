"""``lodeq.connect``: opens a served engine by its address. Awaiting it imports httpx."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..repository.model.arguments import duration_s
from ..repository.model.values import Duration

if TYPE_CHECKING:
    from .engine import RemoteEngine

__all__ = ["Connecting", "connect"]


class Connecting:
    """An engine to be connected: ``async with`` it, or ``await`` it and close the engine."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        self._url = url
        self._token = token
        self._timeout_s = timeout_s
        self._engine: RemoteEngine | None = None

    def __await__(self) -> Generator[Any, Any, RemoteEngine]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> RemoteEngine:
        from .calls import Session, engine_call  # noqa: PLC0415 - only for those who use it
        from .engine import RemoteEngine  # noqa: PLC0415
        from .link import Link, Target  # noqa: PLC0415 - an extra

        link = Link(Target(self._url, self._token, self._timeout_s))
        try:
            session = Session(await link.send(engine_call("/engine")))
        except BaseException:
            await link.aclose()
            raise
        self._engine = RemoteEngine(link, session)
        return self._engine

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._engine is not None:
            await self._engine.close()


def connect(url: str, *, token: str | None = None, timeout: Duration = 30.0) -> Connecting:
    """Connect to a served store: the objects of ``lodeq.open``, in another process.

    ::

        async with lodeq.connect("unix:///run/lodeq.sock") as engine:
            ...

    Args:
        url: ``unix://FILE``, ``http://HOST:PORT`` or ``https://…``.
        token: the content of the server's ``--token-file``, if it has one.
        timeout: seconds until a server that does not answer is given up; the time a call may wait
            comes on top.

    Raises:
        UsageError: the address is malformed, or ``lodeq[http]`` is not installed.
        UnreachableError: nobody answers there. AccessDeniedError: the token is wrong.

    Durability: that of the server's engine. Cancellation: leaves no connection behind.
    """
    return Connecting(url, token, duration_s(timeout, "timeout", least=0.001))
