"""The page, the dashboard and the alert rules name what there is, and say what to do."""

import json
import re
from pathlib import Path

import pytest
import yaml
from support_cli import run

from lodeq.service.metrics.table import METRICS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "metrics.md").read_text("utf-8")
NAME = re.compile(r"\blodeq_[a-z0-9_]+")
SELECTOR = re.compile(r"(lodeq_[a-z0-9_]+)\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)|\bon \(([^)]*)\)")
OF_TARGETS = {"job", "instance"}  # what Prometheus adds
PARTS = ("_bucket", "_count", "_sum")


def metric_of(name: str):
    for part in PARTS:
        base = METRICS.get(name.removesuffix(part))
        if name.endswith(part) and base is not None and base.kind == "histogram":
            return base
    return METRICS.get(name)


def check(expression: str) -> None:
    names = NAME.findall(expression)
    assert names, expression
    metrics = [metric_of(name) for name in names]
    assert None not in metrics, expression
    known = OF_TARGETS | {"le"} | {label for metric in metrics for label in metric.labels}
    for name, selectors in SELECTOR.findall(expression):
        for label in re.findall(r"(\w+)(?:=~|!~|!=|=)", selectors):
            assert label in OF_TARGETS | set(metric_of(name).labels), expression
    for groups in GROUPING.findall(expression):
        for label in "".join(groups).split(","):
            assert label.strip() in known, expression
    for name in names:
        if metric_of(name).kind == "counter":
            assert re.search(rf"(rate|increase)\({name}\b", expression), expression
    assert expression.count("(") == expression.count(")")


@pytest.fixture(scope="module")
def dashboard():
    return json.loads((ROOT / "service" / "metrics" / "grafana.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def rules():
    text = (ROOT / "service" / "metrics" / "alerts.yml").read_text("utf-8")
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def test_the_dashboard_names_what_there_is(dashboard):
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) >= 15
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels:
        for target in panel["targets"]:
            check(target["expr"])
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert label in target["expr"], target


def test_panels_do_not_overlap(dashboard):
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_what_the_issue_asks_for_is_on_the_dashboard(dashboard):
    text = json.dumps(dashboard)
    for name in (
        "lodeq_commit_seconds_bucket",
        "lodeq_merge_size_bucket",
        "lodeq_wal_written_bytes_total",
        "lodeq_compaction_read_bytes_total",
        "lodeq_compaction_written_bytes_total",
        "lodeq_oldest_ready_age_seconds",
        "lodeq_oldest_lease_age_seconds",
        "lodeq_leases_expired_total",
        "lodeq_duplicates_total",
        "lodeq_reaper_lag_seconds",
        "lodeq_loop_lag_seconds",
        "lodeq_disk_free_bytes",
    ):
        assert name in text, name


def test_alerts_name_what_there_is_and_what_to_do(rules):
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    for rule in rules:
        check(rule["expr"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert f"`{rule['alert']}`" in PAGE


def test_one_of_several_that_ends_is_missed(rules):
    """Its series is gone then: nothing is 0, and ``absent`` sees those of the others."""
    (down,) = (rule["expr"] for rule in rules if rule["alert"] == "LodeqDown")
    assert "last_over_time(lodeq_up[1h]) unless lodeq_up" in down


def test_the_page_says_what_each_alert_means(rules):
    for rule in rules:
        (row,) = re.findall(rf"^\| `{rule['alert']}` \|.*$", PAGE, re.MULTILINE)
        assert all(cell.strip() for cell in row.split("|")[1:-1]), row
        assert row.count("|") == 4, row


def test_the_page_has_every_metric_as_it_is():
    for metric in METRICS.values():
        line = f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.help} |"
        assert line in PAGE, metric.name
    told = set(re.findall(r"^\| `(lodeq_\w+)`", PAGE, re.MULTILINE))
    assert told == set(METRICS)


def test_names_follow_the_conventions():
    for metric in METRICS.values():
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert not re.search(r"_(ms|us|kb|mb|percent)(_total)?$", metric.name)


def test_the_command_prints_them():
    assert json.loads(run("metrics", "dashboard").stdout)["title"] == "lodeq"
    assert yaml.safe_load(run("metrics", "alerts").stdout)["groups"]
