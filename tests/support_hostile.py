"""Sources that were made to hurt who imports them, and a bound on what reading one may take."""

import os
import sqlite3
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["bounded", "folders", "one_child", "shared_lists"]


@contextmanager
def bounded(*, cpu_s: float, mib: float) -> Iterator[None]:
    """What runs within takes no more of either; tracing alone makes it three times slower."""
    tracemalloc.start()
    before = time.thread_time()
    try:
        yield
        spent, peak = time.thread_time() - before, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert spent < cpu_s, f"{spent:.1f} s of CPU"
    assert peak < mib * (1 << 20), f"{peak >> 20} MiB"


def shared_lists(depth: int) -> bytes:
    """A pickle of a dictionary whose ``tail`` is a list of twice the same list, and so on."""
    made = b"\x80\x04}(\x8c\x04tail"
    made += b"]\x94"
    for level in range(depth):
        made += b"](h%ch%ce\x94" % (level, level)
    return made + b"\x8c\x04headK\x00u."


def one_child(path: Path, table: str, depth: int = 6) -> Path:
    """Make all pages of a table's tree point, 400 times each, at one and the same page."""
    with sqlite3.connect(path) as db:
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        size = db.execute("PRAGMA page_size").fetchone()[0]
    db.close()
    data = bytearray(path.read_bytes())
    pages = len(data) // size
    leaf = bytes(data[(root[0] - 1) * size : root[0] * size])
    for level in range(depth):
        cells = [
            struct.pack(">I", pages + level + 1) + bytes((0x80 | i >> 7, i & 0x7F))
            for i in range(1000, 1400)
        ]
        page = bytearray(size)
        start = size - 6 * len(cells)
        page[:12] = struct.pack(">BHHHBI", 5, 0, len(cells), start, 0, pages + level + 1)
        for i, cell in enumerate(cells):
            at = start + 6 * i
            struct.pack_into(">H", page, 12 + 2 * i, at)
            page[at : at + 6] = cell
        if level == 0:
            data[(root[0] - 1) * size : root[0] * size] = page
            pages -= 1
        else:
            data += page
    data += leaf
    struct.pack_into(">I", data, 28, len(data) // size)
    path.write_bytes(data)
    return path


@contextmanager
def folders(path: Path, depth: int) -> Iterator[None]:
    """One within the other, deeper than a path may be long; gone afterwards.

    Nobody else could remove them: ``shutil.rmtree`` calls itself once a folder.
    """
    path.mkdir(parents=True, exist_ok=True)
    opened = [os.open(path, os.O_RDONLY)]
    try:
        for _ in range(depth):
            os.mkdir("d", dir_fd=opened[-1])
            below = os.open("d", os.O_RDONLY, dir_fd=opened[-1])
            if len(opened) > 1:
                os.close(opened.pop())
            opened.append(below)
        yield
    finally:
        for fd in opened:
            os.close(fd)
        _remove_deep(path)


def _remove_deep(path: Path) -> None:
    """Bring what is within up, folder by folder."""
    top = path / "d"
    while top.exists():
        inner = top / "d"
        if inner.exists():
            inner.rename(path / "below")
        top.rmdir()
        if (path / "below").exists():
            (path / "below").rename(top)
