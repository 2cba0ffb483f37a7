"""The secret that keys a store's dedup hashes: drawn once, and the same for as long as it lives.

Whoever may enqueue chooses dedup keys, but not where they lie: that is a hash keyed with 32 random
bytes. They are a row of every shard (``m/secret``), the same in all, written in the batch that
writes the stamp. So a checkpoint, a restore, a snapshot and a reshard bring them along. On a
replica the leader's first entry does; there shards may differ.

Who stages loads has no engine, and must not open one. For them the secrets lie in a file beside the
shards as well (0600), made anew by every open::

    0   8s   "lodeqDK1"      8   16 B store id      24  u32 shards     28 u32 0
    32       32 bytes each   end u64 xxh3_64

They are never logged, measured, or named in a manifest: that has a fingerprint. A store of format 1
gets its secret, its new stamp and the number of its old entries here, in one batch a shard; a crash
between two shards leaves some of either format, and the next open goes on with the secret that is
there. A store of format 2 gets its new stamp.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ...errors import (
    CorruptionError,
    FormatTooOldError,
    LodeqError,
    RecoveryRefusedError,
    StorageError,
    UsageError,
)
from ..files.durable_files import replace_file
from ..files.paths import secrets_path
from ..records.frame import attempt, checksum
from ..records.keyspace import (
    GHOST,
    GHOST_END,
    INGESTED,
    OLD_GHOSTS,
    SECRET,
    SECRET_BYTES,
    STAMP,
    ghost_hash,
    secret_fingerprint,
)
from ..records.rows import (
    FORMAT_KEYED,
    FORMAT_VERSION,
    OLD_FORM,
    Stamp,
    decode_ghost,
    decode_secret,
    encode_old_ghosts,
    encode_secret,
    encode_stamp,
)
from ..store.port import Op, Store, StoreView, pages, write_patiently
from .decide import ADVICE, Candidate

__all__ = [
    "Secrets",
    "check_loads",
    "common_secret",
    "count_old_ghosts",
    "kept_secret",
    "read_secrets",
    "settle_formats",
    "stamp_ops",
    "stored_id",
    "write_secrets",
]

_HEAD: Final = struct.Struct("<8s16sII")
_MAGIC: Final = b"lodeqDK1"
_FILE_BYTES_MAX: Final = _HEAD.size + 4096 * SECRET_BYTES + 8


class Secrets(NamedTuple):
    """Those of all shards. They are not shown."""

    of_shards: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"<secrets of {len(self.of_shards)} shards>"

    def ghost_of(self, slot: int, routing: bytes) -> bytes:
        """Under which hash a dedup key lies."""
        return ghost_hash(self.of_shards[slot * len(self.of_shards) >> 12], routing)

    @property
    def fingerprint(self) -> bytes:
        """Sixteen bytes that may be shown."""
        return secret_fingerprint(b"".join(self.of_shards))


def stamp_ops(stamp: Stamp, secret: bytes) -> list[Op]:
    """The rows that make a store a store. ``secret`` empty: it comes with the replicated log."""
    ops: list[Op] = [(STAMP, encode_stamp(stamp._replace(version=FORMAT_VERSION)))]
    return [*ops, (SECRET, encode_secret(secret))] if secret else ops


def common_secret(found: Sequence[Candidate], *, is_salvage: bool) -> bytes:
    """That of the first shard that has one; empty if none has.

    Raises:
        RecoveryRefusedError: a row of it is damaged, and that is not to be salvaged.
    """
    common = b""
    for one in found:
        try:
            raw = one.store.get(SECRET)
            secret = decode_secret(raw) if raw is not None else b""
        except CorruptionError as exc:  # the row, or the block it lies in
            if not is_salvage:
                raise RecoveryRefusedError(
                    f"shard {one.index}: the secret of its dedup keys is damaged ({exc}); {ADVICE}",
                    shard=one.index,
                ) from exc
            secret = b""
        common = common or secret
    return common


def count_old_ghosts(view: StoreView) -> int:
    """How many entries lie under the hash of format 1. Blocks: it reads all entries."""
    count = 0
    for rows in pages(view, GHOST, GHOST_END):
        forms = [ghost.form for _, raw in rows if (ghost := attempt(decode_ghost, raw))]
        count += forms.count(OLD_FORM)
    return count


def check_loads(found: Sequence[Candidate], waiting: Sequence[str], *, is_salvage: bool) -> None:
    """A load of format 1 that is in on some shards goes on in the release that began it.

    Raises:
        FormatTooOldError: there is one; nothing was changed.
        RecoveryRefusedError: whether there is one cannot be read, and that is not to be salvaged.
    """
    if all(one.stamp is not None and one.stamp.version >= FORMAT_KEYED for one in found):
        return
    for job in waiting:
        key = INGESTED + job.encode()
        has = set()
        for one in found:
            try:
                has.add(one.store.get(key) is not None)
            except CorruptionError as exc:
                if not is_salvage:
                    raise RecoveryRefusedError(
                        f"shard {one.index}: whether it has load {job!r} cannot be read ({exc}); "
                        f"{ADVICE}",
                        shard=one.index,
                    ) from exc
        if len(has) > 1:
            raise FormatTooOldError(
                f"load {job!r} has come in on some shards only: open the store once with the "
                "release that has begun it, until it is in; then with this one"
            )


def kept_secret(root: str, store_id: bytes) -> bytes:
    """Read the secret from the file beside the shards, for a store that has lost the rows.

    Empty if it cannot be read, or on a replica whose shards differ: then none is right for all.
    """
    try:
        secrets = set(read_secrets(root, store_id).of_shards)
    except LodeqError:
        return b""
    return secrets.pop() if len(secrets) == 1 else b""


def settle_formats(found: Sequence[Candidate], secret: bytes, *, is_new: bool) -> list[Store]:
    """Bring what is of an older format up to date; the stores that were written, to be synced.

    Args:
        found: the shards, examined and mended.
        secret: for shards that have none; empty on a replica, where it comes with the log.
        is_new: it was drawn by this open.

    Raises:
        RecoveryRefusedError: dedup entries that are to be counted cannot be read; their shard was
            not changed.
    """
    written: list[Store] = []
    known = {_sound_secret(one.store)[0] for one in found} - {None}
    is_new = is_new or len(known) > 1  # once a replica: nobody knows whose is that shard's
    for one in found:
        stamp = one.stamp
        is_old = stamp is not None and stamp.version < FORMAT_VERSION
        own, has_row = _sound_secret(one.store)
        lacks = bool(secret) and own is None
        if stamp is None or not (is_old or lacks):
            continue
        ops = stamp_ops(stamp, secret if lacks else b"")
        if lacks:
            try:
                count = count_old_ghosts(one.store)
                had_one = has_row or _has_keyed(one.store)
            except CorruptionError as exc:
                raise RecoveryRefusedError(
                    f"shard {one.index}: its dedup entries cannot be read ({exc}); {ADVICE}",
                    shard=one.index,
                ) from exc
            ops.append((OLD_GHOSTS, encode_old_ghosts(count) if count else None))
        if lacks and had_one:
            outcome = "another; keys taken before are not held any more" if is_new else "it back"
            one.reports.append(
                f"shard {one.index}: had lost the secret of its dedup keys and got {outcome}"
            )
        write_patiently(one.store, ops)
        one.stamp = stamp._replace(version=FORMAT_VERSION)
        written.append(one.store)
    return written


def _sound_secret(view: StoreView) -> tuple[bytes | None, bool]:
    """The secret, if it is sound, and whether there is a row of it. ``common_secret`` refuses."""
    try:
        raw = view.get(SECRET)
    except CorruptionError:
        return None, True
    return attempt(decode_secret, raw), raw is not None


def _has_keyed(view: StoreView) -> bool:
    for rows in pages(view, GHOST, GHOST_END):
        if any(ghost.form for _, raw in rows if (ghost := attempt(decode_ghost, raw))):
            return True
    return False


def write_secrets(root: str, store_id: bytes, stores: Sequence[Store]) -> None:
    """Put the file of a store's secrets there, if it is not. Blocks; raises ``OSError``.

    Durability: whole or not there; it can be made again.
    """
    rows = [_sound_secret(store)[0] for store in stores]
    path = secrets_path(root)
    secrets = [row for row in rows if row is not None]
    if len(secrets) != len(stores):
        return  # a replica's, which nobody has led yet: it takes no loads
    body = _HEAD.pack(_MAGIC, store_id, len(secrets), 0) + b"".join(secrets)
    raw = body + checksum(body)
    try:
        if _read(path) == raw:
            return
    except OSError:
        pass  # not there, or not a file: replaced
    replace_file(path, raw)


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        return file.read(_FILE_BYTES_MAX + 1)


def stored_id(root: str) -> bytes | None:
    """The id of the store whose secrets these are; None if they cannot be read. Blocks."""
    try:
        raw = _read(secrets_path(root))
    except OSError:
        return None
    if len(raw) < _HEAD.size + 8 or checksum(raw[:-8]) != raw[-8:]:
        return None
    of_store: bytes = _HEAD.unpack_from(raw)[1]
    return of_store


def read_secrets(root: str, store_id: bytes) -> Secrets:
    """Those of the store at ``root``, for staging beside it. Blocks.

    Raises:
        UsageError: this release has not opened the store yet, or it lies elsewhere by now.
        CorruptionError: the file is damaged.
        StorageError: it cannot be read.
    """
    path = secrets_path(root)
    try:
        raw = _read(path)
    except FileNotFoundError as exc:
        raise UsageError(
            f"{root} has no {os.path.basename(path)}, which dedup keys are staged with: open the "
            "store once with this release of lodeq"
        ) from exc
    except OSError as exc:
        raise StorageError(f"{path}: {exc.strerror}; look at the disk") from exc
    if len(raw) < _HEAD.size + 8 or checksum(raw[:-8]) != raw[-8:]:
        raise CorruptionError(f"{path} is damaged: open the store once, which makes it anew")
    magic, of_store, shards, _ = _HEAD.unpack_from(raw)
    body = raw[_HEAD.size : -8]
    if magic != _MAGIC or len(body) != shards * SECRET_BYTES or not shards:
        raise CorruptionError(f"{path} is damaged: open the store once, which makes it anew")
    if of_store != store_id:
        raise UsageError(f"{path} is that of another store: open this one once")
    return Secrets(tuple(body[at : at + SECRET_BYTES] for at in range(0, len(body), SECRET_BYTES)))
