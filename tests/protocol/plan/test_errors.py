"""What is refused: with a reason and the operator, and never by any exception but a plan error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.plan import MAX_JSON_BYTES, PlanDocument, PlanError, delays
from tests.protocol.plan.plans import aggregate, documents, join, multiplex, plan, receive, send, sink, source

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def read_or_refuse(text: str | bytes) -> None:
    try:
        document = PlanDocument.from_json(text)
    except PlanError:
        return
    assert PlanDocument.from_json(document.to_json()) == document
    delays(document)


@given(st.text() | st.binary() | values.map(json.dumps))
def test_no_text_raises_anything_but_a_plan_error(text: str | bytes) -> None:
    read_or_refuse(text)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@given(documents(), st.data())
def test_a_plan_changed_anywhere_raises_nothing_but_a_plan_error(document: PlanDocument, data: st.DataObject) -> None:
    changed = json.loads(document.to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(changed)))
        match data.draw(st.sampled_from(["replace", "remove", "add", "copy"])):
            case "replace":
                container[key] = data.draw(values)
            case "remove":
                del container[key]
            case "add" if isinstance(container, dict):
                container[data.draw(st.text(max_size=5))] = data.draw(values)
            case _:
                container[key] = json.loads(json.dumps(data.draw(st.sampled_from(places(changed)))[0]))
        if not places(changed):
            break
    read_or_refuse(json.dumps(changed))


@given(documents(), st.data())
def test_a_text_changed_anywhere_raises_nothing_but_a_plan_error(document: PlanDocument, data: st.DataObject) -> None:
    text = bytearray(document.to_json().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        text[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    read_or_refuse(bytes(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the text is not JSON"),
        (b"\xff{}", "the text is not JSON"),
        ("[]", "a plan: expected an object, not a list"),
        ("{}", "a plan: 'version' is missing"),
        ("[" * 200_000, "the text is nested too deeply"),
        ('{"a":' * 100_000, "the text is nested too deeply"),
        (" " * (MAX_JSON_BYTES + 1), f"a plan's text has at most {MAX_JSON_BYTES} bytes"),
        ('{"version":NaN}', "NaN is no number"),
        ('{"version":-Infinity}', "-Infinity is no number"),
        ('{"version":1,"version":1}', "an object has a key twice"),
        (f'{{"version":{"9" * 10_000}}}', "the text is not JSON"),
    ],
)
def test_a_text_that_is_no_plan_is_refused_with_a_reason(text: str | bytes, reason: str) -> None:
    with pytest.raises(PlanError, match=re.escape(reason)) as caught:
        PlanDocument.from_json(text)
    assert caught.value.operator is None


def test_reading_is_bounded_by_the_stack_it_has_left() -> None:
    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        else:
            read_or_refuse("[" * 900 + "]" * 900)

    deep(400)


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    """The text of a good plan after one change to its JSON."""
    good = plan(
        source(),
        receive("s", "car"),
        join("pair", "in", "car/s", {"kind": "band", "distance_ms": 5}),
        aggregate("count", "pair", {"kind": "time", "size_ms": 10, "advance_ms": 10, "offset_ms": 0}),
        multiplex("both", "count"),
        sink("out", "both"),
        send("on", "both", "hub"),
    )
    document = json.loads(good.to_json())
    change({"all": document} | {node["name"]: node for node in document["nodes"]})
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "operator", "reason"),
    [
        (lambda d: d["all"].update(version=2), None, "plan version 2, and only version 1 is known"),
        (lambda d: d["all"].update(version=True), None, "plan version true"),
        (lambda d: d["all"].update(extra=1), None, "a plan: 'extra' is unknown"),
        (lambda d: d["all"].update(name=""), None, "the plan's name is empty"),
        (lambda d: d["all"].update(name=["x"]), None, "the plan's name is a text, not a list"),
        (lambda d: d["all"].update(name="\ud800"), None, "a character that cannot be printed"),
        (lambda d: d["all"].update(provenance={}), None, "provenance is one of none, genealog, segments"),
        (lambda d: d["all"].update(nodes={}), None, "nodes is a list, not an object"),
        (lambda d: d["all"].update(nodes=[]), None, "a plan needs a source or a receive"),
        (lambda d: d["all"].update(nodes=[7]), None, "operator number 0: expected an object, not 7"),
        (lambda d: d["all"].update(nodes=[1] * 5_000), None, "5000 operators, and a plan has at most 4096"),
        (lambda d: d["out"].pop("name"), None, "operator number 5: 'name' is missing"),
        (lambda d: d["out"].update(name=3), None, "an operator's name is a text, not 3"),
        (lambda d: d["out"].update(name="x" * 201), None, "201 characters, and at most 200"),
        (lambda d: d["out"].update(name="a\nb"), None, "a character that cannot be printed"),
        (lambda d: d["out"].pop("operator"), "out", "'operator' is missing"),
        (lambda d: d["out"].update(colour="red"), "out", "'colour' is unknown"),
        (lambda d: d["out"].update(operator="drain"), "out", "there is no operator 'drain'"),
        (lambda d: d["out"].update(operator=["sink"]), "out", "there is no operator a list"),
        (lambda d: d["out"].update(inputs="both"), "out", "inputs is a list, not 'both'"),
        (lambda d: d["out"].update(inputs=[["both"]]), "out", "an input is a text, not a list"),
        (lambda d: d["out"].update(inputs=["bath"]), "out", "its input 'bath' is bound to no stream of this plan"),
        (lambda d: d["out"].update(inputs=["on"]), "out", "its input 'on' is a send, which gives no stream"),
        (lambda d: d["out"].update(inputs=["both", "both"]), "out", "a sink has 1 input, not 2"),
        (lambda d: d["out"].update(operator="union"), "out", "a union has at least 2 inputs, not 1"),
        (lambda d: d["out"].update(parameters={"speed": 1}), "out", "'speed' is unknown"),
        (lambda d: d["out"].update(parameters=[]), "out", "expected an object, not a list"),
        (lambda d: d["out"].update(functions={"function": 1}), "out", "function function is a text, not 1"),
        (lambda d: d["out"].update(functions={"then": "a:b"}), "out", "'then' is unknown"),
        (lambda d: d["out"].update(name="in"), "in", "two operators have this name"),
        (lambda d: d["count"].update(inputs=["both"]), "pair", "nothing consumes its stream"),
        (lambda d: d["pair"].update(inputs=["in", "both"]), "car/s", "nothing consumes its stream"),
        (lambda d: d["pair"]["functions"].pop("combine"), "pair", "'combine' is missing"),
        (lambda d: d["pair"].update(inputs=["in"]), "pair", "a join has 2 inputs, not 1"),
        (lambda d: d["pair"]["parameters"].update(window=None), "pair", "window is an object, not null"),
        (
            lambda d: d["pair"]["parameters"].update(window={"kind": "fuzzy"}),
            "pair",
            "the window of a join is one of band, time, recent, length, not 'fuzzy'",
        ),
        (lambda d: d["pair"]["parameters"]["window"].update(kind=[]), "pair", "not a list"),
        (lambda d: d["pair"]["parameters"]["window"].update(distance_ms=-1), "pair", "must not be negative, but is -1"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=0), "count", "size_ms must be positive, but is 0"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=-5), "count", "must be positive, but is -5"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=True), "count", "a whole number, not true"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=1.0), "count", "a whole number, not 1.0"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms="1"), "count", "a whole number, not '1'"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=2**62), "count", "size_ms is out of range"),
        (lambda d: d["count"]["parameters"]["window"].update(size_ms=10**999), "count", "range: a huge number"),
        (lambda d: d["count"]["parameters"]["window"].update(offset_ms=-(2**62)), "count", "offset_ms is out of range"),
        (lambda d: d["count"]["parameters"]["window"].pop("advance_ms"), "count", "'advance_ms' is missing"),
        (lambda d: d["count"]["parameters"]["window"].update(slack_ms=1), "count", "'slack_ms' is unknown"),
        (lambda d: d["count"]["parameters"].update(aggregators=[]), "count", "aggregators is empty"),
        (
            lambda d: d["count"]["parameters"].update(aggregators=[3]),
            "count",
            "an item of aggregators is a text, not 3",
        ),
        (lambda d: d["count"]["parameters"].update(aggregators="Sum"), "count", "aggregators is a list, not 'Sum'"),
        (lambda d: d["on"]["parameters"].update(to=[]), "on", "to is empty"),
        (lambda d: d["on"]["parameters"].update(to=["hub", "hub"]), "on", "to names an agent twice"),
        (lambda d: d["on"]["parameters"].update(to=["The Hub"]), "on", "'The Hub' is no agent name"),
        (lambda d: d["on"]["parameters"].update(to=[f"a{i}" for i in range(2_000)]), "on", "to has 2000 items"),
        (lambda d: d["on"]["parameters"].update(stream="out"), "on", "its stream is named 'out', as is that of 'out'"),
        (lambda d: d["on"]["parameters"].update(stream="in"), "on", "its stream is named 'in', as is that of 'in'"),
        (lambda d: d["car/s"]["parameters"].update(sender=None), "car/s", "sender null is no agent name"),
        (lambda d: d["in"]["parameters"].update(ids="hash"), "in", "ids is one of uid, attributes, not 'hash'"),
        (lambda d: d["in"]["parameters"].update(disorder_ms=-1), "in", "disorder_ms must not be negative, but is -1"),
        (lambda d: d["in"].update(inputs=["out"]), "in", "a source has no inputs, not 1"),
    ],
)
def test_a_bad_plan_is_refused_with_the_operator_and_the_reason(
    change: Callable[[dict[str, Any]], object], operator: str | None, reason: str
) -> None:
    with pytest.raises(PlanError, match=re.escape(reason)) as caught:
        PlanDocument.from_json(changed(change))
    assert caught.value.operator == operator
    assert operator is None or str(caught.value).startswith(f"operator {operator!r}: ")
    assert len(str(caught.value)) < 300
