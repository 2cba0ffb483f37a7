"""The inbox of a store: where loads are staged, and how one becomes a manifest to be taken in.

::

    <store>/inbox/
      <job>.json         a published load: the commit point is that this name appears
      staged/<job>/ …    its files, and those of attempts that came to nothing
      done/<job>.json    what became of it
      refused/<job>.json why it was not taken; its files stay where they are

``docs/ingest.md`` has the protocol. Nothing here needs the store to be open, or closed. A job is
published at most once: another attempt to do so changes nothing, and removes only its own files.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from ...errors import CorruptionError, StorageError, StorePathError, UsageError
from ..files.disk_errors import NO_LINKS, disk_error
from ..files.durable_files import replace_file, write_new
from ..files.paths import (
    check_root,
    fsync_dir,
    inbox_path,
    list_layout,
    normal_path,
    watermark_path,
)
from ..recovery.watermark import Watermark
from .documents import read_object
from .manifest import MANIFEST_BYTES_MAX, Manifest, check_job, decode_manifest, encode_manifest
from .sst import checksum_of

__all__ = [
    "Outcome",
    "StoreInfo",
    "conclude",
    "discard",
    "is_published",
    "outcome",
    "pending",
    "publish",
    "read_pending",
    "refused_jobs",
    "staged_path",
    "staging_folder",
    "store_info",
    "verify_files",
    "was_published",
]

_STAGED, _DONE, _REFUSED = "staged", "done", "refused"
_SUFFIX: Final = ".json"


class StoreInfo(NamedTuple):
    """Facts of a store that staging needs; the same for as long as the store lives."""

    path: str
    store_id: bytes
    shards: int


class Outcome(NamedTuple):
    """Outcome of a load: ``done`` or ``refused``; the rest is the file's content."""

    state: Literal["done", "refused"]
    facts: dict[str, Any]


def store_info(path: str | os.PathLike[str]) -> StoreInfo:
    """Which store lies at ``path``, open or not. Blocks; writes nothing.

    Raises:
        StorePathError: there is none, or not all of it.
    """
    root = normal_path(path)
    if not check_root(root):
        raise StorePathError(f"{root} does not exist: create the store by opening it once")
    marks = list_layout(root).watermarks
    if not marks or marks != tuple(range(len(marks))):
        raise StorePathError(f"{root} holds no whole store: create it by opening it once")
    states = [Watermark.read(watermark_path(root, shard), shard=shard) for shard in marks]
    if not all(state.incarnation for state in states):
        raise StorePathError(f"{root} has never been opened to its end: open it once")
    return StoreInfo(root, states[0].store_id, len(marks))


def staged_path(root: str, job: str) -> str:
    """Where the files of a job lie."""
    return os.path.join(inbox_path(root), _STAGED, job)


def _manifest_path(root: str, job: str) -> str:
    return os.path.join(inbox_path(root), job + _SUFFIX)


def staging_folder(root: str, job: str) -> str:
    """Make the folder for a job's files, where it is missing; durable. Blocks."""
    path = staged_path(root, check_job(job))
    _make_folders(path, root)
    return path


def _make_folders(path: str, root: str) -> None:
    """``path`` and what leads to it below ``root``; each 0700, its name durable."""
    missing = []
    while path != root and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    try:
        for folder in reversed(missing):
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                continue  # of two who stage one was quicker
            fsync_dir(os.path.dirname(folder))
    except OSError as exc:
        raise disk_error(exc, root) from exc


def is_published(root: str, job: str) -> bool:
    """Whether a load of that name waits to be taken in, or has been."""
    done = os.path.join(inbox_path(root), _DONE, job + _SUFFIX)
    return os.path.lexists(_manifest_path(root, job)) or os.path.lexists(done)


def was_published(root: str, job: str) -> bool:
    """``is_published``; if so, it survives a power cut from now on. Blocks.

    Whoever has published it may have been killed before that was durable.

    Raises:
        StorageError: the disk.
    """
    if not is_published(root, job):
        return False
    _sync_names(root)
    return True


def _sync_names(root: str) -> None:
    """Make durable that manifests have their names, and what leads to these."""
    inbox = inbox_path(root)
    try:
        fsync_dir(inbox)
        fsync_dir(root)
    except OSError as exc:
        raise disk_error(exc, inbox) from exc


def publish(root: str, manifest: Manifest, attempt: str) -> bool:
    """Make a staged load one that will be taken in: all of it, or none. Blocks.

    Args:
        root: of the store.
        manifest: names files in the job's staging folder, each fsynced.
        attempt: makes this publisher's temporary file differ from another's.

    Returns: False if the job is published already; then nothing was done.

    Raises:
        UsageError: a file it names is not there.
        StorageFullError, StorageError: the disk; it is not published.

    Durability: on return it survives a power cut.
    """
    if was_published(root, manifest.job):
        return False
    folder = staging_folder(root, manifest.job)
    for mark in manifest.files:
        path = os.path.join(folder, mark.name)
        if not os.path.isfile(path) or os.path.getsize(path) != mark.size_bytes:
            raise UsageError(f"{path} is not the file that was staged: stage the load again")
    target = _manifest_path(root, manifest.job)
    fresh = f"{target}.{check_job(attempt)}.tmp"
    try:
        fsync_dir(folder)
        fsync_dir(os.path.dirname(folder))  # another may have made it, and be dead
        write_new(fresh, encode_manifest(manifest), may_exist=True)
        try:
            is_new = _name_once(fresh, target)
        finally:
            if os.path.lexists(fresh):
                os.unlink(fresh)
    except OSError as exc:
        raise disk_error(exc, target) from exc
    _sync_names(root)
    return is_new


def _name_once(fresh: str, target: str) -> bool:
    """Give a file its name, unless there is one of that name: a link, which never replaces."""
    try:
        os.link(fresh, target)
    except FileExistsError:
        return False
    except OSError as exc:
        if exc.errno not in NO_LINKS:
            raise
        os.rename(fresh, target)
    return True


def discard(root: str, job: str, names: Iterable[str]) -> None:
    """Remove staged files that came to nothing, unless a published manifest names them. Blocks."""
    keep: set[str] = set()
    try:
        keep = {mark.name for mark in read_pending(root, job).files}
    except CorruptionError:
        return  # nobody knows whose they are
    except FileNotFoundError:
        pass
    folder = staged_path(root, job)
    for name in set(names) - keep:
        try:
            os.unlink(os.path.join(folder, name))
        except FileNotFoundError:
            pass
    try:
        os.rmdir(folder)
    except OSError:
        pass  # files of others are in it, or it is gone


def pending(root: str) -> list[str]:
    """The jobs that wait to be taken in, oldest first. Cheap where there is no inbox."""
    found = []
    try:
        with os.scandir(inbox_path(root)) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # taken away meanwhile: the others wait still
                        at_ns = entry.stat(follow_symlinks=False).st_mtime_ns
                        found.append((at_ns, entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise disk_error(exc, inbox_path(root)) from exc
    return [name[: -len(_SUFFIX)] for _, name in sorted(found)]


def read_pending(root: str, job: str) -> Manifest:
    """The manifest of a job that waits. Blocks.

    Raises:
        FileNotFoundError: there is none of that name.
        CorruptionError, FormatTooNewError: it is damaged, cut off, of another job, or too new.
    """
    path = _manifest_path(root, job)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise disk_error(exc, path) from exc
    try:
        with open(fd, "rb") as file:
            manifest = decode_manifest(file.read(MANIFEST_BYTES_MAX + 1), path)
    except OSError as exc:
        raise disk_error(exc, path) from exc
    if manifest.job != job:
        raise CorruptionError(f"{path} is the manifest of job {manifest.job!r}: rename it back")
    return manifest


def verify_files(root: str, manifest: Manifest, shards: Iterable[int]) -> None:
    """Whether the files of these shards are what the manifest says, byte by byte. Blocks.

    Raises:
        CorruptionError: one is missing, of another size, or damaged.
        StorageError: the disk failed.
    """
    folder, wanted = staged_path(root, manifest.job), set(shards)
    for mark in manifest.files:
        if mark.shard not in wanted:
            continue
        path = os.path.join(folder, mark.name)
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise CorruptionError(f"{path} is not a file: stage the load again")
            summed = checksum_of(path)
        except FileNotFoundError as exc:
            raise CorruptionError(f"{path} is missing: stage the load again") from exc
        except OSError as exc:
            raise disk_error(exc, path) from exc
        if summed != (mark.size_bytes, mark.xxh3_128):
            raise CorruptionError(
                f"{path} is damaged ({summed.size_bytes} bytes, {mark.size_bytes} were written): "
                "stage the load again"
            )


def outcome(root: str, job: str) -> Outcome | None:
    """Outcome of a job; None if it has none yet, or nothing is left of it. Blocks.

    A job that was refused may be published again. While it waits, why it was refused is of before.
    """
    # Looked at first: what is done takes its manifest away last.
    waits = os.path.lexists(_manifest_path(root, check_job(job)))
    for state, folder in (("done", _DONE), ("refused", _REFUSED)):
        if state == "refused" and waits:
            return None
        path = os.path.join(inbox_path(root), folder, job + _SUFFIX)
        try:
            facts = read_object(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as exc:
            raise StorageError(f"{path} cannot be read: {exc}; look at the disk") from exc
        return Outcome("done" if state == "done" else "refused", facts)
    return None


def refused_jobs(root: str) -> list[str]:
    """The jobs of which it is written that they were refused; some have come in since. Blocks."""
    try:
        names = os.listdir(os.path.join(inbox_path(root), _REFUSED))
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise disk_error(exc, inbox_path(root)) from exc
    return sorted(name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX))


def _drop_files(root: str, job: str) -> None:
    shutil.rmtree(staged_path(root, job), ignore_errors=True)


def conclude(root: str, job: str, end: Outcome) -> None:
    """Say what became of a job, then take its manifest away. Blocks.

    Of one that is done the staged files go too. Killed in between, it is done again.

    Raises:
        StorageFullError, StorageError: the disk; try again.
    """
    inbox = inbox_path(root)
    folder = os.path.join(inbox, _DONE if end.state == "done" else _REFUSED)
    _make_folders(folder, root)
    target = os.path.join(folder, job + _SUFFIX)
    raw = json.dumps(end.facts, sort_keys=True, indent=1).encode() + b"\n"
    try:
        replace_file(target, raw)
        if end.state == "refused":  # as it was, for whoever looks into it
            os.rename(_manifest_path(root, job), f"{target}.manifest")
        else:
            os.unlink(_manifest_path(root, job))
            _drop_files(root, job)
        fsync_dir(inbox)
    except FileNotFoundError:
        return  # it has been taken away already
    except OSError as exc:
        raise disk_error(exc, target) from exc
