"""The MQTT connection breaks with acknowledgements under way: QoS 2 is still exactly once, in both directions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from edge_agent.transport import Client, Message
from protocol.mqttsn import ConnAck, Connect, PingReq, PingResp, PubAck, Publish, RegAck, Register, TopicType
from tests.support.mqtt_proxy import MqttProxy
from tests.support.peers import Device, Recorder
from tests.support.waiting import wait_until
from tests.system.conftest import NewDevice
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto


def answers_a_ping(device: Device) -> bool:
    """An answer may be held back together with one that rests on what was not written: ask again."""
    device.send(PingReq())
    with suppress(TimeoutError):
        device.skip_to(PingResp, timeout_s=0.5)
        return True
    return False


@pytest.fixture
def proxy(own_mosquitto: Mosquitto) -> Iterator[MqttProxy]:
    with MqttProxy(own_mosquitto.port) as made:
        yield made


@pytest.fixture
def proxied_gateway(proxy: MqttProxy, tmp_path: Path) -> Iterator[GatewayService]:
    with GatewayService(tmp_path, proxy) as service:
        yield service


def test_qos_2_publishes_whose_pubcomp_was_lost_are_not_published_again(
    proxied_gateway: GatewayService, proxy: MqttProxy, own_mosquitto: Mosquitto
) -> None:
    sent = {f"m{number}".encode() for number in range(10)}
    with Recorder(own_mosquitto.port, "q2/#") as recorder, Client(proxied_gateway.address, client_id="q2") as client:
        client.publish("q2/x", b"first", qos=2).result(10)
        proxy.drop_pubcomps = True
        for payload in sent:
            client.publish("q2/x", payload, qos=2)
        wait_until(lambda: proxy.dropped >= len(sent), "every PUBCOMP lost")
        proxy.drop_pubcomps = False
        proxy.cut()
        client.flush(20)
        recorder.wait_for_count(len(sent) + 1)
        assert Counter(recorder.payloads()) == Counter({b"first", *sent})


def test_messages_whose_puback_was_lost_reach_a_qos_2_subscriber_once(
    proxied_gateway: GatewayService, proxy: MqttProxy, own_mosquitto: Mosquitto
) -> None:
    count = 700
    received: list[bytes] = []

    def note(message: Message) -> None:
        received.append(message.payload)

    with Recorder(own_mosquitto.port) as sender, Client(proxied_gateway.address, client_id="sub") as client:
        client.subscribe("down/x", note, qos=2).result(10)
        proxy.drop_upwards = True
        sender.publish_all("down/x", [f"m{number}".encode() for number in range(count)])
        wait_until(lambda: len(received) >= count, "all messages, unacknowledged")
        proxy.drop_upwards = False
        proxy.cut()
        wait_until(
            lambda: scrape(proxied_gateway).value("duplicates_suppressed", kind="message from the broker") >= count,
            "the broker to send them again",
        )
        sender.publish("down/x", b"last")
        wait_until(lambda: b"last" in received, "the next message")
    assert len(received) == count + 1


def test_a_state_folder_without_room_means_congestion_and_nothing_else_and_ends_when_there_is_room(
    own_gateway: GatewayService, device: NewDevice
) -> None:
    old = device(own_gateway, "old").connect(clean=False)
    topic_id = old.register("old/up")
    process = psutil.Process(own_gateway.pid)
    state = own_gateway.log.parent / "gateway-state"
    room = max(path.stat().st_size for path in state.iterdir())
    process.rlimit(psutil.RLIMIT_FSIZE, (room, psutil.RLIM_INFINITY))
    new = device(own_gateway, "new")
    # Files may not grow any more: what has to be written down is not answered, or answered with congestion.
    for number in range(1, 60):
        new.send(Connect("new", 60, clean=False))
        new.send(Register(0, number, f"new/{number}/{'x' * 900}"))
        wait_until(lambda: answers_a_ping(old), "the gateway to serve others")
        if scrape(own_gateway).value("datagrams_not_sent", reason="state not written"):
            break
    else:
        pytest.fail("the state folder never ran out of room")
    old.send(Publish(TopicType.NORMAL, topic_id, 7, b"p", 1))
    assert old.skip_to(PubAck).return_code == 1
    process.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))

    def accepted() -> bool:
        old.send(Publish(TopicType.NORMAL, topic_id, 8, b"p", 1))
        return old.skip_to(PubAck).return_code == 0

    wait_until(accepted, "publishes to be taken again", every_s=0.2)
    late = device(own_gateway, "late")
    late.send(Connect("late", 60, clean=False))
    late.expect(ConnAck)
    late.send(Register(0, 1, "late/up"))
    assert late.expect(RegAck).return_code == 0
    assert own_gateway.stop() == 0
    assert "Traceback" not in own_gateway.output()
