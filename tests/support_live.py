"""Copies of stores that are open."""

import os
import shutil
from pathlib import Path
from typing import Any

__all__ = ["copy_live"]


def copy_live(source: str | os.PathLike[str], target: str | os.PathLike[str], **how: Any) -> None:
    """What a kill at this moment would leave. ``how`` as ``shutil.copytree`` has it.

    RocksDB makes and removes files in the background: where it did, the copy is made again.
    """
    while True:
        before = sorted(Path(source).rglob("*"))
        try:
            shutil.copytree(source, target, **how)
        except shutil.Error:  # files that have gone meanwhile
            pass
        else:
            if before == sorted(Path(source).rglob("*")):
                return
        shutil.rmtree(target, ignore_errors=True)
