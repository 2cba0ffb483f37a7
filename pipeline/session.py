"""Build a Spark session: with a suitable Java and Python, UTC, Arrow, little log, no files left.

Settings that Spark reads when its Java process starts are fixed by the first session of a process.
Later sessions share that process, and only their SQL settings can differ.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..errors import UsageError
from .java import find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PYSPARK_MIN", "build_session", "check_libraries", "text_of_spark"]

PYSPARK_MIN: Final = (4, 2)
_SQL: Final[Mapping[str, str | int | bool]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": True,
    "spark.sql.python.filterPushdown.enabled": True,
}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_QUIET: Final = """\
rootLogger.level = error
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def build_session(
    master: str | None = "local[2]", app: str = "lodeq", **conf: str | int | bool
) -> SparkSession:
    """Build a session with ``format("lodeq")`` registered and filter pushdown enabled.

    ::

        spark = build_session("local[4]", **{"spark.sql.shuffle.partitions": 8})

    Args:
        master: Spark's: ``local[N]`` runs N tasks at a time on this machine. None: for
            ``spark-submit``, which sets the master; its settings take precedence over ours.
        app: name of the application, unless ``spark-submit`` has one.
        conf: settings of Spark by name; they take precedence over ours.

    Raises:
        UsageError: Spark, a library or a Java is missing, or Spark did not start.

    With a ``master`` it sets ``JAVA_HOME`` and, unless they are set, ``PYSPARK_PYTHON`` and
    ``PYSPARK_DRIVER_PYTHON`` in this process. Temporary files are removed with the process.

    **Durability.** Nothing is written.
    **Cancellation.** It blocks, for seconds where Java must be started.
    """
    check_libraries()
    from py4j.protocol import (  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra
        Py4JError,
    )
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    from .datasource.source import PushingSource  # noqa: PLC0415 - imports Spark

    ours: Mapping[str, str | int | bool]
    try:
        if SparkSession.getActiveSession() is not None:
            ours = {"spark.sql.python.filterPushdown.enabled": "true"}
        elif master is None:
            ours = _missing_settings()
        else:
            ours = _prepare(master)
            if options := conf.get(_JAVA_OPTIONS):
                conf[_JAVA_OPTIONS] = f"{ours[_JAVA_OPTIONS]} {options}"
        builder = SparkSession.builder.appName(app)
        if master is not None:
            builder = builder.master(master)
        for name, value in {**ours, **conf}.items():
            builder = builder.config(name, value if isinstance(value, str) else str(value).lower())
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as exc:
        why = text_of_spark(exc).partition("\n")[0]
        raise UsageError(f"Spark did not start: {why}; see the output of Java above") from exc
    spark.dataSource.register(PushingSource)
    return spark


def check_libraries() -> None:
    """Raise ``UsageError`` with the install command if a library is missing or too old."""
    for name in ("numpy", "pyarrow", "pandas", "pyspark"):
        try:
            found = importlib.import_module(name)
        except ImportError as exc:
            raise UsageError(
                f'the pipeline needs {name}: pip install "lodeq[spark]" ({exc})'
            ) from exc
    major, minor = (int(part) for part in found.__version__.split(".")[:2])
    if (major, minor) < PYSPARK_MIN:
        raise UsageError(
            f"the pipeline needs pyspark {PYSPARK_MIN[0]}.{PYSPARK_MIN[1]} or newer, not "
            f'{found.__version__}: pip install "lodeq[spark]"'
        )


def text_of_spark(exc: Exception) -> str:
    """Return what went wrong, in Spark's words.

    An exception of its Java process that pyspark has no class for begins with the call's number.
    """
    text = str(exc)
    return text.partition("\n: ")[2] if text.startswith("An error occurred while calling") else text


_java = functools.cache(find_java)


@functools.cache
def _scratch() -> Path:
    """Make the folder for Spark's temporary files, removed with the process."""
    folder = Path(tempfile.mkdtemp(prefix="lodeq-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _prepare(master: str) -> dict[str, str | int | bool]:
    """Return our settings for a new Java process, and set the environment that it reads."""
    scratch = _scratch()
    os.environ["JAVA_HOME"] = java_home(_java(), scratch)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return _settings(master, scratch)


def _missing_settings() -> dict[str, str | int | bool]:
    """Return our SQL settings that ``spark-submit`` does not set. Starts its context."""
    from pyspark import SparkContext  # noqa: PLC0415 - an extra

    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        raise UsageError("no master is set: run this by spark-submit, or use lodeq-spark")
    said = dict(SparkContext.getOrCreate().getConf().getAll())
    return {name: value for name, value in _SQL.items() if name not in said}


def _settings(master: str, scratch: Path) -> dict[str, str | int | bool]:
    quiet = scratch / "log4j2.properties"
    quiet.write_text(_QUIET, "utf-8")
    ours: dict[str, str | int | bool] = {
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={quiet.as_uri()}",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **_SQL,
        "spark.speculation": False,  # two attempts of one task would stage the same files
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
    }
    if master.startswith("local"):
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return ours
