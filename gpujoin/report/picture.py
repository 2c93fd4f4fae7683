"""Draws where the time of a query goes: a bar for each way, as SVG, without a library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from gpujoin.report.amounts import show_seconds

_WIDTH = 720
_LEFT = 90
_RIGHT = 70
_BAR = 28
_LINE = 18
_COLUMNS = 3
"""Entries of the legend beside one another."""
SPARK_COLOR = "#9aa0a6"
_COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#9c6b4e")
"""Of Observable's colours for categories (Observable Plot, "observable10")."""


def profile_svg(spark_seconds: float, activities: Mapping[str, float]) -> str:
    """Draw a bar of Spark's seconds, and one of the seconds with gpujoin, divided by activity.

    The last activity is Spark's own part.
    """
    whole = sum(activities.values())
    scale = (_WIDTH - _LEFT - _RIGHT) / (max(spark_seconds, whole) or 1.0)
    colors = dict(zip(activities, (*_COLORS[: len(activities) - 1], SPARK_COLOR), strict=True))
    legend = [name for name, seconds in activities.items() if seconds > 0]
    height = 2 * (_BAR + 14) + 20 + _LINE * -(-len(legend) // _COLUMNS)
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    font = 'font-family="system-ui,sans-serif" font-size="12" fill="currentColor"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {font}>',
        f"<title>seconds: Spark {_seconds(spark_seconds)}, gpujoin {_seconds(whole)}</title>",
        *_bar("Spark", 8, {"Spark alone": spark_seconds}, {"Spark alone": SPARK_COLOR}, scale),
        *_bar("gpujoin", 8 + _BAR + 14, activities, colors, scale),
        *_legend(legend, colors, 2 * (_BAR + 14) + 14),
        "</svg>",
    ]
    return "".join(parts)


def _bar(name: str, top: int, seconds: Mapping[str, float], colors: Mapping[str, str], scale: float) -> Iterator[str]:
    middle = top + _BAR / 2 + 4
    yield f'<text x="{_LEFT - 8}" y="{middle:g}" text-anchor="end">{escape(name)}</text>'
    left = float(_LEFT)
    for part, amount in seconds.items():
        if amount <= 0:
            continue
        title = f"<title>{escape(part)}: {_seconds(amount)} s</title>"
        width = amount * scale
        yield f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colors[part]}">{title}</rect>'
        left += width
    yield f'<text x="{left + 6:.1f}" y="{middle:g}">{_seconds(sum(seconds.values()))} s</text>'


def _legend(names: list[str], colors: Mapping[str, str], top: int) -> Iterator[str]:
    width = (_WIDTH - _LEFT) / _COLUMNS
    for place, name in enumerate(names):
        x, y = _LEFT + width * (place % _COLUMNS), top + _LINE * (place // _COLUMNS)
        yield f'<rect x="{x:.1f}" y="{y}" width="10" height="10" fill="{colors[name]}"/>'
        yield f'<text x="{x + 16:.1f}" y="{y + 9}">{escape(name)}</text>'


def _seconds(seconds: float) -> str:
    return escape(show_seconds(seconds))
