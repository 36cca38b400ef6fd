"""Linear Road, broken-down cars (Q1), beside the road: only reports of standing cars leave.

They cross unchanged, so the alerts of the other device name the very readings that were made here.
"""

from __future__ import annotations

from edge_agent.queries.linear_road import is_standing, reports
from edge_agent.stream import Plan


def build(provenance: str = "segments") -> Plan:
    plan = Plan("stopped-roadside", provenance=provenance)
    plan.source("reports", reports).filter(is_standing, name="standing").send("standing-cars", to=["stopped-center"])
    return plan
