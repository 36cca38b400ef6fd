"""Gateways in the field are silent while their broker is away, forget registrations and hold QoS 0 back."""

from __future__ import annotations

import statistics
import time

from protocol.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicType,
)
from tests.support.waiting import wait_until
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto


def test_devices_are_told_of_congestion_while_mosquitto_is_away_and_go_on_when_it_is_back(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(own_mosquitto, "outage/#")
    one = device(own_gateway).connect()
    topic_id = one.register("outage/up")
    one.subscribe("outage/down", qos=1)
    own_mosquitto.stop()
    wait_until(lambda: not scrape(own_gateway).value("mqtt_connected"), "the gateway to notice")

    newcomer = device(own_gateway)
    newcomer.send(Connect(newcomer.client_id, 60))
    assert newcomer.expect(ConnAck).return_code == ReturnCode.CONGESTION
    for qos in (0, 1, 2):
        msg_id = 40 + qos if qos else 0
        one.send(Publish(TopicType.NORMAL, topic_id, msg_id, b"during the outage", qos))
        assert one.expect(PubAck) == PubAck(topic_id, msg_id, ReturnCode.CONGESTION)
    one.send(Subscribe(TopicType.NORMAL, "outage/other", 50, 1))
    answer = one.expect(SubAck)
    assert (answer.msg_id, answer.return_code) == (50, ReturnCode.CONGESTION)
    one.send(PingReq())
    one.expect(PingResp)

    own_mosquitto.start()
    wait_until(lambda: scrape(own_gateway).value("mqtt_connected"), "the gateway to come back", timeout_s=5)
    recording.wait_until_connected()
    for qos in (0, 1, 2):
        one.publish(topic_id, f"after it, qos {qos}".encode(), qos)
        recording.wait_for_message("outage/up", f"after it, qos {qos}".encode())
    assert b"during the outage" not in recording.payloads()
    newcomer.connect()
    recording.publish("outage/down", b"the old subscription")
    assert one.deliver().payload == b"the old subscription"
    one.subscribe("outage/other", qos=1)
    recording.publish("outage/other", b"the new subscription")
    assert one.deliver().payload == b"the new subscription"


def test_registrations_survive_a_killed_gateway_and_the_client_is_told(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(own_mosquitto, "survive/#")
    lasting = device(own_gateway).connect(clean=False)
    ids = [lasting.register(f"survive/{number}") for number in range(20)]
    lasting.publish(ids[0], b"before", qos=1)
    lasting.subscribe("survive/down", qos=1)
    fleeting = device(own_gateway).connect(clean=True)
    fleeting_id = fleeting.register("survive/fleeting")

    own_gateway.kill()
    recording.publish("survive/down", b"while the gateway was dead")
    own_gateway.start()

    lasting.expect(Disconnect)  # the notice
    lasting.send(Publish(TopicType.NORMAL, ids[0], 900, b"did not see it", 1))
    lasting.expect(Disconnect)  # and again on the next packet
    fleeting.send(Publish(TopicType.NORMAL, fleeting_id, 900, b"a session that is gone", 1))
    fleeting.expect(Disconnect)

    lasting.connect(clean=False)
    assert lasting.deliver()[:2] == ("survive/down", b"while the gateway was dead")
    for number, topic_id in enumerate(ids):
        lasting.publish(topic_id, f"after {number}".encode(), qos=1)
        recording.wait_for_message(f"survive/{number}", f"after {number}".encode())
    assert lasting.register("survive/7") == ids[7]
    payloads = recording.payloads()
    assert b"did not see it" not in payloads and b"a session that is gone" not in payloads


def test_qos_0_through_the_gateway_is_not_held_back_by_nagle_and_delayed_acknowledgements(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "latency", qos=0)
    direct = recorder(mosquitto)
    one = device(gateway).connect()
    topic_id = one.register("latency")

    def through_the_gateway(payload: bytes) -> None:
        one.publish(topic_id, payload)

    def straight(payload: bytes) -> None:
        direct.publish("latency", payload, qos=0)

    medians = {}
    for name, publish in (("gateway", through_the_gateway), ("direct", straight)):
        took = []
        for number in range(50):
            payload = f"{name} {number}".encode()
            start = time.perf_counter()
            publish(payload)
            recording.wait_for_message("latency", payload)
            took.append(time.perf_counter() - start)
        medians[name] = statistics.median(took)
    assert medians["gateway"] < 0.020, medians
    assert medians["gateway"] < 10 * medians["direct"] + 0.002, medians
