"""A plan in the DOT language, for Graphviz and whatever else reads it."""

from __future__ import annotations

from protocol.plan import PlanDocument
from protocol.plan_picture.labels import details, kind

_FILL = {"origin": "#e3f4e6", "stateless": "#f2f3f5", "window": "#fdf1d8", "delivering": "#e2edfb"}


def to_dot(plan: PlanDocument) -> str:
    """A directed graph, left to right. `PlanError` if the plan does not pass `check`."""
    plan.check()
    number = {node.name: place for place, node in enumerate(plan.nodes)}
    lines = [
        f"digraph {_quoted(plan.name)} {{",
        "  rankdir=LR;",
        f"  label={_quoted(f'{plan.name} (provenance {plan.provenance})')};",
        '  graph [fontname="sans-serif", labelloc=t];',
        '  node [shape=box, style="rounded,filled", fontname="sans-serif", fontsize=11];',
        '  edge [fontname="sans-serif", fontsize=9];',
    ]
    for node in plan.nodes:
        label = "\\n".join(_escaped(line) for line in [node.name, node.operator, *details(node)])
        lines.append(f'  n{number[node.name]} [label="{label}", fillcolor="{_FILL[kind(node)]}"];')
    for node in plan.nodes:
        sides = (' [label="left"]', ' [label="right"]') if node.operator == "join" else ("",) * len(node.inputs)
        for source, side in zip(node.inputs, sides, strict=True):
            lines.append(f"  n{number[source]} -> n{number[node.name]}{side};")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """Within quotes: Graphviz reads backslashes as escapes and decodes HTML entities."""
    return text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
