"""``lodeq-spark JOB …``: parses arguments, makes a session, runs the job, prints its report.

Exit codes: 0, done and all checks passed; 1, a check failed; 2, not done, with the reason on
stderr. The report goes to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import LodeqError, UsageError
from .jobs import JOBS
from .jobs.frame.config import add_options, config_from
from .jobs.frame.progress import Progress
from .jobs.frame.report import Report, to_json, to_text
from .session import build_session, check_libraries, text_of_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main", "run_job"]

_ZONE: Final = "spark.sql.session.timeZone"
_INTERRUPTED: Final = 130
_DEST: Final = "job to run"  # no option of a job can be called so


def main(given: Sequence[str] | None = None, *, is_submitted: bool = False) -> int:
    """Run the command line; returns the exit code.

    Args:
        given: arguments; those of the process by default.
        is_submitted: ``spark-submit`` runs it, and sets master and settings.
    """
    arguments = list(sys.argv[1:] if given is None else given)
    try:
        parsed = _parser(arguments, is_submitted).parse_args(arguments)
        name = getattr(parsed, _DEST)
        config = config_from(_module(name).Config, vars(parsed))
        if is_submitted:
            spark = build_session(None)
        else:
            conf = dict(_pair(one) for one in parsed.conf or ())
            spark = build_session(parsed.master, f"lodeq {name}", **conf)
        try:
            progress = Progress(None if parsed.quiet else sys.stderr, spark)
            report = run_job(name, spark, config, progress)
        finally:
            spark.stop()
    except (LodeqError, OSError) as exc:
        sys.stderr.write(f"error: {exc}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: run the same command again, nothing is done twice\n")
        return _INTERRUPTED
    sys.stdout.write(to_json(report) + "\n" if parsed.json else to_text(report))
    return 0 if report.is_ok else 1


def run_job(
    name: str, spark: SparkSession, config: Any, progress: Progress | None = None
) -> Report:
    """Run one of ``JOBS``.

    Args:
        name: of the job.
        spark: the session.
        config: the job's ``Config``.
        progress: prints its steps; by default nothing is printed.

    Raises:
        UsageError: there is no such job, or an option is wrong.
        StorageError: the disk. CorruptionError: its input is damaged.
    """
    from py4j.protocol import (  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
        Py4JError,
    )
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    zone = spark.conf.get(_ZONE) or "UTC"
    spark.conf.set(_ZONE, "UTC")  # the day of a task must not depend on the session
    try:
        report = _module(name).run(spark, config, progress or Progress())
    except (PySparkException, Py4JError) as exc:
        raise _translated(exc) from exc
    finally:
        spark.conf.set(_ZONE, zone)
    if not isinstance(report, Report):
        raise TypeError(f"job {name} returned {report!r}")
    return report


def _translated(exc: Exception) -> LodeqError:
    """Find an error of lodeq in the text that Spark's processes return, behind a traceback."""
    text = text_of_spark(exc)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("lodeq.errors.")]
    if not ours:
        return LodeqError(f"Spark failed: {_gist(text) or type(exc).__name__}")
    kind, _, words = ours[-1].removeprefix("lodeq.errors.").partition(": ")
    from .. import errors  # noqa: PLC0415 - looked up by name

    found = getattr(errors, kind, LodeqError)
    try:
        made = found(words)
    except TypeError:  # its constructor needs more arguments
        made = LodeqError(words)
    return made if isinstance(made, LodeqError) else LodeqError(words)


def _gist(text: str) -> str:
    """Return the last line of the last Python traceback, or the first line without one."""
    _, mark, tail = text.rpartition("Traceback (most recent call last):\n")
    said = [line for line in (tail if mark else text).splitlines() if line.strip()]
    ends = [line for line in said if not line[0].isspace()] if mark else said
    return ends[0].strip() if ends else ""


def _module(name: str) -> Any:
    if name not in JOBS:
        raise UsageError(f"no job {name!r}; jobs: {', '.join(JOBS)}")
    check_libraries()
    return importlib.import_module(f".jobs.{name}", __package__)


def _parser(given: Sequence[str], is_submitted: bool = False) -> argparse.ArgumentParser:
    """Make the parser. Only the given job is imported; others have their line in the help."""
    job = next((one for one in given if one in JOBS), None)
    parser = argparse.ArgumentParser("lodeq-spark", description="Work on the data at large.")
    commands = parser.add_subparsers(dest=_DEST, metavar="JOB", required=True)
    for name, summary in JOBS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name != job:
            continue
        add_options(command, _module(name).Config)
        ours = command.add_argument_group("Spark and output")
        if not is_submitted:
            ours.add_argument("--master", default="local[*]", help="Spark's (default: local[*])")
            ours.add_argument("--conf", action="append", metavar="NAME=VALUE", help="Spark's")
        ours.add_argument("--json", action="store_true", help="the report as JSON")
        ours.add_argument("--quiet", action="store_true", help="do not print progress")
    return parser


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise UsageError(f"--conf: expected spark.NAME=VALUE, got {text!r}")
    return name, value
