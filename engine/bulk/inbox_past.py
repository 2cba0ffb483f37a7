"""The past of an inbox: loads that are over, and staging that nobody finished.

``done/`` says which jobs have come in, ``refused/`` which will not; ``staged/<job>/`` without a
manifest belongs to a stager that is at work, or to one that died. Nothing here decides by itself:
the caller says how old is old. All of it blocks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from typing import Final

from ..files.disk_errors import disk_error
from ..files.paths import fsync_dir, inbox_path
from .documents import read_object
from .inbox import is_published, staged_path

__all__ = [
    "abandoned_jobs",
    "drop_abandoned",
    "drop_done",
    "drop_refused",
    "ended_jobs",
]

_SUFFIX: Final = ".json"
_MOMENT: Final = {"done": "done_us", "refused": "refused_us"}


def ended_jobs(root: str, state: str, before_us: int) -> list[str]:
    """Jobs that were ``done`` or ``refused`` before a moment, and of which nothing waits.

    What cannot be read, or is not of ours, is left alone.
    """
    folder = os.path.join(inbox_path(root), state)
    found = []
    for entry in _entries(folder):
        job = entry.name.removesuffix(_SUFFIX)
        if job == entry.name or _waits(root, job):
            continue
        try:
            ended_us = read_object(entry.path)[_MOMENT[state]]
        except (OSError, ValueError, KeyError):
            continue
        if type(ended_us) is int and ended_us < before_us:
            found.append(job)
    return sorted(found)


def abandoned_jobs(root: str, before_us: int) -> list[str]:
    """Jobs of which files are staged, none newer than that, and nothing has become."""
    folder = os.path.join(inbox_path(root), "staged")
    jobs = [entry.name for entry in _entries(folder) if entry.is_dir(follow_symlinks=False)]
    return [job for job in sorted(jobs) if _is_abandoned(root, job, before_us)]


def _is_abandoned(root: str, job: str, before_us: int) -> bool:
    refused = os.path.join(inbox_path(root), "refused", job + _SUFFIX)
    if is_published(root, job) or os.path.lexists(refused):
        return False
    newest_us = _newest_us(staged_path(root, job))
    return newest_us is not None and newest_us < before_us


def drop_done(root: str, jobs: Iterable[str]) -> None:
    """Forget here that these came in. Durable on return.

    Raises:
        StorageError: the disk.
    """
    folder = os.path.join(inbox_path(root), "done")
    try:
        for job in jobs:
            os.unlink(os.path.join(folder, job + _SUFFIX))
        fsync_dir(folder)
    except OSError as exc:
        raise disk_error(exc, folder) from exc


def drop_refused(root: str, job: str, before_us: int) -> int | None:
    """Remove the rest of a load that was refused; returns its bytes. None: it is staged again.

    Raises:
        StorageError: the disk.
    """
    folder = os.path.join(inbox_path(root), "refused")
    newest_us = _newest_us(staged_path(root, job))
    if _waits(root, job) or (newest_us is not None and newest_us >= before_us):
        return None
    freed = _drop_staged(root, job)
    try:
        for name in (f"{job}{_SUFFIX}.manifest", f"{job}{_SUFFIX}"):  # what names it goes last
            if os.path.lexists(path := os.path.join(folder, name)):
                freed += os.lstat(path).st_size
                os.unlink(path)
    except OSError as exc:
        raise disk_error(exc, folder) from exc
    return freed


def drop_abandoned(root: str, job: str, before_us: int) -> int | None:
    """Remove files that were staged for nothing; how many bytes. None: they are in use after all.

    Raises:
        StorageError: the disk.
    """
    return _drop_staged(root, job) if _is_abandoned(root, job, before_us) else None


def _drop_staged(root: str, job: str) -> int:
    path = staged_path(root, job)
    try:
        freed = sum(entry.stat(follow_symlinks=False).st_size for entry in _entries(path))
        if os.path.lexists(path):
            shutil.rmtree(path)
    except OSError as exc:
        raise disk_error(exc, path) from exc
    return freed


def _newest_us(path: str) -> int | None:
    """When anything in a folder last changed; None: there is none, or it goes right now."""
    try:
        times = [entry.stat(follow_symlinks=False).st_mtime_ns for entry in _entries(path)]
        return max([os.lstat(path).st_mtime_ns, *times]) // 1000
    except OSError:
        return None


def _waits(root: str, job: str) -> bool:
    return os.path.lexists(os.path.join(inbox_path(root), job + _SUFFIX))


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as exc:
        raise disk_error(exc, folder) from exc
