"""Listeners: unix and TCP sockets. Without a token only unix sockets and loopback are allowed."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from ipaddress import ip_address
from math import inf
from typing import Any

from ...engine.files.disk_errors import LIMIT_ADVICE
from ...engine.runtime.clock import SystemClock
from ...errors import InvariantError, StorePathError, UsageError

__all__ = ["Listener", "find_tcp", "find_unix", "is_loopback", "listen_tcp", "listen_unix"]

Address = tuple[socket.AddressFamily, Any]

BACKLOG = 128
NAME_BYTES_MAX = 107  # of ``sun_path``, without its NUL
PAUSE_S = 0.5  # asyncio leaves a listener alone for a second where it can accept nothing
_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TRIES_MAX = 8  # at temporary names that a killed server has left


class Listener(socket.socket):
    """Says once that the process can accept no connection, where asyncio asks a whole backlog.

    asyncio logs each try that fails, with its traceback, and goes on trying: 64 times a second and
    more. Here the first one ends its turn; callers wait in the system's queue until it asks again.
    """

    _said_mono = -inf

    def accept(self) -> tuple[socket.socket, Any]:
        """As of any socket."""
        try:
            return super().accept()
        except OSError as exc:
            if exc.errno not in _LIMITS:
                raise
            now_mono = SystemClock.mono()
            if now_mono < self._said_mono + PAUSE_S:
                raise BlockingIOError(errno.EAGAIN, "said a moment ago") from exc
            self._said_mono = now_mono
            text = f"{exc.strerror}: callers wait; {LIMIT_ADVICE}"
            raise OSError(exc.errno, text) from None


def is_loopback(host: str) -> bool:
    """Whether an address (not a name) is this machine's own loopback."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def find_unix(path: str | os.PathLike[str], *, is_probed: bool = True) -> str:
    """The path where ``listen_unix`` will listen; nothing is opened or removed yet.

    Args:
        path: of the socket.
        is_probed: try whether a server answers there, too.

    Raises:
        StorePathError: another file is there, or a server that answers; or the path is too long.
    """
    name = os.path.abspath(os.fspath(path))
    size = len(os.fsencode(name))
    if size > NAME_BYTES_MAX:
        raise StorePathError(
            f"{name}: a socket's path has at most {NAME_BYTES_MAX} bytes, this one has {size}: "
            "choose a shorter one, for example in /run"
        )
    _check_free(name, is_probed=is_probed)
    return name


def listen_unix(path: str | os.PathLike[str]) -> socket.socket:
    """A socket in the file system that only its owner can connect to.

    It is bound under a temporary name and renamed once it listens, so nobody ever finds it open to
    others, or without a listener. One that a killed server left behind is replaced; a live one, or
    another file, is not. (``getsockname`` keeps the temporary name.)

    Raises:
        StorePathError: another file is there, or a server that answers.
    """
    name = find_unix(path)
    folder, base = os.path.split(name)
    listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM)
    fresh = ""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fresh = _bind_beside(listener, fd, folder, base)
            os.chmod(fresh, 0o600)  # nobody can connect before it listens
            listener.listen(BACKLOG)
            os.rename(fresh, name)
        finally:
            os.close(fd)
    except OSError as exc:
        listener.close()
        if fresh:
            with suppress(OSError):
                os.unlink(fresh)
        raise StorePathError(f"{name}: cannot listen there: {exc}") from exc
    return listener


def _bind_beside(listener: socket.socket, fd: int, folder: str, base: str) -> str:
    """Bind to a temporary name in the folder, and return its path."""
    for attempt in range(_TRIES_MAX):
        fresh = os.path.join(folder, f".{base[:64]}.{os.getpid():x}.{attempt:x}")
        short = fresh
        if len(os.fsencode(fresh)) > NAME_BYTES_MAX:  # Linux: by the open folder
            short = f"/proc/self/fd/{fd}/.{os.getpid():x}.{attempt:x}"
            fresh = os.path.join(folder, os.path.basename(short))
        try:
            listener.bind(short)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or attempt == _TRIES_MAX - 1:
                raise
        else:
            return fresh
    raise InvariantError("no name was tried")


def _check_free(name: str, *, is_probed: bool) -> None:
    """Check that nothing is there, or a socket of ours on which nobody listens."""
    try:
        found = os.lstat(name)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise StorePathError(f"{name}: cannot listen there: {exc}") from exc
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise StorePathError(f"{name} is there already, and no socket of ours")
    if not is_probed:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(name)
    if code not in (errno.ECONNREFUSED, errno.ENOENT):
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
    # asyncio sets TCP_NODELAY only where the protocol is named: without it an answer waits 40 ms
    # for the acknowledgement of the one before.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        cure = "; stop what listens there, or take another port" * (exc.errno == errno.EADDRINUSE)
        raise StorePathError(f"{host} port {port}: cannot listen there: {exc}{cure}") from exc
    return listener
