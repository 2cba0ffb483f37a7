"""Copies of stores that are open."""

import contextlib
import os
import shutil
from typing import Any

__all__ = ["copy_live"]


def copy_live(source: str | os.PathLike[str], target: str | os.PathLike[str], **how: Any) -> None:
    """What a kill at this moment would leave. ``how`` as ``shutil.copytree`` has it.

    RocksDB removes files that it has no use for in the background: they may go meanwhile.
    """

    def copy(one: str, to: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(one, to)

    shutil.copytree(source, target, copy_function=copy, **how)
