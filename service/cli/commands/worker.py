"""``lodeq worker``: runs the task functions of an app until a signal stops it."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import anyio
import click

from ....errors import AccessDeniedError, LodeqError, StorePathError, UsageError
from ...shared.garbage_collector import settle_collector
from ...shared.open_files import allow_files
from ..connection import check_store, checked_store, is_url, told_what_to_do
from ..lingering import BoundedEnd
from ..reload import supervise

if TYPE_CHECKING:
    from ...worker.app import App

__all__ = ["load_app", "worker"]

LEFT_BEHIND = 1


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--queue", "-q", "queues", multiple=True, help="Only this queue; may be repeated.")
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 10_000),
    help="Tasks that run at once in each queue.",
)
@click.option("--grace", type=click.FloatRange(0), help="Seconds that running tasks have to end.")
@click.option("--store", help="A folder or an address, instead of the app's.")
@click.option("--create", is_flag=True, help="Make the folder of --store if it holds no store.")
@click.option(
    "--loop", type=click.Choice(["asyncio", "trio"]), default="asyncio", show_default=True
)
@click.option("--quiet", is_flag=True, help="Log warnings only.")
@click.option("--verbose", "-v", is_flag=True, help="Log the end of every run.")
@click.option("--reload", is_flag=True, help="Start again when a .py file below here changes.")
def worker(
    target: str,
    queues: tuple[str, ...],
    concurrency: int | None,
    grace: float | None,
    store: str | None,
    create: bool,
    loop: str,
    quiet: bool,
    verbose: bool,
    reload: bool,
) -> None:
    """Work for APP, a lodeq.worker.App in MODULE, until SIGTERM or SIGINT.

    Then no task is claimed any more; running ones may end within --grace; the rest is released, and
    the attempt does not count. A second signal ends the wait. Exit code 1: something had to be left
    behind.

    Args:
        target: ``MODULE:APP``.
        queues: work for these queues only; empty: for all of the app.
        concurrency: runs at once in each queue, 1 to 10,000; None: the app's.
        grace: seconds that running tasks have to end; None: the app's.
        store: a folder or an address instead of the app's.
        create: a folder of ``store`` may be new.
        loop: the event loop to run on.
        quiet: log warnings only.
        verbose: log the end of every run.
        reload: run in a child that is started again when a source file changes.
    """
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for noisy in ("httpx", "httpcore"):  # a line for every request
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if reload:
        arguments = [one for one in sys.argv[1:] if one != "--reload"]
        raise SystemExit(supervise(arguments, Path.cwd()))
    if verbose:
        logging.getLogger("lodeq.worker").setLevel(logging.DEBUG)
    allow_files()
    app = load_app(target)
    if store is not None:
        app.store = checked_store(store)
        if not create and not is_url(store):
            _check_there(store)
    elif create:
        raise UsageError(
            "--create is for --store: the app's own folder is made where it is missing"
        )
    app.use_token(os.environ.get("LODEQ_TOKEN"))
    options: dict[str, Any] = {
        "queues": list(queues) or None,
        "concurrency": concurrency,
        "grace": grace,
    }

    def opened() -> None:  # and served: who reads this can reach the store
        settle_collector()
        fields = {"event": "worker_loaded", "worker": app.name, "target": target}
        log = logging.getLogger("lodeq.worker")
        log.info("worker %r of %r", app.name, target, extra=fields)
        for line in app.banner(options["queues"]):
            log.info("%s", line, extra=fields)

    async def main() -> None:
        try:
            await app.run(**options, opened=opened, leave=_leave)
        finally:
            end.begin()

    from ...worker.run.loop_guard import lasting_loop  # noqa: PLC0415 - only this command needs it

    own = {"loop_factory": lasting_loop} if loop == "asyncio" else None
    try:
        with told_what_to_do("work for it there: --store {url}"), BoundedEnd(_leave) as end:
            anyio.run(main, backend=loop, backend_options=own)
    except AccessDeniedError as exc:
        raise AccessDeniedError(
            f"{exc}; a worker takes it from LODEQ_TOKEN, or App(token=…)"
        ) from exc


def _check_there(store: str) -> None:
    """Refuse a folder without a store: a misspelt one would be a new store, with no task in it."""
    try:
        check_store(store)
    except StorePathError as exc:
        text = str(exc).replace("create it with 'lodeq init'", "add --create, which makes it")
        raise StorePathError(text) from exc


def load_app(target: str) -> App:
    """Import the app that ``module:attribute`` names; the current folder comes first."""
    from ...worker.app import App  # noqa: PLC0415 - only this command needs it

    module, _, path = target.partition(":")
    if not module or not path:
        raise UsageError(f"expected package.module:app, got {target!r}")
    if os.sep in module or module.endswith(".py"):
        file = PurePath(module).with_suffix("")
        folder = f", in the folder {file.parent}" if file.is_absolute() else ""
        meant = file.name if file.is_absolute() else ".".join(file.parts)
        raise UsageError(f"expected a module, not a file: {meant}:{path}{folder}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken(module, error) from error  # something that the module itself needs
        raise UsageError(f"no module {module!r} in the current folder or installed") from error
    except (Exception, SystemExit) as error:  # a script that parses its arguments, say
        raise _broken(module, error) from error
    at = module
    for name in path.split("."):
        try:
            found, at = getattr(found, name), f"{at}.{name}"
        except AttributeError as error:
            raise UsageError(_no_name(at, name, found, App)) from error
        except LodeqError:
            raise
        except Exception as error:  # of a module's ``__getattr__``, or a property
            raise _broken(f"{at}.{name}", error) from error
    if not isinstance(found, App):
        raise UsageError(f"expected a lodeq.worker.App at {target!r}, got {type(found).__name__}")
    return found


def _no_name(at: str, name: str, owner: Any, kind: type) -> str:
    names = getattr(owner, "__dict__", {})
    apps = [known for known, value in names.items() if isinstance(value, kind)]
    if not apps:
        return f"{at} has no {name!r}, and no lodeq.worker.App at all"
    return f"{at} has no {name!r}: the app there is {' or '.join(f'{at}:{one}' for one in apps)}"


def _broken(module: str, error: BaseException) -> UsageError:
    """The module fails at its import: what it says, and the last line of its own that did it."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}"
        return UsageError(
            f"{module} cannot be imported: {type(error).__name__}: {error.msg} ({where})"
        )
    here, libraries = os.getcwd(), (sys.prefix, sys.base_prefix)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(here) and not frame.filename.startswith(libraries)
    ]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return UsageError(f"{module} cannot be imported: {type(error).__name__}: {error}{where}")


def _leave() -> None:
    """End the process although a thread still runs; everything else is closed by now."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(LEFT_BEHIND)
