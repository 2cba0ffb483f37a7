"""The main run, small: loaded, half done, streamed through a kill, archived, resharded, audited.

``LODEQ_SPARK_TASKS`` sets how many tasks it has.
"""

import importlib.util
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lodeq.pipeline.jobs.frame.progress import Progress

TASKS = int(os.environ.get("LODEQ_SPARK_TASKS", "30000"))
DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo_spark.py"


@pytest.mark.timeout(1200)
def test_nothing_is_lost_and_nothing_is_there_twice(spark: SparkSession, tmp_path: Path) -> None:
    found = importlib.util.spec_from_file_location("demo_spark", DEMO)
    assert found is not None
    assert found.loader is not None
    demo = importlib.util.module_from_spec(found)
    found.loader.exec_module(demo)
    said = demo.main(spark, tmp_path, TASKS, Progress())
    assert demo.problems(said, TASKS) == [], said
    page = Path(said["page"]).read_text("utf-8")
    assert page.count("<svg") >= 6
