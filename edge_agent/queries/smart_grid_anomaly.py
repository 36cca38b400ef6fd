"""Smart Grid, anomaly: a high daily total set against the meter's reading at midnight (GeneaLog's Q4).

Which reading is "midnight"? A total is stamped with the end of its day, 24:00. The reading of hour 23, the one that
the day closes with, lies exactly one hour before that stamp, so the band join of one hour, whose ends are inclusive,
finds it, and finds no other reading of an hour 23. It is in the total as well: the alert has 24 sources, not 25. The
reading at 00:00 of the next day has the total's own stamp and would join as well, but it is not part of the total and
would make 25. Ananke's code takes hour 23 too ((ts + 1) % 24 == 0, in hours).

The rule is the one of the paper and of that code: a total above 200, then |total - midnight| above 200. Since the
midnight reading is part of the total, the difference is what the meter used in the other 23 hours; a meter that only
catches up at midnight passes the first filter and not the second.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_agent.queries.smart_grid import HOURS, LAST_HOUR, DayTotal, Reading, daily_totals, readings
from edge_agent.stream import Plan, Stream, hours


@dataclass
class Anomaly:
    meter: int
    difference: int


def is_high(total: DayTotal) -> bool:
    return total.value > 200


def is_midnight(reading: Reading) -> bool:
    return reading.hour % HOURS == LAST_HOUR


def difference(total: DayTotal, midnight: Reading) -> Anomaly:
    return Anomaly(total.meter, abs(total.value - midnight.value))


def is_anomaly(anomaly: Anomaly) -> bool:
    return anomaly.difference > 200


def anomalies(totals: Stream[DayTotal], readings: Stream[Reading]) -> Stream[Anomaly]:
    high = totals.filter(is_high, name="high")
    midnight = readings.filter(is_midnight, name="midnight")
    return (
        high.key_by("meter")
        .join_band(midnight.key_by("meter"), hours(1), difference, name="day and midnight")
        .filter(is_anomaly, name="anomaly")
    )


def build(provenance: str = "segments") -> Plan:
    plan = Plan("smart-grid-anomaly", provenance=provenance)
    source = plan.source("readings", readings)
    anomalies(daily_totals(source), source).sink("anomalies")
    return plan
