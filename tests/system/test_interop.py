"""Our gateway between clients that others wrote: mqttsn12 (PyPI) on the devices' side, Debian's mosquitto_pub and
mosquitto_sub on the other."""

from __future__ import annotations

import queue
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import pytest
from mqttsn12.client.MqttSnClient import MqttSnClient, MqttSnListener
from mqttsn12.client.MqttSnClientException import MqttSnClientException
from mqttsn12.MqttSnConstants import MqttSnConstants
from mqttsn12.packets import PublishPacket

from tests.support.waiting import WAIT_S, wait_until
from tests.system.conftest import NewDevice
from threadline.lab import GatewayService, Mosquitto


class Heard(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool


class MosquittoSub:
    """mosquitto_sub as a process; ready when its broker has confirmed the subscription."""

    def __init__(self, port: int, topic_filter: str, qos: int = 2) -> None:
        self._command = [
            *("stdbuf", "-oL", "mosquitto_sub", "-d", "-h", "127.0.0.1", "-p", str(port)),
            *("-q", str(qos), "-t", topic_filter, "-F", "heard %q %r %x %t"),
        ]
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._reader.start()
        try:
            self._next("Subscribed")
        except TimeoutError:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait(WAIT_S)
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def _next(self, beginning: str) -> str:
        give_up = time.monotonic() + WAIT_S
        while True:
            try:
                line = self._lines.get(timeout=max(give_up - time.monotonic(), 0))
            except queue.Empty:
                raise TimeoutError(f"mosquitto_sub has not printed {beginning!r}") from None
            if line.startswith(beginning):
                return line

    def hear(self) -> Heard:
        """The next message."""
        _, qos, retain, payload, topic = self._next("heard ").rstrip("\n").split(" ", 4)
        return Heard(topic, bytes.fromhex(payload), int(qos), retain == "1")


def mosquitto_pub(broker: Mosquitto, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
    """Publish with mosquitto_pub; an empty payload has an option of its own there."""
    options = ["-h", "127.0.0.1", "-p", str(broker.port), "-q", str(qos), "-t", topic, "-s" if payload else "-n"]
    subprocess.run(["mosquitto_pub", *options, *(["-r"] if retain else [])], input=payload, check=True, timeout=WAIT_S)


class ForeignClient(MqttSnClient):  # type: ignore[misc]
    """mqttsn12's client, with two of its faults mended from outside."""

    def wait_for(self, blocking: bool, msg_type: int) -> bytes | None:
        """It never acknowledges QoS 1: it compares the QoS (1) with the flag (0x20)."""
        packet: bytes | None = super().wait_for(blocking, msg_type)
        if packet is not None and msg_type == MqttSnConstants.TYPE_PUBLISH:
            publish = PublishPacket()
            publish.decode(packet)
            if publish.get_qos() == 1:
                self.send_puback(publish, MqttSnConstants.ACCEPTED)
        return packet

    def receive_packet(self, blocking: bool) -> bytes | None:
        """Its timeout is undone by the call after it, so it would wait for ever."""
        if blocking and not select.select([self.datagram_socket], [], [], WAIT_S)[0]:
            raise MqttSnClientException("timeout")
        packet: bytes | None = super().receive_packet(blocking)
        return packet


class Listener(MqttSnListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.heard: list[Heard] = []

    def message_arrived(self, msg: Any) -> None:
        self.heard.append(Heard(msg.get_topic_name(), msg.get_payload(), msg.get_qos(), msg.get_retain()))


class NewForeignClient(Protocol):
    def __call__(self, client_id: str, *, keep_alive_s: int = 30, will: str | None = None) -> ForeignClient: ...


@pytest.fixture(autouse=True)
def mosquitto_tools() -> None:
    for tool in ("mosquitto_pub", "mosquitto_sub", "stdbuf"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (Debian: apt install mosquitto-clients)")


@pytest.fixture
def foreign_client(gateway: GatewayService) -> Iterator[NewForeignClient]:
    with ExitStack() as stack:

        def new(client_id: str, *, keep_alive_s: int = 30, will: str | None = None) -> ForeignClient:
            client = ForeignClient()
            stack.callback(_leave, client)
            client.set_client_id(client_id)
            client.set_keep_alive(keep_alive_s)
            if will is not None:
                client.set_will(will, "gone", 1, False)
            client.open(*gateway.address)
            client.send_connect()
            return client

        yield new


def _leave(client: ForeignClient) -> None:
    if client.is_connected():
        client.send_disconnect()
    client.close()


def next_heard(client: ForeignClient, listener: Listener) -> Heard:
    """Let the client work until its listener has heard one message more."""
    before = len(listener.heard)

    def poll() -> bool:
        client.polling()
        return len(listener.heard) > before

    wait_until(poll, "a message at the listener", every_s=0.005)
    return listener.heard[before]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mosquitto_sub_sees_what_the_foreign_client_publishes(
    qos: int, foreign_client: NewForeignClient, mosquitto: Mosquitto
) -> None:
    client = foreign_client(f"foreign-pub-{qos}")
    with MosquittoSub(mosquitto.port, "foreign/+/up") as sub:
        for payload in (b"hello", b"", bytes(range(256)), bytes(1_000)):
            client.send_publish(f"foreign/{qos}/up", payload, qos)
            assert sub.hear() == Heard(f"foreign/{qos}/up", payload, qos, retain=False)


def test_the_foreign_client_publishes_to_short_topics(foreign_client: NewForeignClient, mosquitto: Mosquitto) -> None:
    client = foreign_client("foreign-short")
    with MosquittoSub(mosquitto.port, "fs") as sub:
        client.send_publish("fs", b"short", 1)
        assert sub.hear() == Heard("fs", b"short", 1, retain=False)


@pytest.mark.parametrize("topic_filter", ["foreign/down", "foreign/+", "foreign/#"])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_foreign_client_sees_what_mosquitto_pub_publishes(
    qos: int, topic_filter: str, foreign_client: NewForeignClient, mosquitto: Mosquitto
) -> None:
    client, listener = foreign_client(f"foreign-sub-{qos}"), Listener()
    client.send_subscribe(topic_filter, qos, listener)
    for sent_qos, payload in ((0, b"hello"), (1, bytes(range(256))), (2, bytes(1_000))):
        mosquitto_pub(mosquitto, "foreign/down", payload, sent_qos)
        assert next_heard(client, listener) == Heard("foreign/down", payload, min(qos, sent_qos), retain=False)


def test_retained_messages_pass_both_ways(
    foreign_client: NewForeignClient, gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice
) -> None:
    early, at_early = foreign_client("foreign-early"), Listener()
    early.send_publish("keep/up", b"from the device", 1, True)
    with MosquittoSub(mosquitto.port, "keep/#") as sub:
        assert sub.hear() == Heard("keep/up", b"from the device", 1, retain=True)
    mosquitto_pub(mosquitto, "keep/down", b"from the broker", 1, retain=True)
    early.send_subscribe("keep/down", 1, at_early)
    assert next_heard(early, at_early) == Heard("keep/down", b"from the broker", 1, retain=True)

    # Who subscribes to the same filter later gets it too, and nobody gets it twice.
    late, at_late = foreign_client("foreign-late"), Listener()
    late.send_subscribe("keep/down", 0, at_late)
    assert next_heard(late, at_late) == Heard("keep/down", b"from the broker", 0, retain=True)
    wildcard = device(gateway).connect()
    wildcard.subscribe("keep/+", qos=1)
    assert {wildcard.deliver()[:2] for _ in range(2)} == {
        ("keep/up", b"from the device"),
        ("keep/down", b"from the broker"),
    }
    mosquitto_pub(mosquitto, "keep/down", b"news", 1)
    assert next_heard(early, at_early) == Heard("keep/down", b"news", 1, retain=False)
    assert next_heard(late, at_late) == Heard("keep/down", b"news", 0, retain=False)
    for topic in ("keep/up", "keep/down"):
        mosquitto_pub(mosquitto, topic, b"", 1, retain=True)


def test_qos_2_passes_both_ways_between_our_device_and_mosquittos_tools(
    gateway: GatewayService, mosquitto: Mosquitto, device: NewDevice
) -> None:
    one = device(gateway).connect()
    with MosquittoSub(mosquitto.port, "twice/#") as sub:
        one.publish(one.register("twice/up"), b"exactly once", qos=2)
        assert sub.hear() == Heard("twice/up", b"exactly once", 2, retain=False)
    one.subscribe("twice/+", qos=2)
    mosquitto_pub(mosquitto, "twice/down", b"exactly once", 2)
    assert one.deliver() == ("twice/down", b"exactly once", 2, False, False)
    assert one.pending() == []


def test_the_will_of_the_foreign_client_is_published_when_it_falls_silent(
    foreign_client: NewForeignClient, mosquitto: Mosquitto
) -> None:
    with MosquittoSub(mosquitto.port, "foreign/will") as sub:
        foreign_client("foreign-will", keep_alive_s=1, will="foreign/will")
        assert sub.hear() == Heard("foreign/will", b"gone", 1, retain=False)


def test_the_foreign_command_line_tools_work(gateway: GatewayService, mosquitto: Mosquitto) -> None:
    tools = Path(sys.executable).parent
    address = ["-h", "127.0.0.1", "-p", str(gateway.port)]
    with MosquittoSub(mosquitto.port, "tool/up") as sub:
        for qos in (0, 1, 2):
            pub = [str(tools / "mqtt_sn_pub"), *address, "-t", "tool/up", "-m", f"qos {qos}", "-q", str(qos)]
            subprocess.run(pub, check=True, timeout=20)
            assert sub.hear() == Heard("tool/up", f"qos {qos}".encode(), qos, retain=False)
    # Retained, because the tool does not say when it has subscribed.
    mosquitto_pub(mosquitto, "tool/down", b"for the tool", 1, retain=True)
    done = subprocess.run(
        [str(tools / "mqtt_sn_sub"), *address, "-t", "tool/down", "-1"],
        check=True,
        timeout=20,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "for the tool\n"
    mosquitto_pub(mosquitto, "tool/down", b"", 1, retain=True)
