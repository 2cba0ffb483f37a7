"""The dashboard in your own web application, behind its login. See docs/how-to/mount-dashboard.md.

::

    from lodeq.dashboard import dashboard

    async def authorize(scope):
        user = scope["session"].get("user")
        return ("write", user) if user else None

    web.mount("/jobs", dashboard(engine, authorize=authorize))

A module of its own, imported by those who use it; its pages need ``lodeq[http]``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, Literal, TypeAlias

__all__ = ["ASGIApp", "Authorize", "dashboard"]

_Right = Literal["read", "write"] | None
Authorize: TypeAlias = Callable[[Any], Awaitable[_Right | tuple[_Right, str | int]]]
_Message = MutableMapping[str, Any]
ASGIApp: TypeAlias = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[_Message]],
        Callable[[_Message], Awaitable[None]],
    ],
    Awaitable[None],
]


def dashboard(
    engine_or_app: Any,
    *,
    authorize: Authorize,
    login_url: str | None = None,
    hosts: Collection[str] | None = None,
    secret: str | bytes | None = None,
) -> ASGIApp:
    """Make an ASGI application that shows a store, to be mounted under any path of yours.

    ``authorize`` is called with the scope of every request, and again every 30 seconds while a page
    is open. It returns what the user may do: ``"read"``, ``"write"`` (also cancel, redrive, pause
    and purge), or None for nothing; or a pair of that and the user's name or number, to which the
    forms of the page are then bound. Whatever it raises is the host application's to answer. There
    is no default: for pages that anybody may read, write one that returns ``"read"``.

    Args:
        engine_or_app: an ``Engine``, a connected client (``lodeq.connect``), a
            ``lodeq.worker.App``, or a callable that returns one of them, called for each request.
            It may be opened later: until then the pages answer 503. On the loop of the store.
        authorize: an async function of the ASGI scope.
        login_url: where a browser that may not look is sent, with the page that it wanted as
            ``next=``, a path of this host; a ``next`` of its own stays. Who does not ask for
            ``text/html`` gets a 401 with a problem document whose ``login`` names it. None: all
            get a 403.
        hosts: names that ``Host`` may have, without the port; ``Origin`` must then be the same.
            None: both are the duty of your application, or of the proxy before it.
        secret: what form tokens are signed with, 16 bytes at least. Give one if several processes
            serve the same dashboard; None: a key that this process draws.

    Raises:
        UsageError: an argument is not as above, or the extra is missing.
    """
    from .service.dashboard.mount import MountedDashboard  # noqa: PLC0415 - an extra

    return MountedDashboard(
        engine_or_app, authorize, login_url=login_url, hosts=hosts, secret=secret
    )
