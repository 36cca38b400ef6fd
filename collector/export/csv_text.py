"""Tables as CSV that a spreadsheet may open.

A spreadsheet takes a cell that begins with = + - @ for a formula, whoever wrote it, so a text that begins like one gets
an apostrophe in front. So does a text that begins with an apostrophe, and the empty text (an empty cell is None).
Whoever takes one leading apostrophe away from a cell has the text that was there.
"""

from __future__ import annotations

import csv
import io
from typing import Any

from collector.export.table import Column, Table, cell_text

# The wide forms count too: spreadsheets of some languages read them as the narrow ones.
_GUARDED = tuple("='+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def csv_text(table: Table) -> bytes:
    """The table as RFC 4180 has it, in UTF-8, with a line of names first."""
    text = io.StringIO(newline="")
    write = csv.writer(text).writerow
    write(_guarded(column.name) for column in table.columns)
    for row in table.rows:
        write(_cell(row.get(column.name), column) for column in table.columns)
    return text.getvalue().encode()


def _cell(value: Any, column: Column) -> str:
    if value is None:
        return ""
    return _guarded(value) if column.type == "text" else cell_text(value)


def _guarded(text: str) -> str:
    return f"'{text}" if not text or text.startswith(_GUARDED) else text
