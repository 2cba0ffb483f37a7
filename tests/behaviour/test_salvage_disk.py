"""A disk that fails or is full in the middle of a salvage is told as such, whichever call it is."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support_damage import rot

import lodeq
from lodeq.errors import StorageError, StorageFullError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
READING = ("open", "scandir", "listdir", "lstat", "stat")
WRITING = ("mkdir", "rename", "link")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FailingDisk:
    """Notes the calls that name a file of the store, or lets the first of one kind fail."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path, kind: str, code: int) -> None:
        self.seen: dict[str, int] = {}
        self._root, self._kind, self._code = str(root), kind, code
        for name in (*READING, *WRITING):
            patch.setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            path = str(args[0]) if args else ""
            if path.startswith(self._root):
                kind = f"{name} {re.sub('[0-9]+', 'N', path.removeprefix(self._root))}"
                self.seen[kind] = self.seen.get(kind, 0) + 1
                if kind == self._kind and self.seen[kind] == 1:
                    raise OSError(self._code, os.strerror(self._code), path)
            return call(*args, **options)

        return wrapped


async def salvage(
    whole: Path, store: Path, patch: pytest.MonkeyPatch, kind: str, code: int
) -> tuple[set[str], Exception | None]:
    """Open a damaged store; the calls it makes, and its error."""
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(whole, store)
    with patch.context() as patched:
        disk = FailingDisk(patched, store, kind, code)
        try:
            engine = await lodeq.open(store, recovery="salvage", inbox=False)
        except Exception as error:  # noqa: BLE001 - the test says which it may be
            return set(disk.seen), error
    await engine.close()
    return set(disk.seen), None


@pytest.mark.parametrize(
    ("code", "calls", "expected"),
    [(errno.ENOSPC, WRITING, StorageFullError), (errno.EIO, READING + WRITING, StorageError)],
    ids=["full", "failing"],
)
@pytest.mark.anyio
async def test_whichever_call_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    calls: tuple[str, ...],
    expected: type[Exception],
) -> None:
    whole, store = tmp_path / "whole", tmp_path / "store"
    async with lodeq.open(whole, shards=1) as engine:
        await engine.queue("q").enqueue_many([lodeq.NewTask(b"payload" * 40)] * 20)
    rot(whole, b"payload")
    seen, error = await salvage(whole, store, monkeypatch, "", code)
    assert error is None
    kinds = sorted(kind for kind in seen if kind.partition(" ")[0] in calls)
    assert len(kinds) >= 5
    strange = []
    for kind in kinds:
        _, error = await salvage(whole, store, monkeypatch, kind, code)
        if error is not None and not isinstance(error, expected):
            strange.append((kind, repr(error)[:300]))
    assert strange == []
