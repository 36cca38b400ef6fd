"""Devices that work on their own while a test kills things around them."""

from __future__ import annotations

import threading
import time
from collections import Counter

from protocol.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    TopicType,
)
from tests.support.peers import Device, Recorder
from tests.support.waiting import wait_until
from tests.system.conftest import NewDevice
from threadline.lab import GatewayService


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
