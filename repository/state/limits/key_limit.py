"""The limit of one queue's keys: which key a task has, and how many of each key are leased."""

from __future__ import annotations

from typing import Final, TypeAlias

from ....engine.records.queues.key_waits import NO_KEY, label_key
from ....engine.records.task import lease_fields, record_face

__all__ = ["KeyLimit", "face_of_record"]

TenantKey: TypeAlias = tuple[bytes, int]
LABELS_ALONE: Final = b"\x93\xa0\xa0"  # how a face without function and preview begins
KEYS_KEPT: Final = 1024


def face_of_record(record: bytes) -> bytes:
    """The face of a task record."""
    _, _, _, _, n_payload, n_face = lease_fields(record)
    return record_face(record, n_payload, n_face) if n_face else b""


class KeyLimit:
    """The limit of one queue: ``n`` leases at once for each key and tenant."""

    __slots__ = ("_keys", "_start", "by_task", "live", "n")

    def __init__(self, n: int, label: str) -> None:
        self.n = n
        self._start = label + "="
        self._keys: dict[bytes, int] = {}  # of faces that are nothing but labels: few, as a rule
        self.live: dict[TenantKey, int] = {}
        self.by_task: dict[bytes, TenantKey] = {}  # of leased tasks

    def key_of(self, face: bytes) -> int:
        """The key of a task with this face; ``NO_KEY``: no limit holds for it."""
        key = self._keys.get(face)
        if key is None:
            key = label_key(face, self._start)
            if face.startswith(LABELS_ALONE):
                if len(self._keys) >= KEYS_KEPT:
                    self._keys.clear()
                self._keys[face] = key
        return key

    def free(self, one: TenantKey) -> int:
        """How many more may be leased now."""
        return self.n - self.live.get(one, 0)

    def enter(self, one: TenantKey, task_id: bytes) -> None:
        """A task of the key is leased."""
        self.by_task[task_id] = one
        self.live[one] = self.live.get(one, 0) + 1

    def leave(self, task_id: bytes) -> int:
        """It is not leased any more; its key, ``NO_KEY`` if it had none."""
        one = self.by_task.pop(task_id, None)
        if one is None:
            return NO_KEY
        left = self.live[one] - 1
        if left:
            self.live[one] = left
        else:
            del self.live[one]
        return one[1]
