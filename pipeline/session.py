"""A Spark session that works: the right Java and Python, UTC, Arrow, quiet, nothing left behind.

What Spark reads once, when its Java process starts, is fixed by the first session of a process;
a later one shares that process, and only its SQL settings can differ.
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
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..errors import UsageError
from .java import find_java, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PYSPARK_MIN", "build_session", "check_libraries"]

PYSPARK_MIN: Final = (4, 2)
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
    master: str = "local[2]", app: str = "lodeq", **conf: str | int | bool
) -> SparkSession:
    """A session with ``format("lodeq")`` registered and filters handed down to it.

    ::

        spark = build_session("local[4]", **{"spark.sql.shuffle.partitions": 8})

    Args:
        master: Spark's: ``local[N]`` runs N tasks at a time in this machine.
        app: The application's name.
        conf: Spark's settings, by their names; they win over ours.

    Raises:
        UsageError: Spark, a library it needs, or a Java for it is missing, or it did not start.

    Sets ``JAVA_HOME`` and, unless they are set, ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON``
    in this process. Temporary files go with the process.

    **Durability.** Nothing is written.
    **Cancellation.** It blocks, for seconds where Java must be started.
    """
    check_libraries()
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    from .source import PushingSource  # noqa: PLC0415 - imports Spark

    if SparkSession.getActiveSession() is None:
        scratch = _scratch()
        os.environ["JAVA_HOME"] = java_home(_java(), scratch)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            os.environ.setdefault(name, sys.executable)
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        ours = _settings(master, scratch)
        if options := conf.get(_JAVA_OPTIONS):
            conf[_JAVA_OPTIONS] = f"{ours[_JAVA_OPTIONS]} {options}"
    else:
        ours = {"spark.sql.python.filterPushdown.enabled": "true"}
    builder = SparkSession.builder.master(master).appName(app)
    for name, value in (ours | conf).items():
        builder = builder.config(name, value if isinstance(value, str) else str(value).lower())
    try:
        spark = builder.getOrCreate()
    except (PySparkException, OSError) as exc:
        raise UsageError(f"Spark did not start: {exc}; what Java said stands above") from exc
    spark.dataSource.register(PushingSource)
    return spark


def check_libraries() -> None:
    """Raises ``UsageError`` that says what to install, if a library is missing or too old."""
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


_java = functools.cache(find_java)


@functools.cache
def _scratch() -> Path:
    """A folder for all that Spark puts down, gone with the process."""
    folder = Path(tempfile.mkdtemp(prefix="lodeq-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _settings(master: str, scratch: Path) -> dict[str, str | int | bool]:
    quiet = scratch / "log4j2.properties"
    quiet.write_text(_QUIET, "utf-8")
    ours: dict[str, str | int | bool] = {
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={quiet.as_uri()}",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": True,
        "spark.sql.python.filterPushdown.enabled": True,
        "spark.speculation": False,  # two attempts of one task would stage the same files
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
    }
    if master.startswith("local"):
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return ours
