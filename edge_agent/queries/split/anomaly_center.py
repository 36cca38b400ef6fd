"""Smart Grid, anomaly (Q4), in the control center: a high total set against the meter's reading at midnight."""

from __future__ import annotations

from edge_agent.queries.smart_grid_anomaly import anomalies
from edge_agent.stream import Plan


def build(provenance: str = "segments") -> Plan:
    plan = Plan("anomaly-center", provenance=provenance)
    totals = plan.receive("high-totals", "anomaly-substation")
    anomalies(totals, plan.receive("midnight-readings", "anomaly-substation")).sink("anomalies")
    return plan
