"""The parts of a server that the dashboard needs: it knows no server, it is served by one.

``service.http`` has both: its ``Settings``, and as ``app.state.hub`` the state of the server.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import Field
from typing import Any, ClassVar, Protocol, TypeVar

from anyio import CancelScope

__all__ = ["GuardSettings", "PollRegister", "SettingsT"]


class GuardSettings(Protocol):
    """A dataclass of server settings, with fields ``admits`` and ``login_path`` besides these."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def token(self) -> str | None:
        """The token that every request must bear; None: none is asked for."""

    @property
    def public_paths(self) -> frozenset[str]:
        """Paths that need no token."""


class PollRegister(Protocol):
    """Requests that wait, and are answered at once when the server stops."""

    def polling(self, scope: CancelScope) -> AbstractContextManager[None]:
        """Within the block, the server cancels ``scope`` when it stops."""


SettingsT = TypeVar("SettingsT", bound=GuardSettings)
