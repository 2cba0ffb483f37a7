"""The state that all links of one server share."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from ....client.transport.layout import Op
from ..admission import Refusals
from ..server_state import ServerState
from ..unread_answers import UnreadAnswers

__all__ = ["CLAIM_PAYLOAD_BYTES_MAX", "LinkServing"]

# A claim stops at 4 MiB of bodies, so its answer fits a frame if one payload more does.
CLAIM_PAYLOAD_BYTES_MAX: Final = 2 << 20


class LinkServing:
    """The engine behind the links, and the sets in which a stopping server looks for work.

    Args:
        hub: the server's state, shared with HTTP.
        refusals: counts what is refused before anything is done.
        connections: open connections, as uvicorn counts them.
        tasks: requests at work, as uvicorn counts them.
        loop: that of the engine.
        unread: the answers that are not read, of HTTP too; None: counted here alone.
    """

    def __init__(
        self,
        hub: ServerState,
        refusals: Refusals,
        connections: set[Any],
        tasks: set[asyncio.Task[None]],
        loop: asyncio.AbstractEventLoop,
        unread: UnreadAnswers | None = None,
    ) -> None:
        self.hub = hub
        self.direct = hub.view.direct_calls()
        self.refusals = refusals
        self.connections = connections
        self.tasks = tasks
        self.loop = loop
        if unread is None:
            unread = UnreadAnswers(hub.settings.answers_bytes_max)
        self.unread = unread
        token = hub.settings.token
        self._token = None if token is None else sha256(token.encode()).digest()
        is_small = hub.limits.payload_bytes_max <= CLAIM_PAYLOAD_BYTES_MAX
        self.operations: Sequence[int] = [int(one) for one in Op if one is not Op.CLAIM or is_small]

    def is_token(self, given: str | None) -> bool:
        """Whether this is the server's token; any will do where it has none."""
        if self._token is None:
            return True
        found = sha256((given or "").encode("utf-8", "replace")).digest()
        return hmac.compare_digest(found, self._token)
