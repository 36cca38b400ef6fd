"""Linear Road, broken-down cars (Q1), in the traffic center: four standing reports of a car within two minutes."""

from __future__ import annotations

from edge_agent.queries.linear_road import stopped_cars
from edge_agent.stream import Plan


def build(provenance: str = "segments") -> Plan:
    plan = Plan("stopped-center", provenance=provenance)
    stopped_cars(plan.receive("standing-cars", "stopped-roadside")).sink("stopped")
    return plan
