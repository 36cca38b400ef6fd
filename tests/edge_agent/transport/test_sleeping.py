"""Clients that sleep, look for messages now and then, and wake up."""

from __future__ import annotations

import pytest

from edge_agent.transport import DeliveryFailed, State, TransportError
from protocol.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
)
from tests.edge_agent.transport.machine import Machine, kinds
from tests.edge_agent.transport.test_requests import subscribed


def asleep(machine: Machine, duration_s: int = 100, check_every_s: float | None = None) -> Machine:
    pending = machine.sleep(duration_s, check_every_s)
    assert machine.sent() == [Disconnect(duration_s)]
    machine.hear(Disconnect())
    assert pending.result(0) is None
    assert machine.is_in(State.ASLEEP)
    return machine


def test_sleep_is_announced_and_is_real_when_the_gateway_agrees() -> None:
    machine = Machine().connected()
    pending = machine.sleep(100)
    assert machine.sent() == [Disconnect(100)]
    assert not pending.done()
    machine.hear(Disconnect())
    assert pending.result(0) is None and machine.is_in(State.ASLEEP)


def test_sleep_waits_for_messages_in_flight() -> None:
    machine = Machine().connected()
    machine.publish("ab")
    machine.sleep(100)
    (packet,) = machine.sent()
    assert isinstance(packet, Publish)
    assert machine.hear(PubAck(0, packet.msg_id, 0)) == [Disconnect(100)]


def test_sleep_does_not_wait_for_ever() -> None:
    machine = Machine().connected()
    delivery = machine.publish("ab")
    machine.sleep(100, drain_s=2.0)
    assert machine.until(Disconnect, 2.5) == Disconnect(100)
    machine.hear(Disconnect())
    assert machine.is_in(State.ASLEEP)
    assert not delivery.done()
    assert kinds(machine.wait(80)) == ["CONNECT"]  # instead of the next check
    (again,) = machine.hear(ConnAck(0))
    assert isinstance(again, Publish) and again.dup
    assert machine.hear(PubAck(0, again.msg_id, 0)) == [Disconnect(100)]


def test_the_announcement_is_repeated_until_answered() -> None:
    machine = Machine().connected()
    machine.sleep(100)
    assert set(kinds(machine.wait(2))) == {"DISCONNECT"}
    machine.hear(Disconnect(), Disconnect())
    assert machine.is_in(State.ASLEEP)


def test_a_sleeping_client_says_nothing_until_it_looks_for_messages_in_good_time() -> None:
    machine = asleep(Machine(keep_alive_s=5).connected())
    start = machine.now
    assert machine.until(PingReq) == PingReq("car-7")
    assert machine.now - start == pytest.approx(80)
    machine.hear(PingResp())
    start = machine.now
    machine.until(PingReq)
    assert machine.now - start == pytest.approx(80)


def test_automatic_checks_can_be_moved_or_turned_off() -> None:
    machine = asleep(Machine().connected(), 100, 30.0)
    start = machine.now
    machine.until(PingReq)
    assert machine.now - start == pytest.approx(30)
    machine = asleep(Machine().connected(), 100, 0.0)
    assert machine.wait(1_000) == []


def test_a_check_receives_what_the_gateway_kept() -> None:
    machine = Machine().connected()
    subscribed(machine, "a/+", qos=2)
    asleep(machine)
    pending = machine.check()
    assert machine.sent() == [PingReq("car-7")]
    assert machine.is_in(State.AWAKE)
    assert machine.hear(Register(5, 1, "a/b")) == [RegAck(5, 1, 0)]
    assert machine.hear(Publish(0, 5, 0, b"0", 0)) == []
    assert machine.hear(Publish(0, 5, 2, b"1", 1)) == [PubAck(5, 2, 0)]
    assert machine.hear(Publish(0, 5, 3, b"2", 2)) == [PubRec(3)]
    assert machine.hear(PubRel(3)) == [PubComp(3)]
    machine.hear(PingResp())
    assert pending.result(0) == 3
    assert machine.is_in(State.ASLEEP)
    assert [message.payload for message in machine.received] == [b"0", b"1", b"2"]


def test_the_ping_of_a_check_is_repeated_but_not_while_messages_come() -> None:
    machine = Machine().connected()
    subscribed(machine, "a/b", topic_id=5)
    asleep(machine)
    machine.check()
    repeated = kinds(machine.wait(1))
    assert len(repeated) > 2 and set(repeated) == {"PINGREQ"}
    for msg_id in range(1, 20):
        machine.hear(Publish(0, 5, msg_id, b"", 1))
        assert machine.wait(0.15) == []
    assert "PINGREQ" in kinds(machine.wait(1))


def test_a_check_without_any_answer_leads_to_a_reconnect_and_back_to_sleep() -> None:
    machine = asleep(Machine().connected())
    pending = machine.check()
    machine.until(Connect)
    assert isinstance(pending.exception(0), DeliveryFailed)
    assert machine.hear(ConnAck(0)) == [Disconnect(100)]
    machine.hear(Disconnect())
    assert machine.is_in(State.ASLEEP)


def test_a_gateway_that_forgot_the_sleeper_is_connected_to_again() -> None:
    machine = Machine().connected()
    subscribed(machine, "a/b", topic_id=5)
    asleep(machine)
    machine.wait(10)
    machine.check()
    machine.sent()
    machine.hear(Disconnect())
    machine.until(Connect)
    assert kinds(machine.hear(ConnAck(0))) == ["SUBSCRIBE"]


def test_a_late_copy_of_the_agreement_does_not_wake_anybody() -> None:
    machine = asleep(Machine().connected())
    machine.hear(Disconnect())
    assert machine.is_in(State.ASLEEP)
    assert machine.wait(10) == []


def test_a_late_copy_of_the_agreement_does_not_end_a_check() -> None:
    machine = asleep(Machine().connected())
    check = machine.check()
    machine.sent()
    machine.hear(Disconnect())
    assert machine.is_in(State.AWAKE)
    machine.hear(PingResp())
    assert check.result(0) == 0


def test_wake_connects_and_keeps_the_session_even_of_a_clean_client() -> None:
    machine = asleep(Machine(clean=True).connected())
    pending = machine.wake()
    assert machine.sent() == [Connect("car-7", 60, clean=False)]
    machine.hear(ConnAck(0))
    assert pending.result(0) is None
    assert machine.wait(10) == []
    machine.hear(Disconnect())
    assert machine.until(Connect).clean


def test_wake_while_awake_is_done_at_once() -> None:
    assert Machine().connected().wake().done()


def test_publishing_while_asleep_wakes_sends_and_sleeps_again() -> None:
    machine = asleep(Machine().connected())
    delivery = machine.publish("ab")
    assert kinds(machine.sent()) == ["CONNECT"]
    (packet,) = machine.hear(ConnAck(0))
    assert isinstance(packet, Publish)
    assert machine.hear(PubAck(0, packet.msg_id, 0)) == [Disconnect(100)]
    assert delivery.result(0) is None
    machine.hear(Disconnect())
    assert machine.is_in(State.ASLEEP)


def test_publishing_while_falling_asleep_waits_for_the_gateway_to_agree() -> None:
    machine = Machine().connected()
    machine.sleep(100)
    machine.sent()
    machine.publish("ab")
    assert machine.sent() == []
    assert kinds(machine.hear(Disconnect())) == ["CONNECT"]


def test_qos_minus_1_wakes_nobody() -> None:
    machine = asleep(Machine().connected())
    machine.publish("ab", qos=-1)
    assert kinds(machine.sent()) == ["PUBLISH"]
    assert machine.is_in(State.ASLEEP)


def test_another_sleep_is_announced_anew() -> None:
    machine = asleep(Machine().connected(), 100)
    pending = machine.sleep(200)
    machine.until(Connect)
    assert machine.hear(ConnAck(0)) == [Disconnect(200)]
    machine.hear(Disconnect())
    assert pending.result(0) is None


def test_a_sleep_that_was_called_off_says_so() -> None:
    machine = Machine().connected()
    machine.publish("ab")
    pending = machine.sleep(100)
    machine.wake()
    assert isinstance(pending.exception(0), DeliveryFailed)
    assert "DISCONNECT" not in kinds(machine.wait(5))


def test_check_needs_a_sleeping_client() -> None:
    with pytest.raises(TransportError, match="connected, not asleep"):
        Machine().connected().check()


def test_a_sleeping_client_says_goodbye_when_closed() -> None:
    machine = asleep(Machine().connected())
    machine.wait(6)
    machine.session.close(5, machine.now)
    assert machine.sent() == [Disconnect()]
    machine.hear(Disconnect())
    assert machine.is_in(State.CLOSED)


@pytest.mark.parametrize(("duration_s", "check_every_s"), [(0, None), (65_536, None), (10, 11.0), (10, -1.0)])
def test_impossible_sleeps_are_refused(duration_s: int, check_every_s: float | None) -> None:
    with pytest.raises(ValueError):
        Machine().sleep(duration_s, check_every_s)
