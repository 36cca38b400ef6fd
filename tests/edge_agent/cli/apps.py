"""App files to try the command on."""

from __future__ import annotations

APP = """\
from dataclasses import dataclass
from typing import NamedTuple
from edge_agent.stream import Count, Last, Plan

@dataclass
class Report:
    car: str
    speed: int

class Stop(NamedTuple):
    car: str
    reports: int

def reports():
    for second in range(8):
        yield second * 1_000, Report("ab"[second % 2], second % 2 * 50)

def build():
    plan = Plan("stops")
    source = plan.source("reports", reports)
    standing = source.filter(lambda report: report.speed == 0)
    standing.key_by("car").window(4_000).aggregate(Count(), into=Stop).sink("stops")
    source.filter(lambda report: report.speed > 0).sink("moving")
    return plan
"""


def plan_app(body: str) -> str:
    """An app file whose build() fills `plan`."""
    return (
        "import time\nfrom edge_agent.stream import *\nfrom edge_agent.stream import IDLE, Watermark\n"
        f"def build():\n    plan = Plan('p')\n    {body}\n    return plan\n"
    )
