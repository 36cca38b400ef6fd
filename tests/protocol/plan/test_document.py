"""A plan and its text: one gives the other, always the same, and only what fits is written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.plan import MAX_JSON_BYTES, MAX_NODES, Node, PlanDocument, PlanError, delays, paths
from tests.protocol.plan.plans import aggregate, documents, plan, sink, source, tumbling


@given(documents(), st.randoms(use_true_random=False))
def test_a_plan_survives_its_text_and_the_text_is_always_the_same(document: PlanDocument, random: Any) -> None:
    text = document.to_json()
    assert PlanDocument.from_json(text) == document
    assert PlanDocument.from_json(text.encode()) == document
    assert PlanDocument.from_json(text).to_json() == text

    def shuffled(mapping: Any) -> Any:
        return dict(random.sample(list(mapping.items()), len(mapping)))

    again = PlanDocument(
        document.name,
        document.provenance,
        tuple(
            Node(node.name, node.operator, node.inputs, shuffled(node.parameters), shuffled(node.functions))
            for node in document.nodes
        ),
    )
    assert again.to_json() == text
    assert len({document, again}) == 1


def test_the_text_is_for_people_and_small_links() -> None:
    assert plan(source("in"), sink("aus-\u00fc", "in")).to_json() == (
        '{"name":"test","nodes":[{"name":"in","operator":"source",'
        '"parameters":{"disorder_ms":0,"ids":"uid","watermarks":"ordered"}},'
        '{"inputs":["in"],"name":"aus-\u00fc","operator":"sink"}],"provenance":"segments","version":1}'
    )


def test_a_plan_as_long_as_is_allowed() -> None:
    nodes = [source(), *(aggregate(f"n{i + 1}", f"n{i}" if i else "in", tumbling(1)) for i in range(MAX_NODES - 2))]
    document = plan(*nodes[::-1], sink("out", f"n{MAX_NODES - 2}"))
    assert delays(document) == {"in": {"out": MAX_NODES - 2}}
    assert [total for _, total in paths(document)] == [MAX_NODES - 2]
    assert PlanDocument.from_json(document.to_json()) == document
    with pytest.raises(PlanError, match=f"{MAX_NODES + 1} operators, and a plan has at most {MAX_NODES}"):
        plan(*document.nodes, sink("more", "in")).check()


def padded(bytes_in_all: int) -> str:
    """The text of a plan with letters of three bytes each, and spaces up to a length in bytes."""
    text = plan(source("\u8eca" * 200), sink("out", "\u8eca" * 200)).to_json()
    return text + " " * (bytes_in_all - len(text.encode()))


def test_the_length_of_a_text_is_counted_in_bytes() -> None:
    text = padded(MAX_JSON_BYTES)
    assert PlanDocument.from_json(text) == PlanDocument.from_json(text.encode())
    text = padded(MAX_JSON_BYTES + 1)
    assert len(text) < MAX_JSON_BYTES
    for form in (text, text.encode()):
        with pytest.raises(PlanError, match=f"at most {MAX_JSON_BYTES} bytes"):
            PlanDocument.from_json(form)


@pytest.mark.parametrize(
    "bad",
    [
        Node("out", "sink", ["in"]),  # type: ignore[arg-type]
        Node("out", "sink", ("in",), {1: 2}),  # type: ignore[dict-item]
        Node("out", "send", ("in",), {"stream": "s", "to": ("hub",)}),  # type: ignore[dict-item]
        Node("out", "sink", ("in",), functions=None),  # type: ignore[arg-type]
        Node("out", "sink", ("in",), functions={"function": print}),  # type: ignore[dict-item]
        aggregate("out", "in", {"kind": "recent", "size_ms": 10**5_000}),
        None,
    ],
)
def test_a_plan_that_would_not_survive_its_text_is_not_written(bad: Any) -> None:
    with pytest.raises(PlanError):
        plan(source(), bad).to_json()
    with pytest.raises(PlanError):
        PlanDocument("test", "segments", [source(), sink("out", "in")]).to_json()  # type: ignore[arg-type]
