"""Which process has which shards, and where it listens: the same for the supervisor and for all.

Shard ``i`` of a store with K processes belongs to process ``i % K``. Nothing of it is stored: the
folder is that of any store, and the next start may have another number of processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, Self

from ...errors import UsageError

__all__ = [
    "PROCESSES_MAX",
    "REOPEN_CODE",
    "SHARDS_A_PROCESS",
    "Order",
    "ProcessShards",
    "ProcessesOptions",
    "addresses_of",
]

PROCESSES_MAX: Final = 64
SHARDS_A_PROCESS: Final = 4  # of a store that is created: it may get more processes later
REOPEN_CODE: Final = 75  # exit code (EX_TEMPFAIL): a shard is to be reopened by another process


@dataclass(frozen=True, slots=True)
class ProcessesOptions:
    """How a store is served by several processes.

    Attributes:
        processes: how many, 1 to 64.
        address: True for ``PATH.sock``; else the path of a socket, or ``HOST:PORT``.
        advertise: ``tcp://HOST:PORT``: where clients reach the main address; None: as it is.
        token: that every request must carry; None: none.
        tokens: file of tokens that may do a part; with it a ``token`` is needed.
        dashboard: ``read``, ``write`` or ``off``.
        hosts: further names that the header Host may give.
        checkpoints: folder in which clients may make checkpoints; None: nowhere.
        shards: of a store that is created; None: four a process.
        durability: None: as the store is stamped.
        lock_wait_s: seconds to wait for a store that another process holds.
        grace_s: seconds that requests have to end at the end.
    """

    processes: int
    address: Literal[True] | str = True
    advertise: str | None = None
    token: str | None = field(default=None, repr=False)
    tokens: str | None = None
    dashboard: Literal["read", "write", "off"] = "read"
    hosts: tuple[str, ...] = ()
    checkpoints: str | None = None
    shards: int | None = None
    durability: Literal["nosync", "fsync"] | None = None
    lock_wait_s: float = 0.0
    grace_s: float = 10.0


def addresses_of(main: str, ports: Sequence[int], processes: int) -> list[str]:
    """Where the processes listen.

    Args:
        main: the main address: ``unix://FILE``, or ``tcp://HOST:PORT``.
        ports: of the processes, where the main address has one.
        processes: how many.

    Raises:
        UsageError: a comma, which separates addresses, is in the path of the socket.
    """
    if main.startswith("unix://"):
        if "," in main:
            raise UsageError(
                f"{main}: a comma in the path of a socket separates addresses: give another --uds"
            )
        return [f"{main}.{n}" for n in range(processes)]
    host = main.removeprefix("tcp://").rpartition(":")[0]
    return [f"tcp://{host}:{port}" for port in ports]


@dataclass(frozen=True, slots=True)
class Order:
    """What the supervisor tells one process at its start, in one line of JSON.

    Attributes:
        path: the store's folder.
        number: of the process, from 0.
        shards: of the store.
        durability: of the store, as it is opened.
        listen: where it listens: ``unix://FILE`` or ``tcp://HOST:PORT``.
        urls: by process, where clients reach it.
        front: where clients reach the supervisor.
        token: that every request must carry; None: none.
        tokens: file of tokens that may do a part.
        hosts: further names that the header Host may give.
        checkpoints: folder in which checkpoints may be made; None: nowhere.
        block_cache_bytes: this process's part of the cache.
        grace_s: seconds that requests have to end once it stops.
    """

    path: str
    number: int
    shards: int
    durability: Literal["nosync", "fsync"]
    listen: str
    urls: tuple[str, ...]
    front: str
    block_cache_bytes: int
    grace_s: float
    token: str | None = field(default=None, repr=False)
    tokens: str | None = None
    hosts: tuple[str, ...] = ()
    checkpoints: str | None = None

    def line(self) -> bytes:
        """The order as it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> Self:
        """Read an order."""
        found: Mapping[str, Any] = json.loads(line)
        return cls(**{**found, "urls": tuple(found["urls"]), "hosts": tuple(found["hosts"])})


class ProcessShards:
    """The shards of one process, and who has the others: a ``Hosting`` that never changes.

    Args:
        urls: by process, where clients reach it.
        number: of this process.
        front: where clients reach the supervisor.
    """

    def __init__(self, urls: Sequence[str], number: int, front: str) -> None:
        self._urls = tuple(urls)
        self._number = number
        self.front_url = front

    def hosts(self, shard: int) -> bool:
        """Whether this process has the shard."""
        return shard % len(self._urls) == self._number

    def leader(self, shard: int) -> str | None:
        """Where clients reach the process that has the shard."""
        return self._urls[shard % len(self._urls)]

    def member_urls(self) -> Sequence[str]:
        """Where clients reach the processes."""
        return self._urls
