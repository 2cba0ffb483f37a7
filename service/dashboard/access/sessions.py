"""Sessions: cookies that this process signs, and the token that every form carries.

A cookie is a random name, the time it ends, and a signature with a key that lives as long as the
process, so a restart logs everybody out. Only logouts are stored.

A form's token is derived from the cookie: a page of another site can read neither, and cannot make
one; the guard refuses its ``Origin`` before that. Without a server token there is no login: the
cookie comes with the first page, and only ties forms to it.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from typing import Final

from ....engine.runtime.clock import Clock
from ....engine.runtime.ids import Rng

__all__ = ["COOKIE", "SECURE_COOKIE", "SESSION_S", "Sessions"]

COOKIE: Final = "lodeq_session"
# The same over TLS: browsers take one of this name from this very host, over TLS, alone.
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
SESSION_S: Final = 12 * 3600
ENDED_MAX: Final = 1024  # logouts that are stored one by one
_COOKIE_CHARS_MAX: Final = 4096  # of the header; the rest is ignored


class Sessions:
    """Makes and checks cookies.

    Args:
        clock: the engine's.
        rng: the source of names and of the key.
        token: the server's; None: there is no login.
        secret: what the key is derived from; None: it is drawn, and lives as long as the process.
    """

    def __init__(
        self, clock: Clock, rng: Rng, token: str | None, secret: bytes | None = None
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._key = rng.bytes(32) if secret is None else sha256(secret).digest()
        self._token = token
        self._ended: dict[str, int] = {}  # logged out before their time: until when
        self._over_s = 0  # every session that would end by then is over

    @property
    def needs_login(self) -> bool:
        """Whether the server has a token."""
        return self._token is not None

    def is_token(self, given: str) -> bool:
        """Whether this is the server's token. In constant time."""
        mine = "" if self._token is None else self._token
        same = hmac.compare_digest(sha256(given.encode()).digest(), sha256(mine.encode()).digest())
        return same and self._token is not None

    def new(self) -> str:
        """The cookie of a new session, valid for ``SESSION_S`` seconds."""
        until = max(self._clock.wall_us() // 1_000_000 + SESSION_S, self._over_s + 1)
        plain = f"{self._rng.bytes(16).hex()}.{until}"
        return f"{plain}.{self._signature('session', plain)}"

    def known(
        self, headers: Mapping[bytes, bytes], names: Sequence[str] = (SECURE_COOKIE, COOKIE)
    ) -> str | None:
        """The session cookie in the headers of a request, if it is valid; else None.

        ``names``: the cookie may have either; of two the first one counts.
        """
        raw = headers.get(b"cookie", b"")[:_COOKIE_CHARS_MAX].decode("latin-1")
        try:
            cookies = SimpleCookie(raw)
        except CookieError:
            return None
        found = next((cookies[name] for name in names if name in cookies), None)
        return found.value if found is not None and self._is_good(found.value) else None

    def _is_good(self, cookie: str) -> bool:
        plain, _, signature = cookie.rpartition(".")
        if not cookie.isascii() or not self._is_signed("session", plain, signature):
            return False
        is_over = self._until(cookie) <= max(self._clock.wall_us() // 1_000_000, self._over_s)
        return not is_over and cookie not in self._ended

    def end(self, cookie: str) -> None:
        """End the session of a valid cookie. Without logins there is nothing to end.

        Beyond ``ENDED_MAX`` logouts the half that would lapse first is no longer stored. Every
        session that would lapse as early ends with them, so that no ended cookie opens anything.
        """
        if not self.needs_login:
            return
        self._ended[cookie] = self._until(cookie)
        over_s = max(self._clock.wall_us() // 1_000_000, self._over_s)
        if len(self._ended) > ENDED_MAX:
            over_s = self._over_s = max(over_s, sorted(self._ended.values())[ENDED_MAX // 2])
        self._ended = {one: until for one, until in self._ended.items() if until > over_s}

    def _until(self, cookie: str) -> int:
        return int(cookie.split(".")[1])

    def form_token(self, cookie: str, user: str = "") -> str:
        """The token for forms of this session, and of this user of a mounted dashboard."""
        return self._signature("form", f"{cookie}:{user}")

    def is_form_token(self, cookie: str, given: str, user: str = "") -> bool:
        """Whether a form token was made for this session and user."""
        return given.isascii() and self._is_signed("form", f"{cookie}:{user}", given)

    def _signature(self, what: str, text: str) -> str:
        return hmac.new(self._key, f"{what}:{text}".encode(), sha256).hexdigest()

    def _is_signed(self, what: str, text: str, signature: str) -> bool:
        return hmac.compare_digest(self._signature(what, text), signature)
