"""``metrics``: the files that come with the metrics."""

from __future__ import annotations

from importlib.resources import files

import click

__all__ = ["metrics"]

_FILES = {"dashboard": "grafana.json", "alerts": "alerts.yml"}


@click.command()
@click.argument("what", type=click.Choice(sorted(_FILES)))
def metrics(what: str) -> None:
    """Print the dashboard for Grafana, or the alert rules for Prometheus."""
    root = files(__package__.partition(".")[0]) / "service" / "metrics"
    click.echo((root / _FILES[what]).read_text("utf-8"), nl=False)
