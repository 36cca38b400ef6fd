"""Linear Road, accidents (Q2), beside the road: cars that have stopped.

A stopped car stands for four reports. They stay here: what crosses is known by its delivery, which names them.
"""

from __future__ import annotations

from edge_agent.queries.linear_road import reports, stopped_cars
from edge_agent.stream import Plan


def build(provenance: str = "segments") -> Plan:
    plan = Plan("accidents-roadside", provenance=provenance)
    stopped_cars(plan.source("reports", reports)).send("stopped-cars", to=["accidents-center"])
    return plan
