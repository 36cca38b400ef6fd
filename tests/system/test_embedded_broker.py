"""The gateway on the broker in Python, for machines without Mosquitto: MQTT 3.1.1 instead of 5."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.mqttsn import PingReq, PingResp
from tests.support.peers import Recorder
from tests.support.waiting import wait_until
from tests.system.conftest import NewDevice
from tests.system.scrape import scrape
from threadline.lab import EmbeddedBroker, GatewayService


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("amqtt")) as service:
        yield service


@pytest.fixture(scope="module")
def embedded_gateway(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayService]:
    with GatewayService(tmp_path_factory.mktemp("gateway"), broker) as service:
        yield service


def test_the_gateway_speaks_mqtt_3_1_1_to_it(embedded_gateway: GatewayService) -> None:
    assert "--mqtt-version 3.1.1" in " ".join(embedded_gateway.command())
    assert scrape(embedded_gateway).value("mqtt_connected") == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_a_device_publishes_arrives_once(
    qos: int, embedded_gateway: GatewayService, broker: EmbeddedBroker, device: NewDevice
) -> None:
    one = device(embedded_gateway).connect()
    topic_id = one.register(f"embedded/up/{qos}")
    with Recorder(broker.port, f"embedded/up/{qos}") as heard:
        sent = [f"message {number}".encode() for number in range(50)]
        for payload in sent:
            one.publish(topic_id, payload, qos)
        heard.wait_for_count(len(sent))
        assert heard.payloads() == sent


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_published_for_a_device_arrives_once(
    qos: int, embedded_gateway: GatewayService, broker: EmbeddedBroker, device: NewDevice
) -> None:
    one = device(embedded_gateway).connect()
    one.subscribe("embedded/down/+", qos)
    with Recorder(broker.port) as sender:
        sent = [f"message {number}".encode() for number in range(50)]
        for payload in sent:
            sender.publish("embedded/down/x", payload, qos)
        assert [one.deliver()[:3] for _ in sent] == [("embedded/down/x", payload, qos) for payload in sent]
    one.send(PingReq())
    one.expect(PingResp)


def test_retained_messages_reach_each_new_subscriber_once(
    embedded_gateway: GatewayService, broker: EmbeddedBroker, device: NewDevice
) -> None:
    publisher = device(embedded_gateway).connect()
    publisher.publish(publisher.register("embedded/kept"), b"kept", qos=1, retain=True)
    first = device(embedded_gateway).connect()
    first.subscribe("embedded/kept", qos=1)
    assert first.deliver() == ("embedded/kept", b"kept", 1, True, False)
    second = device(embedded_gateway).connect()
    second.subscribe("embedded/kept", qos=1)
    assert second.deliver() == ("embedded/kept", b"kept", 1, True, False)
    for each in (first, second):
        each.send(PingReq())
        each.expect(PingResp)


def test_devices_go_on_after_a_restart_of_the_broker(tmp_path: Path, device: NewDevice) -> None:
    with EmbeddedBroker(tmp_path) as own_broker, GatewayService(tmp_path, own_broker) as gateway:
        one = device(gateway).connect()
        topic_id = one.register("again/up")
        one.subscribe("again/down", qos=1)
        own_broker.stop()
        wait_until(lambda: not scrape(gateway).value("mqtt_connected"), "the gateway to notice")
        own_broker.start()
        wait_until(lambda: scrape(gateway).value("mqtt_connected"), "the gateway to come back")
        with Recorder(own_broker.port, "again/up") as heard:
            one.publish(topic_id, b"up again", qos=2)
            heard.wait_for_message("again/up", b"up again")
            heard.publish("again/down", b"down again")
            assert one.deliver().payload == b"down again"
