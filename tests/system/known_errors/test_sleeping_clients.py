"""Gateways in the field take a sleeper for gone, drop what comes meanwhile, and never end its wake."""

from __future__ import annotations

import pytest

from protocol.mqttsn import (
    PingReq,
    PingResp,
)
from tests.support.waiting import wait_until
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_sleeper_fetches_hundreds_of_messages_with_one_pingreq_and_then_gets_its_pingresp(
    qos: int, gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    sleeper = device(gateway).connect()
    sleeper.subscribe("night/mail", qos)
    sleeper.sleep()
    sent = [f"letter {number}".encode() for number in range(200)]
    before = scrape(gateway).value("buffered_bytes")  # others may sleep, too
    sender.publish_all("night/mail", sent)
    size = sum(len("night/mail") + len(each) for each in sent)
    wait_until(lambda: scrape(gateway).value("buffered_bytes") >= before + size, "all letters at the gateway")
    assert sleeper.pending() == []

    sleeper.send(PingReq(sleeper.client_id))
    came = [sleeper.deliver() for _ in sent]
    assert [each.payload for each in came] == sent
    assert {each.qos for each in came} == {qos}
    sleeper.expect(PingResp)

    # It sleeps on: the next message waits for the next PINGREQ.
    sender.publish("night/mail", b"another", qos=1)
    wait_until(lambda: scrape(gateway).value("buffered_bytes") > before, "the letter at the gateway")
    assert sleeper.pending() == []
    sleeper.send(PingReq(sleeper.client_id))
    assert sleeper.deliver().payload == b"another"
    sleeper.expect(PingResp)
    sleeper.send(PingReq(sleeper.client_id))
    sleeper.expect(PingResp)


def test_messages_a_sleeper_has_no_room_for_are_counted_and_the_newest_are_kept(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    sleeper = device(gateway).connect()
    sleeper.subscribe("night/flood", qos=1)
    sleeper.sleep()
    dropped = scrape(gateway).value("messages_dropped", reason="buffer full, client asleep")
    sent = [f"{number:05d}".encode() for number in range(1_100)]
    sender.publish_all("night/flood", sent)
    wait_until(
        lambda: scrape(gateway).value("messages_dropped", reason="buffer full, client asleep") == dropped + 100,
        "one hundred drops counted",
    )
    sleeper.send(PingReq(sleeper.client_id))
    assert [sleeper.deliver().payload for _ in range(1_000)] == sent[100:]
    sleeper.expect(PingResp)


def test_a_sleeper_that_wakes_up_for_good_gets_what_was_kept(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(mosquitto)
    sleeper = device(gateway).connect(clean=False)
    sleeper.subscribe("night/+", qos=1)
    sleeper.sleep()
    sender.publish("night/one", b"kept")
    wait_until(lambda: scrape(gateway).value("buffered_bytes") > 0, "the message at the gateway")
    sleeper.connect(clean=False)
    assert sleeper.deliver()[:2] == ("night/one", b"kept")
    sender.publish("night/two", b"at once")
    assert sleeper.deliver()[:2] == ("night/two", b"at once")
