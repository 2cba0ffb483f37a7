"""A job that opens a closed store leaves its journal told."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from support_ingest import publish
from support_spark import make_store, told

import lodeq
from lodeq.engine.bulk.inbox import store_info
from lodeq.pipeline.jobs.frame.ingest_wait import load_checks, wait_for_ingest
from lodeq.pipeline.jobs.frame.snapshot_tables import NEW, open_tables


def test_a_load_that_a_job_takes_in_is_told(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store")
    publish(path, [lodeq.NewTask(n) for n in range(10)])
    info = store_info(path)
    end = wait_for_ingest(info, "j")
    assert all(check.is_ok for check in load_checks(info, "j", end, 10))
    loads = [one.reason for one in told(path) if getattr(one, "kind", None).name == "INGESTED"]
    assert loads
    assert all('"job": "j"' in reason for reason in loads)


def test_a_new_snapshot_knows_how_far_the_journal_is(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store")
    source = open_tables(None, str(path), NEW)
    assert list(source.snapshot.journals) == ["tasks"]
