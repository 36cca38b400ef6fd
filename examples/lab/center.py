"""The lab's agent in the traffic center: finds accidents among the stopped cars that the roadside sends.

Run it with `--name accidents-center`: the other agent knows it by that.
"""

from __future__ import annotations

from traffic import accidents

from edge_agent.stream import Plan


def build(provenance: str = "segments") -> Plan:
    plan = Plan("accidents-center", provenance=provenance)
    accidents(plan.receive("stopped-cars", "accidents-roadside")).sink("accidents")
    return plan
