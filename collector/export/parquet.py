"""Tables as Parquet: the same columns as in CSV, with their types."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from collector.export.table import Table, Type

_TYPES: dict[Type, pa.DataType] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
}


def parquet(table: Table, title: str) -> bytes:
    """The table as one Parquet file; its metadata hold the title."""
    schema = pa.schema(
        [(column.name, _TYPES[column.type]) for column in table.columns],
        metadata={"title": title.encode(errors="replace")},
    )
    columns = [pa.array([row.get(each.name) for row in table.rows], type=_TYPES[each.type]) for each in table.columns]
    written = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), written)
    found: bytes = written.getvalue().to_pybytes()
    return found
