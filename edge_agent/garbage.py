"""Python's garbage collector, in a process that runs a stream engine.

Open windows hold thousands of tuples, and the collector would go through them again and again to find
nothing: the engine makes no cycles. So it looks seldom, for the sake of user code that does.
"""

from __future__ import annotations

import gc

ALLOCATIONS_BETWEEN_LOOKS = 50_000


def collect_seldom() -> None:
    """Leave out what exists now (modules, plans), and look at the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN_LOOKS)
