"""Addresses of a cluster: ``etcd://a:2379,b:2379,c:2379/name?ttl=3``, parsed and checked.

Nothing here needs the extra: an address can be refused before anything is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from ...engine.records.keyspace import NAME_PATTERN
from ...errors import UsageError
from ..groups import GROUPS_MAX

__all__ = ["EtcdAddress", "parse_address"]

_FORM: Final = "etcd://host:2379,host:2379,host:2379/name?ttl=3"
_ENDPOINT: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?"
)
_SIZE: Final = re.compile(r"([1-9][0-9]*)(KiB|MiB|GiB)?")
_UNITS: Final = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_PORT: Final = 2379
_ENDPOINTS_MAX: Final = 16
COPIES_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """Where a cluster's log is, and how to get in.

    Attributes:
        endpoints: ``host:port`` of etcd's members, 1 to 16.
        cluster: name of the cluster; its keys lie under ``/lodeq/<cluster>/``.
        ttl_s: length of a node's session in seconds, 2 to 60. A leader that is gone is replaced
            after it, and a longer stall of etcd or of the node ends the session.
        ca: file with the authority that signed etcd's certificates; none: no TLS.
        cert, key: files with this node's certificate and its key, for mutual TLS.
        user: name of a user of etcd; empty: no authentication.
        password_file: file with its password; a newline at its end does not count.
        quota_bytes: ``--quota-backend-bytes`` of etcd, which releases before 3.6 do not report.
        copies: of each shard, where the cluster is new, 1 to 16; None: one on every node.
        groups: endpoints of further etcd clusters, each with the logs of some of the shards.
    """

    endpoints: tuple[str, ...]
    cluster: str
    ttl_s: int = 3
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    user: str = ""
    password_file: Path | None = None
    quota_bytes: int = 2 << 30
    copies: int | None = None
    groups: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        for endpoints in (self.endpoints, *self.groups):
            if not 1 <= len(endpoints) <= _ENDPOINTS_MAX:
                raise UsageError(f"{len(endpoints)} endpoints: name 1 to {_ENDPOINTS_MAX}")
        if len(self.groups) >= GROUPS_MAX:
            raise UsageError(
                f"{len(self.groups)} further groups: there are {GROUPS_MAX - 1} at most"
            )
        named = [one for endpoints in (self.endpoints, *self.groups) for one in endpoints]
        if len(set(named)) != len(named):
            raise UsageError("an endpoint is named twice: name each member of etcd once")
        if re.fullmatch(NAME_PATTERN, self.cluster) is None:
            raise UsageError(
                f"cluster name {self.cluster[:80]!r} is not valid: use 1 to 64 of a-z, 0-9, '.', "
                f"'_', '-', starting with a letter or digit, as in {_FORM}"
            )
        if not 2 <= self.ttl_s <= 60:
            raise UsageError(f"ttl={self.ttl_s}: a session lasts 2 to 60 seconds")
        if self.copies is not None and not 1 <= self.copies <= COPIES_MAX:
            raise UsageError(f"copies={self.copies}: a shard has 1 to {COPIES_MAX}")
        if (self.cert is None) != (self.key is None):
            raise UsageError("cert= and key= belong together: name both files, or neither")
        if self.cert is not None and self.ca is None:
            raise UsageError("cert= needs ca=: the file with the authority that signed etcd's own")
        if bool(self.user) != (self.password_file is not None):
            raise UsageError("user= and password-file= belong together: name both, or neither")

    @property
    def of_groups(self) -> tuple[EtcdAddress, ...]:
        """One address for each log group, the first one first."""
        first = replace(self, groups=())
        return (first, *(replace(first, endpoints=one) for one in self.groups))

    @property
    def prefix(self) -> bytes:
        """Start of all keys of the cluster."""
        return f"/lodeq/{self.cluster}/".encode()


def parse_address(url: str) -> EtcdAddress:
    """The address that ``url`` spells.

    Raises:
        UsageError: it is none; the message says what is wrong with it. Files are not looked at.
    """
    if not isinstance(url, str):
        raise UsageError(f"an address of etcd is a str, not {type(url).__name__}: {_FORM}")
    scheme, found, rest = url.partition("://")
    if not found or scheme.lower() != "etcd":
        raise UsageError(f"an address of etcd starts with etcd://, as in {_FORM}")
    place, _, query = rest.partition("?")
    hosts, _, cluster = place.partition("/")
    if "@" in hosts:
        raise UsageError("an address carries no password: use ?user=NAME&password-file=FILE")
    return EtcdAddress(
        endpoints=_endpoints(hosts),
        cluster=unquote(cluster.removesuffix("/")),
        **_options(query),
    )


def _endpoint(text: str) -> str:
    found = _ENDPOINT.fullmatch(text)
    if found is None or not 0 < int(found["port"] or _PORT) < 1 << 16:
        raise UsageError(f"endpoint {text[:80]!r} is not host or host:port, as in {_FORM}")
    return f"{found['host']}:{int(found['port'] or _PORT)}"


def _options(query: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise UsageError(f"what follows ? is not key=value&key=value: {error}") from error
    options: dict[str, Any] = {}
    for key, value in pairs:
        if key not in _OPTIONS:
            raise UsageError(f"unknown option {key[:80]!r}: there are {', '.join(_OPTIONS)}")
        field, read = _OPTIONS[key]
        if key == "group" and value:
            options[field] = (*options.get(field, ()), read(value))
            continue
        if field in options:
            raise UsageError(f"option {key} is given twice")
        if not value:
            raise UsageError(f"option {key} has no value")
        options[field] = read(value)
    return options


def _endpoints(text: str) -> tuple[str, ...]:
    return tuple(_endpoint(host) for host in text.split(","))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 6


def _seconds(text: str) -> int:
    number = text.removesuffix("s")
    if not _is_number(number):
        raise UsageError(f"ttl={text[:80]}: a whole number of seconds, 2 to 60")
    return int(number)


def _copies(text: str) -> int:
    if not _is_number(text):
        raise UsageError(f"copies={text[:80]}: how many nodes have a copy of each shard, 1 to 16")
    return int(text)


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None or len(text) > 20:
        raise UsageError(f"quota={text[:80]}: bytes, or a number with KiB, MiB or GiB, as in 2GiB")
    return int(found[1]) * _UNITS[found[2]]


def _file(text: str) -> Path:
    """A file that is read at every login: where it is now, wherever the process goes later."""
    return Path(text).absolute()


_OPTIONS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "ttl": ("ttl_s", _seconds),
    "ca": ("ca", _file),
    "cert": ("cert", _file),
    "key": ("key", _file),
    "user": ("user", str),
    "password-file": ("password_file", _file),
    "quota": ("quota_bytes", _size),
    "group": ("groups", _endpoints),
    "copies": ("copies", _copies),
}
