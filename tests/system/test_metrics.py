"""The metrics page of a gateway that works."""

from __future__ import annotations

from protocol.mqttsn import (
    Disconnect,
    PingReq,
    PubAck,
    Publish,
    TopicType,
)
from tests.support.waiting import wait_until
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto


def test_metrics_tell_what_goes_on(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(own_mosquitto, "metrics/up")
    one = device(own_gateway).connect()
    topic_id = one.register("metrics/up")
    for qos in (0, 1, 1, 2):
        one.publish(topic_id, b"up", qos)
    one.send(Publish(TopicType.NORMAL, 999, 7, b"nowhere", 1))
    one.expect(PubAck)
    one.subscribe("metrics/down", qos=1)
    recording.publish("metrics/down", b"down")
    one.deliver()
    sleeper = device(own_gateway).connect()
    sleeper.subscribe("metrics/night", qos=1)
    sleeper.sleep()
    recording.publish("metrics/night", bytes(1_000))
    stranger = device(own_gateway)
    stranger.send_bytes(b"\x02\x04")
    stranger.send(PingReq())
    stranger.expect(Disconnect)
    wait_until(lambda: scrape(own_gateway).value("buffered_bytes") >= 1_000, "the buffered message")

    metrics = scrape(own_gateway)
    assert "# HELP threadline_gateway_datagrams_received_total " in metrics.text
    assert "# TYPE threadline_gateway_sessions gauge" in metrics.text
    assert [metrics.value("publishes_from_devices", qos=str(qos)) for qos in (0, 1, 2)] == [1, 2, 1]
    assert metrics.value("publishes_to_devices", qos="1") == 1
    assert metrics.value("publishes_refused", code="invalid_topic") == 1
    assert metrics.value("datagrams_malformed", reason="truncated") == 1
    assert metrics.value("packets_refused", reason="no session") == 1
    assert metrics.value("sessions", state="active") == 1
    assert metrics.value("sessions", state="asleep") == 1
    assert metrics.value("mqtt_connected") == 1
    assert metrics.value("publishes_unacknowledged") == 0
    assert metrics.value("datagrams_received") >= 15
    assert metrics.value("datagrams_sent") >= 12
