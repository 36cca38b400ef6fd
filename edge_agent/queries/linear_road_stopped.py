"""Linear Road, broken-down cars: four reports of speed zero from one place within two minutes (GeneaLog's Q1).

GeneaLog asks for "at least four" reports in a window that can hold just four. Here it is exactly four, as in Ananke's
code, so a window with a fifth one (a repeated report) does not count. Every alert has four sources, and a car that
stands for n reports raises n - 3 alerts, one for each window that it stood through.
"""

from __future__ import annotations

from edge_agent.queries.linear_road import reports, stopped_cars
from edge_agent.stream import Plan


def build(provenance: str = "segments") -> Plan:
    plan = Plan("linear-road-stopped", provenance=provenance)
    stopped_cars(plan.source("reports", reports)).sink("stopped")
    return plan
