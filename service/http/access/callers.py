"""Callers: the access of whoever gives a token, over HTTP and over the link alike."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256

from ....engine.runtime.clock import Clock
from .roles import FULL, Access
from .tokens_file import TokensFile

__all__ = ["Callers"]


class Callers:
    """Who may call a server.

    Args:
        token: the one that may do everything; None: there is none.
        tokens: those that may do a part; None: there are none, and without ``token`` either
            everybody may do everything.
        clock: the engine's.
    """

    def __init__(self, token: str | None, tokens: TokensFile | None, clock: Clock) -> None:
        self._token = None if token is None else sha256(token.encode()).digest()
        self._tokens = tokens
        self._clock = clock

    @property
    def is_open(self) -> bool:
        """Whether no token is required."""
        return self._token is None and self._tokens is None

    def access_of(self, token: bytes) -> Access | None:
        """The access that a token gives; None: it is none of this server."""
        if self._token is None and self._tokens is None:
            return FULL
        # Hashes, so that neither the length nor the first wrong byte shows in the time.
        digest = sha256(token).digest()
        if self._token is not None and hmac.compare_digest(digest, self._token):
            return FULL
        return None if self._tokens is None else self._tokens.find(digest, token, self._clock)

    def look(self) -> None:
        """Let tokens that are removed or changed lose their rights; call it now and then."""
        if self._tokens is not None:
            self._tokens.look(self._clock)

    def call_when_revoked(self, call: Callable[[], object]) -> None:
        """Have ``call`` called each time that an access has ended."""
        if self._tokens is not None:
            self._tokens.on_revoked.append(call)
