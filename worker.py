"""Workers: functions that become tasks, and what runs them. See docs/worker.md.

::

    from lodeq.worker import App

    app = App("var/jobs")

    @app.task("mail", retry=lodeq.Backoff(base=10), timeout=60, rate="100/m")
    async def send(to: str) -> None: ...

    async with app, app.work():
        await send.options(delay=60).enqueue("a@example.org")

A module of its own, imported by those who use it: the engine does without.
"""

from .service.worker.app import App
from .service.worker.drain import DrainReport
from .service.worker.run.context import Context, Running, current
from .service.worker.run.control import Bury, Cancel, Control, Retry, Snooze
from .service.worker.run.functions import BoundTask, TaskFunction
from .service.worker.run.loop_guard import ChildExitError
from .service.worker.run.provided import FROM_SETUP
from .service.worker.run.receipt import JobReceipt
from .service.worker.run.task_run import CallNext, Middleware
from .service.worker.worker import Worker

__all__ = [
    "FROM_SETUP",
    "App",
    "BoundTask",
    "Bury",
    "CallNext",
    "Cancel",
    "ChildExitError",
    "Context",
    "Control",
    "DrainReport",
    "JobReceipt",
    "Middleware",
    "Retry",
    "Running",
    "Snooze",
    "TaskFunction",
    "Worker",
    "current",
]
