"""Smart Grid, anomaly (Q4), at the substation: high totals of a day, and the readings of its last hour.

Two streams cross: the totals stand for 24 readings each, the last readings are what they are. An alert of the other
device comes from both, and so from a reading that reaches it by two ways.
"""

from __future__ import annotations

from edge_agent.queries.smart_grid import daily_totals, readings
from edge_agent.queries.smart_grid_anomaly import is_high, is_midnight
from edge_agent.stream import Plan


def build(provenance: str = "segments") -> Plan:
    plan = Plan("anomaly-substation", provenance=provenance)
    source = plan.source("readings", readings)
    daily_totals(source).filter(is_high, name="high").send("high-totals", to=["anomaly-center"])
    source.filter(is_midnight, name="midnight").send("midnight-readings", to=["anomaly-center"])
    return plan
