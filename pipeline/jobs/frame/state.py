"""How far a job has come, so that one that was interrupted goes on where it was.

A job that is run again with the same options finds what its finished steps have said, and skips
them. The file lies in the folder the job writes to, and is replaced as a whole after each step.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Final

import xxhash

from ....engine.bulk.documents import read_document, write_document
from ....errors import StorageError, UsageError

__all__ = ["FOLDER", "Steps", "local_folder"]

FOLDER: Final = "_lodeq"  # Spark takes names with an underscore for no data
_FORMAT, _VERSION = "lodeq-job", 1


class Steps:
    """Finished steps of one job, by name.

    Args:
        folder: the one the job writes to; made if it is not there.
        job: its name.
        told: what it depends on: its config, the id of its snapshot. A state that was kept for
            anything else is forgotten.

    Raises:
        CorruptionError: the state is damaged: remove it, and the job begins anew.
        StorageError: the disk.
    """

    def __init__(self, folder: str, job: str, *told: Any) -> None:
        self._path = os.path.join(local_folder(folder), FOLDER, f"{job}.json")
        self._key = xxhash.xxh3_128_hexdigest(json.dumps([_plain(one) for one in told]).encode())
        self._done: dict[str, dict[str, Any]] = {}
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
        except OSError as exc:
            raise StorageError(f"{folder}: {exc.strerror}") from exc
        if os.path.lexists(self._path):
            kept = read_document(self._path, _FORMAT, _VERSION)
            if kept["key"] == self._key:
                self._done = kept["done"]

    def done(self, step: str) -> dict[str, Any] | None:
        """What a finished step has said."""
        return self._done.get(step)

    def note(self, step: str, said: dict[str, Any]) -> dict[str, Any]:
        """A step is finished; its words, which JSON can hold, are kept and returned.

        Raises:
            StorageError: the disk.
        """
        self._done[step] = said
        body = {"format": _FORMAT, "version": _VERSION, "key": self._key, "done": self._done}
        try:
            write_document(self._path, body)
        except OSError as exc:
            raise StorageError(f"{self._path}: {exc.strerror}") from exc
        return said

    def forget(self) -> None:
        """The job is over: the next run begins anew. Idempotent."""
        self._done = {}
        if os.path.lexists(self._path):
            os.remove(self._path)


def local_folder(path: str) -> str:
    """Of a path or a ``file:`` URL.

    Raises ``UsageError`` for the URL of another file system: a job keeps its state beside its work.
    """
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return path
    if scheme != "file":
        raise UsageError(f"{path!r}: a job writes to a folder that all machines see, or file:")
    return rest if not rest.startswith("//") else "/" + rest[2:].partition("/")[2]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value
