"""Listeners: unix and TCP sockets. Without a token only unix sockets and loopback are allowed."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from ...errors import StorePathError, UsageError

__all__ = ["find_tcp", "find_unix", "is_loopback", "listen_tcp", "listen_unix"]

Address = tuple[socket.AddressFamily, Any]

BACKLOG = 128
NAME_BYTES_MAX = 107  # of ``sun_path``, without its NUL


def is_loopback(host: str) -> bool:
    """Whether an address (not a name) is this machine's own loopback."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def find_unix(path: str | os.PathLike[str]) -> str:
    """The path where ``listen_unix`` will listen; nothing is opened or removed yet.

    Raises:
        StorePathError: another file is there, or a server that answers.
    """
    name = os.path.abspath(os.fspath(path))
    if len(os.fsencode(name)) > NAME_BYTES_MAX:
        raise StorePathError(f"{name}: a socket's path has at most {NAME_BYTES_MAX} bytes")
    _check_free(name)
    return name


def listen_unix(path: str | os.PathLike[str]) -> socket.socket:
    """A socket in the file system that only its owner can connect to.

    One that a killed server left behind is replaced; a live one, or another file, is not.

    Raises:
        StorePathError: another file is there, or a server that answers.
    """
    name = find_unix(path)
    with suppress(FileNotFoundError):
        os.unlink(name)  # a killed server's
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(name)
        os.chmod(name, 0o600)  # nobody can connect before it listens
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        raise StorePathError(f"{name}: cannot listen there: {exc}") from exc
    return listener


def _check_free(name: str) -> None:
    """Check that nothing is there, or a socket of ours on which nobody listens."""
    try:
        found = os.lstat(name)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise StorePathError(f"{name}: cannot listen there: {exc}") from exc
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise StorePathError(f"{name} is there already, and no socket of ours")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(name)
    if code != errno.ECONNREFUSED:
        raise StorePathError(f"{name}: a server listens there already")


def find_tcp(host: str, port: int, token: str | None) -> Address:
    """The address where ``listen_tcp`` will listen; nothing is opened yet.

    Args:
        host: an address, or a name for one.
        port: 0 for any free one.
        token: required unless the address is loopback.

    Raises:
        UsageError: other machines could reach it, and there is no token.
        StorePathError: the address does not exist.
    """
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except OSError as exc:
        raise StorePathError(f"{host}: {exc}") from exc
    family, _, _, _, address = found[0]
    if token is None and not is_loopback(str(address[0])):
        raise UsageError(
            f"{host} can be reached from other machines: give --token-file, or listen on 127.0.0.1"
        )
    return family, address


def listen_tcp(host: str, port: int, token: str | None) -> socket.socket:
    """A TCP socket. Arguments and errors as ``find_tcp``; StorePathError also if it is in use."""
    family, address = find_tcp(host, port, token)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        raise StorePathError(f"{host} port {port}: cannot listen there: {exc}") from exc
    return listener
