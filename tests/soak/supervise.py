"""Both processes of a soak, from outside: what they tell, and the one that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from soak.book import Book, BrokenError

TESTS = Path(__file__).resolve().parent.parent
NUMBERS = 1 << 32  # of tasks, a life
OPEN_S_MAX = 60.0


def start(module: str, config: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A child that tells through its standard output."""
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", module, json.dumps(config)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )


class Killer(threading.Thread):
    """Starts the child, lets it work, kills it, and holds what it finds to what it had told."""

    def __init__(self, config: dict[str, Any], *, kill_s: tuple[float, float]) -> None:
        super().__init__(daemon=True)
        self.config = config
        self.kill_s = kill_s
        self.book = Book()
        self.random = random.Random(config["seed"])
        self.child: subprocess.Popen[bytes] | None = None
        self.stop = threading.Event()
        self.broken = ""
        self.kills = self.looks = 0
        self.open_ms_max = 0

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.life()
            self.life(only_look=True)
        except BrokenError as error:
            self.broken = f"life {self.kills}: {error}"
        except Exception as error:  # noqa: BLE001 - told, whatever it is
            self.broken = f"life {self.kills}: {error!r}"

    def finish(self) -> None:
        """No further life but the one that looks. Waits for it."""
        self.stop.set()
        if self.child is not None:
            self.child.kill()
        self.join(3 * OPEN_S_MAX)

    def life(self, *, only_look: bool = False) -> None:
        """One process, from its start to its SIGKILL. One in ten is killed while it opens."""
        draw = self.random
        # Every mode has to bear every other's store.
        mode = draw.choice(("nosync", "fsync"))
        config = {**self.config, "mode": mode, "first": 1 + self.kills * NUMBERS}
        child = start("soak.killed", {**config, "seed": draw.randrange(1 << 32)})
        self.child = child
        is_short = not only_look and draw.random() < 0.1
        timer = threading.Timer(draw.uniform(0.1, 0.6) if is_short else OPEN_S_MAX, child.kill)
        timer.start()
        looked = False
        try:
            for line in child.stdout or ():
                if not line.endswith(b"\n"):
                    break  # cut off by its death: never told
                what, _, rest = line.partition(b" ")
                if what != b"look":
                    self.book.take(what.decode(), int(rest))
                    continue
                looked = True
                self.look(*json.loads(rest))
                timer.cancel()
                timer = threading.Timer(0 if only_look else draw.uniform(*self.kill_s), child.kill)
                timer.start()
            status = child.wait(60)
        finally:
            timer.cancel()
            child.kill()
            child.communicate()
        self.kills += 1
        if status != -signal.SIGKILL:
            raise BrokenError(f"a child ended by itself, with {status}")
        is_short |= self.stop.is_set() and not only_look
        if not looked and not is_short:
            raise BrokenError(f"not open after {OPEN_S_MAX:g} s")

    def look(self, took_ms: int, found: list[int], findings: list[str]) -> None:
        if findings:
            raise BrokenError(f"verify: {findings}")
        self.looks += 1
        self.open_ms_max = max(self.open_ms_max, took_ms)
        self.book.look(found)


def soak(folder: Path, config: dict[str, Any], *, kill_s: tuple[float, float]) -> dict[str, Any]:
    """Run it; samples, final counts, and what broke."""
    killer = Killer(
        {
            "path": str(folder / "killed"),
            "seed": config["seed"],
            "pace": config["pace"] / 4,
            "burst_s": config["burst_s"],
        },
        kill_s=kill_s,
    )
    steady = start("soak.steady", {**config, "path": str(folder / "steady")})
    killer.start()
    samples: list[dict[str, Any]] = []
    final: dict[str, Any] = {}
    broken = []
    try:
        assert steady.stdout is not None
        with steady.stdout as told:
            for line in told:
                sample = json.loads(line)
                if "broken" in sample:
                    broken.append(f"steady: {sample['broken']}")
                elif "final" in sample:
                    final = sample
                else:
                    samples.append(sample)
        status = steady.wait(60)
        if status and not broken:
            broken.append(f"steady: ended with {status}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            steady.kill()
        steady.wait()
        killer.finish()
    if killer.is_alive():
        broken.append("the killer does not end")
    if killer.broken:
        broken.append(f"killed: {killer.broken}")
    return {
        "samples": samples,
        "final": final,
        "broken": broken,
        "kills": killer.kills,
        "looks": killer.looks,
        "kept": len(killer.book.state),
        "acked": killer.book.acked,
        "delivered": killer.book.delivered,
        "open_ms_max": killer.open_ms_max,
        "ended_at": time.monotonic(),
    }
