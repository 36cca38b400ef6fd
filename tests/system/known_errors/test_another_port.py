"""Gateways in the field lose a client that comes back from another port."""

from __future__ import annotations

from protocol.mqttsn import (
    ConnAck,
    Connect,
    PingReq,
    PingResp,
)
from tests.support.waiting import wait_until
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto


def test_a_client_that_reconnects_from_another_port_keeps_session_topics_and_messages(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "nat/up")
    roamer = device(gateway).connect(clean=False)
    topic_id = roamer.register("nat/up")
    roamer.subscribe("nat/down", qos=1)
    roamer.move()
    recording.publish("nat/down", b"sent to the port it has left")

    roamer.connect(clean=False)
    assert roamer.deliver()[:2] == ("nat/down", b"sent to the port it has left")
    roamer.publish(topic_id, b"same topic id", qos=1)
    recording.wait_for_message("nat/up", b"same topic id")


def test_a_sleeper_that_wakes_behind_another_port_gets_its_messages_there(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    rebound = scrape(gateway).value("sessions_rebound")
    sleeper = device(gateway).connect()
    sleeper.subscribe("nat/sleeper", qos=1)
    sleeper.sleep()
    sent = [f"message {number}".encode() for number in range(30)]
    sender.publish_all("nat/sleeper", sent)
    wait_until(lambda: scrape(gateway).value("buffered_bytes") > 0, "messages at the gateway")

    sleeper.move()
    sleeper.send(PingReq(sleeper.client_id))
    assert [sleeper.deliver().payload for _ in sent] == sent
    sleeper.expect(PingResp)
    assert scrape(gateway).value("sessions_rebound") == rebound + 1


def test_two_clients_that_swap_ports_are_not_mixed_up(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    pair = [device(gateway).connect(clean=False) for _ in range(2)]
    for each in pair:
        each.subscribe(f"nat/{each.client_id}", qos=1)
    pair[0].swap_ports(pair[1])
    for each in pair:
        each.send(Connect(each.client_id, 60, clean=False))
        each.skip_to(ConnAck)
    for each in pair:
        each.send(PingReq())
        each.skip_to(PingResp)  # after a DISCONNECT for the client that was at this port before
        sender.publish(f"nat/{each.client_id}", each.client_id.encode())
    for each in pair:
        assert each.deliver()[:2] == (f"nat/{each.client_id}", each.client_id.encode())
