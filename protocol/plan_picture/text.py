"""A plan as text: the operators in the order in which tuples meet them, then U and the paths it comes from."""

from __future__ import annotations

from itertools import islice

from protocol.plan import PlanDocument, count_paths, delays, in_order, paths
from protocol.plan_picture.labels import beyond_the_sums, details, exact_duration

MOST_PATHS = 50


def to_text(plan: PlanDocument) -> str:
    """The plan, U per source and sink, and some of the paths. `PlanError` if the plan does not pass `check`."""
    plan.check()
    count = len(plan.nodes)
    lines = [f"{plan.name}: {count} operator{'s' * (count > 1)}, provenance {plan.provenance}", ""]
    wide = max(len(node.operator) for node in plan.nodes)
    for node in in_order(plan):
        inputs = f"  <- {', '.join(node.inputs)}" if node.inputs else ""
        lines.append(f"  {node.operator:{wide}}  {node.name}{inputs}")
        lines += [f"  {'':{wide}}    {line}" for line in details(node)]
    lines += ["", "Largest window sum (U):"]
    sums = [
        (origin, delivering, exact_duration(largest))
        for origin, reached in delays(plan).items()
        for delivering, largest in reached.items()
    ]
    wide_origin, wide_end = (max(len(line[column]) for line in sums) for column in (0, 1))
    lines += [f"  {origin:{wide_origin}} -> {end:{wide_end}}  {largest}" for origin, end, largest in sums]
    lines += [f"  {line}" for line in beyond_the_sums(plan)]
    lines += ["", "Window sum of each path:"]
    shown = [(exact_duration(total), " -> ".join(names)) for names, total in islice(paths(plan), MOST_PATHS)]
    wide_sum = max(len(total) for total, _ in shown)
    lines += [f"  {total:>{wide_sum}}  {path}" for total, path in shown]
    more = count_paths(plan) - len(shown)
    if more:
        lines.append(
            f"  and {more:,} more path{'s' * (more > 1)}" if more < 10**18 else "  and more than 10^18 paths more"
        )
    return "\n".join(lines) + "\n"
