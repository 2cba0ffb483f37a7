"""The file of tokens: read at the start, and again when it has changed (docs/roles.md).

A token is found by its SHA-256, so the file gives nobody a token, and how long the search takes
says nothing of one. Whether the file has changed is asked once a second, at most, by whoever looks
a token up, and by the server's own tick: so that connections without requests lose their rights,
too. Where a new file cannot be read, the last good one goes on counting.
"""

from __future__ import annotations

import logging
import os
import stat
import tomllib
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Annotated, Final, NamedTuple

from ....engine.runtime.clock import Clock
from ....errors import UsageError
from .issuer import Issuer, JwtSettings
from .roles import ANY, PATTERN, ROLES, Access, Grant, Role

try:
    from msgspec import Meta, Struct, ValidationError, convert
except ImportError as exc:
    raise UsageError('the HTTP service needs an extra: pip install "lodeq[http]"') from exc

__all__ = ["FILE_BYTES_MAX", "LOOK_S", "TokensFile", "grant_of", "read_secret_file"]

FILE_BYTES_MAX: Final = 256 << 10  # read in one turn of the loop
TOKENS_MAX: Final = 1024
PATTERNS_MAX: Final = 256  # of queues, or of tenants, of one token
JWTS_MAX: Final = 4096  # that are known to be good
LOOK_S: Final = 1.0  # between two looks whether the file has changed
RETRY_S: Final = 30.0  # until wrong files are read again that have not changed
_log: Final = logging.getLogger("lodeq.http")

_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Queues = Annotated[
    list[Annotated[str, Meta(pattern=rf"^{PATTERN}\Z")]],
    Meta(min_length=1, max_length=PATTERNS_MAX),
]
_Tenants = Annotated[
    list[Annotated[str, Meta(pattern=rf"^({PATTERN})?\Z")]],
    Meta(min_length=1, max_length=PATTERNS_MAX),
]
_Identity = tuple[int, ...]


class _Token(Struct, forbid_unknown_fields=True, kw_only=True):
    """A ``[[token]]`` of the file."""

    name: _Name
    sha256: _Digest
    roles: Annotated[list[str], Meta(min_length=1, max_length=len(ROLES))]
    queues: _Queues | None = None
    tenants: _Tenants | None = None


class _Document(Struct, forbid_unknown_fields=True, kw_only=True):
    """The file."""

    token: Annotated[list[_Token], Meta(max_length=TOKENS_MAX)] = []
    jwt: JwtSettings | None = None


class _Reading(NamedTuple):
    """What the files said when they were read."""

    known: dict[bytes, Access]
    issuer: Issuer | None
    paths: Sequence[str]  # of all files: the tokens, and the keys if there are any
    identity: _Identity | None  # of the files, from before they were read
    digest: bytes  # of the issuer and its keys: whether anything of them has changed


class TokensFile:
    """The tokens of a file, as it is now.

    Args:
        path: of the file.

    Raises:
        UsageError: it cannot be read, is not such a file, or others can read it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fsdecode(path))
        self.problem: str | None = None  # why the file as it is now does not count
        self.on_revoked: list[Callable[[], object]] = []  # called once an access has ended
        self._look_mono: float | None = None
        self._wrong: _Identity | None = None  # of the files that were wrong when last read
        self._retry_mono = 0.0  # until then they are not read again, unless they change
        self._now = _read(self.path)
        self._identity = self._now.identity
        self._jwts: dict[bytes, Access] = {}  # that were good, by SHA-256; the oldest first

    def find(self, digest: bytes, token: bytes, clock: Clock) -> Access | None:
        """The access of a token, by its SHA-256; None: there is no such token."""
        self.look(clock)
        found = self._now.known.get(digest)
        if found is not None or self._now.issuer is None:
            return found
        now_us = clock.wall_us()
        found = self._jwts.get(digest)
        if found is None:
            found = self._now.issuer.access_of(token, now_us)
            if found is not None:
                self._jwts[digest] = found
                if len(self._jwts) > JWTS_MAX:  # whoever uses it shows it again
                    self._end([next(iter(self._jwts))])
        elif found.until_us is not None and found.until_us <= now_us:
            return None  # the next look ends it
        return found

    def _end(self, digests: Sequence[bytes]) -> None:
        """Let JWTs lose what they gave."""
        for digest in digests:
            self._jwts.pop(digest).is_over = True
        if digests:
            self._tell_revoked()

    def _tell_revoked(self) -> None:
        for call in self.on_revoked:
            call()

    def look(self, clock: Clock) -> None:
        """Read the file again if it has changed, and if the last look was a second ago."""
        now_mono = clock.mono()
        if self._look_mono is not None and now_mono < self._look_mono:
            return
        self._look_mono = now_mono + LOOK_S
        now_us = clock.wall_us()
        self._end([d for d, one in self._jwts.items() if (one.until_us or 0) <= now_us])
        identity = _identity_of(self._now.paths)
        if identity is not None:
            if identity == self._identity:
                return
            if identity == self._wrong and now_mono < self._retry_mono:
                return
        self._identity = None  # looked at again, unless it turns out to be good
        try:
            found = _read(self.path)
        except UsageError as error:
            self._wrong, self._retry_mono = identity, now_mono + RETRY_S
            self._fail(str(error))
            return
        self._identity, self._wrong = found.identity, None
        self._replace(found)

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            fields = {"event": "tokens_not_read", "path": self.path}
            _log.error("the tokens stay as they were: %r", problem, extra=fields)
        self.problem = problem

    def _replace(self, found: _Reading) -> None:
        """Let the new tokens count. Those that are as they were keep their access."""
        before, self._now = self._now, found
        known = found.known
        has_ended = False
        for digest, old in before.known.items():
            new = known.get(digest)
            if new is not None and old.is_same(new):
                known[digest] = old
            else:
                old.is_over = has_ended = True
        self.problem = None
        fields = {"event": "tokens_read", "path": self.path, "count": len(known)}
        _log.info("%r has %d tokens", self.path, len(known), extra=fields)
        if has_ended:
            self._tell_revoked()
        if found.digest != before.digest:
            self._end(list(self._jwts))


def _identity_of(paths: Sequence[str]) -> _Identity | None:
    """What changes when one of the files does, its mode included; None: it cannot be asked."""
    identity: _Identity = ()
    for path in paths:
        try:
            found = os.stat(path)
        except OSError:
            return None
        times = found.st_mtime_ns, found.st_ctime_ns
        identity += (found.st_dev, found.st_ino, found.st_size, *times)
    return identity


def read_secret_file(path: str, *, is_public: bool = False) -> bytes:
    """Read a small file that only its owner can write, and, unless it is public, read.

    Raises:
        UsageError: there is none, it is not ours, others can read it, or it is too large.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe holds nobody up
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}") from exc
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path} is not a file")
        if found.st_uid not in (os.geteuid(), 0):
            raise UsageError(f"{path} is another user's: chown it to the user that serves")
        if stat.S_IMODE(found.st_mode) & (0o022 if is_public else 0o077):
            how = "written by others: chmod 644" if is_public else "read by others: chmod 600"
            raise UsageError(f"{path} can be {how} it")
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}") from exc
    finally:
        os.close(fd)
    if len(data) > FILE_BYTES_MAX:
        raise UsageError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return data


def _read(path: str) -> _Reading:
    """Read the tokens of a file, and the keys of its issuer."""
    identity = _identity_of([path])
    data = read_secret_file(path)
    try:
        document = convert(tomllib.loads(data.decode()), _Document)
    except (ValidationError, RecursionError) as exc:
        raise UsageError(f"{path} is no file of tokens: {exc}: see docs/roles.md") from exc
    except ValueError as exc:  # also a number of thousands of digits
        raise UsageError(f"{path} is not TOML: {exc}") from exc
    if not document.token and document.jwt is None:
        raise UsageError(f"{path} has neither a [[token]] nor a [jwt]: see docs/roles.md")
    found: dict[bytes, Access] = {}
    names: set[str] = set()
    for one in document.token:
        grant = grant_of(one.roles, one.queues, one.tenants, f"{path}: token {one.name!r}")
        digest = bytes.fromhex(one.sha256)
        if one.name in names or digest in found:
            raise UsageError(f"{path}: token {one.name!r}, or its sha256, is there twice")
        names.add(one.name)
        found[digest] = Access(one.name, [grant])
    if document.jwt is None:
        return _Reading(found, None, [path], identity, b"")
    keys_path = os.path.join(os.path.dirname(path), document.jwt.keys)
    of_keys = _identity_of([keys_path])
    keys = read_secret_file(keys_path, is_public=True)
    issuer = Issuer(document.jwt, keys, keys_path)
    if identity is not None:
        identity = None if of_keys is None else identity + of_keys
    digest = sha256(repr(document.jwt).encode() + keys).digest()
    return _Reading(found, issuer, [path, keys_path], identity, digest)


def grant_of(
    roles: Sequence[str],
    queues: Sequence[str] | None,
    tenants: Sequence[str] | None,
    whose: str,
) -> Grant:
    """A grant of roles by their names.

    Args:
        roles: of ``ROLES``.
        queues: patterns; None: all.
        tenants: patterns; None: all.
        whose: what an error calls it.

    Raises:
        UsageError: there is no such role.
    """
    bits = Role(0)
    for name in roles:
        role = ROLES.get(name)
        if role is None:
            raise UsageError(f"{whose}: role {name[:80]!r} is not one of {', '.join(ROLES)}")
        bits |= ANY if role is Role.ADMIN else role
    return Grant(
        int(bits),
        None if queues is None else tuple(queues),
        None if tenants is None else tuple(tenants),
    )
