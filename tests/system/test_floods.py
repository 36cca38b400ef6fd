"""More than a gateway can take: it stays in bounds and goes on serving."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from protocol.mqttsn import (
    Connect,
    GwInfo,
    Publish,
    SearchGw,
    TopicType,
    encapsulate,
    encode,
    short_topic_id,
)
from protocol.topics import state_topic
from tests.support.peers import client_states
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto


@contextmanager
def memory_growth_below(process: psutil.Process, megabytes: float) -> Iterator[None]:
    before = process.memory_info().rss
    yield
    grown = (process.memory_info().rss - before) / 1e6
    assert grown < megabytes, f"the process has grown by {grown:.0f} MB"


def test_a_flood_of_connects_with_fresh_ids_stays_in_bounds_while_a_real_client_is_served(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    total, burst = 50_000, 100
    recording = recorder(own_mosquitto, "real/up")
    real = device(own_gateway, "real").connect(clean=False)
    topic_id = real.register("real/up")
    floods = [device(own_gateway) for _ in range(4)]
    served = 0
    with memory_growth_below(psutil.Process(own_gateway.pid), 60):
        for start in range(0, total, burst):
            flood = floods[start // burst % len(floods)]
            for number in range(start, start + burst):
                connect = encode(Connect(f"fake-{number:06d}-{'x' * 40}", 0xFFFF, clean=number % 4 < 2))
                # Half of them come as from so many wireless nodes behind a forwarder.
                flood.send_bytes(encapsulate(connect, number.to_bytes(4)) if number % 2 else connect)
            flood.send(SearchGw())
            while flood.receive_bytes() != encode(GwInfo(1)):
                pass  # the CONNACKs
            if start % 1_000 == 0:
                real.publish(topic_id, str(start).encode(), qos=1)
                served += 1
    assert scrape(own_gateway).value("datagrams_received") >= total
    assert scrape(own_gateway).sessions <= 4_096 + 1
    assert len(recording.wait_for_count(served)) == served
    real.publish(topic_id, b"after the flood", qos=2)
    recording.wait_for_message("real/up", b"after the flood")

    told = client_states(own_mosquitto.port)
    assert told.pop(state_topic("real")) == "online"
    assert len(told) <= 4_096, "only strangers that still have a session may be told of"


def test_publishes_at_qos_minus_1_do_not_pile_up_while_mosquitto_does_not_read(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice
) -> None:
    stranger = device(own_gateway)
    packet = Publish(TopicType.SHORT, short_topic_id("ab"), 0, bytes(60_000), -1)
    assert own_mosquitto.process is not None
    own_mosquitto.process.send_signal(signal.SIGSTOP)
    try:
        with memory_growth_below(psutil.Process(own_gateway.pid), 60):
            for _ in range(5_000):  # 300 MB
                stranger.send(packet)
                stranger.send(SearchGw())
                stranger.expect(GwInfo)
    finally:
        own_mosquitto.process.send_signal(signal.SIGCONT)
    assert scrape(own_gateway).value("messages_dropped", reason="broker too slow at qos 0 or -1") > 1_000
