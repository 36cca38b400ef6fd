"""Who is there: the retained state topics of clients and of the gateway itself."""

from __future__ import annotations

import re

from protocol.mqttsn import (
    Disconnect,
    PingReq,
    PingResp,
)
from protocol.topics import state_topic
from tests.support.peers import client_states, retained
from tests.support.waiting import wait_until
from tests.system.conftest import NewDevice, NewRecorder
from threadline.lab import GatewayService, Mosquitto


def test_the_state_topic_follows_each_client(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    one = device(gateway)
    topic = state_topic(one.client_id)
    recording = recorder(mosquitto, topic)
    one.connect(clean=False, keep_alive_s=1)
    recording.wait_for_message(topic, b"online")
    one.sleep(60)
    recording.wait_for_message(topic, b"asleep")
    one.connect(clean=False, keep_alive_s=1)
    recording.wait_for_count(4)  # and then it falls silent
    assert recording.payloads() == [b"online", b"asleep", b"online", b"offline"]
    assert retained(mosquitto.port, topic) == {topic: b"offline"}


def test_the_state_topic_of_a_client_id_with_topic_characters_is_a_topic_of_its_own(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(mosquitto, "tl/+/+/state")
    device(gateway, "a/+b#ü").connect()
    recording.wait_for_message(state_topic("a/+b#ü"), b"online")
    assert "%2F" in state_topic("a/+b#ü")


def test_state_topics_are_right_after_the_gateway_was_killed_and_came_back(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice
) -> None:
    lasting = device(own_gateway, "lasting").connect(clean=False)
    fleeting = device(own_gateway, "fleeting").connect(clean=True)
    sleeper = device(own_gateway, "sleeper").connect(clean=False)
    sleeper.sleep()
    left = device(own_gateway, "left").connect(clean=False)
    left.disconnect()
    for each in (lasting, fleeting):
        each.send(PingReq())
        each.expect(PingResp)
    before = {"lasting": "online", "fleeting": "online", "sleeper": "asleep", "left": "offline"}
    wait_until(
        lambda: client_states(own_mosquitto.port) == {state_topic(each): state for each, state in before.items()},
        "all states",
    )

    own_gateway.kill()
    own_gateway.start()
    after = {"lasting": "offline", "fleeting": "offline", "sleeper": "asleep", "left": "offline"}
    wait_until(
        lambda: client_states(own_mosquitto.port) == {state_topic(each): state for each, state in after.items()},
        "corrected states",
    )
    lasting.skip_to(Disconnect)
    lasting.connect(clean=False)
    sleeper.send(PingReq("sleeper"))
    sleeper.expect(PingResp)
    wait_until(
        lambda: client_states(own_mosquitto.port)[state_topic("lasting")] == "online",
        "the client that came back online",
    )
    assert client_states(own_mosquitto.port)[state_topic("sleeper")] == "asleep"


def test_the_gateways_own_state_topic_says_when_it_was_killed(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, recorder: NewRecorder
) -> None:
    name = re.search(r"mqtt connected name=(\S+)", own_gateway.output())
    assert name is not None
    topic = f"tl-gateway/{name[1]}/state"
    recording = recorder(own_mosquitto, topic)
    assert recording.wait_for_message(topic, b"online").retain
    own_gateway.kill()
    recording.wait_for_message(topic, b"offline")
    own_gateway.start()
    recording.wait_for(lambda received: received[-1].payload == b"online", "online again, under the same name")
    own_gateway.stop()
    recording.wait_for(lambda received: received[-1].payload == b"offline", "offline after a clean stop")
    assert retained(own_mosquitto.port, "tl-gateway/+/state") == {topic: b"offline"}
