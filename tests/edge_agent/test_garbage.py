"""Python's garbage collector in a process that runs a plan. It is one per process, so this one's is left alone."""

from __future__ import annotations

import subprocess
import sys

from edge_agent.garbage import ALLOCATIONS_BETWEEN_LOOKS

PROGRAM = """
import gc
from edge_agent.garbage import collect_seldom
collect_seldom()
print(gc.get_threshold()[0], gc.get_freeze_count() > 1_000, gc.isenabled())
"""


def test_it_looks_seldom_and_not_at_what_was_there_before() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == [str(ALLOCATIONS_BETWEEN_LOOKS), "True", "True"]
