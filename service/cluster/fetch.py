"""Fetching another node's checkpoint, file by file, over that node's routes.

A file has its name once it is whole, so a fetch that is begun anew takes only what is missing.
Nothing is trusted: whoever restores the folder compares its manifest with the published digest, and
every file with the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import anyio
import httpx

from ...client.transport.transport import Target
from ...engine.files.paths import fsync_dir
from ...engine.runtime.clock import Clock, SystemClock
from ...errors import BusyError, UnreachableError, UsageError
from ...replication.port import Checkpoint

if TYPE_CHECKING:
    from ...engine.runtime.event_loop import Spawner

__all__ = ["TAKES_S", "HttpCheckpoints", "ask_node", "check_path"]

CONNECT_S: Final = 5.0
TIMEOUT_S: Final = 30.0
TAKES_S: Final = 600.0  # a checkpoint of a large store
FILES_MAX: Final = 1_000_000
CHUNK_BYTES: Final = 1 << 20
SAID_MAX: Final = 300  # characters of what a node says


class _Node:
    """A client of one node's routes."""

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        target = Target(url, token, timeout_s)
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(**target.transport_options()),
            base_url=target.base.removesuffix("/v1"),
            headers={
                name: value
                for name, value in target.headers.items()
                if name in ("authorization", "user-agent")
            },
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
        )
        self._url = url

    async def __aenter__(self) -> httpx.AsyncClient:
        return self._client

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()


async def ask_node(
    url: str,
    method: str,
    path: str,
    *,
    token: str | None = None,
    document: Any = None,
    timeout_s: float = TAKES_S,
) -> Any:
    """Call a route of a node, and return its document.

    Args:
        url: of the node: ``unix://FILE``, ``tcp://HOST:PORT`` or ``http://HOST:PORT``.
        method: ``GET`` or ``POST``.
        path: below its address, as in ``/cluster/status``.
        token: the node's.
        document: what a POST sends; None: nothing.
        timeout_s: for the answer, once it is connected.

    Raises:
        UnreachableError: nobody answers there, or not with what a node of a cluster says.
        BusyError: the node cannot do it now; the message is its own.
        UsageError: the node refuses the call; the message is its own.
    """
    async with _Node(url, token, timeout_s) as client:
        try:
            json = {} if method == "POST" and document is None else document
            answer = await client.request(method, path, json=json)
        except httpx.HTTPError as exc:
            raise UnreachableError(f"{url}: {type(exc).__name__} {exc}".rstrip()) from exc
    if answer.status_code == 404:
        raise UsageError(f"{url} is no node of a cluster: start it with --replicate")
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UnreachableError(
            f"{url} is no node of a cluster: it answers with {answer.status_code}, and with "
            "nothing that a node says"
        )
    if not answer.is_success:
        kind = BusyError if answer.status_code == 409 else UsageError
        how = "; commands take it from --token-file or LODEQ_TOKEN"
        raise kind(f"{url}: {_refusal(answer)}{how if answer.status_code == 401 else ''}")
    return found


def check_path(path: object) -> str:
    """A path of a checkpoint's file, if it stays below the folder."""
    parts = path.split("/") if isinstance(path, str) else [""]
    if any(part in ("", ".", "..") for part in parts) or "\0" in str(path):
        raise UsageError(f"a node offers a file at {str(path)[:200]!r}: not fetched")
    return "/".join(parts)


class _Pace:
    """Keeps what is read to so many bytes a second."""

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_at = 0.0

    async def read(self, count: int) -> None:
        """Wait for as long as ``count`` bytes that were read may take."""
        now = self._clock.mono()
        self._free_at = max(self._free_at, now) + count / self._bytes_per_s
        await anyio.sleep(self._free_at - now)


class HttpCheckpoints:
    """Checkpoints of other nodes, over their routes: a ``CheckpointSource``.

    Args:
        token: what nodes give one another; None: none. It goes to addresses that the log names:
            whoever can write there is trusted (SECURITY.md).
        bytes_per_s: how much is read at most, over all files; None: as fast as it comes.
        clock: for that.
    """

    def __init__(
        self,
        token: str | None = None,
        *,
        bytes_per_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._token = token
        self._pace = None if bytes_per_s is None else _Pace(bytes_per_s, clock or SystemClock())

    async def fetch(
        self,
        checkpoint: Checkpoint,
        work: str,
        spawner: Spawner,
        *,
        shards: Collection[int] | None = None,
    ) -> str:
        """See ``CheckpointSource.fetch``.

        Raises:
            ConnectionError: the node does not answer, or not with what a node says.
            UsageError: it offers a file that would lie elsewhere.
        """
        await spawner.run_in_thread(partial(_make_folders, work))  # 0700: all else lies below it
        async with _Node(checkpoint.url, self._token, TIMEOUT_S) as client:
            base = _base(checkpoint)
            try:
                answer = await client.get(base)
                _check(answer)
                files = answer.json()["files"]
                if not isinstance(files, list) or len(files) > FILES_MAX:
                    raise UsageError(f"{checkpoint.url}: its list of files is none")
                for path, size in files:
                    place = os.path.join(work, check_path(path))
                    if not _is_wanted(path, shards):
                        continue
                    if not await spawner.run_in_thread(partial(_has, place, size)):
                        await self._file(client, f"{base}/{quote(path)}", place, size, spawner)
            except UsageError:  # a ValueError
                raise
            except (httpx.HTTPError, ValueError, KeyError, TypeError, RecursionError) as exc:
                # An OSError: the next checkpoint is tried.
                raise ConnectionError(
                    f"{checkpoint.url}: {type(exc).__name__} {exc}".rstrip()
                ) from exc
        return work

    async def keep(self, checkpoint: Checkpoint) -> None:
        """Have its node keep a checkpoint that is to be fetched for another while.

        Raises:
            ConnectionError: the node does not answer, or has it no more.
        """
        async with _Node(checkpoint.url, self._token, TIMEOUT_S) as client:
            try:
                _check(await client.get(_base(checkpoint)))
            except httpx.HTTPError as exc:
                raise ConnectionError(f"{checkpoint.url}: {exc}") from exc

    async def _file(
        self, client: httpx.AsyncClient, url: str, place: str, size: int, spawner: Spawner
    ) -> None:
        """Fetch one file; it has its name once it is whole."""
        part = f"{place}.part"
        await spawner.run_in_thread(partial(_make_folders, os.path.dirname(place)))
        async with client.stream("GET", url) as answer:
            if not answer.is_success:
                await answer.aread()
                _check(answer)
            fd = await spawner.run_in_thread(partial(_create, part))
            try:
                left = size
                async for chunk in answer.aiter_bytes(CHUNK_BYTES):
                    left -= len(chunk)
                    if left < 0:  # it may go on for as long as there is disk
                        raise UsageError(f"a node sends more than {size} bytes of {url[-200:]!r}")
                    await spawner.run_in_thread(partial(_write, fd, chunk))
                    if self._pace is not None:
                        await self._pace.read(len(chunk))
                await spawner.run_in_thread(partial(os.fsync, fd))
            finally:
                os.close(fd)
        await spawner.run_in_thread(partial(_rename, part, place))


def _base(checkpoint: Checkpoint) -> str:
    return f"/cluster/checkpoints/{quote(checkpoint.digest, safe='')}"


def _check(answer: httpx.Response) -> None:
    """Raise ``ConnectionError`` with what a node says, if it is no success."""
    if not answer.is_success:
        raise ConnectionError(_refusal(answer)[:SAID_MAX])


def _refusal(answer: httpx.Response) -> str:
    """The words of a node that refuses a call."""
    try:
        found = answer.json()
        return str(found.get("error") or found["detail"])
    except (ValueError, KeyError, AttributeError, RecursionError):
        return f"it answers with {answer.status_code}"


def _is_wanted(path: str, shards: Collection[int] | None) -> bool:
    """Whether a file is of one of these shards, or of the whole."""
    folder = path.partition("/")[0] if "/" in path else ""
    if shards is None or not folder:
        return True
    kind = folder.rstrip("0123456789")
    return kind in ("shard", "bodies") and folder[len(kind) :] in map(str, shards)


def _has(place: str, size: object) -> bool:
    try:
        return os.path.getsize(place) == size
    except OSError:
        return False


def _make_folders(folder: str) -> None:
    os.makedirs(folder, 0o700, exist_ok=True)


def _create(place: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(place, flags, 0o600)


def _write(fd: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(fd, view) :]


def _rename(part: str, place: str) -> None:
    os.rename(part, place)
    fsync_dir(os.path.dirname(place))
