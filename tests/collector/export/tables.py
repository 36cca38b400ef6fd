"""A table of a graph, read again: rows become the graph."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tests.collector.export.graphs import Plain


def graph_of_rows(rows: Iterable[Mapping[str, Any]]) -> Plain:
    """The graph without the columns of single keys, which repeat what the JSON says."""
    found = Plain({}, set())
    for row in rows:
        told = {name: value for name, value in row.items() if value is not None and "." not in name}
        record = told.pop("record")
        if record == "vertex":
            told |= {name: json.loads(told[name]) for name in ("payload", "attributes") if name in told}
            found.vertices[told["id"]] = told
        elif record == "edge":
            flags = frozenset(told.get("flags", "").split())
            found.edges.add((told["origin"], told["derived"], told["relation"], flags))
        else:
            assert record == "cut"
    return found
