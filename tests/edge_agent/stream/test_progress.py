"""Progress: how far time has come at each sink, what length windows hold, and sources that are idle or closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edge_agent.stream import IDLE, Collect, Count, Engine, Plan, run
from protocol.plan import delays
from protocol.records import END_OF_TIME, Delivery, Late, Progress, Record
from tests.edge_agent.stream.expect import assert_promises_kept, at, capturing_modes, every_mode


def progress_of(records: list[Record], sink: str) -> Progress:
    return [record for record in records if isinstance(record, Progress) and record.stream.name == sink][-1]


@capturing_modes
def test_a_length_window_holds_its_oldest_tuple(mode: str) -> None:
    plan = Plan("hold", provenance=mode)
    plan.source("s").length_window(2).aggregate(Collect()).sink("out")
    records: list[Record] = []
    engine = Engine(plan, records.append)
    engine.feed("s", at("a@1 b@5 c@100"))
    # the next one will come with c, so nothing before 100 can come back
    progress = progress_of(records, "out")
    assert (progress.watermark, progress.hold) == (100, 100)
    engine.finish()
    progress = progress_of(records, "out")
    assert (progress.watermark, progress.hold) == (END_OF_TIME, END_OF_TIME)


@capturing_modes
def test_without_a_length_window_nothing_is_held(mode: str) -> None:
    records: list[Record] = []
    plan = Plan("windowed", provenance=mode)
    plan.source("s").window(10).aggregate(Collect()).sink("out")
    engine = Engine(plan, records.append)
    engine.feed("s", at("a@1 b@5"))
    progress = progress_of(records, "out")
    assert progress.hold == END_OF_TIME
    assert 5 <= progress.watermark <= 10, "the next result is stamped 10"


@capturing_modes
def test_a_length_window_holds_the_oldest_tuple_of_any_key(mode: str) -> None:
    plan = Plan("hold", provenance=mode)
    keyed = plan.source("s").key_by(lambda value: value[0])
    keyed.length_window(2).aggregate(Collect(), into=lambda key, values: values).sink("out")
    records: list[Record] = []
    engine = Engine(plan, records.append)
    engine.feed("s", at("a1@1 b1@5 a2@10 a3@11"))
    progress = progress_of(records, "out")
    assert progress.hold <= 5, "b1 will come back with b2"
    engine.feed("s", at("b2@20"))
    ids = [[origin.id.seq for origin in record.origins] for record in records if isinstance(record, Delivery)]
    assert ids == [[0], [1], [0, 2], [2, 3], [1, 4]]


def everything(value: Any) -> int:
    return 0


# What keeps the results of a length window for a while.
KEEPERS: dict[str, Callable[[Any, Any], Any]] = {
    "window": lambda lengths, other: lengths.window(15).aggregate(Count()),
    "sliding window": lambda lengths, other: lengths.window(15, 5).aggregate(Count()),
    "recent window": lambda lengths, other: lengths.recent(15).aggregate(Count()),
    "length window": lambda lengths, other: lengths.length_window(3).aggregate(Count()),
    "union": lambda lengths, other: lengths.union(other),
    "band join": lambda lengths, other: lengths.key_by(everything).join_band(other.key_by(everything), 15, pair),
    "recent join": lambda lengths, other: other.key_by(everything).join_recent(lengths.key_by(everything), 0, 15, pair),
    "window join": lambda lengths, other: lengths.key_by(everything).join_window(
        other.key_by(everything), 15, 5, combine=pair
    ),
    "length join": lambda lengths, other: lengths.key_by(everything).join_length(other.key_by(everything), 3, 3, pair),
}


def pair(left: Any, right: Any) -> tuple[Any, Any]:
    return left, right


@capturing_modes
@pytest.mark.parametrize("lengths_first", [True, False])
@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
def test_what_waits_behind_a_length_window_is_held_although_the_length_window_has_let_it_go(
    mode: str, keep: Callable[[Any, Any], Any], lengths_first: bool
) -> None:
    """The result at 100 comes from 0 and waits, while the length window has gone on to 130."""
    plan = Plan("kept", provenance=mode)
    lengths, other = plan.source("s").length_window(2).aggregate(Collect()), plan.source("t")
    keep(lengths, other).sink("out")
    other.sink("other")
    delay = delays(plan.document())
    records: list[Record] = []
    engine = Engine(plan, records.append)
    feeds = {
        "s": at("a@0 b@100 c@101 d@102 e@103 f@104 g@130 h@131"),
        "t": at("r@101 s@102 t@103 u@104 v@112 w@114 x@116 y@140"),
    }
    for name in ("s", "t") if lengths_first else ("t", "s"):
        for item in feeds[name]:
            engine.feed(name, [item])
    engine.finish()
    assert_promises_kept(records, lambda progress, origin: delay[origin.id.stream.name].get(progress.stream.name))
    assert [record for record in records if isinstance(record, Delivery)]


def merged(mode: str, records: list[Record]) -> Engine:
    plan = Plan("idle", provenance=mode)
    plan.source("busy").union(plan.source("quiet")).window(10).aggregate(Count()).sink("out")
    return Engine(plan, records.append)


@every_mode
def test_an_idle_source_is_not_waited_for_until_its_next_item(mode: str) -> None:
    records: list[Record] = []
    engine = merged(mode, records)
    engine.feed("quiet", at("q@1"))
    engine.feed("busy", at("a@2 b@12"))
    assert not [record for record in records if isinstance(record, Delivery)]
    engine.idle("quiet")
    assert [record.payload for record in records if isinstance(record, Delivery)] == [2]
    engine.feed("quiet", at("r@15"))
    engine.feed("busy", at("c@40"))
    # quiet counts again: its last word was 15
    assert [record.payload for record in records if isinstance(record, Delivery)] == [2]
    engine.finish()
    assert [record.payload for record in records if isinstance(record, Delivery)] == [2, 2, 1]


@every_mode
def test_an_empty_list_does_not_end_idleness(mode: str) -> None:
    records: list[Record] = []
    engine = merged(mode, records)
    engine.idle("quiet")
    engine.feed("quiet", [])
    engine.feed("busy", at("a@2 b@12"))
    assert [record.payload for record in records if isinstance(record, Delivery)] == [1]


@every_mode
def test_idle_may_stand_among_the_items(mode: str) -> None:
    plan = Plan("idle", provenance=mode)
    plan.source("busy").union(plan.source("quiet")).window(10).aggregate(Count()).sink("out")
    results = run(plan, {"quiet": [(1, "q"), IDLE, (15, "r")], "busy": at("a@2 b@12")})
    assert [delivery.payload for delivery in results.of("out")] == [2, 2]


@every_mode
def test_when_all_others_have_ended_an_idle_source_does_not_keep_what_they_said(mode: str) -> None:
    plan = Plan("last", provenance=mode)
    plan.source("busy").union(plan.source("quiet")).sink("out")
    records: list[Record] = []
    engine = Engine(plan, records.append)
    engine.idle("quiet")
    engine.feed("busy", at("a@2 b@12"))
    engine.close("busy")
    assert [record.payload for record in records if isinstance(record, Delivery)] == ["a", "b"]
    engine.feed("quiet", at("late@11 c@12"))
    engine.finish()
    assert [record.payload for record in records if isinstance(record, Delivery)] == ["a", "b", "c"]
    assert [record.payload for record in records if isinstance(record, Late)] == ["late"]


@every_mode
def test_a_closed_source_is_not_waited_for(mode: str) -> None:
    records: list[Record] = []
    engine = merged(mode, records)
    engine.feed("busy", at("a@2 b@12"))
    engine.close("quiet")
    assert [record.payload for record in records if isinstance(record, Delivery)] == [1]


@every_mode
def test_what_comes_to_a_closed_source_is_late(mode: str) -> None:
    records: list[Record] = []
    engine = merged(mode, records)
    engine.close("quiet")
    engine.feed("quiet", at("q@1"))
    engine.finish()
    assert [(record.stream.name, record.payload) for record in records if isinstance(record, Late)] == [("quiet", "q")]
    assert not [record for record in records if isinstance(record, Delivery)]
