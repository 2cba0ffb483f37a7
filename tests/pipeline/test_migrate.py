"""Several sources of another system become tasks at once, in order, once."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support_import import HUEY, database, ledgerq, message, run_import, tasks_of
from support_jobs import job, live, refuse

import lodeq
from lodeq.errors import UsageError

COUNT = 40


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    home = tmp_path_factory.mktemp("sources")
    return [
        str(
            ledgerq(
                home / f"part{part}", [message(n, b"%d:%d" % (part, n)) for n in range(1, COUNT)]
            )
        )
        for part in range(2)
    ]


def make_store(path: Path) -> Path:
    async def nothing(engine: lodeq.Engine) -> None:
        await engine.fsync()

    live(path, nothing)
    return path


def test_sources_come_in_at_once_and_once(
    spark: SparkSession, sources: list[str], tmp_path: Path
) -> None:
    store = make_store(tmp_path / "store")
    given = {"store": store, "kind": "ledgerq", "source": tuple(sources), "queue": "mail"}
    report = job(spark, "migrate", job="m1", out=tmp_path / "aside", **given)
    assert report.is_ok, report
    assert (report.read, report.staged, report.loaded) == (2 * (COUNT - 1),) * 3
    assert (report.reasons, report.aside) == ((), None)
    payloads = [bytes(task.payload) for task in tasks_of(store)]
    expected = {b"%d:%d" % (part, n) for part in range(2) for n in range(1, COUNT)}
    assert set(payloads) == expected
    for part in (b"0", b"1"):
        numbers = [int(one[2:]) for one in payloads if one[:1] == part]
        assert numbers == sorted(numbers)
    again = job(spark, "migrate", job="m1", out=tmp_path / "aside", **given)
    assert (again.is_ok, again.loaded) == (True, report.loaded)
    other = job(spark, "migrate", job="m2", out=tmp_path / "aside", **given)
    assert (other.is_ok, other.loaded, other.skipped) == (True, 0, report.loaded)
    assert run_import("ledgerq", Path(sources[0]), store).imported == 0  # it knows the keys
    assert len(tasks_of(store)) == len(expected)


def test_a_load_that_was_refused_comes_in_the_next_time(
    spark: SparkSession, sources: list[str], tmp_path: Path
) -> None:
    store = make_store(tmp_path / "store")
    refuse(store, "m3")
    report = job(
        spark,
        "migrate",
        job="m3",
        out=tmp_path / "aside",
        store=store,
        kind="ledgerq",
        source=tuple(sources),
        queue="mail",
    )
    assert (report.is_ok, report.loaded) == (True, 2 * (COUNT - 1))


@pytest.mark.parametrize("shards", [1, 4])
def test_order_holds_and_what_is_no_task_is_set_aside(
    spark: SparkSession, tmp_path: Path, shards: int
) -> None:
    big = b"x" * (3 << 20) + b"y"
    rows = [("mail", b"%d" % n, 0.0) for n in range(30)] + [("mail", big, 0.0)]
    source = database(
        tmp_path / "huey.db",
        *HUEY,
        *(("insert into task (queue, data, priority) values (?, ?, ?)", row) for row in rows),
    )
    store = tmp_path / "store"
    live(store, lambda engine: engine.fsync(), shards=shards)
    report = job(
        spark,
        "migrate",
        store=store,
        kind="huey",
        source=(str(source),),
        job="huey",
        out=tmp_path / "aside",
    )
    assert report.is_ok, report
    assert (report.read, report.staged, report.loaded) == (31, 30, 30)
    assert [(one.why, one.entries) for one in report.reasons] == [
        ("its payload is above 3,145,728 bytes: `lodeq import` may take it", 1)
    ]
    (aside,) = spark.read.parquet(report.aside).collect()
    assert bytes(aside["payload"]) == big
    assert [bytes(task.payload) for task in tasks_of(store)] == [b"%d" % n for n in range(30)]


def test_an_entry_that_no_task_can_be_does_not_keep_the_others_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As with ``lodeq import``. One such row, and nothing of a million came over."""
    year_s = 365 * 86_400
    times = (4e9, 100 * year_s, 5000.0 * year_s, 20_000.0 * year_s, 1e18)
    add = "insert into schedule (queue, data, timestamp) values (?, ?, ?)"
    source = database(
        tmp_path / "huey.db",
        *HUEY,
        *((add, ("mail", b"%d" % n, at)) for n, at in enumerate(times)),
    )
    imported = run_import("huey", source, make_store(tmp_path / "other"))
    report = job(
        spark,
        "migrate",
        store=make_store(tmp_path / "store"),
        kind="huey",
        source=(str(source),),
        job="huey",
        out=tmp_path / "aside",
    )
    assert report.is_ok, report
    assert (report.read, report.loaded) == (len(times), imported.imported)
    assert sum(one.entries for one in report.reasons) == imported.unreadables > 0


def test_what_it_is_told_is_checked_before_anything_is_read(
    spark: SparkSession, sources: list[str], tmp_path: Path
) -> None:
    store = make_store(tmp_path / "store")
    given = {"store": store, "kind": "ledgerq", "job": "m", "out": tmp_path}
    with pytest.raises(UsageError, match="given twice"):
        job(spark, "migrate", source=(sources[0], f"{sources[0]}/."), **given)
    with pytest.raises(UsageError, match="does not exist"):
        job(spark, "migrate", source=(str(tmp_path / "none"),), **given)
    with pytest.raises(UsageError, match="job 'a/b' is not valid"):
        job(spark, "migrate", **{**given, "source": tuple(sources), "job": "a/b"})
    assert not (store / "inbox").exists()
