"""Access to one request's pages: what its user may do, and where the pages are mounted.

A server of its own grants everybody the same and serves its pages at ``/``. A mounted dashboard
puts a ``Grant`` into the scope of each request, and its links are relative to the page they stand
on: they hold whatever a proxy or a framework has made of the path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import unquote

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["Access", "Grant", "MountPath", "grant_to", "granted", "mount_path", "root_of"]

Access = Literal["read", "write"]
_KEY: Final = "lodeq.grant"


class Grant(NamedTuple):
    """The rights of one request's user on a mounted dashboard.

    Attributes:
        can_write: whether the user may act.
        user: the one that ``authorize`` returned; form tokens are bound to it.
        mount: the path of the mount as browsers see it, without a slash at its end.
        still: asks again, now and then, whether the user may go on watching a live page.
    """

    can_write: bool
    user: str
    mount: str
    still: Callable[[], Awaitable[bool]]

    @property
    def cookie(self) -> str:
        """The cookie's name, one for each mount: two dashboards of a host do not share it."""
        return f"lodeq_form_{sha256(self.mount.encode()).hexdigest()[:8]}"


class MountPath(NamedTuple):
    """A request's path, cut where the mount ends."""

    mount: str  # as browsers see it, without a slash at its end
    inner: str  # begins with a slash
    is_bare: bool  # the mount without a slash at its end: relative links would lead beside it


def grant_to(scope: MutableMapping[str, Any], grant: Grant) -> None:
    """Put the grant into the scope of a request."""
    scope[_KEY] = grant


def granted(request: Request) -> Grant | None:
    """The grant of a request; None on a server of its own."""
    found: Grant | None = request.scope.get(_KEY)
    return found


def root_of(request: Request) -> str:
    """The prefix of all links on the page of a request, without a slash at its end."""
    if granted(request) is None:
        return ""
    path: str = request.scope["path"].removeprefix("/live")
    return "/".join([".."] * (path.count("/") - 1)) or "."


def mount_path(scope: Mapping[str, Any]) -> MountPath:
    """Cut the path of a request where the mount ends.

    Frameworks disagree: Starlette leaves ``path`` whole and adds the mount to ``root_path``; older
    ones and Litestar strip ``path``, Litestar without a word in ``root_path`` and with a slash at
    the end; FastAPI's own ``root_path`` is not in ``path``. ``raw_path`` is what the server read.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    given = scope.get("raw_path")
    raw = path if given is None else unquote(given.partition(b"?")[0].decode("latin-1"))
    outer: str = scope.get("app_root_path", "").rstrip("/")
    inner = path
    is_stripped = raw == root + path  # though a path may begin as its mount does
    if root and not is_stripped:
        own = root.removeprefix(outer) if outer and not path.startswith(f"{outer}/") else root
        for prefix in (root, own):
            if prefix and f"{path}/".startswith(f"{prefix}/"):
                inner = path[len(prefix) :]
                break
    if not raw.endswith("/"):
        inner = inner.rstrip("/")
    is_bare = not inner
    return MountPath(_mount(root, raw, inner), inner or "/", is_bare)


def _mount(root: str, raw: str, inner: str) -> str:
    """The mount as browsers see it, of what the framework says and what the server read."""
    read = raw[: len(raw) - len(inner)].rstrip("/") if raw.endswith(inner) else ""
    if root.endswith(read):
        return root
    return read if read.startswith(root) else root + read
