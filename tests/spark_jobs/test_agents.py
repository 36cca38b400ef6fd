"""What the graph is when results cross agents that wait, return, start anew or lose something, in small examples."""

from __future__ import annotations

import pytest

from edge_agent.stream import Count, Plan
from protocol.records import END_OF_TIME
from protocol.structs import replaced
from tests.spark_jobs.examples import Example, plan_of, through
from tests.support.fleet_log import Speaker, status


def car_and_hub(example: Example, *, window: int = 0) -> tuple[Speaker, Speaker]:
    plan, hub_plan = Plan("car"), Plan("hub")
    through(plan.source("s"), [window] if window else []).map(str).send("sent", to=["hub"])
    hub_plan.receive("sent", "car").sink("out")
    return example.agent(plan), example.agent(hub_plan, "hub")


def test_a_reference_waits_for_what_it_refers_to_however_long(example: Example) -> None:
    """And as long as it waits, its sink is held back: a source of it might still be labelled too early."""
    car, hub = car_and_hub(example)
    a, b = example.call(car.source("s", 1), "a"), example.call(car.source("s", 2), "b")
    first, second = car.deliver("sent", 1, a), car.deliver("sent", 2, b)
    example.call(hub.deliver("out", 1, first), "k1")
    example.call(hub.deliver("out", 2, second), "k2")
    hub.progress("out", END_OF_TIME)
    hub.leave()
    assert example.told(example.pipeline.run(example.shards.micro_batch())) == ["K k1", "K k2"]
    car.leave(4)  # plan, both sources, the first delivery
    assert example.told(example.pipeline.run(example.shards.micro_batch())) == ["S a", "E a-k1", "L a", "L k1"]
    assert example.step() == ["S b", "E b-k2", "L b", "L k2"]


def test_a_length_window_holds_back_what_it_may_bring_again(example: Example) -> None:
    """
    a@1   W = 100, hold = 1     the window still keeps a
          W = 100, hold = 50    it does not
    """
    plan = Plan("length")
    plan.source("s").length_window(2).aggregate(Count()).sink("out")
    car = example.agent(plan)
    car.deliver("out", 1, example.call(car.source("s", 1), "a"))
    car.progress("out", 100, hold=1)
    assert "L a" not in example.step()
    car.progress("out", 100, hold=50)
    assert example.step() == ["L a"]


def test_what_waits_holds_back_all_that_a_length_window_may_have_brought(example: Example) -> None:
    """
    car   s -- the last two -- sent     d0@1{a}  d1@100{a, b}
    hub   out                           k0{d0}   k1{d1}, ended

    Only d0 has come: a is in k0. That k1 waits for d1@100 does not mean that it has no older sources.
    """
    plan, hub_plan = Plan("car"), Plan("hub")
    plan.source("s").length_window(2).aggregate(Count()).send("sent", to=["hub"])
    hub_plan.receive("sent", "car").sink("out")
    car, hub = example.agent(plan), example.agent(hub_plan, "hub")
    a, b = example.call(car.source("s", 1), "a"), example.call(car.source("s", 100), "b")
    first, second = car.deliver("sent", 1, a), car.deliver("sent", 100, a, b)
    example.call(hub.deliver("out", 1, first), "k0")
    hub.progress("out", 1, hold=1)
    hub.leave()
    example.call(hub.deliver("out", 100, second), "k1")
    hub.progress("out", END_OF_TIME)
    hub.end()
    hub.leave()
    car.leave(4)  # plan, both sources, the first delivery
    told = example.told(example.pipeline.run(example.shards.micro_batch()))
    assert told == ["K k0", "K k1", "S a", "E a-k0", "L k0"]
    assert example.step() == ["S b", "E a-k1", "E b-k1", "L a", "L b", "L k1"]


def test_a_receiver_that_is_named_counts_before_it_has_said_anything(example: Example) -> None:
    plan, hub_plan = Plan("car"), Plan("hub")
    source = plan.source("s")
    source.sink("own")
    source.send("sent", to=["hub"])
    hub_plan.receive("sent", "car").window(5).aggregate(Count()).sink("out")
    car = example.agent(plan)
    car.deliver("own", 1, example.call(car.source("s", 1), "a"))
    car.progress("own", END_OF_TIME)
    car.progress("sent", END_OF_TIME)
    assert "L a" not in example.step()
    hub = example.agent(hub_plan, "hub")
    assert example.step() == []
    hub.progress("out", 6)
    assert example.step() == []
    hub.progress("out", 7)
    assert example.step() == ["L a"]


def test_a_receiver_that_is_given_up_before_its_plan_holds_back_nothing() -> None:
    example = Example(late=True)
    plan = Plan("car")
    source = plan.source("s")
    source.sink("own")
    source.send("sent", to=["hub"])
    car, hub = example.agent(plan), example.agent(None, "hub")
    hub.says(status())
    car.deliver("own", 1, example.call(car.source("s", 1), "a"))
    car.progress("own", END_OF_TIME)
    assert "L a" not in example.step()
    example.shards.retire("hub")
    assert example.step() == ["L a"]


def test_a_sink_that_is_given_up_and_returns_is_late_with_what_had_expired() -> None:
    """And counts again from its next promise on."""
    example = Example(late=True)
    car, hub = car_and_hub(example)
    a, b = example.call(car.source("s", 1), "a"), example.call(car.source("s", 2), "b")
    first = car.deliver("sent", 1, a)
    car.deliver("sent", 2, b)
    car.progress("sent", 2)
    example.call(hub.deliver("out", 1, first), "k1")
    assert "E a-k1" in example.step()
    example.shards.retire("hub")
    assert example.step() == ["L a"]
    k2 = example.call(hub.deliver("out", 1, first), "k2")
    told = example.step()
    assert k2.seq == 1
    assert told[:2] == ["K k2", "L k2"]
    assert len(told) == 3
    assert told[2].startswith("late ")
    hub.progress("out", 2)
    example.step()
    c = example.call(car.source("s", 5), "c")
    example.call(hub.deliver("out", 5, car.deliver("sent", 5, c)), "k3")
    assert example.step() == ["K k3", "S c", "E c-k3", "L k3"]
    hub.progress("out", 6)
    assert example.step() == ["L c"]


def test_a_new_start_opens_its_sinks_anew(example: Example) -> None:
    """
    hub@1   W = 3, killed       hub@2   opens with its plan, before it has promised anything
    """
    car, hub = car_and_hub(example, window=10)
    a, b = example.call(car.source("s", 1), "a"), example.call(car.source("s", 11), "b")
    hub.deliver("out", 10, car.deliver("sent", 10, a))
    hub.progress("out", 11)
    assert "L a" not in example.step()
    plan = Plan("hub")
    plan.receive("sent", "car").sink("out")
    hub.restart(plan, crashed=True)
    assert example.step() == []
    hub.deliver("out", 20, car.deliver("sent", 20, b))
    hub.progress("out", 20)
    assert "L a" in example.step()
    hub.progress("out", 22)
    assert example.step() == ["L b"]


@pytest.mark.parametrize("batches", [None, (0, 0)])
def test_a_start_that_was_cut_short_is_not_waited_for_though_no_plan_follows(
    example: Example, batches: tuple[int, int] | None
) -> None:
    """`threadline-agent send` says how it ended. Its disk may have lost a batch, too, that had been sent before."""
    car = example.agent(plan_of(10))
    example.call(car.deliver("out", 5, example.call(car.source("s", 1), "a")), "k")
    car.progress("out", 5)
    assert "L a" not in example.step()
    gap = replaced(car.start.gap(), batches=batches)
    car.restart(None)
    car.says(gap)
    car.end()
    assert example.step() == ["L a"]


def test_a_start_that_nobody_says_the_end_of_is_given_up_with_its_agent() -> None:
    """What the disk had noted of it was gone when `threadline-agent send` came."""
    example = Example(late=True)
    car, hub = car_and_hub(example)
    sent = car.deliver("sent", 1, example.call(car.source("s", 1), "a"))
    example.call(hub.deliver("out", 1, sent), "k")
    hub.progress("out", 1)
    assert "L a" not in example.step()
    hub.restart(None)
    hub.end()
    assert example.step() == []
    example.shards.retire("hub")
    assert example.step() == ["L a"]


def test_what_a_gap_names_is_not_waited_for(example: Example) -> None:
    car, hub = car_and_hub(example)
    car.leave()
    a = example.call(car.source("s", 1), "a")
    lost = car.deliver("sent", 1, a)
    car.lose()
    kept = car.deliver("sent", 1, example.call(car.source("s", 1), "b"))
    example.call(hub.deliver("out", 1, lost), "k1")
    example.call(hub.deliver("out", 1, lost, kept), "k2")
    assert example.step() == ["K k1", "K k2", "S b", "E b-k2", "L k1", "L k2"]
    [batch] = example.pipeline.batches
    assert batch.sink_labels.flags.tolist() == [1, 1]
    assert len(batch.lost.sink) == 2


def test_what_could_not_be_read_is_given_up_when_its_stream_has_passed_it(example: Example) -> None:
    """Nobody knows what was in the batch, but the log is in order: what was promised since shows that it was there."""
    car, hub = car_and_hub(example)
    car.leave()
    lost = car.deliver("sent", 1, car.source("s", 1))
    car.garble()
    example.call(hub.deliver("out", 1, lost), "k")
    hub.progress("out", 50)
    assert example.step() == ["K k"]
    car.progress("sent", 1)
    assert example.step() == []
    car.progress("sent", 2)
    assert example.step() == ["L k"]
    assert example.pipeline.batches[-1].sink_labels.flags.tolist() == [1]


def test_parts_of_a_delivery_are_waited_for(example: Example) -> None:
    """A sink tuple is labelled with its last part."""
    car = example.agent(plan_of(10))
    sources = [example.call(car.source("s", 1), name) for name in "ab"]
    example.call(car.deliver("out", 5, *sources, parts=2), "k")
    car.leave(4)  # plan, both sources, the first part
    assert example.told(example.pipeline.run(example.shards.micro_batch())) == ["K k", "S a", "E a-k"]
    assert example.step() == ["S b", "E b-k", "L k"]


def test_parts_of_a_sent_tuple_are_waited_for(example: Example) -> None:
    car, hub = car_and_hub(example, window=10)
    sources = [example.call(car.source("s", 1), name) for name in "ab"]
    sent = car.deliver("sent", 10, *sources, parts=2)
    car.leave(4)
    example.call(hub.deliver("out", 10, sent), "k")
    hub.leave()
    first = example.told(example.pipeline.run(example.shards.micro_batch()))
    assert "L k" not in first
    assert {*first, *example.step()} == {"K k", "S a", "S b", "E a-k", "E b-k", "L k"}


def test_the_first_part_of_a_sent_tuple_is_kept_for_those_that_wait_for_all_of_it(example: Example) -> None:
    """Also if the receiver has ended, so that nothing else can refer to it."""
    car, hub = car_and_hub(example, window=10)
    sources = [example.call(car.source("s", 1), name) for name in "ab"]
    sent = car.deliver("sent", 10, *sources, parts=2)
    example.call(hub.deliver("out", 10, sent), "k")
    hub.end()
    hub.leave()
    car.leave(4)
    first = example.told(example.pipeline.run(example.shards.micro_batch()))
    assert {*first, *example.step()} >= {"K k", "S a", "S b", "E a-k", "E b-k", "L k"}


@pytest.mark.parametrize("sent", [False, True])
def test_a_last_part_that_never_comes_makes_the_sink_tuple_incomplete(example: Example, sent: bool) -> None:
    car, hub = car_and_hub(example, window=10)
    if sent:
        parted = car.deliver("sent", 10, *[car.source("s", 1) for _ in range(2)], parts=2)
        example.call(hub.deliver("out", 10, parted), "k")
        car.leave(4)
        car.garble()
        car.progress("sent", 11)
    else:
        whole = [car.deliver("sent", 10, car.source("s", 1)) for _ in range(2)]
        example.call(hub.deliver("out", 10, *whole, parts=2), "k")
        hub.leave(2)
        hub.garble()
        hub.progress("out", 11)
    told = example.step()
    assert "K k" in told
    assert "L k" in told
    assert example.pipeline.batches[-1].sink_labels.flags.tolist() == [1]


def test_what_is_too_deep_is_an_edge_to_the_sent_tuple() -> None:
    """
    car -> gateway -> hub, and one level: hub's sink tuple comes from what car sent, whatever that came from
    """
    example = Example(levels=1)
    plans = {name: Plan(name) for name in ("car", "gateway", "hub")}
    plans["car"].source("s").map(str).send("d", to=["gateway"])
    plans["gateway"].receive("d", "car").map(str).send("e", to=["hub"])
    plans["hub"].receive("e", "gateway").sink("out")
    car, gateway, hub = (example.agent(plan, name) for name, plan in plans.items())
    d = example.call(car.deliver("d", 1, car.source("s", 1)), "d")
    e = gateway.deliver("e", 1, d)
    example.call(hub.deliver("out", 1, e), "k")
    assert example.step() == ["K k", "S d", "E d-k", "L k"]
    assert example.pipeline.batches[0].sources.sent.tolist() == [1]
    hub.progress("out", 2)
    assert example.step() == ["L d"]
    example.pipeline.finish()
