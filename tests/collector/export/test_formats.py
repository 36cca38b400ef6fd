"""Formats by name, and what is said of one that is not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from collector.export import FORMATS, ROW_FORMATS, UnknownFormat, export, export_rows
from tests.collector.export.graphs import showing, training


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_exports(name: str) -> None:
    assert FORMATS[name].name == name
    assert FORMATS[name].suffix.startswith(".")
    assert export(training(), name) != export(showing(), name)


def test_suffixes_tell_formats_apart() -> None:
    assert len({each.suffix for each in FORMATS.values()}) == len(FORMATS)


def test_a_format_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(
        UnknownFormat, match="no format 'rdf' here; there are prov-json, prov-n, openlineage, graphml, csv"
    ):
        export(training(), "rdf")
    with pytest.raises(UnknownFormat, match="there are csv, parquet"):
        export_rows([], "graphml")
    assert set(ROW_FORMATS) == {"csv", "parquet"}


def test_to_name_the_formats_loads_none_of_their_libraries() -> None:
    program = "import sys, collector.export; print([m for m in ('prov', 'openlineage', 'pyarrow') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
