"""Pictures of plans: what they say, and that any plan gives a well-formed one."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections import Counter
from itertools import combinations, pairwise
from types import MappingProxyType
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from protocol.plan import MAX_NODES, Node, PlanDocument, PlanError, delays, paths
from protocol.plan_picture import to_dot, to_svg, to_text
from protocol.plan_picture.labels import details, duration, exact_duration
from protocol.plan_picture.layout import BOX_GAP, Box, lay_out
from tests.protocol.plan.plans import (
    CHAIN,
    DIAMOND,
    FLEET,
    LENGTHS,
    TWO_SINKS,
    TWO_SOURCES,
    aggregate,
    documents,
    join,
    ladder,
    mapped,
    multiplex,
    plan,
    receive,
    send,
    sink,
    source,
    tumbling,
    union,
)

PLANS = [CHAIN, DIAMOND, LENGTHS, TWO_SINKS, TWO_SOURCES, ladder(4), *FLEET.values()]
STOPPED_CARS = PlanDocument(
    "stopped-cars",
    "genealog",
    (
        Node(
            "reports",
            "source",
            parameters={"ids": "attributes", "watermarks": "bounded", "disorder_ms": 5_000},
            functions={"ts": "field:time", "items": "cars:read"},
        ),
        Node("standing", "filter", ("reports",), functions={"function": "cars:build.<locals>.<lambda>"}),
        Node(
            "stops",
            "aggregate",
            ("standing",),
            {
                "window": {"kind": "time", "size_ms": 120_000, "advance_ms": 30_000, "offset_ms": 0},
                "aggregators": ["Count()", "Distinct(cars:position)"],
            },
            {"key": "cars:car"},
        ),
        Node("stopped", "sink", ("stops",)),
    ),
)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (1_050, "1.05 s"),
        (90_500, "1 min 30.5 s"),
        (750_000, "12 min 30 s"),
        (3_600_000, "1 h"),
        (2 * 86_400_000 + 60_000, "2 d 1 min"),
        (-1_500, "-1.5 s"),
    ],
)
def test_a_time_span_as_people_say_it(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_the_milliseconds_are_there_too_where_they_matter() -> None:
    assert exact_duration(500) == "500 ms"
    assert exact_duration(150_000) == "2 min 30 s (150000 ms)"


@pytest.mark.parametrize(
    ("node", "lines"),
    [
        (source(), ["in order, ids by uid"]),
        (
            STOPPED_CARS.nodes[0],
            ["at most 5 s out of order, ids by attributes", "items = cars:read", "ts = field:time"],
        ),
        (receive("s", "car"), ["stream s from car"]),
        (send("s", "in", "hub", "spare"), ["stream s to hub, spare"]),
        (mapped("m", "in"), ["function = app:change"]),
        (aggregate("a", "in", tumbling(2_000)), ["window of 2 s", "Count()"]),
        (STOPPED_CARS.nodes[2], ["window of 2 min every 30 s", "Count(), Distinct(cars:position)", "key = cars:car"]),
        (
            aggregate("a", "in", {"kind": "time", "size_ms": 5, "advance_ms": 5, "offset_ms": -2}),
            ["window of 5 ms from -2 ms", "Count()"],
        ),
        (aggregate("a", "in", {"kind": "recent", "size_ms": 60_000}), ["the last 1 min", "Count()"]),
        (aggregate("a", "in", {"kind": "length", "count": 7}), ["the last 7 tuples", "Count()"]),
        (union("u", "in", "in"), []),
    ],
)
def test_what_is_said_about_an_operator(node: Node, lines: list[str]) -> None:
    assert details(node) == lines


@pytest.mark.parametrize(
    ("window", "line"),
    [
        ('{"kind": "band", "distance_ms": 3000}', "at most 3 s apart"),
        ('{"kind": "time", "size_ms": 60000, "advance_ms": 1000, "offset_ms": 0}', "window of 1 min every 1 s"),
        ('{"kind": "recent", "left_ms": 10, "right_ms": 0}', "the last 10 ms left, 0 ms right"),
        ('{"kind": "length", "left_count": 1, "right_count": 9}', "the last 1 left, 9 right"),
    ],
)
def test_what_is_said_about_the_window_of_a_join(window: str, line: str) -> None:
    assert details(join("j", "l", "r", json.loads(window)))[0] == line


def test_a_plan_as_text() -> None:
    assert (
        to_text(STOPPED_CARS)
        == """\
stopped-cars: 4 operators, provenance genealog

  source     reports
               at most 5 s out of order, ids by attributes
               items = cars:read
               ts = field:time
  filter     standing  <- reports
               function = cars:build.<locals>.<lambda>
  aggregate  stops  <- standing
               window of 2 min every 30 s
               Count(), Distinct(cars:position)
               key = cars:car
  sink       stopped  <- stops

Largest window sum (U):
  reports -> stopped  2 min (120000 ms)

Window sum of each path:
  2 min (120000 ms)  reports -> standing -> stops -> stopped
"""
    )


def test_what_a_length_window_adds_is_said_in_the_same_words() -> None:
    caveat = "and however long a length window holds a tuple: each sink's progress tells (hold)"
    as_mapping = aggregate("a", "in", MappingProxyType({"kind": "length", "count": 7}))  # type: ignore[arg-type]
    for document in (LENGTHS, plan(source(), as_mapping, sink("out", "a"))):
        assert f"  {caveat}\n" in to_text(document)
        assert svg_texts(to_svg(document))[-1] == caveat
    for draw in (to_text, to_svg):
        assert "length window" not in draw(STOPPED_CARS)


def test_only_some_of_many_paths_are_printed() -> None:
    assert "more path" not in to_text(ladder(5))
    text = to_text(ladder(6)).splitlines()
    assert text[-1] == "  and 14 more paths"
    assert len(text) - text.index("Window sum of each path:") == 52
    twice = [union(f"u{i}", *["in"] * 2) for i in range(51)]
    fan = plan(source(), *twice, union("all", *(node.name for node in twice)), sink("k", "all"))
    assert to_text(fan).endswith("\n  and 1 more path\n")
    assert to_text(ladder(60)).endswith("\n  and more than 10^18 paths more\n")


@given(documents())
@settings(max_examples=50)
def test_the_text_names_every_operator_and_every_sum(document: PlanDocument) -> None:
    text = to_text(document)
    listing = text.split("\n\n")[1].splitlines()
    assert {tuple(line.split()[:2]) for line in listing} >= {(node.operator, node.name) for node in document.nodes}
    for origin, reached in delays(document).items():
        for end, largest in reached.items():
            assert any(
                line.split() == [origin, "->", end, *exact_duration(largest).split()] for line in text.splitlines()
            )
    for (names, _), _ in zip(paths(document), range(50), strict=False):
        assert f"  {' -> '.join(names)}\n" in text


def test_a_plan_in_dot() -> None:
    assert (
        to_dot(
            plan(source('say "hi"'), source("a\\N & b"), join("j", 'say "hi"', "a\\N & b", tumbling(5)), sink("k", "j"))
        )
        == """\
digraph "test" {
  rankdir=LR;
  label="test (provenance segments)";
  graph [fontname="sans-serif", labelloc=t];
  node [shape=box, style="rounded,filled", fontname="sans-serif", fontsize=11];
  edge [fontname="sans-serif", fontsize=9];
  n0 [label="say \\"hi\\"\\nsource\\nin order, ids by uid", fillcolor="#e3f4e6"];
  n1 [label="a\\\\N &amp; b\\nsource\\nin order, ids by uid", fillcolor="#e3f4e6"];
  n2 [label="j\\njoin\\nwindow of 5 ms\\ncombine = app:pair\\nleft_key = app:car\\nright_key = app:car", \
fillcolor="#fdf1d8"];
  n3 [label="k\\nsink", fillcolor="#e2edfb"];
  n0 -> n2 [label="left"];
  n1 -> n2 [label="right"];
  n2 -> n3;
}
"""
    )


NASTY = ['"', "\\", '\\"', "a\\", "&lt;", "<b>", "]];", "--", "\\N\\G", "{a|b}", "\u8eca", "'", "%d", "$x", "//", "#"]


def nasty_plan(text: str) -> PlanDocument:
    function = Node("f", "map", (f"in{text}",), functions={"function": f"app:{text}"})
    return PlanDocument(text, "none", (source(f"in{text}"), function, sink(text, "f")))


@pytest.mark.parametrize("text", NASTY)
def test_dot_reads_back_the_names_it_was_given(text: str) -> None:
    dot = shutil.which("dot")
    if dot is None:
        pytest.skip("Graphviz is not installed")
    graph = to_dot(nasty_plan(text))
    done = subprocess.run([dot, "-Tsvg"], input=graph, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    drawn = [
        "".join(node.itertext()) for node in ElementTree.fromstring(done.stdout).iter() if node.tag.endswith("}text")
    ]
    shown = [line.replace("\u00a0", " ") for line in drawn]
    assert Counter(shown) == Counter(
        [f"{text} (provenance none)", f"in{text}", "source", "in order, ids by uid"],
    ) + Counter(["f", "map", f"function = app:{text}", text, "sink"])


def svg_nodes(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"))


def svg_texts(svg: str) -> list[str]:
    return [node.text or "" for node in svg_nodes(svg)]


@pytest.mark.parametrize("text", NASTY)
def test_an_svg_shows_the_names_it_was_given(text: str) -> None:
    assert Counter(svg_texts(to_svg(nasty_plan(text)))) == Counter(
        [text, "3 operators, provenance none", f"in{text}", "source", "in order, ids by uid", "f", "map"]
    ) + Counter([text, text, "sink", "Largest window sum (U)", f"in{text} \u2192 {text}: 0 ms"])


def test_an_svg_cuts_what_is_long_and_keeps_it_in_the_tooltip() -> None:
    wide = "\u8eca"
    svg = to_svg(nasty_plan(wide * 40))
    assert wide * 16 + "\u2026" in svg_texts(svg)
    assert f"<title>{wide * 40} (sink)</title>" in svg


def test_an_svg_names_functions_without_their_modules() -> None:
    texts = svg_texts(to_svg(STOPPED_CARS))
    assert {"items read", "ts time", "build.<locals>.<lambda>", "Count(), Distinct(position)", "key car"} <= set(texts)


def test_an_svg_needs_nothing_else() -> None:
    svg = to_svg(STOPPED_CARS)
    assert svg.count("http") == 1  # the name of SVG itself
    assert "<script" not in svg
    assert "<style" not in svg


def test_an_svg_lists_no_more_sums_than_can_be_read() -> None:
    ends = [sink(f"k{i}", "in") for i in range(20)]
    assert svg_texts(to_svg(plan(source(), *ends)))[-1] == "and 8 more"


@pytest.mark.parametrize("document", PLANS)
def test_an_svg_has_room_for_what_stands_below_the_plan(document: PlanDocument) -> None:
    svg = to_svg(document)
    picture, texts = ElementTree.fromstring(svg), svg_nodes(svg)
    below = texts[next(place for place, node in enumerate(texts) if (node.text or "").startswith("Largest window")) :]
    assert all(
        float(node.attrib["x"]) + 0.6 * float(node.attrib["font-size"]) * len(node.text or "")
        < float(picture.attrib["width"])
        for node in below
    )
    rows = [float(node.attrib["y"]) for node in below]
    assert all(lower - upper >= float(below[0].attrib["font-size"]) for upper, lower in pairwise(rows))
    assert rows[-1] < float(picture.attrib["height"]) - 10


@given(documents())
@settings(max_examples=50)
def test_any_plan_can_be_drawn(document: PlanDocument) -> None:
    svg = to_svg(document)
    edges = sum(len(node.inputs) for node in document.nodes)
    assert svg.count('marker-end="url(#arrow)"') == edges
    ElementTree.fromstring(svg)
    assert to_dot(document).count(" -> ") >= edges
    assert to_svg(document) == svg


def apart(one: Box, other: Box) -> bool:
    return (
        one.x + one.width < other.x
        or other.x + other.width < one.x
        or one.y + one.height + BOX_GAP <= other.y + 0.01
        or other.y + other.height + BOX_GAP <= one.y + 0.01
    )


def check_layout(document: PlanDocument) -> None:
    layout = lay_out(document, {node.name: (40.0 + 7 * len(node.name), 30.0) for node in document.nodes})
    assert all(apart(one, other) for one, other in combinations(layout.boxes.values(), 2))
    for box in layout.boxes.values():
        assert min(box.x, box.y) >= 0
        assert box.x + box.width <= layout.width + 0.01
        assert box.y + box.height <= layout.height + 0.01
    for edge in layout.edges:
        first, last = layout.boxes[edge.source], layout.boxes[edge.target]
        assert edge.points[0][0] == first.x + first.width
        assert edge.points[-1][0] == last.x
        assert list(edge.points) == sorted(edge.points, key=lambda point: point[0])
        assert last.y < edge.points[-1][1] < last.y + last.height
        # Where it runs level through a layer it meets no box: it only starts at one.
        for (x1, y), (x2, _) in zip(edge.points[:-1:2], edge.points[1::2], strict=True):
            for name, box in layout.boxes.items():
                hit = box.x < x2 and x1 < box.x + box.width and box.y < y < box.y + box.height
                assert not hit, f"{edge} meets {name}"


@pytest.mark.parametrize("document", PLANS)
def test_boxes_and_edges_keep_apart(document: PlanDocument) -> None:
    check_layout(document)


@given(documents())
@settings(max_examples=50)
def test_boxes_and_edges_keep_apart_in_any_plan(document: PlanDocument) -> None:
    check_layout(document)


def test_crossings_that_can_be_avoided_are() -> None:
    # Written down crosswise: a feeds the last sink, c the first.
    crosswise = plan(source("a"), source("b"), source("c"), sink("z", "c"), sink("y", "b"), sink("x", "a"))
    layout = lay_out(crosswise, {node.name: (50.0, 30.0) for node in crosswise.nodes})
    assert all(edge.points[0][1] == pytest.approx(edge.points[-1][1]) for edge in layout.edges)


def test_a_source_stands_just_before_its_first_use() -> None:
    late = plan(
        source("early"), mapped("m", "early"), mapped("n", "m"), source("late"), union("u", "n", "late"), sink("k", "u")
    )
    layout = lay_out(late, {node.name: (50.0, 30.0) for node in late.nodes})
    assert layout.boxes["late"].x == layout.boxes["n"].x


def long_and_wide() -> PlanDocument:
    """As many operators as are allowed, and edges that skip most of them."""
    nodes, last = [source()], "in"
    for number in range((MAX_NODES - 3) // 2):
        nodes += [multiplex(f"m{number}", last), union(f"u{number}", f"m{number}", "in")]
        last = f"u{number}"
    return plan(*nodes, sink("out", last))


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(long_and_wide(), id="long"),
        pytest.param(plan(source(), *(sink(f"k{i}", "in") for i in range(MAX_NODES - 1))), id="wide"),
        pytest.param(ladder(MAX_NODES // 4 - 1), id="ladder"),
    ],
)
def test_the_largest_plans_are_drawn_in_seconds(document: PlanDocument) -> None:
    for draw in (to_text, to_dot, to_svg):
        began = time.perf_counter()
        assert draw(document)
        assert time.perf_counter() - began < 30


@pytest.mark.parametrize("draw", [to_text, to_dot, to_svg])
def test_a_bad_plan_is_not_drawn(draw: object) -> None:
    assert callable(draw)
    with pytest.raises(PlanError, match="nothing consumes its stream"):
        draw(plan(source()))
