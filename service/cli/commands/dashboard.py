"""``lodeq dashboard``: pages of a store that a service has open, for a browser of this machine."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Literal

import click

from ....client.connect import connect
from ....engine.files.served_note import find_served
from ....errors import UnreachableError, UsageError
from ..connection import check_store, is_url, run, store_argument
from ..display import print_banner
from ..output import shown

if TYPE_CHECKING:
    from ...dashboard.mount import Right

__all__ = ["dashboard"]

PORT = 8766
_HOST = "127.0.0.1"


@click.command()
@store_argument
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port of 127.0.0.1; 0 for any that is free.",
)
@click.option(
    "--access",
    type=click.Choice(["read", "write"]),
    default="read",
    show_default=True,
    help="What the pages may do.",
)
def dashboard(store: str, port: int, access: Literal["read", "write"]) -> None:
    """Show the pages of STORE, which a service serves, on a port of 127.0.0.1, until interrupted.

    A browser does not open the unix socket of a service; this does it for the browser. As long as
    it runs, every user of this machine can see the pages.

    Args:
        store: the address of a service, or the folder of a store that one has open.
        port: of 127.0.0.1; 0: any that is free.
        access: with ``write`` the pages may cancel, redrive, pause and purge.
    """
    run(lambda: _show(_address(store), port, access))


def _address(store: str) -> str:
    """The address of the service that has the store open."""
    if is_url(store):
        return store
    note = find_served(check_store(store))
    if note is None:
        raise UnreachableError(
            f"nobody serves {shown(store)}: 'lodeq serve {shown(store)} --port {PORT}' does, with "
            "its dashboard; or have the service that owns it serve it (lodeq.open(…, serve=True))"
        )
    return note.url


async def _show(url: str, port: int, right: Right) -> None:
    try:
        import uvicorn  # noqa: PLC0415 - an extra
    except ImportError as exc:
        raise UsageError('the dashboard needs an extra: pip install "lodeq[http]"') from exc
    from ...dashboard.mount import MountedDashboard  # noqa: PLC0415
    from ...http.listener import listen_tcp  # noqa: PLC0415

    async def authorize(scope: Any) -> Right:
        del scope
        return right

    async with connect(url, token=os.environ.get("LODEQ_TOKEN")) as engine:
        with listen_tcp(_HOST, port, None) as listener:
            pages = MountedDashboard(engine, authorize, hosts=(_HOST, "localhost"))
            config = uvicorn.Config(
                pages,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
            print_banner(f"{shown(url)} on http://{_HOST}:{listener.getsockname()[1]}/")
            serving = asyncio.ensure_future(uvicorn.Server(config).serve(sockets=[listener]))
            await serving
