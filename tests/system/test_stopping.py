"""A signal ends the gateway cleanly, whatever is going on."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from protocol.mqttsn import (
    Disconnect,
    PubAck,
    Publish,
    ReturnCode,
    TopicType,
)
from tests.system.conftest import NewDevice, NewRecorder
from threadline.lab import GatewayService, Mosquitto


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_gateway_cleanly_in_the_middle_of_traffic(
    sig: signal.Signals,
    own_gateway: GatewayService,
    own_mosquitto: Mosquitto,
    device: NewDevice,
    recorder: NewRecorder,
) -> None:
    recording = recorder(own_mosquitto, "busy/#")
    idle = device(own_gateway).connect()
    busy = device(own_gateway).connect()
    topic_id = busy.register("busy/up")
    sending = threading.Event()
    sending.set()

    def send() -> None:
        number = 0
        while sending.is_set():
            number = number % 0xFFFF + 1
            busy.send(Publish(TopicType.NORMAL, topic_id, number, str(number).encode(), 1))
            if number % 16 == 0:
                time.sleep(0.001)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        recording.wait_for_count(200)
        process = own_gateway.process
        assert process is not None
        start = time.monotonic()
        process.send_signal(sig)
        assert process.wait(10) == 0
        assert time.monotonic() - start < 5
    finally:
        sending.clear()
        thread.join()
    assert "Traceback" not in own_gateway.output()
    assert "gateway stopped unacknowledged=0" in own_gateway.output()
    idle.expect(Disconnect)

    # What a device holds an acknowledgement for has arrived.
    acknowledged = {
        str(each.msg_id).encode()
        for each in busy.pending()
        if isinstance(each, PubAck) and each.return_code == ReturnCode.ACCEPTED
    }
    assert len(acknowledged) >= 100
    recording.wait_for(
        lambda received: acknowledged <= {each.payload for each in received}, "all that was acknowledged"
    )


def test_sigterm_stops_the_gateway_while_mosquitto_is_away(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice
) -> None:
    one = device(own_gateway).connect()
    own_mosquitto.kill()
    one.send(Publish(TopicType.NORMAL, one.register("x/y"), 1, b"never arrives", 1))
    start = time.monotonic()
    assert own_gateway.stop() == 0
    assert time.monotonic() - start < 5
    assert "Traceback" not in own_gateway.output()
