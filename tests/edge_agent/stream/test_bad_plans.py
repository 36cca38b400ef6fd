"""Plans that cannot work fail when they are built, with the name of the operator; no function of the user is called."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from edge_agent.stream import Count, Loopback, Plan, PlanError, StreamError, Top, run
from protocol.plan import Node, PlanDocument

Build = Callable[[Plan], Any]


def never(*_: Any) -> Any:
    raise AssertionError("a function of the user was called")


def refused(build: Build, *words: str) -> PlanError:
    """Build, and look at the whole: one of the two refuses, and names all of `words`."""

    def whole() -> None:
        plan = Plan("wrong")
        build(plan)
        plan.document()

    with pytest.raises(PlanError) as caught:
        whole()
    for word in words:
        assert word in str(caught.value)
    return caught.value


def source(plan: Plan) -> Any:
    return plan.source("s", never)


def keyed(plan: Plan) -> Any:
    return source(plan).key_by(never)


# ---------------------------------------------------------------------- windows

BAD_LENGTHS: tuple[Any, ...] = (0, -1, True, 1.0, 2.5, math.nan, "10", None, 2**62)
BAD_DISTANCES: tuple[Any, ...] = (-1, True, 1.0, math.nan, "10", None, 2**62)


@pytest.mark.parametrize("size", BAD_LENGTHS, ids=repr)
def test_windows_need_a_positive_whole_size(size: Any) -> None:
    refused(lambda plan: source(plan).window(size).aggregate(Count(), name="sums").sink("out"))
    refused(lambda plan: keyed(plan).window(size).aggregate(Count(), name="sums").sink("out"))


@pytest.mark.parametrize("advance", [value for value in BAD_LENGTHS if value is not None], ids=repr)
def test_windows_need_a_positive_whole_advance(advance: Any) -> None:
    refused(lambda plan: source(plan).window(10, advance).aggregate(Count(), name="sums").sink("out"))


@pytest.mark.parametrize("offset", [True, 1.0, math.nan, "10", None, 2**62], ids=repr)
def test_offsets_are_whole(offset: Any) -> None:
    refused(lambda plan: source(plan).window(10, 10, offset).aggregate(Count(), name="sums").sink("out"))


@pytest.mark.parametrize("size", BAD_DISTANCES, ids=repr)
def test_recent_windows_need_a_whole_size(size: Any) -> None:
    refused(lambda plan: source(plan).recent(size).aggregate(Count(), name="sums").sink("out"))


@pytest.mark.parametrize("count", BAD_LENGTHS, ids=repr)
def test_length_windows_need_a_positive_count(count: Any) -> None:
    refused(lambda plan: source(plan).length_window(count).aggregate(Count(), name="sums").sink("out"))


@pytest.mark.parametrize("distance", BAD_DISTANCES, ids=repr)
def test_joins_need_whole_distances(distance: Any) -> None:
    refused(lambda plan: keyed(plan).join_band(keyed2(plan), distance, never, name="meet").sink("out"))
    refused(lambda plan: keyed(plan).join_recent(keyed2(plan), distance, 1, never, name="meet").sink("out"))
    refused(lambda plan: keyed(plan).join_recent(keyed2(plan), 1, distance, never, name="meet").sink("out"))


@pytest.mark.parametrize("size", BAD_LENGTHS, ids=repr)
def test_window_joins_and_length_joins_need_positive_whole_lengths(size: Any) -> None:
    refused(lambda plan: keyed(plan).join_window(keyed2(plan), size, combine=never, name="meet").sink("out"))
    refused(lambda plan: keyed(plan).join_length(keyed2(plan), size, 1, never, name="meet").sink("out"))
    refused(lambda plan: keyed(plan).join_length(keyed2(plan), 1, size, never, name="meet").sink("out"))


def keyed2(plan: Plan) -> Any:
    return plan.source("t", never).key_by(never)


@pytest.mark.parametrize("disorder", [-1, True, 1.5, None, "3"], ids=repr)
def test_disorder_is_a_whole_number_of_ms(disorder: Any) -> None:
    refused(lambda plan: plan.source("reports", never, disorder_ms=disorder).sink("out"), "reports")


def test_the_refusal_names_the_operator() -> None:
    refused(lambda plan: source(plan).window(0).aggregate(Count(), name="sums").sink("out"), "sums", "size")
    refused(lambda plan: keyed(plan).join_band(keyed2(plan), -1, never, name="meet").sink("out"), "meet", "distance")


def test_session_windows_are_refused() -> None:
    refused(lambda plan: source(plan).session_window(5), "session")
    refused(lambda plan: keyed(plan).session_window(5), "session")
    node = Node("gaps", "aggregate", ("s",), {"window": {"kind": "session", "gap_ms": 5}, "aggregators": ["Count()"]})
    with pytest.raises(PlanError, match="gaps"):
        document(SOURCE, node, Node("out", "sink", ("gaps",))).check()


# ---------------------------------------------------------------------- joins


@pytest.mark.parametrize("join", ["join_band", "join_recent", "join_window", "join_length"])
def test_a_join_needs_keys_on_both_sides(join: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "join_band": (1, never),
        "join_recent": (1, 1, never),
        "join_window": (1,),
        "join_length": (1, 1, never),
    }
    options = {"combine": never} if join == "join_window" else {}
    with pytest.raises(PlanError, match="reports"):
        getattr(Plan("wrong").source("reports"), join)(Plan("p").source("t").key_by(never), *arguments[join], **options)
    refused(
        lambda plan: getattr(keyed(plan), join)(plan.source("t"), *arguments[join], name="meet", **options).sink("out"),
        "meet",
    )


# ---------------------------------------------------------------------- streams


def test_an_empty_plan() -> None:
    refused(lambda plan: None)
    with pytest.raises(PlanError):
        run(Plan("empty"))


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(lambda plan: plan.source("lonely"), id="source"),
        pytest.param(lambda plan: source(plan).map(never, name="lonely"), id="map"),
        pytest.param(lambda plan: source(plan).window(10).aggregate(Count(), name="lonely"), id="aggregate"),
        pytest.param(lambda plan: plan.receive("x", "car-7", name="lonely"), id="receive"),
    ],
)
def test_a_stream_that_nothing_consumes(leave: Build) -> None:
    refused(leave, "lonely")


def test_a_branch_of_a_multiplex_that_nothing_consumes() -> None:
    def build(plan: Plan) -> None:
        one, _ = plan.source("s").multiplex(2)
        one.sink("out")

    refused(build)


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda mine, other: mine.union(other).sink("out"), id="union"),
        pytest.param(
            lambda mine, other: mine.key_by(never).join_band(other.key_by(never), 1, never).sink("out"), id="join"
        ),
    ],
)
def test_a_stream_of_another_plan(use: Callable[[Any, Any], Any]) -> None:
    foreign = Plan("foreign").source("abroad")
    error = refused(lambda plan: use(source(plan), foreign))
    assert "abroad" in str(error) or "foreign" in str(error) or "other plan" in str(error)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda plan: (plan.source("twice").sink("a"), plan.source("twice").sink("b")), id="sources"),
        pytest.param(lambda plan: (source(plan).sink("twice"), plan.source("t").sink("twice")), id="sinks"),
        pytest.param(
            lambda plan: source(plan).map(never, name="twice").map(never, name="twice").sink("out"), id="operators"
        ),
        pytest.param(lambda plan: plan.source("twice").sink("twice"), id="source and sink"),
        pytest.param(
            lambda plan: (source(plan).send("twice", to=["hub"]), plan.source("t").send("twice", to=["hub"])),
            id="sends",
        ),
    ],
)
def test_two_of_the_same_name(build: Build) -> None:
    refused(build, "twice")


@pytest.mark.parametrize("name", ["", None, 3, "a\nb"], ids=repr)
def test_names_are_printable_text(name: Any) -> None:
    refused(lambda plan: plan.source(name).sink("out"))
    refused(lambda plan: source(plan).sink(name))


@pytest.mark.parametrize("to", [[], ["Hub"], ["hub", "hub"], [None], None], ids=repr)
def test_a_send_names_its_receivers(to: Any) -> None:
    refused(lambda plan: source(plan).send("out", to=to))


def test_a_union_needs_another_stream() -> None:
    refused(lambda plan: source(plan).union().sink("out"))


@pytest.mark.parametrize("count", [0, -1, True, 1.0], ids=repr)
def test_a_multiplex_needs_a_number_of_branches(count: Any) -> None:
    refused(lambda plan: [branch.sink(f"out {n}") for n, branch in enumerate(source(plan).multiplex(count))])


# ---------------------------------------------------------------------- options


def test_unknown_words() -> None:
    with pytest.raises(PlanError, match="keys-and-more"):
        Plan("p", provenance="keys-and-more")
    with pytest.raises(PlanError, match="ignore"):
        Plan("p", on_error="ignore")
    refused(lambda plan: plan.source("reports", ids="hash").sink("out"), "reports", "hash")
    refused(lambda plan: plan.source("reports", watermarks="often").sink("out"), "reports", "often")
    refused(lambda plan: source(plan).map(never, name="maps", on_error="ignore").sink("out"), "maps", "ignore")


@pytest.mark.parametrize("function", [None, 3, [never]], ids=["None", "3", "list"])
def test_what_is_called_must_be_callable(function: Any) -> None:
    refused(lambda plan: source(plan).map(function, name="calls").sink("out"), "calls")
    refused(lambda plan: source(plan).flat_map(function, name="calls").sink("out"), "calls")
    refused(lambda plan: source(plan).filter(function, name="calls").sink("out"), "calls")
    refused(lambda plan: source(plan).key_by(function).window(10).aggregate(Count(), name="calls").sink("out"))
    refused(lambda plan: keyed(plan).join_band(keyed2(plan), 1, function, name="calls").sink("out"), "calls")


class Halfway:
    def initialise(self) -> int:
        return 0

    def result(self, state: int) -> int:
        return state


@pytest.mark.parametrize(
    "aggregator", [Count, Halfway(), never, 3, None], ids=["a class", "no add", "def", "3", "None"]
)
def test_an_aggregator_has_three_methods(aggregator: Any) -> None:
    refused(lambda plan: source(plan).window(10).aggregate(aggregator, name="sums").sink("out"), "sums")


def test_an_aggregate_needs_an_aggregator() -> None:
    refused(lambda plan: source(plan).window(10).aggregate(name="sums").sink("out"), "sums")


@pytest.mark.parametrize("k", [0, -1, True, 1.5, None], ids=repr)
def test_top_needs_a_positive_number(k: Any) -> None:
    with pytest.raises(ValueError, match="k"):
        Top(k)


# ---------------------------------------------------------------------- documents

SOURCE = Node("s", "source", (), {"ids": "uid", "watermarks": "ordered", "disorder_ms": 0})


def document(*nodes: Node) -> PlanDocument:
    return PlanDocument("by hand", "segments", nodes)


def test_a_cycle() -> None:
    functions = {"function": "m:f"}
    nodes = (
        SOURCE,
        Node("both", "union", ("s", "back")),
        Node("forth", "map", ("both",), functions=functions),
        Node("back", "map", ("forth",), functions=functions),
        Node("out", "sink", ("forth",)),
    )
    with pytest.raises(PlanError, match=r"both|forth|back"):
        document(*nodes).check()


def test_an_input_that_is_bound_to_nothing() -> None:
    with pytest.raises(PlanError, match="nowhere"):
        document(SOURCE, Node("out", "sink", ("s",)), Node("more", "sink", ("nowhere",))).check()


def test_a_plans_document_survives_its_json() -> None:
    plan = Plan("whole")
    stream = source(plan).map(never).key_by(never).window(10, 5).aggregate(Count())
    stream.sink("out")
    stream.send("counts", to=["hub"])
    text = plan.document().to_json()
    assert PlanDocument.from_json(text) == plan.document()


# ---------------------------------------------------------------------- running


def test_a_source_without_items() -> None:
    plan = Plan("empty-handed")
    plan.source("reports").sink("out")
    with pytest.raises(PlanError, match="reports"):
        run(plan)


def test_an_input_for_no_source() -> None:
    plan = Plan("one")
    plan.source("reports", []).sink("out")
    with pytest.raises(PlanError, match="report-s"):
        run(plan, {"report-s": []})


@pytest.mark.parametrize("items", [3, None, lambda: 3], ids=["3", "None", "function"])
def test_items_that_are_no_items(items: Any) -> None:
    plan = Plan("one")
    plan.source("reports").sink("out")
    with pytest.raises((PlanError, StreamError), match="reports"):
        run(plan, {"reports": items})


def test_a_plan_that_receives_does_not_run_alone() -> None:
    plan = Plan("hub")
    plan.receive("sums", "car-7").sink("out")
    with pytest.raises(PlanError, match="sums"):
        run(plan)


# ---------------------------------------------------------------------- several agents


def sender(to: list[str], stream: str = "sums") -> Plan:
    plan = Plan("sender")
    plan.source("s", []).send(stream, to=to)
    return plan


def receiver(stream: str = "sums", of: str = "car-7") -> Plan:
    plan = Plan("receiver")
    plan.receive(stream, of).sink("out")
    return plan


@pytest.mark.parametrize(
    ("plans", "word"),
    [
        pytest.param(
            {"car-7": sender(["hub"]), "hub": receiver("others")}, "sums|others", id="nobody sends the stream"
        ),
        pytest.param({"hub": receiver()}, "car-7", id="the sender is not there"),
        pytest.param({"car-7": sender(["lab"]), "hub": receiver()}, "sums", id="it is sent to somebody else"),
        pytest.param({"car-7": sender(["hub"])}, "hub", id="the receiver is not there"),
    ],
)
def test_what_is_received_must_be_sent(plans: Any, word: str) -> None:
    with pytest.raises(PlanError, match=word):
        Loopback(plans)


def test_agents_that_send_in_a_circle() -> None:
    plans = {}
    for here, there in (("car-7", "hub"), ("hub", "car-7")):
        plans[here] = Plan(here)
        plans[here].receive("ball", there).send("ball", to=[there])
    with pytest.raises(PlanError, match="car-7"):
        Loopback(plans)
