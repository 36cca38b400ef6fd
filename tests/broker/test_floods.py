"""Floods of strangers: bounded, without a trace, and not at the cost of real clients."""

from __future__ import annotations

from broker.session import State
from protocol.mqttsn import (
    Connect,
    Disconnect,
    PingReq,
    Publish,
    encode,
)
from tests.support.machine import (
    NORMAL,
    Machine,
    at,
)

A = at(1)


def test_a_flood_of_connects_with_fresh_ids_and_addresses_stays_in_bounds() -> None:
    machine = Machine(max_unconfirmed=64, max_departed=50)
    machine.connect(A, "honest", clean=False)
    topic_id = machine.register(A, "t/x")
    gateway = machine.gateway
    for number in range(100_000):
        packet = encode(Connect(f"flood-{number}", number % 65_536, clean=number % 2 == 0, will=number % 3 == 0))
        gateway.receive(packet, at(100 + number)[0], machine.now)
        gateway.outputs.datagrams.clear()
        if number % 10_000 == 0:
            machine.advance(0.5)
            machine.check_bounds()
            assert len(gateway._by_client) <= 65
            assert len(gateway._by_peer) <= 65
    machine._collect()
    machine.check_bounds()
    assert machine.counted("sessions ended", "never spoke after connect") == 100_000 - 64
    machine.send(A, Publish(NORMAL, topic_id, 1, b"still here", 1))
    assert machine.payloads() == [b"still here"]
    told = dict(machine.announced)
    lasting = [client_id for client_id, state in told.items() if state]
    assert len(machine.announced) <= 2_000, "the world is not told of every stranger"
    assert len(lasting) <= 65
    assert told["honest"] == "online"


def test_a_flood_does_not_pile_up_timers() -> None:
    machine = Machine(max_unconfirmed=16)
    for number in range(5_000):
        machine.gateway.receive(encode(Connect(f"flood-{number}", 65_535)), at(10 + number)[0], machine.now)
        machine.gateway.outputs.datagrams.clear()
    assert len(machine.gateway._timers) < 500


def test_a_client_that_never_spoke_leaves_no_trace_in_the_announcements() -> None:
    machine = Machine()
    machine.connect(A, "ghost")
    machine.advance(91)
    assert machine.announced == [("ghost", "online"), ("ghost", "")]


def test_a_client_that_spoke_is_not_evicted_by_those_who_did_not() -> None:
    machine = Machine(max_unconfirmed=4)
    machine.connect(A, "dev")
    machine.send(A, PingReq())
    for number in range(10, 30):
        machine.connect(at(number), f"ghost-{number}")
    assert machine.state("dev") is State.ACTIVE
    assert sum(machine.gateway.sessions_by_state().values()) == 5


def test_a_gateway_that_hears_its_own_goodbyes_does_not_answer_them_for_ever() -> None:
    """A forged CONNECT and DISCONNECT with the gateway's own address as the sender."""
    machine = Machine()
    machine.connect(A, "forged")
    machine.send(A, PingReq())
    pending = machine.send(A, Disconnect())
    for _ in range(10):
        pending = [answer for message in pending for answer in machine.send(A, message)]
    assert pending == []
