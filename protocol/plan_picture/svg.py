"""A plan as one SVG file: no script, no style sheet, no font of its own."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise
from xml.sax.saxutils import escape

from protocol.plan import Node, PlanDocument, delays
from protocol.plan_picture.labels import beyond_the_sums, details, duration, kind
from protocol.plan_picture.layout import Box, Edge, lay_out

# (fill, line) per kind of operator.
_COLOURS = {
    "origin": ("#e3f4e6", "#2e7d4f"),
    "stateless": ("#f4f5f7", "#6b7480"),
    "window": ("#fdf1d8", "#b7791f"),
    "delivering": ("#e2edfb", "#2b65b5"),
}
_MARGIN = 28.0
_LINE = 16.0
_PADDING = 12.0
_TITLE_PX, _TEXT_PX = 13.0, 11.0
_MOST_COLUMNS = 34
_MOST_SUMS = 12
_MODULE = re.compile(r"[\w.-]+:(?=[\w<])")


def to_svg(plan: PlanDocument) -> str:
    """The plan's graph, with U below. `PlanError` if the plan does not pass `check`."""
    plan.check()
    layout = lay_out(plan, {node.name: _size(node) for node in plan.nodes})
    count = len(plan.nodes)
    subtitle = f"{count} operator{'s' * (count > 1)}, provenance {plan.provenance}"
    sums = _sums(plan)
    header, footer = 56.0, _LINE * len(sums) + 20.0
    wide = max(_width(text, 16.0) for text in (_cut(plan.name, 80), subtitle, *sums))
    width = max(layout.width, wide) + 2 * _MARGIN
    height = layout.height + header + footer + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, \'DejaVu Sans\', Verdana, sans-serif">',
        f"<title>{escape(plan.name)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0.5 L10,5 L0,9.5 L2.5,5 z" fill="#57606a"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(_MARGIN, _MARGIN + 14, _cut(plan.name, 80), 17.0, "#1f2328", bold=True),
        _text(_MARGIN, _MARGIN + 32, subtitle, 12.0, "#57606a"),
        f'<g transform="translate({_MARGIN:.0f},{_MARGIN + header:.0f})">',
    ]
    joins = {node.name for node in plan.nodes if node.operator == "join"}
    parts += [_edge(edge, edge.target in joins) for edge in layout.edges]
    parts += [_box(node, layout.boxes[node.name]) for node in plan.nodes]
    parts.append("</g>")
    below = _MARGIN + header + layout.height + 30
    parts += [_text(_MARGIN, below + _LINE * row, line, 12.0, "#57606a") for row, line in enumerate(sums)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _sums(plan: PlanDocument) -> list[str]:
    lines = [
        f"{_cut(origin)} \u2192 {_cut(end)}: {duration(largest)}"
        for origin, reached in delays(plan).items()
        for end, largest in reached.items()
    ]
    more = len(lines) - _MOST_SUMS
    return [
        "Largest window sum (U)",
        *lines[:_MOST_SUMS],
        *([f"and {more} more"] if more > 0 else []),
        *beyond_the_sums(plan),
    ]


def _lines(node: Node) -> list[str]:
    """What stands in a box below the name: functions without their module, which the tooltip has."""
    shown = []
    for line in details(node):
        role, equals, function = line.partition(" = ")
        if equals and role in node.functions:
            line = f"{role} {function.rpartition(':')[2]}" if role != "function" else function.rpartition(":")[2]
        elif node.operator == "aggregate":
            line = _MODULE.sub("", line)
        shown.append(_cut(line))
    return [node.operator, *shown]


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _width(text: str, px: float) -> float:
    """A guess on the safe side, since nobody here knows the reader's font."""
    return _columns(text) * px * 0.6


def _cut(text: str, most: int = _MOST_COLUMNS) -> str:
    if len(text) <= most and _columns(text) <= most:
        return text
    text = text[:most]
    while _columns(text) >= most:
        text = text[:-1]
    return f"{text}\u2026"


def _size(node: Node) -> tuple[float, float]:
    lines = _lines(node)
    width = max(_width(_cut(node.name), _TITLE_PX * 1.06), *(_width(line, _TEXT_PX) for line in lines), 70.0)
    return width + 2 * _PADDING, _LINE * (1 + len(lines)) + _PADDING


def _box(node: Node, box: Box) -> str:
    fill, line = _COLOURS[kind(node)]
    tooltip = escape("\n".join([f"{node.name} ({node.operator})", *details(node)]))
    x, y = box.x + _PADDING, box.y + _PADDING / 2 + 12
    parts = [
        f"<g><title>{tooltip}</title>"
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="8" '
        f'fill="{fill}" stroke="{line}" stroke-width="1.3"/>',
        _text(x, y, _cut(node.name), _TITLE_PX, "#1f2328", bold=True),
    ]
    for row, text in enumerate(_lines(node)):
        parts.append(_text(x, y + _LINE * (row + 1), text, _TEXT_PX, line if row == 0 else "#424a53"))
    return "".join([*parts, "</g>"])


def _edge(edge: Edge, is_join: bool) -> str:
    """Curves that leave and arrive level, straight where the edge passes a layer."""
    (x, y), *_ = edge.points
    path = [f"M{x:.1f},{y:.1f}"]
    for place, ((x1, y1), (x2, y2)) in enumerate(pairwise(edge.points)):
        if place % 2:
            middle = (x1 + x2) / 2
            path.append(f"C{middle:.1f},{y1:.1f} {middle:.1f},{y2:.1f} {x2:.1f},{y2:.1f}")
        else:
            path.append(f"L{x2:.1f},{y2:.1f}")
    drawn = f'<path d="{" ".join(path)}" fill="none" stroke="#57606a" stroke-width="1.3" marker-end="url(#arrow)"/>'
    if is_join:
        (_, before), (x, y) = edge.points[-2:]
        y += 12 if before < y else -5
        side = "right" if edge.place else "left"
        drawn += f'<text x="{x - 10:.1f}" y="{y:.1f}" font-size="9" text-anchor="end" fill="#57606a">{side}</text>'
    return drawn


def _text(x: float, y: float, text: str, px: float, colour: str, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{px:g}" fill="{colour}"{weight}>{escape(text)}</text>'
