"""Libraries that keep the queue in files of their own: what ``pip install`` offers instead.

Each as its documentation shows it, in the mode nearest to ours. Where a library has no lease, its
take is a pop and ``done`` does nothing: it does less, and the table says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from .base import Peer, no_package

__all__ = [
    "Diskcache",
    "HueyFull",
    "HueyOff",
    "LiteQueueFull",
    "LiteQueueNormal",
    "LocalQueueDurable",
    "LocalQueueRelaxed",
    "PersistQueue",
    "Rocksq",
]


class _Raw:
    """A serializer that does not: bytes in, bytes out."""

    @staticmethod
    def dumps(obj: bytes) -> bytes:
        return obj

    @staticmethod
    def loads(data: bytes) -> bytes:
        return data


class PersistQueueSession:
    def __init__(self, folder: str) -> None:
        import persistqueue
        from persistqueue.exceptions import Empty

        self.empty = Empty
        self.queue = persistqueue.SQLiteAckQueue(folder, multithreading=True, serializer=_Raw)

    def put(self, payload: bytes) -> None:
        self.queue.put(payload)

    def take(self) -> Any:
        try:
            return self.queue.get(block=False, raw=True)
        except self.empty:
            return None

    def done(self, token: Any, result: bytes) -> None:
        self.queue.ack(id=token["pqid"])

    def close(self) -> None:
        self.queue.close()


class PersistQueue(Peer):
    name = "persist-queue SQLiteAckQueue"
    durability = "fsync"  # WAL with the default synchronous, FULL
    keeps = "ack"
    callers_max = 1  # what is taken but not acked is known to one object only

    @classmethod
    def missing(cls) -> str | None:
        return no_package("persistqueue")

    def session(self) -> PersistQueueSession:
        return PersistQueueSession(str(self.folder))


class LiteQueueSession:
    def __init__(self, path: Path, synchronous: str) -> None:
        from litequeue import LiteQueue

        self.queue = LiteQueue(path, timeout=60)
        self.queue.conn.execute(f"PRAGMA synchronous = {synchronous}")

    def put(self, payload: bytes) -> None:
        self.queue.put(payload)  # a column of text that takes bytes as they are

    def take(self) -> Any:
        message = self.queue.pop()
        return message.message_id if message is not None else None

    def done(self, token: Any, result: bytes) -> None:
        self.queue.done(token)

    def close(self) -> None:
        self.queue.close()


class _LiteQueue(Peer):
    keeps = "lock, no expiry"
    callers_max = 1  # several connections meet "database is locked"
    synchronous: ClassVar[str]

    @classmethod
    def missing(cls) -> str | None:
        return no_package("litequeue")

    def session(self) -> LiteQueueSession:
        return LiteQueueSession(self.folder / "lite.db", self.synchronous)


class LiteQueueNormal(_LiteQueue):
    name = "litequeue"
    durability = "os"
    synchronous = "NORMAL"


class LiteQueueFull(_LiteQueue):
    name = "litequeue, synchronous FULL"
    durability = "fsync"
    synchronous = "FULL"


class HueySession:
    def __init__(self, path: Path, *, fsync: bool) -> None:
        from huey.storage import SqliteStorage

        self.storage = SqliteStorage(filename=str(path), fsync=fsync, timeout=60)
        self.n = 0

    def put(self, payload: bytes) -> None:
        self.storage.enqueue(payload)

    def take(self) -> Any:
        return self.storage.dequeue()

    def done(self, token: Any, result: bytes) -> None:
        self.n += 1
        self.storage.put_data(f"{id(self)}-{self.n}", result, is_result=True)

    def close(self) -> None:
        self.storage.close()


class _Huey(Peer):
    keeps = "result; a pop deletes"
    fsync: ClassVar[bool]

    @classmethod
    def missing(cls) -> str | None:
        return no_package("huey")

    def session(self) -> HueySession:
        return HueySession(self.folder / "huey.db", fsync=self.fsync)


class HueyOff(_Huey):
    name = "huey SqliteStorage, fsync=False"
    durability = "os"
    fsync = False


class HueyFull(_Huey):
    name = "huey SqliteStorage, fsync=True"
    durability = "fsync"
    fsync = True


class LocalQueueSession:
    def __init__(self, folder: str, *, durable: bool) -> None:
        import localqueue

        self.empty = localqueue.Empty
        mode = localqueue.DurabilityMode
        self.queue: Any = localqueue.SimpleQueue(
            folder, durability=mode.DURABLE if durable else mode.RELAXED, serializer=_Raw()
        )

    def put(self, payload: bytes) -> None:
        self.queue.put(payload)

    def take(self) -> Any:
        try:
            return self.queue.get(block=False)
        except self.empty:
            return None

    def done(self, token: Any, result: bytes) -> None:
        self.queue.ack(token)

    def close(self) -> None:
        self.queue.close()


class _LocalQueue(Peer):
    keeps = "lease"
    durable: ClassVar[bool]

    @classmethod
    def missing(cls) -> str | None:
        return no_package("localqueue")

    def session(self) -> LocalQueueSession:
        return LocalQueueSession(str(self.folder), durable=self.durable)


class LocalQueueRelaxed(_LocalQueue):
    name = "localqueue RELAXED"
    durability = "os"
    durable = False


class LocalQueueDurable(_LocalQueue):
    name = "localqueue DURABLE"
    durability = "fsync"
    durable = True


class DiskcacheSession:
    def __init__(self, folder: str) -> None:
        import diskcache

        self.deque = diskcache.Deque(directory=folder)

    def put(self, payload: bytes) -> None:
        self.deque.append(payload)

    def take(self) -> Any:
        with contextlib.suppress(IndexError):
            return self.deque.popleft()
        return None

    def done(self, token: Any, result: bytes) -> None:
        """A pop has deleted it."""

    def close(self) -> None:
        self.deque.cache.close()


class Diskcache(Peer):
    name = "diskcache Deque"
    durability = "os"
    keeps = "nothing"

    @classmethod
    def missing(cls) -> str | None:
        return no_package("diskcache")

    def session(self) -> DiskcacheSession:
        return DiskcacheSession(str(self.folder))


class RocksqSession:
    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def put(self, payload: bytes) -> None:
        self.queue.push([payload])

    def take(self) -> Any:
        found = self.queue.pop()
        return found[0] if found else None

    def done(self, token: Any, result: bytes) -> None:
        """A pop has deleted it."""

    def put_many(self, payloads: Sequence[bytes]) -> None:
        self.queue.push(list(payloads))

    def take_many(self, n: int) -> list[Any]:
        return list(self.queue.pop(max_elements=n))

    def done_many(self, tokens: Sequence[Any], result: bytes) -> None:
        """A pop has deleted them."""

    def close(self) -> None:
        """Do nothing: all callers share it."""


class Rocksq(Peer):
    name = "rocksq"
    durability = "os"
    keeps = "nothing"
    has_batches = True

    @classmethod
    def missing(cls) -> str | None:
        return no_package("rocksq")

    def open(self) -> None:
        from rocksq.blocking import PersistentQueueWithCapacity

        self.queue: Any = PersistentQueueWithCapacity(str(self.folder / "rocksq"))

    def session(self) -> RocksqSession:
        return RocksqSession(self.queue)

    def close(self) -> None:
        self.queue = None
