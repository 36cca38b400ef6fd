"""Mosquitto comes late, goes and is killed, and so is the gateway: nothing may be missing."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from random import Random

import pytest

from edge_agent.transport import Client
from protocol.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    GwInfo,
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
    SearchGw,
)
from tests.support.waiting import wait_until
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.couriers import Mailbox, copies_of, couriers, half_way
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto


def test_a_gateway_that_starts_before_mosquitto_answers_congestion_and_then_serves(
    mosquitto_installed: None, tmp_path: Path, device: NewDevice, recorder: NewRecorder
) -> None:
    broker = Mosquitto(tmp_path)
    with GatewayService(tmp_path, broker) as gateway:
        one = device(gateway)
        one.send(Connect(one.client_id, 60))
        assert one.expect(ConnAck).return_code == ReturnCode.CONGESTION
        one.send(SearchGw())
        one.expect(GwInfo)
        assert scrape(gateway).value("mqtt_connected") == 0
        assert scrape(gateway).value("connects_refused", code="congestion") == 1
        with broker:
            wait_until(lambda: scrape(gateway).value("mqtt_connected"), "a connection to Mosquitto")
            recording = recorder(broker, "late/up")
            one.connect()
            one.publish(one.register("late/up"), b"at last", qos=2)
            recording.wait_for_message("late/up", b"at last")
            recording.close()


def test_qos_2_from_devices_arrives_exactly_once_across_a_restart_of_mosquitto(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(own_mosquitto, "restart/#")
    working = couriers(device, own_gateway, "restart", qos=2, count=300)
    half_way(working)
    own_mosquitto.stop()
    own_mosquitto.start()
    for each in working:
        each.join(30)
    assert set(copies_of(working, recording).values()) == {1}
    for each in working:
        assert recording.payloads(each.topic) == each.sent, "in order"


def test_qos_2_to_devices_arrives_exactly_once_across_a_restart_of_mosquitto(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(own_mosquitto)
    receiver = device(own_gateway).connect(clean=False)
    receiver.subscribe("restart/down", qos=2)
    sent = [f"message {number}".encode() for number in range(400)]

    def publish() -> None:
        for payload in sent:
            sender.publish("restart/down", payload, qos=2)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    came = [receiver.deliver().payload for _ in range(150)]
    own_mosquitto.stop()
    own_mosquitto.start()
    came += [receiver.deliver().payload for _ in range(len(sent) - len(came))]
    thread.join(10)
    assert came == sent
    receiver.send(PingReq())
    receiver.expect(PingResp)  # nothing more came before it


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_that_devices_sent_is_missing_after_mosquitto_was_killed(
    qos: int, own_mosquitto: Mosquitto, tmp_path: Path, device: NewDevice, recorder: NewRecorder
) -> None:
    # Mosquitto forgets what it has not saved, so two witnesses are needed. The one at QoS 0 sends nothing that could
    # fail, so it reads to the end what Mosquitto had sent when it was killed. The other has a session that was saved,
    # so what comes in after the restart waits for it.
    before = recorder(own_mosquitto, "killed/#", qos=0)
    after = recorder(own_mosquitto, "killed/#", qos=1)
    saved = tmp_path / "mosquitto-data" / "mosquitto.db"
    assert own_mosquitto.process is not None
    own_mosquitto.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: saved.exists() and saved.stat().st_size, "Mosquitto to save its sessions")
    with GatewayService(tmp_path, own_mosquitto) as gateway:
        working = couriers(device, gateway, "killed", qos, count=300)
        half_way(working)
        own_mosquitto.kill()
        own_mosquitto.start()
        for each in working:
            each.join(30)
        everything = {payload for each in working for payload in each.sent}
        wait_until(lambda: everything <= {*before.payloads(), *after.payloads()}, "all messages")


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_that_devices_sent_is_missing_after_the_gateway_was_killed(
    qos: int, own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    recording = recorder(own_mosquitto, "crash/#")
    working = couriers(device, own_gateway, "crash", qos, count=300)
    half_way(working)
    own_gateway.kill()
    own_gateway.start()
    for each in working:
        each.join(30)
    copies = copies_of(working, recording)
    # At most what each device had under way when the gateway died comes twice.
    assert sum(copies.values()) - len(copies) <= len(working)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_missing_in_either_direction_after_many_deaths_of_the_gateway(
    seed: int, own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    random = Random(seed)
    recording = recorder(own_mosquitto, "deaths/#")
    sender = recorder(own_mosquitto)
    working = [
        *couriers(device, own_gateway, "deaths/1", 1, 2_000),
        *couriers(device, own_gateway, "deaths/2", 2, 2_000),
    ]
    mailboxes = [Mailbox(device(own_gateway), "mail", qos) for qos in (1, 2)]
    sent: list[bytes] = []
    stopping = threading.Event()

    def send() -> None:
        while not stopping.wait(0.002):
            payload = f"letter {len(sent)}".encode()
            sender.publish("mail", payload, qos=2)
            sent.append(payload)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        for _ in range(10):
            stopping.wait(random.uniform(0.2, 1.5))  # death comes at any moment
            own_gateway.kill()
            own_gateway.start()
    finally:
        stopping.set()
        thread.join()
    for each in working:
        each.join(60)
    copies_of(working, recording)
    wait_until(lambda: all(set(sent) <= set(each.received) for each in mailboxes), f"all {len(sent)} letters", 20)
    for mailbox in mailboxes:
        mailbox.close()
    assert len(mailboxes[1].received) == len(sent), "QoS 2 is exactly once"


def test_messages_the_gateway_had_taken_for_a_device_survive_its_death(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(own_mosquitto)
    one = device(own_gateway).connect(clean=False)
    one.subscribe("kept/for/it", qos=1)
    sent = [f"message {number}".encode() for number in range(100)]
    sender.publish_all("kept/for/it", sent)
    unanswered = [one.expect(Publish) for _ in range(8)]
    own_gateway.kill()
    own_gateway.start()
    one.skip_to(Disconnect)
    one.send(Connect(one.client_id, 60, clean=False))
    one.skip_to(ConnAck)
    first = one.skip_to(Register)
    one.topics[first.topic_id] = first.topic
    one.send(RegAck(first.topic_id, first.msg_id, ReturnCode.ACCEPTED))
    again = [one.expect(Publish) for _ in unanswered]
    assert [(each.msg_id, each.payload) for each in again] == [(each.msg_id, each.payload) for each in unanswered]
    assert all(each.dup for each in again)
    for each in again:
        one.send(PubAck(each.topic_id, each.msg_id, ReturnCode.ACCEPTED))
    assert [one.deliver().payload for _ in sent[len(again) :]] == sent[len(again) :]


def test_a_qos_2_message_the_device_has_confirmed_is_not_published_again_after_the_gateway_was_killed(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, recorder: NewRecorder
) -> None:
    sender = recorder(own_mosquitto)
    one = device(own_gateway).connect(clean=False)
    one.subscribe("once/only", qos=2)
    sender.publish("once/only", b"exactly once", qos=2)
    message = one.expect(Publish)
    one.send(PubRec(message.msg_id))
    assert one.expect(PubRel) == PubRel(message.msg_id)
    # The device has passed the message on and its PUBCOMP is lost: it knows nothing of the message any more.
    own_gateway.kill()
    own_gateway.start()
    one.skip_to(Disconnect)
    one.connect(clean=False)
    assert one.expect(PubRel) == PubRel(message.msg_id)
    one.send(PubComp(message.msg_id))
    sender.publish("once/only", b"the next", qos=2)
    assert one.deliver().payload == b"the next"


def test_the_same_qos_2_command_before_and_after_a_restart_is_two_commands(
    own_gateway: GatewayService, recorder: NewRecorder, own_mosquitto: Mosquitto
) -> None:
    commands: list[bytes] = []
    sender = recorder(own_mosquitto)
    with Client(own_gateway.address, client_id="valve") as client:
        client.subscribe("cmd/valve", lambda message: commands.append(message.payload), qos=2).result(10)
        sender.publish("cmd/valve", b"on")
        wait_until(lambda: commands == [b"on"], "the first command")
        own_gateway.kill()
        own_gateway.start()
        sender.publish("cmd/valve", b"on")
        wait_until(lambda: commands == [b"on", b"on"], "the second command")
