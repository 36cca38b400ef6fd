"""What a tuple remembers of the tuples it came from: one strategy per provenance mode.

A tuple is a plain Python tuple `(ts, value, lineage)`. Operators compute `ts` and `value`; the
third field is the strategy's own and no operator looks at it, so user code and operators are the
same whatever the mode. Tuples are immutable and compared by identity, never by value.
"""

from __future__ import annotations

from edge_agent.stream.lineage.base import Lineage, StreamTuple, WindowLog
from edge_agent.stream.lineage.genealog import Genealog
from edge_agent.stream.lineage.none import NoLineage
from edge_agent.stream.lineage.segments import Segments

LINEAGES: dict[str, type[Lineage]] = {"none": NoLineage, "genealog": Genealog, "segments": Segments}

__all__ = ["LINEAGES", "Lineage", "StreamTuple", "WindowLog"]
