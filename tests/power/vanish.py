"""Processes that vanish while their threads are at work: is what they did what was recorded?

Run as ``python -m power.vanish {"times": n}`` under the recorder; prints how often it was not.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from power.disk import Disk, parse, read_back
from power.record import start, wait
from power.shim import Shim, scratch


def _busy(root: Path, at_work: threading.Barrier) -> None:
    for number in itertools.count():
        if number == 20:
            at_work.wait()
        os.close(os.open(root / f"{threading.get_ident()}-{number}", os.O_CREAT | os.O_WRONLY))


def _main(shim: Shim, root: Path, trace: Path) -> None:
    shim.start(str(root), str(trace))
    at_work = threading.Barrier(3)
    for _ in range(2):
        threading.Thread(target=_busy, args=(root, at_work), daemon=True).start()
    at_work.wait()
    os.listdir(root)  # gives way to them


def _differs(shim: Shim, folder: Path) -> bool:
    root, trace = folder / "root", folder / "trace"
    root.mkdir(0o700)
    if wait(start(lambda: _main(shim, root, trace))):
        raise RuntimeError("the child failed")
    model = Disk()
    for event in parse(trace.read_bytes()):
        model.feed(event)
    return set(model.root.now) != set(read_back(str(root)))


def main() -> None:
    """See the module's docstring."""
    shim = Shim()
    found = 0
    times = json.loads(sys.argv[1])["times"]
    for _ in range(times):
        folder = Path(tempfile.mkdtemp(dir=scratch(), prefix="lodeq-power-"))
        found += _differs(shim, folder)
        shutil.rmtree(folder)
    sys.stdout.write(json.dumps({"times": times, "differs": found}) + "\n")


if __name__ == "__main__":
    main()
