"""A worker process with a timetable: it tidies a folder, and reports what it has tidied.

    cd examples && NIGHTLY_FOLDER=/tmp/spool lodeq worker nightly:app      # until SIGTERM

Start as many as you like on a served store (``--store unix://…``): a tick is worked on once.
"""

from __future__ import annotations

import os
from pathlib import Path

from lodeq.worker import App, Retry, current

app = App(os.environ.get("NIGHTLY_STORE", "nightly.store"), grace=10)
FOLDER = Path(os.environ.get("NIGHTLY_FOLDER", "spool"))
KEEP = 3  # files of each kind


@app.cron("30 2 * * *", tz="Europe/Berlin", catch_up=6 * 3600, max_attempts=8)
def tidy() -> int:
    """At half past two; a machine that slept then does it when it wakes, up to six hours later."""
    if not FOLDER.is_dir():
        raise Retry(300, f"{FOLDER} is not mounted")
    kinds = sorted({path.suffix for path in FOLDER.iterdir() if path.is_file()})
    # Enqueued together with the completion of this tick, or not at all.
    current().then(*(remove_old.new(kind) for kind in kinds))
    return len(kinds)


@app.task("files", concurrency=2, timeout=600)
def remove_old(kind: str) -> list[str]:
    """All but the newest files of a kind. Run twice, it does nothing the second time."""
    files = sorted(FOLDER.glob(f"*{kind}"), key=lambda path: path.stat().st_mtime_ns)
    old = files[:-KEEP]
    for path in old:
        path.unlink(missing_ok=True)
    return [path.name for path in old]


@app.cron("0 8 * * 1", tz="Europe/Berlin")
async def report() -> str:
    """On Monday morning: what could not be done, for a human to look at."""
    dead = await app.engine.queue("files").dead_letters()
    lines = [f"{task.payload}: {task.reason}" for task in dead]
    text = "\n".join(lines) or "nothing is left undone"
    print(text, flush=True)
    return text
