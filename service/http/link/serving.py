"""The state that all links of one server share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from ....client.transport.layout import Op
from ..access.roles import Access
from ..admission import Refusals
from ..server_state import ServerState
from .answer_turns import AnswerTurns

__all__ = ["CLAIM_RECORD_BYTES_MAX", "LinkServing"]

# A claim stops at 4 MiB of records, so its answer fits a frame of 8 MiB if one record more does.
CLAIM_RECORD_BYTES_MAX: Final = (3 << 20) + (512 << 10)


class LinkServing:
    """The engine behind the links, and the sets in which a stopping server looks for work.

    Args:
        hub: the server's state, shared with HTTP.
        refusals: counts what is refused before anything is done.
        connections: open connections, as uvicorn counts them.
        tasks: requests at work, as uvicorn counts them.
        loop: that of the engine.
    """

    def __init__(
        self,
        hub: ServerState,
        refusals: Refusals,
        connections: set[Any],
        tasks: set[asyncio.Task[None]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.hub = hub
        self.direct = hub.view.direct_calls()
        self.refusals = refusals
        self.connections = connections
        self.tasks = tasks
        self.loop = loop
        self.unread = hub.unread
        self.turns = AnswerTurns(loop)
        hub.callers.call_when_revoked(self._end_revoked)
        limits = hub.limits
        is_small = limits.value_bytes_max + limits.headers_bytes_max <= CLAIM_RECORD_BYTES_MAX
        self.operations: Sequence[int] = [int(one) for one in Op if one is not Op.CLAIM or is_small]

    def access_of(self, given: str | None) -> Access | None:
        """The access that a token gives; None: it is none of this server."""
        return self.hub.callers.access_of((given or "").encode("utf-8", "replace"))

    def _end_revoked(self) -> None:
        """Close the links whose token has lost its rights."""
        for connection in list(self.connections):
            access: Access | None = getattr(connection, "access", None)  # None: it speaks HTTP
            if access is not None and access.is_over:
                connection.revoke()
