"""Draws pairs of bars as SVG, without a library, so that the same numbers give the same file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 760, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 58, 40
_HERE_COLOR = "#4269d0"
_SPARK_COLOR = "#9aa0a6"
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
"""Distances of the lines of the scale, in seconds."""
_MOST_LINES = 5


@dataclass(frozen=True)
class Pair:
    """Seconds of a query in both engines."""

    name: str
    """Shown below the bars."""
    spark: float
    """Seconds by Spark alone."""
    here: float
    """Seconds with gpujoin."""


def bars_svg(title: str, subtitle: str, pairs: Sequence[Pair], axis: str) -> str:
    """Draw for each pair a bar of Spark's seconds and one of those with gpujoin beside it.

    ``axis`` says what the names of the pairs are. The background is white: the picture is also seen on dark pages.
    """
    most = max(max(pair.spark, pair.here) for pair in pairs)
    step = next((step for step in _STEPS if most / step <= _MOST_LINES), _STEPS[-1])
    bottom = _HEIGHT - _BOTTOM
    scale = (bottom - _TOP) / most
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    font = 'font-family="system-ui,sans-serif" font-size="12" fill="#1f2328"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {font}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="42" fill="#59636e">{escape(subtitle)}</text>',
        *_lines(step, most, scale, bottom),
        *_bars(pairs, scale, bottom),
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}" fill="#59636e">{escape(axis)}</text>',
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lines(step: float, most: float, scale: float, bottom: int) -> Iterator[str]:
    for number in range(int(most / step) + 1):
        y = bottom - number * step * scale
        yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#d1d9e0"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number * step:g} s</text>'


def _bars(pairs: Sequence[Pair], scale: float, bottom: int) -> Iterator[str]:
    place = (_WIDTH - _LEFT - _RIGHT) / len(pairs)
    width = place * 0.38
    for number, pair in enumerate(pairs):
        left = _LEFT + place * number + place * 0.12
        bars = (("Spark", pair.spark, _SPARK_COLOR), ("gpujoin", pair.here, _HERE_COLOR))
        for side, (engine, seconds, color) in enumerate(bars):
            x, height = left + side * width, seconds * scale
            place_and_size = f'x="{x:.1f}" y="{bottom - height:.1f}" width="{width:.1f}" height="{height:.1f}"'
            tip = f"<title>{escape(pair.name)}, {engine}: {seconds:.2f} s</title>"
            yield f'<rect {place_and_size} fill="{color}">{tip}</rect>'
        yield f'<text x="{left + width:.1f}" y="{bottom + 15}" text-anchor="middle">{escape(pair.name)}</text>'


def _legend() -> Iterator[str]:
    for left, name, color in ((_WIDTH - 160, "Spark", _SPARK_COLOR), (_WIDTH - 90, "gpujoin", _HERE_COLOR)):
        yield f'<rect x="{left}" y="{_HEIGHT - 18}" width="10" height="10" fill="{color}"/>'
        yield f'<text x="{left + 15}" y="{_HEIGHT - 8}">{name}</text>'
