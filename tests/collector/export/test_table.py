"""What the tables of CSV, Parquet and GraphML have in common: which keys get columns."""

from __future__ import annotations

import json

from collector.export.table import MOST_KEYS, vertex_table
from tests.collector.export.graphs import datum, reading


def test_keys_that_differ_only_in_case_share_one_column_and_the_json_has_both() -> None:
    table = vertex_table([reading(0, payload={"Speed": 1, "speed": 2}), reading(1, payload={"speed": 3, "SPEED": 4})])
    assert [column.name for column in table.columns if "." in column.name] == ["payload.Speed"]
    assert [row.get("payload.Speed") for row in table.rows] == [1, None]
    assert [json.loads(row["payload"]) for row in table.rows] == [{"Speed": 1, "speed": 2}, {"speed": 3, "SPEED": 4}]


def test_only_so_many_keys_get_columns() -> None:
    many = {f"k{number}": number for number in range(MOST_KEYS + 1)}
    table = vertex_table([reading(0, payload=many), reading(1, payload=many)])
    assert len([column for column in table.columns if "." in column.name]) == MOST_KEYS
    for row in table.rows:
        assert row[f"payload.k{MOST_KEYS - 1}"] == MOST_KEYS - 1
        assert f"payload.k{MOST_KEYS}" not in row
        assert json.loads(row["payload"]) == many


def test_a_key_with_a_dot_is_no_nested_key() -> None:
    table = vertex_table([datum("x", {"a.b": 1, "a": {"b": 2}})])
    assert table.rows[0]["attributes.a.b"] == 1
    assert table.rows[0]["attributes.a"] == '{"b":2}'
