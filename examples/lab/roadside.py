"""The lab's agent beside the road: finds cars that have stopped, live, and sends them to the traffic center.

Run it with `--name accidents-roadside`: the other agent knows it by that.
"""

from __future__ import annotations

from traffic import live_reports, stopped_cars

from edge_agent.stream import Plan


def build(provenance: str = "segments") -> Plan:
    plan = Plan("accidents-roadside", provenance=provenance)
    stopped_cars(plan.source("reports", live_reports, live=True)).send("stopped-cars", to=["accidents-center"])
    return plan
