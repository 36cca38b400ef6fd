"""Linear Road, accidents (Q2), in the traffic center: two or more stopped cars at one place."""

from __future__ import annotations

from edge_agent.queries.linear_road_accidents import accidents
from edge_agent.stream import Plan


def build(provenance: str = "segments") -> Plan:
    plan = Plan("accidents-center", provenance=provenance)
    accidents(plan.receive("stopped-cars", "accidents-roadside")).sink("accidents")
    return plan
