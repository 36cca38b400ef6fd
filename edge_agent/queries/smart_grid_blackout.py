"""Smart Grid, long-term blackout: more than seven meters that used nothing for a whole day (GeneaLog's Q3).

A day's total is stamped with the midnight that ends the day, which is the first moment of the next day. So the second
window, which counts the dark meters, is the day after, and the alert comes stamped with the end of that one: 48 h
after the blackout began, which is also the delay U of this plan. Eight meters make 192 sources.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.queries.smart_grid import DayTotal, daily_totals, readings
from edge_agent.stream import Count, Plan, Stream, hours


@dataclass
class Blackout:
    meters: int


def is_dark(total: DayTotal) -> bool:
    return total.value == 0


def blackout(meters: int) -> Blackout:
    return Blackout(meters)


def is_widespread(blackout: Blackout) -> bool:
    return blackout.meters > 7


def blackouts(totals: Stream[DayTotal]) -> Stream[Blackout]:
    return (
        totals.filter(is_dark, name="dark")
        .window(hours(24))
        .aggregate(Count(), into=blackout, name="dark meters")
        .filter(is_widespread, name="widespread")
    )


def build(provenance: str = "segments") -> Plan:
    plan = Plan("smart-grid-blackout", provenance=provenance)
    blackouts(daily_totals(plan.source("readings", readings))).sink("blackouts")
    return plan
