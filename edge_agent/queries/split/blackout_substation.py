"""Smart Grid, long-term blackout (Q3), at the substation: meters that used nothing for a whole day."""

from __future__ import annotations

from edge_agent.queries.smart_grid import daily_totals, readings
from edge_agent.queries.smart_grid_blackout import is_dark
from edge_agent.stream import Plan


def build(provenance: str = "segments") -> Plan:
    plan = Plan("blackout-substation", provenance=provenance)
    totals = daily_totals(plan.source("readings", readings))
    totals.filter(is_dark, name="dark").send("dark-meters", to=["blackout-center"])
    return plan
