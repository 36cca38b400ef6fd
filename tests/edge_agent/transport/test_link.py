"""Connecting, keeping alive, losing the connection, closing."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edge_agent.transport import ClientClosed, DeliveryFailed, Refused, SessionConfig, State
from protocol.mqttsn import (
    Advertise,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicType,
)
from tests.edge_agent.transport.machine import Machine, kinds


def test_connect_names_the_client_and_asks_for_a_session_that_survives() -> None:
    machine = Machine(keep_alive_s=30)
    machine.session.connect(machine.now)
    assert machine.sent() == [Connect("car-7", 30, clean=False)]
    assert machine.is_in(State.CONNECTING)
    assert machine.hear(ConnAck(0)) == []
    assert machine.is_in(State.CONNECTED)


def test_connect_is_repeated_with_growing_pauses_and_then_again_later_for_ever() -> None:
    machine = Machine()
    machine.session.connect(machine.now)
    times = [at for at, packet in machine.timeline(600) if isinstance(packet, Connect)]
    first_round = [b - a for a, b in pairwise(times[:4])]
    assert first_round == sorted(first_round) and 1.0 <= first_round[0] <= 1.25
    assert len(times) > 20
    assert max(b - a for a, b in pairwise(times)) < 30 + 10 * 1.25
    machine.wait(600)
    assert machine.state in (State.CONNECTING, State.WAITING)


def test_an_unreachable_gateway_is_looked_up_again_and_again() -> None:
    machine = Machine(reachable=False)
    machine.session.connect(machine.now)
    assert machine.wait(300) == []
    assert len(machine.gateways) > 10
    assert str(machine.session.last_error) == "no such host"
    machine.reachable = True
    assert kinds(machine.wait(31))[0] == "CONNECT"


def test_gateways_are_tried_in_turn() -> None:
    machine = Machine(gateways=3, connect_attempts=1)
    machine.session.connect(machine.now)
    machine.wait(60)
    assert machine.gateways[:7] == [0, 1, 2, 0, 1, 2, 0]


def test_a_gateway_that_says_congestion_is_asked_again_soon() -> None:
    machine = Machine()
    machine.session.connect(machine.now)
    machine.sent()
    machine.hear(ConnAck(ReturnCode.CONGESTION))
    assert machine.is_in(State.WAITING) and machine.session.refusal is None
    asked = machine.now
    machine.until(Connect)
    assert machine.now - asked <= 0.5


def test_a_gateway_that_refuses_is_asked_rarely_and_the_reason_is_kept() -> None:
    machine = Machine()
    machine.session.connect(machine.now)
    machine.sent()
    machine.hear(ConnAck(ReturnCode.NOT_SUPPORTED))
    assert isinstance(machine.session.refusal, Refused)
    assert str(machine.session.refusal) == "the gateway refused the connection: not supported"
    refused = machine.now
    machine.until(Connect)
    assert 8 < machine.now - refused <= 32
    machine.hear(ConnAck(0))
    assert machine.session.refusal is None


def test_a_connection_is_renewed_with_all_that_was_registered_and_subscribed() -> None:
    machine = Machine().connected().registered("a/b")
    machine.subscribe("down/x")
    [subscribe] = machine.sent()
    assert isinstance(subscribe, Subscribe)
    machine.hear(SubAck(1, subscribe.msg_id, 0))
    machine.session.renew(machine.now)
    assert machine.is_in(State.WAITING)
    assert machine.until(Connect, 1.0).clean is False
    machine.publish("a/b")
    sent = machine.hear(ConnAck(0))
    assert {type(packet) for packet in sent} == {Subscribe, Register}


def test_only_a_connection_that_stands_is_renewed() -> None:
    machine = Machine()
    machine.session.renew(machine.now)
    assert machine.is_in(State.IDLE)


def test_a_silent_connection_is_pinged_before_the_keep_alive_time_is_over() -> None:
    machine = Machine(keep_alive_s=10).connected()
    for _ in range(5):
        silent = machine.now
        assert machine.until(PingReq) == PingReq()
        assert 5 < machine.now - silent < 10
        machine.hear(PingResp())


def test_traffic_in_both_directions_makes_pings_needless() -> None:
    machine = Machine(keep_alive_s=10).connected()
    for _ in range(20):
        machine.publish("ab")
        (packet,) = machine.sent()
        assert isinstance(packet, Publish)
        machine.hear(PubAck(packet.topic_id, packet.msg_id, 0))
        assert machine.wait(5) == []


def test_a_client_that_only_sends_still_asks_whether_the_gateway_lives() -> None:
    machine = Machine(keep_alive_s=10).connected()
    packets = []
    for _ in range(30):
        machine.publish("ab", qos=0)
        packets += machine.sent()
        if PingReq() in packets[-2:]:
            machine.hear(PingResp())
        machine.now += 1.0
    assert kinds(packets).count("PINGREQ") == 3


def test_a_client_that_only_receives_still_shows_that_it_lives() -> None:
    machine = Machine(keep_alive_s=10).connected()
    packets = []
    for _ in range(10):
        packets += machine.hear(Register(1, 1, "a/b"))[1:]  # whatever is sent besides the answer
        packets += machine.hear(Advertise(1, 900)) + machine.wait(1)
    assert "PINGREQ" not in kinds(packets)
    for _ in range(10):
        packets += machine.hear(Advertise(1, 900)) + machine.wait(1)
    assert "PINGREQ" in kinds(packets)


def test_qos_minus_1_does_not_put_off_a_ping() -> None:
    machine = Machine(keep_alive_s=10).connected()
    packets = []
    for _ in range(10):
        machine.publish("ab", qos=-1)
        packets += machine.wait(1)
    assert "PINGREQ" in kinds(packets)


def test_a_ping_without_answer_is_repeated_and_then_the_client_connects_again() -> None:
    machine = Machine(keep_alive_s=10).connected()
    attempts = machine.session.config.retry.attempts
    packets = kinds(machine.wait(60))
    assert packets[: attempts + 1] == ["PINGREQ"] * attempts + ["CONNECT"]
    assert machine.session.stats().reconnects == 1


def test_an_unexpected_disconnect_leads_to_a_new_connection_at_once() -> None:
    machine = Machine().connected()
    machine.hear(Disconnect())
    assert kinds(machine.wait(0.1)) == ["CONNECT"]
    machine.hear(ConnAck(0))
    assert machine.is_in(State.CONNECTED)


def test_a_gateway_that_ends_every_connection_is_not_flooded() -> None:
    machine = Machine().connected()
    connects = 0
    for _ in range(1_000):
        for packet in machine.hear(Disconnect()) + machine.wait(0.1):
            if isinstance(packet, Connect):
                connects += 1
                machine.hear(ConnAck(0))
    assert 3 < connects < 20


def test_copies_of_a_disconnect_do_not_disturb_the_new_attempt() -> None:
    machine = Machine().connected()
    machine.hear(Disconnect(), Disconnect())
    machine.wait(0.1)
    assert machine.hear(Disconnect()) == []
    assert machine.is_in(State.CONNECTING)
    machine.hear(ConnAck(0))
    assert machine.session.stats().unexpected["disconnect"] == 2


def test_topic_ids_are_asked_for_again_after_a_reconnect() -> None:
    machine = Machine().connected().registered("a/b")
    machine.hear(Disconnect())
    machine.wait(0.1)
    machine.hear(ConnAck(0))
    machine.publish("a/b")
    assert kinds(machine.sent()) == ["REGISTER"]


def test_a_second_connack_makes_the_client_doubt_its_topic_ids() -> None:
    machine = Machine(clean=True).connected().registered("a/b")
    machine.subscribe("c/d")
    (subscribe,) = machine.sent()
    assert isinstance(subscribe, Subscribe)
    machine.hear(SubAck(9, subscribe.msg_id, 0, 1))
    assert kinds(machine.hear(ConnAck(0))) == ["SUBSCRIBE"]
    machine.publish("a/b")
    assert kinds(machine.sent()) == ["REGISTER"]


def test_after_a_reconnect_subscriptions_come_first_then_what_was_in_flight_then_what_waited() -> None:
    machine = Machine(window=2).connected().registered("a/b")
    machine.subscribe("c/d")
    (subscribe,) = machine.sent()
    assert isinstance(subscribe, Subscribe)
    machine.hear(SubAck(9, subscribe.msg_id, 0, 1))
    for number in b"123":
        machine.publish("a/b", bytes([number]))
    old = [packet for packet in machine.sent() if isinstance(packet, Publish)]
    assert [packet.payload for packet in old] == [b"1", b"2"]
    machine.hear(Disconnect())
    machine.wait(0.1)
    again = machine.hear(ConnAck(0))
    assert kinds(again) == ["SUBSCRIBE", "REGISTER"]
    register = again[1]
    assert isinstance(register, Register)
    new = machine.hear(RegAck(44, register.msg_id, 0))
    assert new == [Publish(TopicType.NORMAL, 44, p.msg_id, p.payload, 1, False, dup=True) for p in old]
    (third,) = machine.hear(PubAck(44, old[0].msg_id, 0))
    assert isinstance(third, Publish) and third.payload == b"3" and not third.dup


def test_a_slow_link_is_learnt_and_packets_are_then_sent_once() -> None:
    machine = Machine(connect_attempts=9).connected()
    copies = []
    for _ in range(30):
        machine.publish("ab")
        packets = machine.wait(3.0)  # the round trip of this link
        copies.append(len(packets))
        (first, *_) = packets
        assert isinstance(first, Publish)
        machine.hear(PubAck(first.topic_id, first.msg_id, 0))
    assert copies[0] > 1
    assert copies[-5:] == [1] * 5


def test_close_waits_for_messages_and_says_goodbye() -> None:
    machine = Machine().connected()
    delivery = machine.publish("ab")
    (publish,) = machine.sent()
    assert isinstance(publish, Publish)
    machine.session.close(5, machine.now)
    assert machine.sent() == []
    assert machine.hear(PubAck(publish.topic_id, publish.msg_id, 0)) == [Disconnect()]
    assert delivery.result(0) is None
    assert machine.is_in(State.CLOSING)
    machine.hear(Disconnect())
    assert machine.is_in(State.CLOSED)
    assert machine.session.next_deadline() is None


def test_a_goodbye_without_answer_is_repeated_often_and_for_three_seconds_at_most() -> None:
    machine = Machine().connected()
    machine.session.close(5, machine.now)
    packets = machine.timeline(3.1)
    assert {packet.TYPE.name for _, packet in packets} == {"DISCONNECT"}
    assert 7 <= len(packets) <= 16
    assert machine.is_in(State.CLOSED)


def test_a_copy_of_the_answer_to_falling_asleep_is_not_taken_for_that_to_the_goodbye() -> None:
    machine = Machine().connected()
    machine.sleep(600, 0)
    machine.sent()
    machine.hear(Disconnect())
    assert machine.is_in(State.ASLEEP)
    machine.wait(0.1)
    machine.session.close(5, machine.now)
    assert machine.sent() == [Disconnect()]
    machine.hear(Disconnect())  # late: the gateway may not have heard the goodbye
    assert machine.is_in(State.CLOSING)
    assert len(machine.timeline(3.1)) >= 6
    assert machine.is_in(State.CLOSED)


def test_a_goodbye_over_a_slow_link_is_repeated_as_often_and_takes_no_longer() -> None:
    machine = Machine()
    machine.session.connect(machine.now)
    machine.sent()
    machine.now += 0.9
    machine.hear(ConnAck(0))
    machine.session.close(5, machine.now)
    assert len(machine.timeline(3.1)) >= 7
    assert machine.is_in(State.CLOSED)


def test_a_client_closed_while_connecting_takes_its_word_back() -> None:
    machine = Machine()
    machine.session.connect(machine.now)
    machine.sent()
    machine.session.close(5, machine.now)
    assert machine.sent() == [Disconnect()]
    assert machine.is_in(State.CLOSED)


def test_what_is_not_done_when_closing_takes_too_long_fails_with_a_reason() -> None:
    machine = Machine(window=1).connected()
    deliveries = [machine.publish("ab"), machine.publish("a/b", qos=2)]
    subscription = machine.subscribe("x/y")
    machine.session.close(3, machine.now)
    machine.wait(7)
    assert machine.is_in(State.CLOSED)
    for error in (deliveries[0].exception(0), deliveries[1].exception(0), subscription.exception(0)):
        assert isinstance(error, DeliveryFailed) and "closed" in str(error)
    assert str(deliveries[1].exception(0)).startswith("message to a/b, QoS 2:")


def test_closing_a_client_that_never_connected_ends_at_once() -> None:
    machine = Machine(reachable=False)
    machine.session.connect(machine.now)
    machine.wait(10)
    machine.session.close(5, machine.now)
    machine.sent()
    assert machine.is_in(State.CLOSED)


def test_a_closing_client_with_messages_waits_for_the_gateway_to_come_back() -> None:
    machine = Machine(reachable=False)
    delivery = machine.publish("ab")
    machine.wait(3)
    machine.session.close(20, machine.now)
    machine.reachable = True
    assert kinds(machine.wait(6))[0] == "CONNECT"
    (publish,) = machine.hear(ConnAck(0))
    assert isinstance(publish, Publish)
    assert kinds(machine.hear(PubAck(publish.topic_id, publish.msg_id, 0))) == ["DISCONNECT"]
    assert delivery.result(0) is None


def test_a_closed_client_takes_nothing_new() -> None:
    machine = Machine().connected()
    machine.session.close(5, machine.now)
    for call in (machine.publish, machine.sleep, machine.wake, machine.check):
        with pytest.raises(ClientClosed):
            call()
    with pytest.raises(ClientClosed):
        machine.subscribe("a/b")
    with pytest.raises(ClientClosed):
        machine.set_will(None)


def test_abort_fails_everything_at_once() -> None:
    machine = Machine().connected()
    delivery = machine.publish()
    machine.session.abort("defect")
    assert machine.is_in(State.CLOSED)
    assert "defect" in str(delivery.exception(0))


@pytest.mark.parametrize(
    "settings",
    [
        {"client_id": ""},
        {"client_id": "x" * 24},
        {"client_id": "a", "keep_alive_s": 0},
        {"client_id": "a", "keep_alive_s": 65_536},
        {"client_id": "a", "window": 0},
        {"client_id": "a", "predefined": {"a/#": 1}},
        {"client_id": "a", "predefined": {"a/b": 0}},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        SessionConfig(**settings)  # type: ignore[arg-type]
