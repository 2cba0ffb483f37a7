"""Checkpoints: consistent copies of a store, complete or not there at all.

::

    <dest>/                0700, renamed from <dest>.partial when complete
      shard0/ …            a RocksDB checkpoint each
      bodies0/ …           its large payloads, if it has any
      checkpoint.json      the manifest: store id, per shard incarnation and commit_seq, and the
                           size and xxh3_128 of every file; last, with a checksum of itself. Of a
                           process that has some shards only, also how many the store has

Shards are copied one after the other: nothing links two shards, so they need not be of the same
moment. Watermarks are not copied. A watermark promises what *this* disk has synced, and a restored
store starts with fresh ones, which promise nothing yet.

``restore`` trusts nothing it reads: names in the manifest must look like those a checkpoint has (no
path leads out of the target), each file is checksummed while it is copied, and the store
appears under its name in one rename at the end. Files are copied, never linked: an engine
that opened a linked store would write into its own backup.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from ...errors import (
    CorruptionError,
    FormatTooNewError,
    StorePathError,
)
from ..files.disk_errors import NO_LINKS, disk_error, path_error
from ..files.durable_files import new_file, write_new
from ..files.paths import (
    SHARDS_MAX,
    bodies_path,
    fsync_dir,
    make_root,
    normal_path,
    shard_path,
    watermark_path,
)
from ..store.port import Store
from ..values import ShardMark
from .watermark import Watermark

__all__ = [
    "MANIFEST",
    "FileMark",
    "Manifest",
    "abandon_checkpoint",
    "begin_checkpoint",
    "check_files",
    "check_target",
    "checkpoint_bodies",
    "checkpoint_shard",
    "copy_verified",
    "read_manifest",
    "restore",
    "write_manifest",
]

MANIFEST = "checkpoint.json"
_FORMAT, _VERSION = "lodeq-checkpoint", 1
_MANIFEST_BYTES_MAX = 256 << 20
_CHUNK = 1 << 20
_FILE = re.compile(r"(shard|bodies)(0|[1-9][0-9]{0,3})/[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_HEX = re.compile(r"[0-9a-f]{32}")


class FileMark(NamedTuple):
    """One file, relative to the checkpoint."""

    name: str
    size_bytes: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A decoded manifest. ``shards`` is in order, and complete unless ``total`` says otherwise."""

    store_id: bytes
    shards: tuple[ShardMark, ...]
    files: tuple[FileMark, ...]
    total: int = 0  # how many shards the store has, where some are not in here; else 0


def _check_outside(target: str, folder: str, what: str) -> None:
    """Raise ``StorePathError`` if a new folder would be made within this one."""
    inner, outer = os.path.realpath(target), os.path.realpath(folder)
    if os.path.commonpath([inner, outer]) == outer:
        raise StorePathError(f"{target} is inside {what} {folder}: choose a path outside it")


def begin_checkpoint(
    dest: str | os.PathLike[str], *, store: str | os.PathLike[str] | None = None
) -> str:
    """Make the folder in which a checkpoint is put together; returns its path.

    Neither it nor ``dest`` may exist: nothing is ever overwritten.

    Args:
        dest: where the checkpoint is to be.
        store: the folder of the store; ``dest`` must not be inside it.
    """
    target = normal_path(dest)
    if store is not None:
        _check_outside(target, normal_path(store), "the store")
    work = _partial(target)
    if os.path.lexists(target):
        raise StorePathError(f"{target} exists: a checkpoint never overwrites, choose another path")
    _make_work(work)
    return work


def checkpoint_shard(store: Store, work: str, shard: int) -> None:
    """Add one shard. Blocks for the flush; the copy itself is links where links are possible."""
    store.flush()
    store.checkpoint(shard_path(work, shard))


def checkpoint_bodies(folder: str, names: Iterable[str], work: str, shard: int) -> None:
    """Add the body files of a shard: links, for sealed files never change but where they are dead.

    Blocks. Whoever removes or punches such files must not do so meanwhile.

    Args:
        folder: the shard's folder of body files.
        names: files that belong to the copy.
        work: the checkpoint's folder while it is made.
        shard: index of the shard.
    """
    target = bodies_path(work, shard)
    for name in names:
        os.makedirs(target, mode=0o700, exist_ok=True)
        try:
            os.link(os.path.join(folder, name), os.path.join(target, name), follow_symlinks=False)
        except OSError as exc:
            if exc.errno not in NO_LINKS:
                raise disk_error(exc, folder) from exc
            shutil.copyfile(os.path.join(folder, name), os.path.join(target, name))


def abandon_checkpoint(work: str) -> None:
    """Remove what ``begin_checkpoint`` made, after a failure."""
    shutil.rmtree(work, ignore_errors=True)


def write_manifest(
    work: str, *, store_id: bytes, shards: Sequence[ShardMark], total: int | None = None
) -> str:
    """Checksum and sync everything, write the manifest, rename; returns the checkpoint's path.

    Args:
        work: made by ``begin_checkpoint``.
        store_id: 16 bytes.
        shards: how far the copy of each goes.
        total: how many shards the store has; None: these.
    """
    if not work.endswith(_partial("")):
        raise StorePathError(f"{work} was not made by begin_checkpoint")
    target = work.removesuffix(_partial(""))
    try:
        files = [mark for shard in shards for mark in _seal_shard(work, shard.shard)]
        for shard in shards:
            if os.path.isdir(folder := bodies_path(work, shard.shard)):
                files += _seal_folder(folder)
        write_new(
            os.path.join(work, MANIFEST),
            _dump(
                Manifest(
                    store_id,
                    tuple(sorted(shards)),
                    tuple(files),
                    0 if total is None or total == len(shards) else total,
                )
            ),
        )
        fsync_dir(work)
        if os.path.lexists(target):
            raise StorePathError(f"{target} has appeared meanwhile: choose another path")
        os.rename(work, target)
        fsync_dir(os.path.dirname(target))
    except OSError as exc:
        raise disk_error(exc, target) from exc
    return target


def _partial(target: str) -> str:
    return f"{target}.partial"


def _make_work(work: str) -> None:
    if os.path.lexists(work):
        raise StorePathError(f"{work} is left from an interrupted run: remove it first")
    make_root(work)


def _seal_shard(work: str, shard: int) -> Iterable[FileMark]:
    return _seal_folder(shard_path(work, shard))


def _seal_folder(folder: str) -> Iterable[FileMark]:
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name == "LOCK" or name.startswith("LOG") or not stat.S_ISREG(os.lstat(path).st_mode):
            continue
        digest, size = xxhash.xxh3_128(), 0
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
            os.fsync(file.fileno())
        yield FileMark(f"{os.path.basename(folder)}/{name}", size, digest.hexdigest())
    fsync_dir(folder)


def _dump(manifest: Manifest) -> bytes:
    body = {
        "format": _FORMAT,
        "version": _VERSION,
        "store_id": manifest.store_id.hex(),
        "shards": [list(mark) for mark in manifest.shards],
        "files": [list(mark) for mark in manifest.files],
    }
    if manifest.total:
        body["total"] = manifest.total
    return _canonical({**body, "xxh3_128": xxhash.xxh3_128_hexdigest(_canonical(body))})


def _canonical(body: object) -> bytes:
    return json.dumps(body, indent=0, sort_keys=True).encode("ascii")


def read_manifest(checkpoint: str | os.PathLike[str]) -> Manifest:
    """The manifest of a finished checkpoint; ``CorruptionError`` if it is damaged or missing."""
    path = os.path.join(normal_path(checkpoint), MANIFEST)
    try:
        with open(_open_file(path), "rb") as file:
            raw = file.read(_MANIFEST_BYTES_MAX + 1)
    except OSError as exc:
        raise CorruptionError(f"{path}: {exc.strerror}; this is no finished checkpoint") from exc
    try:
        if len(raw) > _MANIFEST_BYTES_MAX:
            raise ValueError("too large")
        body = json.loads(raw)
        if body.pop("format") != _FORMAT:
            raise ValueError("not a checkpoint of lodeq")
        claimed = body.pop("xxh3_128")
        if xxhash.xxh3_128_hexdigest(_canonical({**body, "format": _FORMAT})) != claimed:
            raise ValueError("checksum mismatch")
        if _natural(body["version"]) > _VERSION:  # the frame first: damage never reads as newer
            raise FormatTooNewError(
                f"{path} has version {body['version']}, this lodeq reads {_VERSION}: upgrade lodeq"
            )
        shards = tuple(ShardMark(*map(_natural, mark)) for mark in body["shards"])
        files = tuple(FileMark(_name(n), _natural(size), _hex(h)) for n, size, h in body["files"])
        total = _natural(body.get("total", 0))
        manifest = Manifest(bytes.fromhex(_hex(body["store_id"])), shards, files, total)
        indexes = [mark.shard for mark in shards]
        whole = sorted({*indexes}) if total else list(range(len(shards)))
        if indexes != whole or not shards or (total and indexes[-1] >= total):
            raise ValueError("shards are missing")
        names = {mark.name for mark in files}
        if max(total, len(shards)) > SHARDS_MAX or len(names) != len(files):
            raise ValueError("too many shards, or a file twice")
        if not names.issuperset(f"shard{mark.shard}/CURRENT" for mark in shards):
            raise ValueError("files are missing")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise CorruptionError(f"{path} is damaged ({exc}): use another checkpoint") from exc
    return manifest


def _open_file(path: str) -> int:
    """To be read. Whatever else may lie there (a pipe: to open it is to wait) is an ``OSError``."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a file", path)
    return fd


def _natural(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"not a number: {value!r}")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or _FILE.fullmatch(value) is None:
        raise ValueError(f"not a file of a checkpoint: {value!r}")
    return value


def _hex(value: object) -> str:
    if not isinstance(value, str) or _HEX.fullmatch(value) is None:
        raise ValueError(f"not 16 bytes in hexadecimal: {value!r}")
    return value


def restore(checkpoint: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Make a new store at ``path`` out of a checkpoint. Blocks.

    ``path`` must not exist or be an empty folder; nothing is visible there until all of it
    is verified and durable.

    Raises:
        StorePathError: there is something at ``path``, or it cannot be created.
        CorruptionError: the checkpoint is damaged; nothing is at ``path``.
        StorageError: the disk failed or is full; nothing is at ``path``.
    """
    source, root = normal_path(checkpoint), normal_path(path)
    _check_outside(root, source, "the checkpoint")
    check_target(root)
    manifest = read_manifest(source)
    work = f"{root}.restoring"
    _make_work(work)
    try:
        for mark in manifest.shards:
            os.mkdir(shard_path(work, mark.shard), 0o700)
        folders = {os.path.dirname(file.name) for file in manifest.files}
        for folder in sorted(folders - {f"shard{mark.shard}" for mark in manifest.shards}):
            os.mkdir(os.path.join(work, folder), 0o700)
        for file in manifest.files:
            copy_verified(os.path.join(source, file.name), os.path.join(work, file.name), file)
        for folder in folders:
            fsync_dir(os.path.join(work, folder))
        for mark in manifest.shards:
            fsync_dir(shard_path(work, mark.shard))
            Watermark.create(
                watermark_path(work, mark.shard),
                shard=mark.shard,
                store_id=manifest.store_id,
                incarnation=mark.incarnation,
                commit_seq=0,
            ).close()
        check_target(root)
        os.rename(work, root)  # over an empty folder too, never over a full one
        work = root  # what a failure has to remove
        fsync_dir(os.path.dirname(root))
    except OSError as exc:
        shutil.rmtree(work, ignore_errors=True)
        raise disk_error(exc, root) from exc
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def check_files(
    checkpoint: str | os.PathLike[str], shards: Container[int] | None = None
) -> Iterator[tuple[int, str]]:
    """Files of a checkpoint that are not what its manifest says: of which shard, and why. Blocks.

    Args:
        checkpoint: its folder.
        shards: files of these alone are looked at; None: all.

    Raises:
        CorruptionError: the manifest is damaged or missing.
    """
    source = normal_path(checkpoint)
    for mark in read_manifest(source).files:
        shard = int("".join(filter(str.isdigit, os.path.dirname(mark.name))))
        if shards is not None and shard not in shards:
            continue
        digest, path = xxhash.xxh3_128(), os.path.join(source, mark.name)
        why = "is not what the manifest says"
        try:
            with open(_open_file(path), "rb") as reader:
                is_same = os.fstat(reader.fileno()).st_size == mark.size_bytes
                while is_same and (chunk := reader.read(_CHUNK)):
                    digest.update(chunk)
        except OSError as exc:
            is_same, why = False, exc.strerror or "cannot be read"
        if not is_same or digest.hexdigest() != mark.xxh3_128:
            yield shard, f"{mark.name}: {why}; it cannot be restored"


def check_target(root: str) -> None:
    """Raise ``StorePathError`` if a new store cannot be made at ``root``: something is there."""
    try:
        info = os.lstat(root)
        if not stat.S_ISDIR(info.st_mode) or os.listdir(root):
            raise StorePathError(f"{root} exists and is not an empty folder: choose another path")
    except FileNotFoundError:
        return
    except OSError as exc:
        raise path_error(exc, f"{root}: {exc.strerror}", "choose another path") from exc


def copy_verified(source: str, target: str, mark: FileMark) -> None:
    """Copy a file of a checkpoint, which has to be what the manifest says."""
    digest, size = xxhash.xxh3_128(), 0
    try:
        fd = _open_file(source)
    except OSError as exc:
        raise CorruptionError(f"{source}: {exc.strerror}; use another checkpoint") from exc
    with open(fd, "rb") as reader, new_file(target, mode=0o666) as writer:
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            if size > mark.size_bytes:  # it may go on for as long as there is disk
                break
            writer.write(chunk)
    if size != mark.size_bytes or digest.hexdigest() != mark.xxh3_128:
        wrong = f"{size} bytes, {mark.size_bytes} expected"
        if size == mark.size_bytes:
            wrong = "its size is right, its checksum is not"
        raise CorruptionError(
            f"{source} is not what the manifest says ({wrong}): use another checkpoint"
        )
