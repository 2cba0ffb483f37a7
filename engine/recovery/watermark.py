"""The watermark: what of one shard is known to be durable, kept outside RocksDB.

RocksDB cannot distinguish a torn tail (the ordinary end of a crash) from rot in synced data: it
does not record how far the log has been synced. So every shard has one small file that says
"incarnation i is durable up to commit n". It is taken before a sync and written after it, so it
never promises too much; it is at most a second old, so little is left unguarded. Open compares it
with the ring.

::

    offset 0, 4096: one slot each (two disk blocks: no write can tear both)
      0   8s   magic          8  u16 version, 1    10 u16 shard    12 u32 0
      16  16 B store id       32 u64 incarnation   40 u64 durable commit_seq
      48  u64  generation     56 u64 xxh3_64, big-endian

Generation g lies in slot g mod 2, so a write never touches the newest valid slot. The highest
valid generation counts; one damaged slot is tolerated and reported. A checkpoint never copies the
file: a restored store gets a fresh one.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import NamedTuple

from xxhash import xxh3_64_digest

from ...errors import (
    FormatTooNewError,
    FormatTooOldError,
    InvariantError,
    RecoveryRefusedError,
    StorageError,
    StorageFullError,
    StoragePoisonedError,
)
from ..files.disk_errors import is_full, path_error
from ..files.durable_files import replace_file, sync_data

__all__ = ["FILE_BYTES", "SLOT_AT", "Watermark", "WatermarkState"]

_SLOT = struct.Struct("<8sHHI16sQQQ")
_MAGIC = b"lodeqWM\0"
_VERSION = 1
SLOT_AT = (0, 4096)
FILE_BYTES = 8192
_SLOT_BYTES = _SLOT.size + 8


class WatermarkState(NamedTuple):
    """The newest valid slot. ``damaged_slots`` is 0 or 1."""

    shard: int
    store_id: bytes
    incarnation: int
    commit_seq: int
    generation: int
    damaged_slots: int

    @property
    def durable(self) -> int:
        """How many commits of ``incarnation`` are durable (0: none promised)."""
        return self.commit_seq & (1 << 40) - 1 if self.commit_seq >> 40 == self.incarnation else 0


class Watermark:
    """An open watermark. ``write`` blocks: called on the shard's own thread, one at a time."""

    __slots__ = ("_fd", "_is_failed", "path", "state")

    def __init__(self, path: str, fd: int, state: WatermarkState) -> None:
        self.path = path
        self.state = state
        self._fd = fd
        self._is_failed = False

    @classmethod
    def create(
        cls, path: str, *, shard: int, store_id: bytes, incarnation: int, commit_seq: int
    ) -> Watermark:
        """Make (or replace, atomically) the file; durable on return.

        Args:
            path: of the file.
            shard: index of the shard.
            store_id: 16 bytes.
            incarnation: the one that begins.
            commit_seq: the commit known to be durable.
        """
        state = WatermarkState(shard, store_id, incarnation, commit_seq, 1, 0)
        image = bytearray(FILE_BYTES)  # whole from the start: a sync need not write the size
        for generation, at in enumerate(SLOT_AT):
            image[at : at + _SLOT_BYTES] = _encode(state._replace(generation=generation))
        try:
            replace_file(path, bytes(image))
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as exc:
            raise _translated(exc, path) from exc
        return cls(path, fd, state)

    @classmethod
    def open(cls, path: str, *, shard: int, store_id: bytes | None) -> Watermark:
        """Open the file of this shard; ``RecoveryRefusedError`` if it is another's or damaged.

        ``store_id``: None takes that of any store.
        """
        fd = _open(path, os.O_RDWR, shard)
        try:
            state = _read(fd, path, shard)
            wanted = state.store_id if store_id is None else store_id
            if state.shard != shard or state.store_id != wanted:
                raise RecoveryRefusedError(
                    f"{path} belongs to shard {state.shard} of store {state.store_id.hex()}, not "
                    f"to shard {shard} of {wanted.hex()}: put the right file back, or open "
                    'with recovery="salvage"',
                    shard=shard,
                )
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, state)

    @staticmethod
    def read(path: str, *, shard: int = -1) -> WatermarkState:
        """Read the file without keeping it open."""
        fd = _open(path, os.O_RDONLY, shard)
        try:
            return _read(fd, path, shard)
        finally:
            os.close(fd)

    @classmethod
    def peek(cls, path: str) -> WatermarkState | None:
        """State in the file; None if it has none."""
        try:
            return cls.read(path)
        except RecoveryRefusedError:
            return None

    def write(self, incarnation: int, commit_seq: int) -> None:
        """Everything up to ``commit_seq`` is durable. Blocks until that is durable itself.

        Raises:
            StorageFullError: nothing promised; may be written again.
            StorageError: the disk failed; every later write raises ``StoragePoisonedError``.
        """
        old = self.state
        if (incarnation, commit_seq) < (old.incarnation, old.commit_seq):
            raise InvariantError(
                f"{self.path}: a watermark never goes back, {commit_seq:#x} after "
                f"{old.commit_seq:#x}"
            )
        if self._is_failed or self._fd < 0:
            raise StoragePoisonedError(f"{self.path}: closed or failed; reopen the store")
        new = old._replace(
            incarnation=incarnation, commit_seq=commit_seq, generation=old.generation + 1
        )
        try:
            if os.pwrite(self._fd, _encode(new), SLOT_AT[new.generation & 1]) != _SLOT_BYTES:
                raise OSError(errno.EIO, "short write")
        except OSError as exc:
            self._is_failed = not is_full(exc)
            raise _translated(exc, self.path) from exc
        try:
            sync_data(self._fd)
        except OSError as exc:
            # Never retried: the kernel may have dropped the page and would report success.
            self._is_failed = True
            raise _failed(exc, self.path) from exc
        self.state = new

    def close(self) -> None:
        """Let go. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _encode(state: WatermarkState) -> bytes:
    body = _SLOT.pack(
        _MAGIC,
        _VERSION,
        state.shard,
        0,
        state.store_id,
        state.incarnation,
        state.commit_seq,
        state.generation,
    )
    return body + xxh3_64_digest(body)


def _decode(raw: bytes, slot: int, path: str) -> WatermarkState | None:
    """None for a damaged slot."""
    if len(raw) != _SLOT_BYTES or xxh3_64_digest(raw[:-8]) != raw[-8:]:
        return None
    magic, version, shard, _, store_id, incarnation, commit_seq, generation = _SLOT.unpack_from(raw)
    if magic != _MAGIC or generation & 1 != slot:
        return None
    if version > _VERSION:
        raise FormatTooNewError(
            f"{path} has version {version}, this lodeq reads {_VERSION}: upgrade lodeq"
        )
    if version < _VERSION:
        raise FormatTooOldError(
            f"{path} has version {version}, this lodeq reads {_VERSION}: open the store with the "
            "release that wrote it"
        )
    return WatermarkState(shard, store_id, incarnation, commit_seq, generation, 0)


def _open(path: str, mode: int, shard: int) -> int:
    try:
        return os.open(path, mode | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError as exc:
        raise RecoveryRefusedError(
            f"{path} is missing, so nothing says what of the shard is durable: put it back, "
            'restore a checkpoint, or open with recovery="salvage"',
            shard=shard,
        ) from exc
    except OSError as exc:
        raise path_error(exc, f"{path} cannot be opened: {exc.strerror}") from exc


def _read(fd: int, path: str, shard: int) -> WatermarkState:
    try:
        raws = [os.pread(fd, _SLOT_BYTES, at) for at in SLOT_AT]
    except OSError as exc:
        raise _translated(exc, path) from exc
    slots = [_decode(raw, slot, path) for slot, raw in enumerate(raws)]
    valid = [state for state in slots if state is not None]
    if not valid:
        raise RecoveryRefusedError(
            f"{path} is damaged in both slots, so nothing says what of the shard is durable: "
            'restore a checkpoint, or open with recovery="salvage"',
            shard=shard,
        )
    newest = max(valid, key=lambda state: state.generation)
    return newest._replace(damaged_slots=len(slots) - len(valid))


def _translated(exc: OSError, path: str) -> StorageError:
    if is_full(exc):
        return StorageFullError(f"{path}: {exc.strerror}; free some disk space")
    return _failed(exc, path)


def _failed(exc: OSError, path: str) -> StorageError:
    return StorageError(f"{path}: {exc.strerror}; close the engine, look at the disk, reopen")
