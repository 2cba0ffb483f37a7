"""The same jobs on a standalone master with two workers: processes that share nothing but files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support_cluster import cluster
from support_jobs import make_worked

BOUND_S = 400  # six Java processes
ROOT = Path(__file__).parents[2]
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.cores.max": "2",
    "spark.driver.extraJavaOptions": SMALL,
    "spark.executor.extraJavaOptions": SMALL,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}

DRIVER = """
import json, os, sys
from lodeq.pipeline import build_session
from lodeq.pipeline.cli import run_job
from lodeq.pipeline.jobs import audit, backfill, reshard

def main(settings, master, store, rows, other, bad):
    spark = build_session(master, **json.loads(settings))
    places = spark.sparkContext.parallelize(range(8), 8).map(lambda n: os.getcwd()).collect()
    load = backfill.Config(store=store, input=(rows,), format="json", job="c-1", out=bad,
                           snapshot="none")
    done = [
        run_job("backfill", spark, load),
        run_job("audit", spark, audit.Config(store=store, snapshot="new")),
        run_job("reshard", spark, reshard.Config(store=store, out=other, shards=3)),
    ]
    spark.stop()
    print(json.dumps({"executors": len(set(places)), "ok": [one.is_ok for one in done],
                      "loaded": done[0].loaded, "tasks": done[2].rows["t"]}))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.timeout(BOUND_S + 120)
def test_jobs_on_a_cluster(tmp_path: Path) -> None:
    store, rows = make_worked(tmp_path / "store"), tmp_path / "in.json"
    lines = [json.dumps({"queue": "mail", "payload": f"p{n}"}) for n in range(50)]
    rows.write_text("\n".join(lines), "utf-8")
    with cluster(tmp_path) as (master, environ):
        given = (json.dumps(SETTINGS), master, store, rows, tmp_path / "other", tmp_path / "bad")
        said = json.loads(_run([sys.executable, "-c", DRIVER, *map(str, given)], environ))
        assert said["executors"] == 2
        assert said["ok"] == [True] * 3
        assert (said["loaded"], said["tasks"]) == (50, 50 + 14 + 6)
        _submit(tmp_path, store, master, environ)


def _submit(folder: Path, store: Path, master: str, environ: dict[str, str]) -> None:
    """``spark-submit`` says what runs where, and its settings hold."""
    before = _applications(folder)
    events = folder / "events"
    events.mkdir()
    conf = SETTINGS | {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
    report = json.loads(
        _run(
            [
                str(Path(environ["SPARK_HOME"], "bin", "spark-submit")),
                "--master",
                master,
                *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
                str(ROOT / "pipeline" / "submit.py"),
                "audit",
                str(store),
                "--snapshot",
                "new",
                "--json",
                "--quiet",
            ],
            environ,
        )
    )
    assert report["ok"], report
    assert len(_applications(folder) - before) == 1
    assert list(events.iterdir())


def _applications(folder: Path) -> set[str]:
    """What the workers have run something of."""
    return {path.name for path in folder.glob("worker*/app-*")}


def _run(command: list[str], environ: dict[str, str]) -> str:
    """What it prints."""
    done = subprocess.run(
        command,
        env=environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
