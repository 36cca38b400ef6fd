"""The formats that there are: their names, and what a program that is handed such a document wants to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


class UnknownFormat(ValueError):
    """There is no export of that name; the text says which there are."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format by the name that people type."""

    name: str
    media_type: str
    suffix: str
    """How a file of it ends, with the dot."""
    description: str


_ALL = (
    Format("prov-json", "application/json", ".prov.json", "W3C PROV as JSON"),
    Format("prov-n", 'text/provenance-notation; charset="UTF-8"', ".provn", "W3C PROV for people to read (PROV-N)"),
    Format("openlineage", "application/x-ndjson", ".ndjson", "OpenLineage events, one per line"),
    Format("graphml", "application/graphml+xml", ".graphml", "GraphML, for networkx, Gephi and yEd"),
    Format("csv", "text/csv; charset=utf-8", ".csv", "One table with a row per vertex and per edge"),
    Format("parquet", "application/vnd.apache.parquet", ".parquet", "The same table as CSV, with types"),
)

FORMATS: Mapping[str, Format] = MappingProxyType({each.name: each for each in _ALL})
ROW_FORMATS: Mapping[str, Format] = MappingProxyType({name: FORMATS[name] for name in ("csv", "parquet")})
"""The formats that also take rows that are no graph."""


def known(format: str, formats: Mapping[str, Format]) -> Format:
    """The format of this name, or UnknownFormat."""
    found = formats.get(format)
    if found is None:
        raise UnknownFormat(f"there is no format {format!r} here; there are {', '.join(formats)}")
    return found
