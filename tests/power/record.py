"""Traces: a store's lives under the recorder, one after another, in one file.

Between two lives the store was closed, its process died, or the power was cut: then an image takes
its place, and goes into the trace, so that what recovery itself writes is recorded, and cut, too.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from power import disk, work
from power.disk import CONFIG, DIED, MARK, Disk, Event, lay_out, pack, pack_image, parse
from power.shim import Shim

LIFE_S_MAX = 120
SIZES = ((0, 9, 90, 900), (0, 5000), (90, 20_000), (9,))


def settings(seed: int) -> dict[str, Any]:
    """What a trace is about. Modes and shards take turns, the rest is drawn."""
    draw = random.Random(seed)
    return {
        "seed": seed,
        "mode": ("fsync", "nosync")[seed % 2],
        "shards": (1, 4, 1)[seed // 2 % 3],
        "commit_batch_max": draw.choice((1, 4, 64)),
        "interval": draw.choice((0.003, 0.03, 1.0)),
        "sync_max": draw.choice((40, 16_384)),
        "flush_max": draw.choice((50, 150, 32_768)),
        "sync_us": draw.choice((0, 200, 1000)),
        "sizes": draw.choice(SIZES),
        "copies": draw.choice((0, 0, 1)),
        "ops": 120,
        "ends": [*draw.sample(("close", "die", "kill", "cut"), 2), draw.choice(("close", "die"))],
        "body_bytes_min": draw.choice((None, 64, 1000)),
        "journal": draw.choice((None, "tasks")),
    }


def wait(pid: int, seconds: float = LIFE_S_MAX) -> int:
    """How a child ended: minus the signal, or its exit code. One that hangs is killed."""
    fd = os.pidfd_open(pid)
    ready, _, _ = select.select([fd], [], [], seconds)
    os.close(fd)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def start(do: Callable[[], int | None]) -> int:
    """A child that does this and vanishes, whatever happens: nothing of the parent's is undone."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = do() or 0
        except BaseException:  # noqa: BLE001 - its status tells
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def fork(shim: Shim, config: dict, main: Any = work.main) -> int:
    """Run a workload in a child, to its end."""
    return wait(start(lambda: main(shim, config)))


def record(shim: Shim, folder: Path, config: dict[str, Any], main: Any = work.main) -> bytes:
    """One trace. ``folder`` is empty, and is left with the store as it is at the end.

    A life that fails (it may find a store that it must refuse) is the last.
    """
    root, trace = folder / "root", folder / "trace"
    root.mkdir(mode=0o700)
    draw = random.Random(config["seed"] + 1)
    trace.write_bytes(pack(CONFIG, json.dumps(config).encode()))
    for life, end in enumerate(config["ends"]):
        begun = trace.stat().st_size
        status = fork(
            shim,
            {
                **config,
                "seed": draw.randrange(1 << 32),
                "life": life,
                "root": str(root),
                "trace": str(trace),
                "first": life * 100_000,
                "first_op": life * 100_000,
                "end": end,
                "is_torn": draw.random() < 0.5,
                "kill_at": draw.randrange(100, 900) if end == "kill" else 0,
            },
            main,
        )
        if status not in {0, -signal.SIGKILL if end == "kill" else 0}:
            with trace.open("ab") as file:  # the judge takes it from here
                file.write(pack(MARK, json.dumps(["failed", f"life {life}: {status}"]).encode()))
            break
        if end == "cut":
            _cut(root, trace, begun, draw)
        else:
            with trace.open("ab") as file:
                file.write(pack(DIED))
    return trace.read_bytes()


def _cut(root: Path, trace: Path, begun: int, draw: random.Random) -> None:
    """Cut the power somewhere in the last life, and put what is left in the store's place."""
    raw = trace.read_bytes()
    ends = [begun]
    for event in parse(raw[begun:]):
        ends.append(ends[-1] + len(pack(0, event[4])))
    raw = raw[: ends[draw.randrange(len(ends) // 3, len(ends))]]
    model = Disk()
    for event in parse(raw):
        model.feed(event)
    image = model.image(draw.choice(disk.POLICIES), draw)
    shutil.rmtree(root)
    lay_out(image, str(root))
    trace.write_bytes(raw + pack(DIED) + pack_image(image))


def read(raw: bytes) -> tuple[dict, list[Event]]:
    """A trace's settings, and its events."""
    first, *events = parse(raw)
    return json.loads(first[4]), events
