"""What is told of clients to the world, and of the gateway's end to clients."""

from __future__ import annotations

from pathlib import Path

from protocol.mqttsn import (
    Disconnect,
    PingReq,
)
from tests.support.machine import (
    Machine,
    at,
)

A, B = at(1), at(2)


def test_states_that_could_not_be_told_are_told_when_the_broker_is_back() -> None:
    machine = Machine()
    machine.connect(A, "dev")
    machine.send(A, PingReq())
    machine.broker_down()
    machine.announced.clear()
    machine.send(A, Disconnect(60))
    machine.send(A, Disconnect())
    assert machine.announced == []
    machine.broker_up()
    assert machine.announced == [("dev", "offline")]


def test_a_client_that_connects_again_is_not_announced_again() -> None:
    machine = Machine()
    for keep_alive_s in (60, 61, 62):
        machine.connect(A, "dev", keep_alive_s=keep_alive_s)
        machine.send(A, PingReq())
    assert machine.announced == [("dev", "online")]


def test_the_states_of_departed_clients_are_kept_up_to_a_limit_and_then_taken_back() -> None:
    machine = Machine(max_departed=3)
    for number in range(5):
        machine.connect(at(number), f"dev-{number}")
        machine.send(at(number), PingReq())
        machine.send(at(number), Disconnect())
    told = dict(machine.announced)
    assert told == {"dev-0": "", "dev-1": "", "dev-2": "offline", "dev-3": "offline", "dev-4": "offline"}
    machine.check_bounds()


def test_a_departed_client_that_comes_back_is_not_taken_back() -> None:
    machine = Machine(max_departed=1)
    for client_id in ("one", "two"):
        machine.connect(A, client_id)
        machine.send(A, PingReq())
        machine.send(A, Disconnect())
        machine.connect(B, "one")
        machine.send(B, PingReq())
    assert dict(machine.announced)["one"] == "online"


def test_connected_clients_are_told_when_the_gateway_stops(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.connect(A, "dev")
    machine.connect(B, "sleeper", clean=False)
    machine.send(B, Disconnect(60))
    machine.stop()
    assert machine.take(A) == [Disconnect()]
    assert machine.take(B) == []
    assert machine.announced[-1] == ("dev", "offline")
    assert ("sleeper", "offline") not in machine.announced
    machine.close()


def test_a_sleeper_that_ends_with_the_gateway_is_told_of_as_offline() -> None:
    machine = Machine()
    machine.connect(A, "sleeper", clean=False)
    machine.send(A, Disconnect(60))
    machine.stop()
    assert machine.announced[-1] == ("sleeper", "offline")
