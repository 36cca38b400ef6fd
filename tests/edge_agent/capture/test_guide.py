"""The examples in docs/capture.md run, and say what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from protocol.events import relations
from tests.edge_agent.capture.memory import Memory

PAGE = Path(__file__).parents[3] / "docs" / "capture.md"


def stated(memory: Memory) -> set[tuple[str, str, str]]:
    """All relations since the last time, but for whom things belong to; tasks by their ids."""
    name = {f"task:{begun.key}": re.sub("-[0-9a-f]{8}-[0-9]+", "", begun.id) for begun, _ in memory.tasks()}
    found = {
        (each.name, name.get(each.subject, each.subject), name.get(each.object, each.object))
        for event in memory.events()
        for each in relations(event)
        if each.name not in ("wasAssociatedWith", "wasAttributedTo")
    }
    memory.rows.clear()
    return {(what, *(re.sub("-[0-9a-f]{8}-[0-9]+", "", end) for end in ends)) for what, *ends in found}  # type: ignore[misc]


def test_every_example_says_what_the_page_says(memory: Memory, capsys: Any) -> None:
    listing, blocks, functions, thread, wrong = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(listing, {})
    assert stated(memory) == {
        ("used", "epoch-1", "data:in-1"),
        ("wasGeneratedBy", "data:out-1", "epoch-1"),
        ("wasDerivedFrom", "data:out-1", "data:in-1"),
    }
    exec(blocks, {})
    assert stated(memory) == {
        ("used", "epoch-1", "data:in-1"),
        ("wasGeneratedBy", "data:out-1", "epoch-1"),
        ("wasInformedBy", "check", "epoch-1"),
    }
    exec(functions, {})
    assert capsys.readouterr().out == "21.0\n"
    assert stated(memory) == {
        ("used", "average", "data:average/arguments"),
        ("wasGeneratedBy", "data:average/result", "average"),
        ("wasDerivedFrom", "data:average/result", "data:average/arguments"),
        ("wasInformedBy", "clean", "average"),
        ("used", "clean", "data:clean/arguments"),
        ("wasGeneratedBy", "data:clean/result", "clean"),
        ("wasDerivedFrom", "data:clean/result", "data:clean/arguments"),
    }
    exec(thread, {})
    assert ("wasInformedBy", "measure", "all sensors") in stated(memory)
    exec(wrong, {})
    assert capsys.readouterr().out == "{'replaced': 0}\n"
