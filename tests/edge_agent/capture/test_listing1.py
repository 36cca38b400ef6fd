"""The paper's Listing 1 says exactly what it means in PROV-DM."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

from protocol.events import Relation, TaskBegun, TaskEnded, WorkflowBegun, WorkflowEnded, relations
from tests.edge_agent.capture.memory import Memory

LISTING = Path(__file__).parents[3] / "examples" / "listing1.py"


def test_listing_1(memory: Memory) -> None:
    runpy.run_path(str(LISTING))
    events = memory.events()
    kinds = Counter(type(event) for event in events)
    assert kinds == {WorkflowBegun: 1, TaskBegun: 100, TaskEnded: 100, WorkflowEnded: 1}
    assert isinstance(events[0], WorkflowBegun)
    assert isinstance(events[-1], WorkflowEnded)
    assert (events[0].id, events[0].attributes, events[-1].status) == ("1", None, "finished")
    stated = Counter(relation for event in events for relation in relations(event))
    expected: Counter[Relation] = Counter()
    for n in range(1, 101):
        task = f"task:{n}"
        expected[Relation("wasAssociatedWith", task, "workflow:0")] += 1
        expected[Relation("used", task, f"data:in_{n}")] += 1
        expected[Relation("wasGeneratedBy", f"data:out_{n}", task)] += 1
        for way in ("in", "out"):
            expected[Relation("wasAttributedTo", f"data:{way}_{n}", "workflow:?1")] += 1
        if n > 1:
            expected[Relation("wasInformedBy", task, f"task:{n - 1}")] += 1
    assert stated == expected
    for n, (begun, ended) in enumerate(memory.tasks()):
        assert (begun.id, begun.transformation) == (f"{n // 20}-{n % 20}", str(n // 20))
        assert begun.used[0].attributes == {"in": [1] * 100}
        assert ended.generated[0].attributes == {"out": [2] * 100}
        assert (ended.status, ended.error) == ("finished", "")
        assert begun.ts <= ended.ts
