"""FsyncOnCommit really syncs: counted from outside, at the border to the kernel.

A small shared object in front of libc writes down the file of every ``fsync`` and ``fdatasync``.
It is compiled here; without a C compiler ``strace`` does it, and without either the tests are
skipped, saying so. The child syncs an empty file of its own between the stages of its work, so
stages are told apart in one list.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.crash

RECORDER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void note(int fd) {
    const char *path = getenv("LODEQ_SYNCS");
    char link[64], line[4098];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, line + 1, sizeof line - 3);
    int out = path && n > 0 ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (out < 0) return;
    line[0] = '<';
    line[n + 1] = '>';
    line[n + 2] = '\n';
    if (write(out, line, n + 3) != n + 3) abort();
    close(out);
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    note(fd);
    return real(fd);
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    note(fd);
    return real(fd);
}
"""

CHILD = """
import asyncio, os, sys, lodeq

def mark(folder, name):
    with open(os.path.join(folder, name), "w") as file:
        os.fsync(file.fileno())

async def main(folder, mode, durable, tasks):
    async with lodeq.open(folder + "/store", durability=mode, sync_interval=3600.0) as engine:
        queue = engine.queue("q")
        mark(folder, "opened")
        for _ in range(tasks):
            await queue.enqueue(b"x", durable=durable)
        mark(folder, "enqueued")
        for _ in range(tasks):
            (lease,) = await queue.claim()
            await lease.complete(b"y", durable=durable)
        mark(folder, "completed")
        await asyncio.gather(*(queue.enqueue(b"x", durable=durable) for _ in range(1000)))
        mark(folder, "gathered")
    mark(folder, "closed")

folder, mode, durable, tasks = sys.argv[1:]
asyncio.run(main(folder, mode, True if durable == "durable" else None, int(tasks)))
"""
TASKS = 50
Run = Callable[[str, str], dict[str, int]]


def compile_recorder(folder: Path) -> Path | None:
    """The shared object, or None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    source, library = folder / "recorder.c", folder / "recorder.so"
    source.write_text(RECORDER)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60
    )
    return library


def stages(trace: str) -> dict[str, int]:
    """WAL syncs by the stage they came in."""
    counts: dict[str, int] = {}
    current = 0
    for path in re.findall(r"<(/[^>]+)>", trace):
        name = os.path.basename(path)
        if name.endswith(".log"):
            current += 1
        elif name in {"opened", "enqueued", "completed", "gathered", "closed"}:
            counts[name], current = current, 0
    return counts


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the child under whatever can count, and say how often the WAL was synced."""
    trace = tmp_path / "syncs"
    prefix: list[str] = []
    environment = {**os.environ, "LODEQ_SYNCS": str(trace)}
    if library := compile_recorder(tmp_path):
        environment["LD_PRELOAD"] = str(library)
    elif strace := shutil.which("strace"):
        prefix = [strace, "-f", "-y", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
    else:
        pytest.skip("neither a C compiler nor strace: NOBODY HAS COUNTED THE SYNCS")

    def count(mode: str, durable: str) -> dict[str, int]:
        subprocess.run(
            [*prefix, sys.executable, "-c", CHILD, str(tmp_path), mode, durable, str(TASKS)],
            env=environment,
            check=True,
            timeout=120,
        )
        counts = stages(trace.read_text())
        assert list(counts) == ["opened", "enqueued", "completed", "gathered", "closed"]
        return counts

    return count


def test_fsync_on_commit_syncs_for_every_sequential_acknowledgement(run: Run) -> None:
    counts = run("fsync", "-")
    assert counts["enqueued"] >= TASKS
    assert counts["completed"] >= 2 * TASKS  # the claim, the complete


def test_callers_of_one_moment_share_a_sync(run: Run) -> None:
    counts = run("fsync", "-")
    assert 1 <= counts["gathered"] <= 20


def test_nosync_does_not_sync_within_its_interval_and_does_at_close(run: Run) -> None:
    counts = run("nosync", "-")
    assert counts["enqueued"] == counts["completed"] == counts["gathered"] == 0
    assert counts["closed"] >= 1


def test_durable_true_syncs_in_nosync_too(run: Run) -> None:
    counts = run("nosync", "durable")
    assert counts["enqueued"] >= TASKS
    assert counts["completed"] >= TASKS
