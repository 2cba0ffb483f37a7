"""Plots as SVG: bars, columns and lines in the colours of the page.

A plotting library would draw pixels in one colour scheme, and be another dependency of every
driver. These plots follow the page's light and dark colours, and show numbers as tooltips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

__all__ = ["bars", "columns", "lines", "shown"]

WIDTH: Final = 720
_HEIGHT: Final = 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 22, 26
_BAR: Final = 18
_LABEL: Final = 200
_TICKS: Final = 4
_POINTS_MAX: Final = 400

Series = Mapping[str, Sequence[float | None]]


def shown(value: float) -> str:
    """Format a number in few characters: 1.2k, 0.034."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def columns(labels: Sequence[str], series: Series, title: str) -> str:
    """Draw stacked columns, one for each label, left to right."""
    labels, series = _tail(labels, series)
    heights = [sum(values[i] or 0 for values in series.values()) for i in range(len(labels))]
    plot = _Frame(labels, max(heights, default=0), series, title)
    step = plot.width / max(len(labels), 1)
    for i, label in enumerate(labels):
        below = 0.0
        for n, (name, values) in enumerate(series.items()):
            value = values[i] or 0
            if value:
                y = plot.y(below + value)
                plot.add(
                    f'<rect class="s{n}" x="{_LEFT + i * step:.1f}" y="{y:.1f}" '
                    f'width="{max(step * 0.85, 0.6):.1f}" height="{plot.y(below) - y:.1f}">'
                    f"<title>{escape(label)}: {escape(name)} {value:,}</title></rect>"
                )
            below += value
    return plot.svg()


def lines(labels: Sequence[str], series: Series, title: str) -> str:
    """Draw a line for each series, with gaps where there is no number."""
    labels, series = _tail(labels, series)
    top = max((value for values in series.values() for value in values if value), default=0)
    plot = _Frame(labels, top, series, title)
    step = plot.width / max(len(labels), 1)
    for n, (name, values) in enumerate(series.items()):
        pen = "M"
        path = []
        for i, value in enumerate(values):
            if value is None:
                pen = "M"
                continue
            x, y = _LEFT + (i + 0.5) * step, plot.y(value)
            path.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
            plot.add(
                f'<circle class="s{n}" cx="{x:.1f}" cy="{y:.1f}" r="2.5">'
                f"<title>{escape(labels[i])}: {escape(name)} {shown(value)}</title></circle>"
            )
        plot.add(f'<path class="l{n}" d="{" ".join(path)}"/>')
    return plot.svg()


def bars(labels: Sequence[str], series: Series, title: str) -> str:
    """Draw bars, one group for each label, top to bottom."""
    group = _BAR * len(series) + 8
    height = _TOP + group * len(labels) + 8
    top = max((value for values in series.values() for value in values if value), default=0) or 1
    width = WIDTH - _LABEL - 90
    body = [_legend(series)]
    for i, label in enumerate(labels):
        y = _TOP + i * group
        middle = y + (group - 8) / 2 + 4
        body.append(
            f'<text class="end" x="{_LABEL - 8}" y="{middle:.1f}">{escape(label[:32])}</text>'
        )
        for n, values in enumerate(series.values()):
            value = values[i] or 0
            size, at = value / top * width, y + n * _BAR
            body.append(
                f'<rect class="s{n}" x="{_LABEL}" y="{at}" width="{size:.1f}" '
                f'height="{_BAR - 3}"/><text x="{_LABEL + size + 6:.1f}" y="{at + 12}">'
                f"{shown(value)}</text>"
            )
    return _svg(height, title, body)


def _tail(labels: Sequence[str], series: Series) -> tuple[Sequence[str], Series]:
    """Keep the last points, if there are more than a plot can show."""
    return labels[-_POINTS_MAX:], {name: v[-_POINTS_MAX:] for name, v in series.items()}


class _Frame:
    """Axes from 0 up to ``top``; labels below the first, the middle and the last point."""

    def __init__(self, labels: Sequence[str], top: float, series: Series, title: str) -> None:
        self.width = WIDTH - _LEFT - _RIGHT
        self._top = top or 1
        self._title = title
        self._body = [_legend(series)]
        for tick in range(_TICKS + 1):
            value = self._top * tick / _TICKS
            y = self.y(value)
            self.add(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
            self.add(f'<text class="end" x="{_LEFT - 6}" y="{y + 4:.1f}">{shown(value)}</text>')
        for i in sorted({0, len(labels) // 2, len(labels) - 1}) if labels else ():
            x = _LEFT + (i + 0.5) * self.width / len(labels)
            anchor = "end" if i == len(labels) - 1 and i else "mid" if i else "start"
            self.add(
                f'<text class="{anchor}" x="{x:.1f}" y="{_HEIGHT - 8}">{escape(labels[i])}</text>'
            )

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        return _HEIGHT - _BOTTOM - value / self._top * (_HEIGHT - _TOP - _BOTTOM)

    def add(self, part: str) -> None:
        """Add a part of the SVG."""
        self._body.append(part)

    def svg(self) -> str:
        """Return the whole SVG."""
        return _svg(_HEIGHT, self._title, self._body)


def _legend(series: Series) -> str:
    x, parts = _LEFT, []
    for n, name in enumerate(series):
        parts.append(f'<rect class="s{n}" x="{x}" y="3" width="10" height="10"/>')
        parts.append(f'<text x="{x + 14}" y="12">{escape(name)}</text>')
        x += 30 + 7 * len(name)
    return "".join(parts)


def _svg(height: float, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'
    )
