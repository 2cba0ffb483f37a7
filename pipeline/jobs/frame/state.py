"""Resume state of a job, so that an interrupted one continues where it was.

A job that runs again with the same options finds the results of its finished steps, and skips
them. The file is in the job's output folder, and is replaced as a whole after each step.
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

FOLDER: Final = "_lodeq"  # Spark does not read names that begin with an underscore
_FORMAT, _VERSION = "lodeq-job", 1


class Steps:
    """Finished steps of one job, by name.

    Args:
        folder: the job's output folder; made if it is missing.
        job: its name.
        inputs: all that its result depends on: its config, the id of its snapshot. The state of
            other inputs is dropped.

    Raises:
        CorruptionError: the state is damaged: remove it, and the job starts again.
        StorageError: the disk.
    """

    def __init__(self, folder: str, job: str, *inputs: Any) -> None:
        self._path = os.path.join(local_folder(folder), FOLDER, f"{job}.json")
        self._key = xxhash.xxh3_128_hexdigest(json.dumps([_plain(one) for one in inputs]).encode())
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
        """Return the result of a finished step, or None."""
        return self._done.get(step)

    def note(self, step: str, result: dict[str, Any]) -> dict[str, Any]:
        """Keep the result of a finished step, which JSON can hold, and return it.

        Raises:
            StorageError: the disk.
        """
        self._done[step] = result
        body = {"format": _FORMAT, "version": _VERSION, "key": self._key, "done": self._done}
        try:
            write_document(self._path, body)
        except OSError as exc:
            raise StorageError(f"{self._path}: {exc.strerror}") from exc
        return result

    def forget(self) -> None:
        """Remove the state of a finished job: the next run starts again. Idempotent."""
        self._done = {}
        if os.path.lexists(self._path):
            os.remove(self._path)


def local_folder(path: str) -> str:
    """Return the folder of a path or a ``file:`` URL.

    Raises ``UsageError`` for the URL of another file system: a job keeps its state in the folder.
    """
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return path
    if scheme != "file":
        raise UsageError(
            f"{path!r}: expected a folder that all machines see, or a file: URL of one"
        )
    return rest if not rest.startswith("//") else "/" + rest[2:].partition("/")[2]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value
