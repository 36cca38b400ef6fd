"""The gateway as a process: how it starts, stops, dies and comes back, and what it refuses to start with."""

from __future__ import annotations

import re
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psutil
import pytest

from edge_agent.transport import Client
from protocol.mqttsn import (
    Advertise,
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
    TopicType,
    decode,
    encapsulate,
    encode,
    short_topic_id,
)
from protocol.topics import state_topic
from tests.support.peers import Device, Recorder, retained, wait_until
from tests.system.conftest import NewDevice, NewRecorder
from tests.system.scrape import scrape
from threadline.lab import GatewayService, Mosquitto, ServiceFailed, free_port


class Courier:
    """A device that publishes numbered messages, one at a time, and does not give up on any of them.

    It repeats what is not answered and what meets congestion with the same message id, and connects again when it is
    told that it has to, so a message of its QoS 1 or 2 is acknowledged exactly once in the end.
    """

    def __init__(self, device: Device, topic: str, qos: int, count: int) -> None:
        self._device = device
        self._qos = qos
        self.topic = topic
        self.sent = [f"{topic} {number}".encode() for number in range(count)]
        self.acknowledged = 0
        self._topic_id = device.connect(clean=False).register(topic)
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=topic, daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until everything is acknowledged."""
        self._thread.join(timeout_s)
        if self._failure is not None:
            raise self._failure
        assert not self._thread.is_alive(), f"{self.topic}: only {self.acknowledged} acknowledged in {timeout_s:g} s"

    def _run(self) -> None:
        try:
            for payload in self.sent:
                self._publish(payload)
                self.acknowledged += 1
        except Exception as error:
            self._failure = error

    def _publish(self, payload: bytes) -> None:
        msg_id = self._device.next_msg_id()
        packet: Publish | PubRel = Publish(TopicType.NORMAL, self._topic_id, msg_id, payload, self._qos)
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            self._device.send(packet)
            try:
                answer = self._device.receive(0.5)
            except TimeoutError:
                answer = None
            match answer:
                case PubAck(_, received, ReturnCode.ACCEPTED) if received == msg_id and self._qos == 1:
                    return
                case PubAck(_, _, ReturnCode.CONGESTION):
                    time.sleep(0.05)
                case PubRec(received) if received == msg_id:
                    packet = PubRel(msg_id)
                    continue
                case PubComp(received) if received == msg_id:
                    return
                case Disconnect():
                    self._connect_again()
            if isinstance(packet, Publish):
                packet.dup = True
        raise TimeoutError(f"{payload!r} was not acknowledged")

    def _connect_again(self) -> None:
        self._device.pending()
        self._device.send(Connect(self._device.client_id, 60, clean=False))
        while True:
            match self._device.receive():
                case ConnAck(ReturnCode.ACCEPTED):
                    return
                case ConnAck(_):
                    time.sleep(0.05)
                    self._device.send(Connect(self._device.client_id, 60, clean=False))


class Mailbox:
    """A device that takes everything it is sent, and connects again when it is told that it has to."""

    def __init__(self, device: Device, topic: str, qos: int) -> None:
        self._device = device
        self.received: list[bytes] = []
        self._unreleased: set[int] = set()
        device.connect(clean=False).subscribe(topic, qos)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=topic, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                message = self._device.receive(0.2)
            except TimeoutError:
                message = None
                self._device.send(PingReq())  # after a crash this is how it learns that its session is not connected
            match message:
                case Disconnect() | ConnAck(ReturnCode.CONGESTION):
                    self._stopping.wait(0.05)
                    self._device.send(Connect(self._device.client_id, 60, clean=False))
                case Register(topic_id, msg_id, _):
                    self._device.send(RegAck(topic_id, msg_id, ReturnCode.ACCEPTED))
                case Publish(qos=1):
                    self.received.append(message.payload)
                    self._device.send(PubAck(message.topic_id, message.msg_id, ReturnCode.ACCEPTED))
                case Publish(qos=2):
                    if message.msg_id not in self._unreleased:
                        self._unreleased.add(message.msg_id)
                        self.received.append(message.payload)
                    self._device.send(PubRec(message.msg_id))
                case PubRel(msg_id):
                    self._unreleased.discard(msg_id)
                    self._device.send(PubComp(msg_id))


def couriers(device: NewDevice, gateway: GatewayService, root: str, qos: int, count: int) -> list[Courier]:
    """Four devices that publish `count` messages each."""
    return [Courier(device(gateway), f"{root}/{number}", qos, count) for number in range(4)]


def half_way(working: list[Courier]) -> None:
    wait_until(lambda: all(each.acknowledged >= len(each.sent) // 2 for each in working), "half of the messages")


def copies_of(working: list[Courier], recording: Recorder) -> dict[bytes, int]:
    """How often each message that was sent has come; waits until all have come once."""
    everything = {payload for each in working for payload in each.sent}
    recording.wait_for(
        lambda received: everything <= {each.payload for each in received}, f"all {len(everything)} messages", 20
    )
    return dict(Counter(recording.payloads()))


# ---------------------------------------------------------------------- stopping


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


# ---------------------------------------------------------------------- who is there: the state topics


def states(mosquitto: Mosquitto) -> dict[str, str]:
    """The retained state topics of clients."""
    found = retained(mosquitto.port, "tl/+/+/state")
    return {topic: state.decode() for topic, state in found.items()}


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
        lambda: states(own_mosquitto) == {state_topic(each): state for each, state in before.items()}, "all states"
    )

    own_gateway.kill()
    own_gateway.start()
    after = {"lasting": "offline", "fleeting": "offline", "sleeper": "asleep", "left": "offline"}
    wait_until(
        lambda: states(own_mosquitto) == {state_topic(each): state for each, state in after.items()}, "corrected states"
    )
    lasting.skip_to(Disconnect)
    lasting.connect(clean=False)
    sleeper.send(PingReq("sleeper"))
    sleeper.expect(PingResp)
    wait_until(lambda: states(own_mosquitto)[state_topic("lasting")] == "online", "the client that came back online")
    assert states(own_mosquitto)[state_topic("sleeper")] == "asleep"


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


# ---------------------------------------------------------------------- metrics


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


# ---------------------------------------------------------------------- bad options


def run_gateway(*options: str) -> tuple[int, str]:
    """(exit code, standard error) of a gateway that is expected not to start."""
    harmless = ["--listen", "127.0.0.1:0", "--mqtt", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(
        [sys.executable, "-m", "threadline", "gateway", *harmless, *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stderr


def assert_refused(options: list[str], *words: str) -> None:
    code, text = run_gateway(*options)
    assert code == 2, text
    assert text.count("\n") == 1 and text.startswith("threadline: "), text
    for word in words:
        assert word in text, text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "nonsense"], ["--listen", "'nonsense'", "HOST:PORT"]),
        (["--mqtt", "localhost"], ["--mqtt", "'localhost'"]),
        (["--metrics", ":x"], ["--metrics", "':x'"]),
        (["--advertise", "239.1.2.3"], ["--advertise", "239.1.2.3"]),
        (["--advertise", "no-address:1885"], ["no-address"]),
        (["--listen", "0.0.0.0:0"], ["--listen", "0.0.0.0", "--open"]),
        (["--listen", "198.51.100.1:1884", "--open"], ["198.51.100.1", "cannot listen"]),
        (["--listen", "a..b:1884", "--open"], ["a..b", "cannot listen"]),
        (["--metrics", "a..b:9464"], ["a..b", "cannot serve metrics"]),
        (["--mqtt-version", "4"], ["--mqtt-version", "4", "3.1.1"]),
    ],
    ids=lambda value: " ".join(value[:2]) if str(value[0]).startswith("--") else "",
)
def test_a_bad_option_is_refused_with_one_clear_line(options: list[str], words: list[str]) -> None:
    assert_refused(options, *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["cannot read"]),
        ("[topics\n1 = 2", ["is not TOML"]),
        ('[topics]\n1 = "plant/#"', ["'plant/#'", "not a topic name"]),
    ],
)
def test_a_bad_file_of_predefined_topics_is_refused_with_one_clear_line(
    content: str | None, words: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "topics.toml"
    if content is not None:
        path.write_text(content)
    assert_refused(["--predefined", str(path)], "topics.toml", *words)


def test_a_state_folder_that_cannot_be_used_is_refused_with_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    assert_refused(["--state", str(file)], str(file))
    assert_refused(["--state", str(file / "below")], str(file))

    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "gateway.sqlite3").write_bytes(b"this is no database" * 500)
    assert_refused(["--state", str(damaged)], "gateway.sqlite3", "not a database")

    newer = tmp_path / "newer"
    newer.mkdir()
    with sqlite3.connect(newer / "gateway.sqlite3") as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    assert_refused(["--state", str(newer)], "another version", "99")


def test_what_another_gateway_uses_is_refused_with_one_clear_line(
    own_gateway: GatewayService, own_mosquitto: Mosquitto, device: NewDevice, tmp_path: Path
) -> None:
    state = tmp_path / "gateway-state"
    assert state.is_dir()
    assert_refused(["--state", str(state)], "gateway-state", "another gateway")
    port = own_gateway.port
    assert_refused(["--listen", f"127.0.0.1:{port}"], str(port), "in use")
    metrics = own_gateway.metrics_port
    assert_refused(["--metrics", f"127.0.0.1:{metrics}"], str(metrics), "in use")
    device(own_gateway).connect()


# ---------------------------------------------------------------------- Mosquitto comes late, goes, is killed


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
        assert scrape(gateway).value("congestion_answers", packet="connect") == 1
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


# ---------------------------------------------------------------------- a flood of strangers


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

    told = states(own_mosquitto)
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


# ---------------------------------------------------------------------- ADVERTISE


def multicast_on_loopback_works() -> bool:
    port = free_port(socket.SOCK_DGRAM)
    try:
        with multicast_listener("239.83.84.1", port) as listener, socket.socket(type=socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            sender.sendto(b"works", ("239.83.84.1", port))
            listener.settimeout(2)
            return listener.recv(100) == b"works"
    except OSError:
        return False


def multicast_listener(group: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((group, port))
    membership = struct.pack("4s4s", socket.inet_aton(group), socket.inet_aton("127.0.0.1"))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    return sock


def test_the_gateway_advertises_itself_and_answers_searchgw_on_a_multicast_group(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    if not multicast_on_loopback_works():
        pytest.skip("multicast does not work on this machine's loopback interface")
    group, port = "239.83.84.2", free_port(socket.SOCK_DGRAM)
    options = ["--advertise", f"{group}:{port}", "--advertise-every", "1", "--gateway-id", "42"]
    with (
        multicast_listener(group, port) as listener,
        GatewayService(tmp_path, mosquitto, *options) as gateway,
        socket.socket(type=socket.SOCK_DGRAM) as searcher,
    ):
        listener.settimeout(5)
        for _ in range(2):
            datagram, sender = listener.recvfrom(100)
            assert (decode(datagram), sender) == (Advertise(42, 1), gateway.address)
        searcher.settimeout(5)
        searcher.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        searcher.sendto(encode(SearchGw()), (group, port))
        answer, sender = searcher.recvfrom(100)
        assert (decode(answer), sender) == (GwInfo(42), gateway.address)


def test_the_gateway_advertises_itself_to_a_plain_address(mosquitto: Mosquitto, tmp_path: Path) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(5)
        options = ["--advertise", f"127.0.0.1:{listener.getsockname()[1]}", "--advertise-every", "1"]
        with GatewayService(tmp_path, mosquitto, *options) as gateway:
            for _ in range(2):
                datagram, sender = listener.recvfrom(100)
                assert (decode(datagram), sender) == (Advertise(1, 1), gateway.address)


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


def test_a_damaged_state_file_is_refused_with_one_clear_line(own_gateway: GatewayService, device: NewDevice) -> None:
    device(own_gateway, "dev").connect(clean=False).register("a/b")
    own_gateway.stop()
    with sqlite3.connect(own_gateway.log.parent / "gateway-state" / "gateway.sqlite3") as file:
        file.execute("DROP TABLE topic")
    with pytest.raises(ServiceFailed) as failure:
        own_gateway.start()
    assert "ended with 2" in str(failure.value)
    assert "no such table: topic" in str(failure.value)
    assert "Traceback" not in str(failure.value)
