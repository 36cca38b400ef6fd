"""The agents of a run and their plans.

    car:  readings --+--> minutes ---------------+--> hub: hours --> center: far
                     +--> hot (a filter alone)   +--> center: near
    cam:  captures tasks, and has no plan

Each plan comes in versions, of which a start takes one: results that stand for one tuple each, so that a crash of the
receiver costs none and every tuple can be counted; and windows. Sources may be out of order. Of a fleet that has not
all of them, those who are there talk to each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_agent.stream import Count, Plan

AGENTS = ("car", "hub", "center", "cam")
SOURCE = "readings"
VERSIONS = 2
COUNTED = (("car", "minutes", "center", "near"), ("car", "minutes", "hub", "reports"))
"""Sender, its stream, a receiver, and the receiver's sink that has a tuple for each of the stream in version 0."""
DISORDER_MS = 300
WINDOW_MS = 2_000


def is_hot(value: int) -> bool:
    return value % 3 == 0


def doubled(value: int) -> int:
    return 2 * value


def parity(value: int) -> int:
    return value % 2


def counted(key: int, count: int) -> int:
    return 10 * count + key


def plan_of(agent: str, version: int, fleet: Sequence[str]) -> Plan | None:
    """What an agent runs."""
    plan = Plan(f"{agent}-{version}")
    if agent == "car":
        readings = plan.source(SOURCE, [], disorder_ms=DISORDER_MS if version else 0)
        if version:
            minutes = readings.key_by(parity).window(WINDOW_MS).aggregate(Count(), into=counted)
        else:
            minutes = readings.map(doubled)
        minutes.send("minutes", to=[each for each in ("hub", "center") if each in fleet])
        readings.filter(is_hot).sink("hot")
    elif agent == "hub":
        minutes = plan.receive("minutes", "car")
        minutes.map(doubled).sink("reports")
        hours = minutes.window(3_000, 1_500).aggregate(Count()) if version else minutes.filter(is_hot)
        if "center" in fleet:
            hours.send("hours", to=["center"])
        else:
            hours.sink("hours")
    elif agent == "center":
        plan.receive("minutes", "car").map(doubled).sink("near")
        if "hub" in fleet:
            hours = plan.receive("hours", "hub")
            (hours.window(4_000).aggregate(Count()) if version else hours.map(doubled)).sink("far")
    else:
        return None
    return plan
