"""Gateways in the field fire no wills, repeat nothing, forget sessions and never free a client's slot."""

from __future__ import annotations

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
    ReturnCode,
    WillTopic,
)
from protocol.structs import replaced
from tests.support.peers import retained
from tests.support.waiting import wait_until
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto


def test_the_wills_of_silent_clients_and_of_sleepers_that_do_not_come_back_are_published(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "wills/#")
    wills = [WillTopic("wills/0", 0), WillTopic("wills/1", 1, retain=True), WillTopic("wills/2", 2)]
    silent = [device(gateway).connect(keep_alive_s=1, will=will) for will in wills]
    sleeper = device(gateway).connect(will=WillTopic("wills/sleeper", 1))
    sleeper.sleep(1)
    for will, each in zip(wills, silent, strict=True):
        recording.wait_for_message(will.topic, f"gone: {each.client_id}".encode(), timeout_s=5)
        each.expect(Disconnect)
    recording.wait_for_message("wills/sleeper", f"gone: {sleeper.client_id}".encode(), timeout_s=5)
    assert len(recording.received) == 4
    assert retained(mosquitto.port, "wills/#") == {"wills/1": f"gone: {silent[1].client_id}".encode()}


def test_a_client_that_takes_its_leave_or_stays_alive_has_no_will_published(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "wills/never/#", "wills/witness")
    leaving = device(gateway).connect(keep_alive_s=1, will=WillTopic("wills/never/left", 1))
    leaving.disconnect()
    alive = device(gateway).connect(keep_alive_s=1, will=WillTopic("wills/never/alive", 1))
    silent = device(gateway).connect(keep_alive_s=1, will=WillTopic("wills/witness", 1))

    def witness() -> bool:
        alive.send(PingReq())
        alive.expect(PingResp)
        return b"gone: " + silent.client_id.encode() in recording.payloads("wills/witness")

    wait_until(witness, "the will of the silent client", every_s=0.2)
    assert [each.topic for each in recording.received] == ["wills/witness"]


def test_a_client_that_does_not_acknowledge_is_sent_everything_again(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    deaf = device(gateway).connect()
    deaf.subscribe("deaf/+", qos=2)
    sender.publish("deaf/test", b"hears well so far: the gateway learns how fast this link is")
    deaf.deliver()

    sender.publish("deaf/ears", b"qos 1", qos=1)
    sender.publish("deaf/ears", b"qos 2", qos=2)
    register = deaf.expect(Register)
    assert deaf.expect(Register) == register
    deaf.send(RegAck(register.topic_id, register.msg_id, ReturnCode.ACCEPTED))
    first, second = deaf.expect(Publish), deaf.expect(Publish)
    assert not first.dup and not second.dup and first.msg_id != second.msg_id

    copies: dict[int, list[Publish]] = {first.msg_id: [], second.msg_id: []}
    while min(len(each) for each in copies.values()) < 2:
        copy = deaf.expect(Publish)
        copies[copy.msg_id].append(copy)
    for original in (first, second):
        assert all(each == replaced(original, dup=True) for each in copies[original.msg_id])

    deaf.send(PubAck(first.topic_id, first.msg_id, ReturnCode.ACCEPTED))
    deaf.send(PubRec(second.msg_id))
    for _ in range(3):
        assert deaf.skip_to(PubRel) == PubRel(second.msg_id)
    deaf.send(PubComp(second.msg_id))
    sender.publish("deaf/ears", b"enough")
    assert deaf.skip_to(Publish).payload == b"enough"
    counted = scrape(gateway)
    for packet, times in (("register", 1), ("publish", 4), ("pubrel", 2)):
        assert counted.value("retransmissions", packet=packet) >= times


def test_a_persistent_session_keeps_subscriptions_and_messages_while_its_client_is_away(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    one = device(gateway).connect(clean=False)
    one.subscribe("away/#", qos=2)
    one.disconnect()
    sent = [f"message {number}".encode() for number in range(50)]
    sender.publish_all("away/news", sent)
    wait_until(lambda: scrape(gateway).value("buffered_bytes") > 0, "messages kept for the client")

    one.connect(clean=False)
    assert [one.deliver().payload for _ in sent] == sent
    sender.publish("away/news", b"the subscription is still there")
    assert one.deliver().payload == b"the subscription is still there"


def test_a_clean_start_ends_the_session_that_was_kept(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    one = device(gateway).connect(clean=False)
    one.subscribe("before/#", qos=1)
    one.disconnect()
    one.connect(clean=True)
    one.subscribe("after", qos=1)
    sender.publish("before/x", b"must not come")
    sender.publish("after", b"comes")
    assert one.deliver().payload == b"comes"
    assert one.pending() == []


# ---------------------------------------------------------------------- many clients come and go


def test_the_slots_of_thousands_of_clients_that_came_and_went_are_free_again(
    own_gateway: GatewayService, device: NewDevice
) -> None:
    seats = [device(own_gateway) for _ in range(20)]
    for round_ in range(150):
        for number, seat in enumerate(seats):
            seat.send(Connect(f"visitor-{round_}-{number}", 60))
        for seat in seats:
            assert seat.expect(ConnAck).return_code == ReturnCode.ACCEPTED
            seat.send(PingReq())
        for seat in seats:
            seat.expect(PingResp)
        if round_ == 0:
            assert scrape(own_gateway).sessions == len(seats)
        for seat in seats:
            seat.send(Disconnect())
        for seat in seats:
            seat.expect(Disconnect)
    assert scrape(own_gateway).sessions == 0
    assert scrape(own_gateway).value("sessions_ended", reason="disconnect") == 3_000


def test_the_slots_of_clients_that_vanished_are_freed(own_gateway: GatewayService, device: NewDevice) -> None:
    for _ in range(50):
        device(own_gateway).connect(keep_alive_s=1)
    assert scrape(own_gateway).sessions == 50
    wait_until(lambda: scrape(own_gateway).sessions == 0, "the sessions of vanished clients to end", every_s=0.1)
    assert scrape(own_gateway).value("sessions_lost", reason="keep-alive") == 50
