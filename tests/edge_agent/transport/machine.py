"""A session under a hand-moved clock, with the gateway's part spoken by the test."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from edge_agent.transport import ClientSession, Delivery, Message, Pending, SessionConfig, State, Will
from protocol.mqttsn import AnyMessage, ConnAck, Connect, RegAck, Register, decode, encode
from protocol.mqttsn import Message as Packet

P = TypeVar("P", bound=Packet)


class Machine:
    """Everything a test does to a session, in one line each."""

    def __init__(self, *, reachable: bool = True, **config: Any) -> None:
        self.session = ClientSession(SessionConfig("car-7", **config), Random(7))
        self.now = 1_000.0
        self.reachable = reachable
        self.gateways: list[int] = []
        self.received: list[Message] = []
        self._numbers = 0

    @property
    def state(self) -> State:
        return self.session.state

    def is_in(self, state: State) -> bool:
        return self.session.state is state

    def sent(self) -> list[AnyMessage]:
        """What the session sends at this moment."""
        packets: list[AnyMessage] = []
        while True:
            self.session.tick(self.now)
            if self.state is State.SEEKING:
                self.gateways.append(self.session.gateway)
                if self.reachable:
                    self.session.opened(self.now)
                else:
                    self.session.unreachable("no such host", self.now)
            for message, routes in self.session.delivered:
                for route in routes:
                    route(message)
            self.session.delivered.clear()
            for pending in self.session.settled:
                for callback in pending.take_callbacks():
                    callback(pending)
            self.session.settled.clear()
            if not self.session.datagrams:
                return packets
            packets += [decode(datagram) for datagram in self.session.datagrams]
            self.session.datagrams.clear()

    def hear(self, *packets: Packet) -> list[AnyMessage]:
        """The gateway says these; what the session sends then."""
        for packet in packets:
            self.session.receive(encode(packet), self.now)
        return self.sent()

    def wait(self, seconds: float) -> list[AnyMessage]:
        """Silence; what the session sends meanwhile."""
        return [packet for _, packet in self.timeline(seconds)]

    def until(self, kind: type[P], seconds: float = 100.0) -> P:
        """Silence until the session sends such a packet."""
        end = self.now + seconds
        while self.now <= end:
            for packet in self.sent():
                if isinstance(packet, kind):
                    return packet
            deadline = self.session.next_deadline()
            assert deadline is not None, f"the session waits for nothing, least of all to send {kind.__name__}"
            self.now = max(self.now, deadline)
        raise AssertionError(f"no {kind.__name__} within {seconds} s")

    def timeline(self, seconds: float) -> list[tuple[float, AnyMessage]]:
        """Silence; what the session sends meanwhile, and how many seconds after its beginning."""
        start, end = self.now, self.now + seconds
        packets = [(0.0, packet) for packet in self.sent()]
        while (deadline := self.session.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            packets += [(self.now - start, packet) for packet in self.sent()]
        self.now = end
        return packets + [(seconds, packet) for packet in self.sent()]

    def connected(self) -> Machine:
        """Connect; for tests about what comes after."""
        self.session.connect(self.now)
        assert isinstance(self.sent()[0], Connect)
        assert self.hear(ConnAck(0)) == []
        assert self.state is State.CONNECTED
        self.wait(2.0)
        return self

    def publish(self, topic: str | int = "ab", payload: bytes = b"x", qos: int = 1, retain: bool = False) -> Delivery:
        pending: Delivery = Pending()
        self.session.publish(topic, payload, qos, retain, pending, self.now)
        return pending

    def registered(self, *names: str) -> Machine:
        """Get ids for these names, 1, 2, and so on, by publishing to them with QoS 0."""
        for name in names:
            self.publish(name, b"", qos=0)
            (register,) = self.sent()
            assert isinstance(register, Register)
            self._numbers += 1
            self.hear(RegAck(self._numbers, register.msg_id, 0))
        return self

    def subscribe(self, topic: str | int, qos: int = 1) -> Pending[int]:
        """Subscribe with a callback that notes messages in `received`."""
        pending: Pending[int] = Pending()
        self.session.subscribe(topic, qos, self.received.append, pending, self.now)
        return pending

    def unsubscribe(self, topic: str | int) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.session.unsubscribe(topic, pending, self.now)
        return pending

    def set_will(self, will: Will | None) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.session.set_will(will, pending, self.now)
        return pending

    def sleep(self, duration_s: int = 100, check_every_s: float | None = None, drain_s: float = 10.0) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.session.sleep(duration_s, check_every_s, drain_s, pending, self.now)
        return pending

    def check(self) -> Pending[int]:
        pending: Pending[int] = Pending()
        self.session.check(pending, self.now)
        return pending

    def wake(self) -> Pending[None]:
        pending: Pending[None] = Pending()
        self.session.wake(pending, self.now)
        return pending


def kinds(packets: Sequence[Packet]) -> list[str]:
    """The names of the packets' types, for tests about the order of things."""
    return [packet.TYPE.name for packet in packets]
