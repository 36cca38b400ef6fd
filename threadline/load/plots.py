"""Lines over time as SVG: axes, a few round numbers on them, a legend, and nothing that needs a script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")  # Okabe and Ito's
_WIDTH, _HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 28, 30
_TICKS = 5
_MOST_POINTS = 600
_LETTER = 6.6  # of the legend's font


def plot(
    title: str,
    unit: str,
    lines: Mapping[str, Points],
    spans: Sequence[tuple[float, float]] = (),
    x_range: tuple[float, float] | None = None,
) -> str:
    """A picture of some lines; x is seconds, from the first to the last point unless a range is given. Spans of x are
    shaded. Nothing if there is no line."""
    shown = {name: _thinned(points) for name, points in lines.items() if points}
    if not shown:
        return ""
    every = [point for points in shown.values() for point in points]
    least_x, most_x = x_range or (min(x for x, _ in every), max(x for x, _ in every))
    step_x, step_y = _round_step(most_x - least_x), _round_step(max(y for _, y in every))
    top = step_y * max(1, math.ceil(max(y for _, y in every) / step_y))

    def at_x(x: float) -> float:
        return _LEFT + (x - least_x) / max(most_x - least_x, 1e-9) * (_WIDTH - _LEFT - _RIGHT)

    def at_y(y: float) -> float:
        return _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="14" class="title">{escape(title)}, {escape(unit)}</text>',
    ]
    parts += [
        f'<rect x="{at_x(max(begin, least_x)):.1f}" y="{_TOP}" class="span"'
        f' width="{max(0.0, at_x(min(end, most_x)) - at_x(max(begin, least_x))):.1f}"'
        f' height="{_HEIGHT - _TOP - _BOTTOM}"/>'
        for begin, end in spans
    ]
    for number in range(round(top / step_y) + 1):
        y = at_y(number * step_y)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="y">{_shown(number * step_y)}</text>')
    first = math.ceil(least_x / step_x)
    for number in range(first, math.floor(most_x / step_x) + 1):
        x = at_x(number * step_x)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 12}" class="x">{_shown(number * step_x)} s</text>')
    legend_x = float(_LEFT)
    for place, (name, points) in enumerate(shown.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        path = " ".join(f"{at_x(x):.1f},{at_y(max(y, 0.0)):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" stroke="{colour}"><title>{escape(name)}</title></polyline>')
        parts.append(f'<rect x="{legend_x:.0f}" y="20" width="10" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{legend_x + 13:.0f}" y="25" class="legend">{escape(name)}</text>')
        legend_x += 26 + _LETTER * len(name)
    return "\n".join([*parts, "</svg>"])


def _thinned(points: Points) -> Points:
    """Few enough to draw: the highest of each stretch."""
    every = -(-len(points) // _MOST_POINTS)
    if every <= 1:
        return points
    return [max(points[at : at + every], key=lambda point: point[1]) for at in range(0, len(points), every)]


def _round_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are some five of them in a span."""
    if span <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / _TICKS * (1 - 1e-9))


def _shown(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (limit if letter != 'k' else 1e3):g}{letter}"
    return f"{value:g}"
