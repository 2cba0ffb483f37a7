"""Roles, and the access that a token gives: which scopes, on which queues and tenants.

An operation declares the roles of which it needs one, as the bits of a ``Role``. An access has two
such sets of bits: what it may do on some queue, and what it may do on every one. So where a token
has no limits a check is one look at an integer; only those with limits look for the queue.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntFlag
from fnmatch import translate
from typing import Final, NamedTuple

from ....errors import AccessDeniedError

__all__ = [
    "ACCESS",
    "ANY",
    "FULL",
    "NOBODY",
    "PATTERN",
    "ROLES",
    "SOME_TENANT",
    "Access",
    "Grant",
    "NamedQueue",
    "Role",
    "scopes_text",
]

ACCESS: Final = "lodeq.access"  # the member of an ASGI scope that holds the caller's access
PATTERN: Final = r"[a-z0-9*][a-z0-9._*-]{0,63}"  # of queues or tenants; ``*``: any characters
SOME_TENANT: Final = "*"  # no name of one: a queue as such, on which the token has one at least
_MEMO_MAX: Final = 4096


class Role(IntFlag):
    """A role, as a bit: an operation needs one of a set of them."""

    PRODUCER = 1
    WORKER = 2
    READER = 4
    ADMIN = 8


ANY: Final = Role.PRODUCER | Role.WORKER | Role.READER | Role.ADMIN
ROLES: Final = {str(one.name).lower(): one for one in Role}


def scopes_text(needs: Role) -> str:
    """The roles of which one is needed, as ``producer or reader``; an admin may do everything."""
    if needs == ANY:
        return "any"
    named = [name for name, one in ROLES.items() if one & needs and one is not Role.ADMIN]
    return " or ".join(named) or "admin"


class NamedQueue(NamedTuple):
    """A queue that a request is about."""

    queue: str
    tenant: str | None  # None: all of them

    def scope(self, needs: Role) -> str:
        """The scope that would do, as ``worker:mail:acme``."""
        tenant = "" if self.tenant in (None, "", SOME_TENANT) else f":{self.tenant}"
        return f"{scopes_text(needs)}:{self.queue}{tenant}"


class Grant(NamedTuple):
    """Roles on the queues and tenants that fit one of the patterns; None: on all.

    Attributes:
        roles: the bits; an admin has them all.
        queues: patterns.
        tenants: patterns, the empty one for the default tenant.
    """

    roles: int
    queues: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether it is for some queues or tenants only."""
        return self.queues is not None or self.tenants is not None


class _Limits:
    """A grant, as it is held against a queue."""

    def __init__(self, grant: Grant) -> None:
        self.roles = grant.roles
        self._queues = None if grant.queues is None else _pattern(grant.queues)
        self._tenants = None if grant.tenants is None else _pattern(grant.tenants)

    def covers(self, named: NamedQueue) -> bool:
        if self._queues is not None and self._queues.fullmatch(named.queue) is None:
            return False
        if self._tenants is None or named.tenant == SOME_TENANT:
            return True
        return named.tenant is not None and self._tenants.fullmatch(named.tenant) is not None


def _pattern(patterns: Sequence[str]) -> re.Pattern[str]:
    """One expression for all of them; ``PATTERN`` lets no other sign of ``fnmatch`` in."""
    return re.compile("|".join(translate(one) for one in patterns))


class Access:
    """What one token may do. Once ``is_over`` it may do nothing more.

    Args:
        name: by which errors and logs call the token.
        grants: what it was given; what one of them allows is allowed.
        until_us: wall time in microseconds at which it ends; None: never by itself.
    """

    __slots__ = (
        "_limits",
        "_memo",
        "grants",
        "is_over",
        "name",
        "owner",
        "roles",
        "until_us",
        "whole",
    )

    def __init__(self, name: str, grants: Sequence[Grant], until_us: int | None = None) -> None:
        self.name = name
        self.owner = name.encode()  # of its claims, which no other token takes back
        self.grants = tuple(grants)
        self.until_us = until_us
        self.is_over = False
        self.roles = 0  # on some queue
        self.whole = 0  # on all of them
        for grant in self.grants:
            self.roles |= grant.roles
            if not grant.is_limited:
                self.whole |= grant.roles
        self._limits = [_Limits(grant) for grant in self.grants]
        self._memo: dict[tuple[int, NamedQueue], bool] = {}

    def is_same(self, other: Access) -> bool:
        """Whether another reading of the file gives the same."""
        return self.name == other.name and self.grants == other.grants

    def require(self, needs: Role) -> None:
        """Check the role alone: whether it is enough depends on the queue, unless ``whole`` has it.

        Raises:
            AccessDeniedError: the token has none of these roles, or has lost its rights.
        """
        if self.is_over:
            raise AccessDeniedError(f"token {self.name!r} is not valid any more")
        if not self.roles & needs:
            raise self._denied(scopes_text(needs))

    def require_whole(self, needs: Role) -> None:
        """Check for what is about the whole store.

        Raises:
            AccessDeniedError: the token is for some queues only, or has none of these roles.
        """
        self.require(needs)
        if not self.whole & needs:
            raise self._denied(scopes_text(needs), ", for all queues and tenants")

    def allows(self, needs: Role, named: NamedQueue) -> bool:
        """Whether it has one of these roles on a queue."""
        if self.whole & needs:
            return True
        key = int(needs), named
        found = self._memo.get(key)
        if found is None:
            if len(self._memo) >= _MEMO_MAX:
                self._memo.clear()
            found = self._memo[key] = any(
                one.roles & needs and one.covers(named) for one in self._limits
            )
        return found

    def require_on(self, needs: Role, named: NamedQueue) -> None:
        """Check for one queue.

        Raises:
            AccessDeniedError: the token has none of these roles on it.
        """
        if not self.allows(needs, named):
            is_all = named.tenant is None and any(g.tenants is not None for g in self.grants)
            raise self._denied(named.scope(needs), ", for all tenants" if is_all else "")

    def _denied(self, scope: str, more: str = "") -> AccessDeniedError:
        return AccessDeniedError(
            f"token {self.name!r} may not do this: it needs the scope {scope}{more}", scope=scope
        )


class _Full(Access):
    """The access of the server's one token, and of everybody where none is required."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("the server's token", [Grant(int(ANY))])
        self.owner = b""


FULL: Final[Access] = _Full()
NOBODY: Final = Access("none", ())
