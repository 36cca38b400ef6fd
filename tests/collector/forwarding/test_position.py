"""The position file: whole or not at all, of one purpose, and of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collector.forwarding.errors import PositionInUse, PositionUnusable
from collector.forwarding.position import PositionFile, Purpose
from collector.log import Position

PURPOSE = Purpose("a-log", "prov-json", None)


def test_what_was_saved_is_found_again(tmp_path: Path) -> None:
    first = PositionFile(tmp_path / "deep" / "position", PURPOSE)
    assert (first.positions, first.memory) == ({}, None)
    first.positions |= {3: Position(2, 40), 4: Position(1, 0)}
    first.checks[3] = 2**32 - 1
    first.save({"x": [2**64 - 1]})
    first.positions[3] = Position(2, 41)
    first.close()
    second = PositionFile(tmp_path / "deep" / "position", PURPOSE)
    assert (second.positions, second.memory) == ({3: Position(2, 40), 4: Position(1, 0)}, {"x": [2**64 - 1]})
    assert second.checks == {3: 2**32 - 1, 4: None}
    second.close()


def test_one_forwarder_at_a_time(tmp_path: Path) -> None:
    first = PositionFile(tmp_path / "position", PURPOSE)
    with pytest.raises(PositionInUse, match="is in use by process"):
        PositionFile(tmp_path / "position", PURPOSE)
    first.close()
    PositionFile(tmp_path / "position", PURPOSE).close()


@pytest.mark.parametrize(
    ("purpose", "words"),
    [
        (PURPOSE._replace(log="another"), "is of log a-log, not of another"),
        (PURPOSE._replace(to="dfanalyzer"), "is of --to prov-json, not of dfanalyzer"),
        (PURPOSE._replace(agent="pi-1"), "is of --agent everybody, not of pi-1"),
    ],
)
def test_a_position_of_something_else_is_not_used(tmp_path: Path, purpose: Purpose, words: str) -> None:
    made = PositionFile(tmp_path / "position", PURPOSE)
    made.save(None)
    made.close()
    for _ in range(2):  # it is not left locked
        with pytest.raises(PositionUnusable, match=words):
            PositionFile(tmp_path / "position", purpose)


WHOLE = {"format": "threadline-forward-2", **PURPOSE._asdict(), "shards": {"3": [1, 2, 99]}, "memory": None}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        {"format": "x"},
        WHOLE | {"shards": [1]},
        WHOLE | {"shards": {"3": [1]}},
        WHOLE | {"format": 2},
    ],
)
def test_what_is_no_position_file_is_told(tmp_path: Path, content: Any) -> None:
    (tmp_path / "position").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(PositionUnusable, match=r"is no position file .*: put it back from a copy, or give another"):
        PositionFile(tmp_path / "position", PURPOSE)


def test_a_folder_where_nothing_can_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PositionUnusable, match="cannot be made"):
        PositionFile(tmp_path / "file" / "position", PURPOSE)
    (tmp_path / "position").mkdir()
    with pytest.raises(PositionUnusable, match="cannot be read"):
        PositionFile(tmp_path / "position", PURPOSE)
