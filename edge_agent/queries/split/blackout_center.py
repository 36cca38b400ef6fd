"""Smart Grid, long-term blackout (Q3), in the control center: more than seven dark meters on one day."""

from __future__ import annotations

from edge_agent.queries.smart_grid_blackout import blackouts
from edge_agent.stream import Plan


def build(provenance: str = "segments") -> Plan:
    plan = Plan("blackout-center", provenance=provenance)
    blackouts(plan.receive("dark-meters", "blackout-substation")).sink("blackouts")
    return plan
