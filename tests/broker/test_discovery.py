"""Looking for a gateway, and reaching one through forwarders."""

from __future__ import annotations

import pytest

from protocol.mqttsn import (
    ConnAck,
    Connect,
    GwInfo,
    PubAck,
    Publish,
    SearchGw,
    encapsulate,
    encode,
)
from tests.support.machine import (
    ACCEPTED,
    NORMAL,
    Machine,
    at,
)

A = at(1)


def test_a_search_is_answered_to_the_one_who_searches() -> None:
    machine = Machine(gateway_id=9)
    assert machine.send(A, SearchGw(1)) == [GwInfo(9)]
    machine.connect(A, "dev")
    assert machine.send(A, SearchGw(1)) == [GwInfo(9)]
    assert dict(machine.mail) == {}


def test_other_gateways_are_heard_and_not_answered() -> None:
    machine = Machine()
    assert machine.send(A, GwInfo(3)) == []
    assert machine.counted("other gateways heard") == 1


def test_the_gateway_advertises_itself_again_and_again() -> None:
    machine = Machine(gateway_id=9, advertise_every_s=900)
    machine.advance(0)
    assert len(machine.broadcasts) == 1
    machine.advance(899)
    assert len(machine.broadcasts) == 1
    machine.advance(1 + 1800)
    assert len(machine.broadcasts) == 4
    assert encode(machine.broadcasts[0]) == bytes.fromhex("05 00 09 0384")


def test_the_gateway_does_not_advertise_unless_asked_to() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    machine.advance(3600)
    assert machine.broadcasts == []


def test_an_answer_goes_back_through_the_forwarders_it_came_through() -> None:
    machine = Machine()
    node = at(1, b"inner", b"outer")
    wire = encapsulate(encapsulate(encode(Connect("dev", 60)), b"inner"), b"outer")
    machine.gateway.receive(wire, node[0], machine.now)
    ((answer, address),) = machine.gateway.outputs.datagrams
    assert address == node[0]
    assert answer == encapsulate(encapsulate(encode(ConnAck(ACCEPTED)), b"inner"), b"outer")


def test_two_nodes_behind_one_forwarder_are_two_clients() -> None:
    machine = Machine()
    one, two, direct = at(1, b"\x01"), at(1, b"\x02"), at(1)
    machine.connect(one, "one")
    machine.connect(two, "two")
    machine.connect(direct, "forwarder")
    first, second = machine.register(one, "t/one"), machine.register(two, "t/two")
    machine.send(one, Publish(NORMAL, first, 1, b"1", 1))
    machine.send(two, Publish(NORMAL, second, 1, b"2", 1))
    machine.acknowledge()
    assert [(each.topic, each.payload) for each in machine.published] == [("t/one", b"1"), ("t/two", b"2")]
    assert machine.take(one) == [PubAck(first, 1, ACCEPTED)]
    assert machine.take(two) == [PubAck(second, 1, ACCEPTED)]
    assert machine.take(direct) == []


def test_a_message_for_a_node_behind_a_forwarder_is_wrapped_for_it() -> None:
    machine = Machine()
    node = at(1, b"\x01")
    machine.connect(node, "dev")
    machine.subscribe(node, "ab", qos=0)
    machine.publish_from_broker("ab", b"down")
    assert [message.payload for message in machine.take(node) if isinstance(message, Publish)] == [b"down"]
    assert dict(machine.mail) == {}


def test_more_forwarders_than_anybody_has_are_refused() -> None:
    machine = Machine()
    assert machine.send(at(1, *[b"n"] * 4), Connect("dev", 60)) == [ConnAck(ACCEPTED)]
    assert machine.send(at(1, *[b"n"] * 5), Connect("other", 60)) == []
    assert machine.counted("malformed", "too many forwarders") == 1


@pytest.mark.parametrize("octets", ["05 fe 00 abcd", "05 fe 00 abcd 02", "05 fe 00 abcd 03 16", "05fe00abcd 05fe00"])
def test_a_broken_packet_behind_a_forwarder_is_counted_and_dropped(octets: str) -> None:
    machine = Machine()
    machine.receive(bytes.fromhex(octets), A)
    assert sum(n for (what, _), n in machine.gateway.outputs.counters.items() if what == "malformed") == 1
    assert dict(machine.mail) == {}
