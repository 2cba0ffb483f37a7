"""Costs that must not grow with the contents: passing over a hole, and removing a body file."""

from __future__ import annotations

import os
import random
import time
from functools import partial
from pathlib import Path

from results import Bench, Goal, Result

from lodeq.segments.bodies.files import BodyFiles
from lodeq.segments.bodies.sqs import HEADER, Sqs
from lodeq.segments.item import Hole
from lodeq.segments.source import FileSource

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FILE_BYTES = 16 * MIB
SAME = Goal("ratio", most=1.5)
ONE_READ_MORE = Goal("ratio", most=2.0)


def holed(path: Path, hole_bytes: int) -> None:
    """A record, a hole with nothing in it, a record."""
    codec = Sqs()
    with open(path, "wb") as file:
        file.write(HEADER + codec.encode(bytes(16), b"before"))
        at = file.tell()
        file.write(codec.holes(hole_bytes))
        file.seek(at + hole_bytes)
        file.write(codec.encode(bytes(15) + b"\1", b"behind"))


async def _scans(path: Path, hole_bytes: int, n: int) -> float:
    """Microseconds a scan."""
    codec = Sqs()
    started = time.perf_counter()
    for _ in range(n):
        with FileSource(path) as source:
            _, hole, _ = codec.scan(source)
            if not isinstance(hole, Hole) or hole.size != hole_bytes:
                raise AssertionError(f"{hole} is not the hole")
    return (time.perf_counter() - started) / n * 1e6


async def _removals(folder: Path, body_bytes: int, n: int) -> float:
    """Microseconds to remove a body file full of such bodies: the least of ``n``.

    Its pages are not in memory any more: giving back those of 4,096 writes takes the kernel longer
    than those of one.
    """
    files = BodyFiles.open(str(folder), file_bytes=FILE_BYTES)
    body, took = random.Random(1).randbytes(body_bytes), []
    for _ in range(n):
        number = files.append(bytes(16), body).file
        while files.offset + len(body) + KIB < FILE_BYTES:
            files.append(bytes(16), body)
        files.seal()
        files.sync()
        fd = os.open(files.path(number), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        began = time.perf_counter()
        files.forget(number)
        files.unlink(number)
        took.append((time.perf_counter() - began) * 1e6)
    files.close()
    os.rmdir(folder)
    return min(took)


async def holes(bench: Bench) -> None:
    """A scan over a hole of 1 GiB beside one of 1 KiB; removing 16 MiB of many bodies, or of one.

    What lies behind a hole of 1 KiB was read with its head; behind a longer one it takes a read
    more, however long. The holes are sparse: the disk need not have a gibibyte free.
    """
    n = max(10, int(2000 * bench.scale))
    paths = {size: bench.folder / f"hole-{size}.sqs" for size in (GIB, KIB)}
    for size, path in paths.items():
        holed(path, size)
    runs = await bench.rounds(
        {str(size): partial(_scans, path, size, n) for size, path in paths.items()}
    )
    for path in paths.values():
        path.unlink()
    bench.add(
        Result(
            "passing over a hole",
            {"hole_bytes": GIB},
            "us",
            runs[str(GIB)],
            "a hole of 1 KiB",
            runs[str(KIB)],
            goal=ONE_READ_MORE,
        )
    )
    files = max(1, int(8 * bench.scale))
    sizes = {"many": 4 * KIB, "one": FILE_BYTES - MIB}
    found = await bench.rounds(
        {
            name: partial(_removals, bench.folder / "removals", size, files)
            for name, size in sizes.items()
        }
    )
    bench.add(
        Result(
            "removing a body file",
            {"file_bytes": FILE_BYTES, "bodies": FILE_BYTES // sizes["many"]},
            "us",
            found["many"],
            "a file of one body",
            found["one"],
            goal=SAME,
        )
    )
