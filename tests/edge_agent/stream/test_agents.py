"""Plans on several agents: what crosses a Send, and how the provenance of the parts makes that of the whole."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from edge_agent.stream import Collect, Count, Loopback, Plan, Results, run
from protocol.ids import TupleId
from protocol.records import Delivery, OriginKind, Progress, Record
from tests.edge_agent.stream.expect import assert_promises_kept, at, capturing_modes, every_mode, found
from tests.support import oracle


def resolved(fleet: Mapping[str, Results], agent: str, sink: str) -> list[tuple[int, Any, list[Any]]]:
    """A sink's tuples with the payloads of the SOURCE tuples behind them, wherever these were born."""
    upstream = {each.id: each.origins for results in fleet.values() for each in results.deliveries}
    sources = {source.id: source for results in fleet.values() for source in results.sources.values()}
    return [
        (
            delivery.ts,
            delivery.payload,
            sorted(sources[origin.id].payload for origin in oracle.resolve(delivery.origins, upstream)),
        )
        for delivery in fleet[agent].of(sink)
    ]


# ---------------------------------------------------------------------- the border


def border(mode: str) -> dict[str, Results]:
    """Tuples that are unchanged, mapped and aggregated at car-7, all sent to the hub and delivered there."""
    car = Plan("car", provenance=mode)
    source = car.source("s")
    source.filter(lambda value: value != "x").send("unchanged", to=["hub"])
    source.map(str.upper).send("mapped", to=["hub"])
    source.window(10).aggregate(Collect(), into="".join).send("windows", to=["hub"])
    hub = Plan("hub", provenance=mode)
    for stream in ("unchanged", "mapped", "windows"):
        hub.receive(stream, "car-7").sink(f"{stream} at hub")
    return Loopback({"car-7": car, "hub": hub}).run({"car-7": {"s": at("a@1 x@2 b@3")}})


@every_mode
def test_payloads_and_timestamps_cross_unchanged(mode: str) -> None:
    fleet = border(mode)

    def received(stream: str) -> list[tuple[int, Any]]:
        return [(each.ts, each.payload) for each in fleet["hub"].of(f"{stream} at hub")]

    assert received("unchanged") == [(1, "a"), (3, "b")]
    assert received("mapped") == [(1, "A"), (2, "X"), (3, "B")]
    assert received("windows") == [(10, "axb")]


@capturing_modes
def test_a_source_tuple_stays_a_source_tuple_with_its_id(mode: str) -> None:
    fleet = border(mode)
    sent = [delivery.origins for delivery in fleet["car-7"].of("unchanged")]
    received = [delivery.origins for delivery in fleet["hub"].of("unchanged at hub")]
    assert received == sent
    assert [[origin.kind for origin in origins] for origins in received] == [[OriginKind.SOURCE]] * 2
    assert [origins[0].id.stream.agent for origins in received] == ["car-7"] * 2


@capturing_modes
@pytest.mark.parametrize("stream", ["mapped", "windows"])
def test_everything_else_becomes_remote_with_the_id_and_time_of_its_delivery(mode: str, stream: str) -> None:
    fleet = border(mode)
    sent = [[(OriginKind.REMOTE, delivery.id, delivery.ts)] for delivery in fleet["car-7"].of(stream)]
    received = fleet["hub"].of(f"{stream} at hub")
    assert [[(origin.kind, origin.id, origin.ts) for origin in each.origins] for each in received] == sent
    assert all(origin.kind is OriginKind.SOURCE for each in fleet["car-7"].of(stream) for origin in each.origins)


@capturing_modes
def test_at_a_relay_a_source_tuple_stays_one_and_a_remote_one_is_known_by_the_relays_delivery(mode: str) -> None:
    car, relay, hub = (Plan(name, provenance=mode) for name in ("car", "relay", "hub"))
    source = car.source("s")
    source.send("raw", to=["relay"])
    source.map(str.upper).send("made", to=["relay"])
    for stream in ("raw", "made"):
        relay.receive(stream, "car-7").filter(lambda value: True).send(f"{stream} on", to=["hub"])
        hub.receive(f"{stream} on", "relay").sink(stream)
    fleet = Loopback({"car-7": car, "relay": relay, "hub": hub}).run({"car-7": {"s": at("a@1")}})

    def named(agent: str, stream: str) -> list[tuple[OriginKind, str]]:
        return [(origin.kind, str(origin.id)) for each in fleet[agent].of(stream) for origin in each.origins]

    assert named("relay", "raw on") == named("hub", "raw") == [(OriginKind.SOURCE, "car-7/s@0:0")]
    assert named("relay", "made on") == [(OriginKind.REMOTE, "car-7/made@0:0")]
    assert named("hub", "made") == [(OriginKind.REMOTE, "relay/made on@0:0")]
    assert resolved(fleet, "hub", "raw") == [(1, "a", ["a"])]
    assert resolved(fleet, "hub", "made") == [(1, "A", ["a"])]


@capturing_modes
def test_a_source_tuple_is_told_by_the_agent_where_it_was_born_and_nowhere_else(mode: str) -> None:
    fleet = border(mode)
    assert sorted(source.payload for source in fleet["car-7"].sources.values()) == ["a", "b", "x"]
    assert not fleet["hub"].sources


def sliding(mode: str, more: int) -> tuple[Delivery, ...]:
    """The first windows of a stream, and the same when `more` tuples of the same key follow."""
    plan = Plan("chain", provenance=mode)
    plan.source("s").window(4, 2).aggregate(Collect()).sink("out")
    items = [(ts, ts) for ts in range(4)] + [(ts + 100, ts) for ts in range(more)]
    return tuple(run(plan, {"s": items}).of("out")[:2])


@capturing_modes
def test_what_crosses_does_not_grow_with_the_chain_of_tuples_behind_a_window(mode: str) -> None:
    short, long = sliding(mode, 0), sliding(mode, 5_000)
    once = [pickle.dumps(delivery) for delivery in long]
    assert [pickle.dumps(delivery) for delivery in long] == once, "twice in a row"
    assert [pickle.loads(text) for text in once] == list(short)
    assert [len(text) for text in once] == [len(pickle.dumps(delivery)) for delivery in short]


@capturing_modes
def test_a_serialised_delivery_names_its_source_tuples_and_does_not_carry_them(mode: str) -> None:
    def serialised(payload: str) -> bytes:
        plan = Plan("sizes", provenance=mode)
        plan.source("s").window(4).aggregate(Count()).sink("out")
        [delivery] = run(plan, {"s": [(ts, payload) for ts in range(4)]}).of("out")
        assert pickle.loads(pickle.dumps(delivery)) == delivery
        return pickle.dumps(delivery)

    assert len(serialised("x" * 1_000)) == len(serialised("x"))


# ---------------------------------------------------------------------- three in a row


def first_part(stream: Any) -> Any:
    return stream.window(4, 2).aggregate(Collect(), into=sum)


def second_part(stream: Any, own: Any) -> Any:
    return (
        stream.union(own)
        .key_by(lambda value: value % 2)
        .window(6, 3)
        .aggregate(Collect(), into=lambda _, all_: sum(all_))
    )


def third_part(stream: Any) -> Any:
    keyed = stream.key_by(lambda value: 0)
    return keyed.join_band(keyed, 3, lambda left, right: left * right, where=lambda left, right: left < right)


CAR = [(ts, ts * ts + 1) for ts in range(12)]
GATEWAY = [(ts, 100 + ts) for ts in range(0, 12, 5)]


@capturing_modes
def test_three_instances_in_a_row_lead_back_to_source_tuples_only(mode: str) -> None:
    car, gateway, hub = (Plan(name, provenance=mode) for name in ("car", "gateway", "hub"))
    first_part(car.source("s")).send("sums", to=["gateway"])
    own = gateway.source("own")
    second_part(gateway.receive("sums", "car-7"), own).send("more", to=["hub"])
    own.send("raw", to=["hub"])
    third_part(hub.receive("more", "gateway")).sink("out")
    hub.receive("raw", "gateway").sink("raw at hub")
    fleet = Loopback({"car-7": car, "gateway": gateway, "hub": hub}).run(
        {"car-7": {"s": CAR}, "gateway": {"own": GATEWAY}}
    )

    whole = Plan("whole", provenance=mode)
    own = whole.source("own")
    third_part(second_part(first_part(whole.source("s")), own)).sink("out")
    own.sink("raw at hub")
    alone = run(whole, {"s": CAR, "own": GATEWAY})

    assert fleet["hub"].of("out")
    for sink in ("out", "raw at hub"):
        assert resolved(fleet, "hub", sink) == [(ts, value, sorted(causes)) for ts, value, causes in found(alone, sink)]
    kinds = {origin.kind for delivery in fleet["hub"].of("out") for origin in delivery.origins}
    assert kinds == {OriginKind.REMOTE}
    kinds = {origin.kind for delivery in fleet["gateway"].of("more") for origin in delivery.origins}
    assert kinds == {OriginKind.REMOTE, OriginKind.SOURCE}


@capturing_modes
def test_one_stream_may_go_to_several_agents(mode: str) -> None:
    car = Plan("car", provenance=mode)
    car.source("s").map(str.upper).send("upper", to=["hub", "lab"])
    plans = {"car-7": car}
    for agent in ("hub", "lab"):
        plans[agent] = Plan(agent, provenance=mode)
        plans[agent].receive("upper", "car-7").sink("out")
    fleet = Loopback(plans).run({"car-7": {"s": at("a@1 b@2")}})
    expected = [(1, "A", ["a"]), (2, "B", ["b"])]
    assert resolved(fleet, "hub", "out") == resolved(fleet, "lab", "out") == expected


@capturing_modes
def test_a_source_tuple_that_comes_by_two_ways_is_one_origin(mode: str) -> None:
    car, hub = Plan("car", provenance=mode), Plan("hub", provenance=mode)
    source = car.source("s")
    source.send("one", to=["hub"])
    source.filter(lambda value: True).send("two", to=["hub"])
    keyed = [hub.receive(stream, "car-7").key_by(lambda value: value) for stream in ("one", "two")]
    keyed[0].join_band(keyed[1], 1, lambda left, right: left + right).sink("out")
    fleet = Loopback({"car-7": car, "hub": hub}).run({"car-7": {"s": at("a@1")}})
    [delivery] = fleet["hub"].of("out")
    assert delivery.payload == "aa"
    assert len(delivery.origins) == 1


@capturing_modes
def test_what_a_length_window_holds_is_held_at_the_receivers_too(mode: str) -> None:
    car, hub = Plan("car", provenance=mode), Plan("hub", provenance=mode)
    keyed = car.source("s").key_by(lambda value: value == "rare")
    keyed.length_window(2).aggregate(Count()).send("counts", to=["hub"])
    hub.receive("counts", "car-7").window(10).aggregate(Count()).sink("out")
    # enough items for several lists: the second rare one comes with the first, thousands of ms later
    items = [(ts, "rare" if ts in (0, 4_000) else "common") for ts in range(4_001)]
    records: list[Record] = []
    Loopback({"car-7": car, "hub": hub}, emit=records.append).run({"car-7": {"s": items}})
    upstream = {record.id: record.origins for record in records if isinstance(record, Delivery)}
    at_hub = [record for record in records if isinstance(record, Delivery | Progress) and record.stream.agent == "hub"]
    assert len([record for record in at_hub if isinstance(record, Progress)]) > 2
    last = [record for record in at_hub if isinstance(record, Delivery)][-1]
    assert 0 in {origin.ts for origin in oracle.resolve(last.origins, upstream)}
    assert_promises_kept(
        list(at_hub), lambda progress, origin: 10, lambda delivery: oracle.resolve(delivery.origins, upstream)
    )


def test_ids_read_like_a_place() -> None:
    plan = Plan("named", provenance="segments")
    plan.source("reports").sink("out")
    results = run(plan, {"reports": at("a@1")}, agent="car-7", epoch=3)
    [delivery] = results.of("out")
    assert str(delivery.id) == "car-7/out@3:0"
    identity: TupleId = delivery.origins[0].id
    assert str(identity) == "car-7/reports@3:0"
