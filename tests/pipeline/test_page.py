"""The examples of docs/pipeline.md run, one after the other, as one script."""

import importlib
import re
import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lodeq.engine.bulk.tables import COLUMNS
from lodeq.pipeline.datasource.encoder import TASK_COLUMNS
from lodeq.pipeline.datasource.events import JOURNAL_SCHEMA
from lodeq.pipeline.datasource.options import OPTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "pipeline.md"
BLOCK = re.compile(r"<!-- runs on spark -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("page", "count"), [("pipeline.md", 4), ("pipeline-jobs.md", 4)])
def test_examples(spark: SparkSession, tmp_path: Path, page: str, count: int) -> None:
    """In the session of all tests, whose Java has another working directory: paths are whole."""
    blocks = BLOCK.findall((DOCS / page).read_text("utf-8"))
    assert len(blocks) == count
    names = r'(?<!run_job\()"(jobs|archive|report|events[.a-z]*)"(?=[,)])'
    code = re.sub(names, rf'"{tmp_path}/\1"', "\n".join(blocks))
    (tmp_path / "example.py").write_text(code, "utf-8")
    assert spark.range(1).count() == 1
    runpy.run_path(str(tmp_path / "example.py"))


@pytest.mark.parametrize("names", [OPTIONS, TASK_COLUMNS, JOURNAL_SCHEMA.names, [*COLUMNS]])
def test_every_name_is_told(names: list[str]) -> None:
    page = PAGE.read_text("utf-8")
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", ["archive", "analytics", "replay", "migrate"])
def test_every_option_of_a_job_is_told(name: str) -> None:
    page = (DOCS / "pipeline-jobs.md").read_text("utf-8")
    options = importlib.import_module(f"lodeq.pipeline.jobs.{name}").Config.__dataclass_fields__
    named = {option.replace("_", "-") for option in options} - {"store"}
    assert [option for option in named if f"--{option}" not in page] == []
