"""From the broker to the device: a bounded queue per client, topic registration on the way, retransmission.

Messages keep their order: the head of the queue waits for its REGACK before anything behind it moves. A message that
is in flight when the client falls asleep or disappears goes back to the head of the queue with its message id, so
that the client can tell a copy from a new message.
"""

from __future__ import annotations

from itertools import islice
from random import Random

from broker.config import GatewayConfig
from broker.journal import Journal
from broker.outputs import Outputs
from broker.registrations import Registrations
from broker.session import REACHABLE, Leg, Line, Outgoing, Registration, Session, State, TooManyTopics
from protocol.mqttsn import (
    MAX_UDP_PAYLOAD_BYTES,
    PUBLISH_OVERHEAD_BYTES,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    TopicType,
    short_topic_id,
)

_UNUSED = (TopicType.NORMAL, 0)
"""The topic of a PUBREL, which has none."""


class Downlink:
    """Sends messages to clients and keeps them until they are acknowledged or, counted, dropped."""

    def __init__(
        self, config: GatewayConfig, outputs: Outputs, journal: Journal, registrations: Registrations, random: Random
    ) -> None:
        self._config = config
        self._out = outputs
        self._journal = journal
        self._registrations = registrations
        self._random = random
        self.buffered_bytes = 0
        self.first_seq = random.randrange(0xFFFF)
        """Message ids start anywhere: clients may still remember those of a former process."""

    def deliver(self, session: Session, topic: str, payload: bytes, qos: int, retain: bool, now: float) -> None:
        """Queue a message for a client, and send it if the client can hear it."""
        route_bytes = sum(len(node_id) + 3 for node_id in session.peer[1])
        if max(len(payload), len(topic.encode())) + PUBLISH_OVERHEAD_BYTES + route_bytes > MAX_UDP_PAYLOAD_BYTES:
            self._out.count("dropped", "larger than a datagram")
            return
        if qos == 0 and session.state in (State.OFFLINE, State.RETURNING):
            self._out.count("dropped", "qos 0 to an offline client")
            return
        line = session.open_line(self._config.retry, self.first_seq)
        outgoing = Outgoing(line.next_seq, topic, payload, qos, retain)
        if not self._make_room(session, line, outgoing.size):
            self._out.count("dropped", "all buffers full")
            return
        line.next_seq += qos > 0
        line.waiting.append(outgoing)
        line.buffered_bytes += outgoing.size
        self.buffered_bytes += outgoing.size
        if qos > 0 and not session.clean:
            self._journal.save_message(session.client_id, outgoing)
        self.pump(session, now)

    def _make_room(self, session: Session, line: Line, size: int) -> bool:
        """Drop the oldest until a message of this size fits. False: other clients' messages take all the room."""
        config = self._config
        while line.waiting and (
            len(line.waiting) >= config.max_buffered_messages
            or line.buffered_bytes + size > config.max_buffered_bytes
            or self.buffered_bytes + size > config.max_buffered_bytes_total
        ):
            self._forget(session, line, line.waiting.popleft())
            self._out.count("dropped", f"buffer full, client {session.state.name.lower()}")
        return self.buffered_bytes + size <= config.max_buffered_bytes_total

    def adopt(self, session: Session) -> None:
        """Count in what a restored session brings along."""
        if session.line is not None:
            self.buffered_bytes += session.line.buffered_bytes

    def discard(self, session: Session) -> None:
        """Drop all that waits for a session that ends."""
        line = session.line
        if line is None:
            return
        left = len(line.waiting) + len(line.in_flight)
        if left:
            self._out.counters["dropped", "session ended"] += left
        self.buffered_bytes -= line.buffered_bytes
        session.line = None

    def pump(self, session: Session, now: float) -> None:
        """Send as much as may be in flight at once, if the client can hear it."""
        line = session.line
        if line is None or session.state not in REACHABLE:
            return
        while line.waiting and line.registration is None and len(line.in_flight) < self._config.in_flight_per_client:
            outgoing = line.waiting[0]
            if outgoing.qos > 0 and outgoing.msg_id in line.in_flight:
                return
            reference = self._reference(session, outgoing)
            if reference is None:
                if not self._register(session, line, outgoing.topic, now):
                    self._forget(session, line, line.waiting.popleft())
                    self._out.count("dropped", "client has too many topics")
                continue
            line.waiting.popleft()
            if outgoing.qos == 0:
                self._send_publish(session, outgoing, reference)
                self._forget(session, line, outgoing)
            else:
                line.in_flight[outgoing.msg_id] = outgoing
                if outgoing.leg is None:
                    outgoing.leg = Leg.PUBACK if outgoing.qos == 1 else Leg.PUBREC
                self._transmit(session, line, outgoing, reference, now)

    def _reference(self, session: Session, outgoing: Outgoing) -> tuple[TopicType, int] | None:
        """How to name a message's topic to the client; None if it has to be told of it first."""
        if outgoing.leg is Leg.PUBCOMP:
            return _UNUSED
        topic = outgoing.topic
        predefined = self._config.predefined.id_of(session.client_id, topic)
        if predefined is not None:
            return TopicType.PREDEFINED, predefined
        if len(topic) == 2 and topic.isascii():
            return TopicType.SHORT, short_topic_id(topic)
        topic_id = session.topics.by_name.get(topic)
        return (TopicType.NORMAL, topic_id) if topic_id is not None and topic_id in session.topics.told else None

    def _register(self, session: Session, line: Line, topic: str, now: float) -> bool:
        try:
            topic_id = self._registrations.topic_id(session, topic)
        except TooManyTopics:
            return False
        line.next_register_id = line.next_register_id % 0xFFFF + 1
        line.registration = Registration(topic, topic_id, line.next_register_id)
        self._transmit_registration(session, line, line.registration, now)
        return True

    def _transmit_registration(self, session: Session, line: Line, registration: Registration, now: float) -> None:
        registration.attempts += 1
        registration.due = now + self._wait_s(session, line, registration)
        registration.sent_at = now
        self._out.send(Register(registration.topic_id, registration.msg_id, registration.topic), session.peer)

    def _transmit(
        self, session: Session, line: Line, outgoing: Outgoing, reference: tuple[TopicType, int], now: float
    ) -> None:
        outgoing.attempts += 1
        outgoing.due = now + self._wait_s(session, line, outgoing)
        outgoing.sent_at = now
        if outgoing.leg is Leg.PUBCOMP:
            self._out.send(PubRel(outgoing.msg_id), session.peer)
        else:
            self._send_publish(session, outgoing, reference)
            outgoing.sent_before = True

    def _wait_s(self, session: Session, line: Line, packet: Outgoing | Registration) -> float:
        return line.round_trip.wait_s(packet.attempts, self._random, alive=session.last_heard > packet.sent_at)

    def _send_publish(self, session: Session, outgoing: Outgoing, reference: tuple[TopicType, int]) -> None:
        topic_type, topic_id = reference
        msg_id = outgoing.msg_id if outgoing.qos > 0 else 0
        self._out.count("delivered", str(outgoing.qos))
        self._out.send(
            Publish(
                topic_type,
                topic_id,
                msg_id,
                outgoing.payload,
                outgoing.qos,
                outgoing.retain,
                outgoing.sent_before and outgoing.qos > 0,
            ),
            session.peer,
        )

    def registered(self, session: Session, message: RegAck, now: float) -> None:
        """The client's answer to a REGISTER: the head of the queue may go, or has to be dropped."""
        line = session.line
        if line is None or line.registration is None or line.registration.msg_id != message.msg_id:
            self._out.count("refused", "regack for nothing")
            return
        registration = line.registration
        if message.return_code == ReturnCode.CONGESTION:
            return
        line.registration = None
        line.round_trip.answered(registration.attempts, now - registration.sent_at)
        if message.return_code == ReturnCode.ACCEPTED:
            session.topics.told.add(registration.topic_id)
        else:
            self._drop_topic(session, line, registration.topic)
        self.pump(session, now)

    def _drop_topic(self, session: Session, line: Line, topic: str) -> None:
        for outgoing in [waiting for waiting in line.waiting if waiting.topic == topic]:
            line.waiting.remove(outgoing)
            self._forget(session, line, outgoing)
            self._out.count("dropped", "client refused the topic")

    def acknowledged(self, session: Session, message: PubAck, now: float) -> None:
        """PUBACK: done at QoS 1; with an error code, at any QoS, what the client wants instead."""
        line = session.line
        outgoing = self._find(line, message.msg_id)
        if message.return_code == ReturnCode.INVALID_TOPIC:
            self._unknown_topic(session, message.topic_id, outgoing)
            self.pump(session, now)
        elif line is None or outgoing is None:
            self._out.count("refused", "puback for nothing")
        elif message.return_code == ReturnCode.CONGESTION:
            self._out.count("congestion from a client")
        elif message.return_code != ReturnCode.ACCEPTED:
            self._out.count("dropped", "client refused the message")
            self._finish(session, line, outgoing, now)
        elif outgoing.qos == 1:
            self._finish(session, line, outgoing, now)
        else:
            self._out.count("refused", "puback to a qos 2 message")

    def _find(self, line: Line | None, msg_id: int) -> Outgoing | None:
        """The message an answer is about: in flight, or sent before and put back when the client slept or left."""
        if line is None:
            return None
        outgoing = line.in_flight.get(msg_id)
        if outgoing is None:
            for waiting in islice(line.waiting, self._config.in_flight_per_client):
                if waiting.sent_before and waiting.qos > 0 and waiting.msg_id == msg_id:
                    return waiting
        return outgoing

    def _unknown_topic(self, session: Session, topic_id: int, refused: Outgoing | None) -> None:
        """The client has no such topic id (any more): register it again before anything of that topic is sent."""
        line = session.line
        name = refused.topic if refused is not None else session.topics.by_id.get(topic_id)
        if line is None or name is None:
            self._out.count("refused", "puback for nothing")
            return
        session.topics.told.discard(session.topics.by_name.get(name, 0))
        if refused is not None and refused.attempts >= self._config.retry.attempts:
            self._remove(session, line, refused)
            self._out.count("dropped", "client refused the topic")
        same = [each for each in line.in_flight.values() if each.topic == name and each.leg is not Leg.PUBCOMP]
        for outgoing in reversed(same):
            line.waiting.appendleft(line.in_flight.pop(outgoing.msg_id))

    def received(self, session: Session, message: PubRec, now: float) -> None:
        """PUBREC: the client has the message; it may be released."""
        line = session.line
        outgoing = self._find(line, message.msg_id)
        if line is None or outgoing is None or outgoing.qos != 2:
            # The exchange is over here; let the client finish it as well.
            self._out.send(PubRel(message.msg_id), session.peer)
            return
        if outgoing.leg is not Leg.PUBCOMP:
            line.round_trip.answered(outgoing.attempts, now - outgoing.sent_at)
            outgoing.leg = Leg.PUBCOMP
            outgoing.attempts = 0
        if not session.clean:
            # Each time: if the journal failed the first time, no PUBREL has gone out yet.
            self._journal.release_message(session.client_id, outgoing.seq)
        if session.state in REACHABLE:
            if outgoing.msg_id not in line.in_flight:
                line.waiting.remove(outgoing)
                line.in_flight[outgoing.msg_id] = outgoing
            self._transmit(session, line, outgoing, _UNUSED, now)

    def completed(self, session: Session, message: PubComp, now: float) -> None:
        """PUBCOMP ends a QoS 2 delivery."""
        line = session.line
        outgoing = self._find(line, message.msg_id)
        if line is None or outgoing is None or outgoing.leg is not Leg.PUBCOMP:
            self._out.count("refused", "pubcomp for nothing")
            return
        self._finish(session, line, outgoing, now)

    def _finish(self, session: Session, line: Line, outgoing: Outgoing, now: float) -> None:
        line.round_trip.answered(outgoing.attempts, now - outgoing.sent_at)
        self._remove(session, line, outgoing)
        self.pump(session, now)

    def _remove(self, session: Session, line: Line, outgoing: Outgoing) -> None:
        if line.in_flight.get(outgoing.msg_id) is outgoing:
            del line.in_flight[outgoing.msg_id]
        else:
            line.waiting.remove(outgoing)
        self._forget(session, line, outgoing)

    def _forget(self, session: Session, line: Line, outgoing: Outgoing) -> None:
        line.buffered_bytes -= outgoing.size
        self.buffered_bytes -= outgoing.size
        if outgoing.qos > 0 and not session.clean:
            self._journal.delete_message(session.client_id, outgoing.seq)

    def retransmit(self, session: Session, now: float) -> bool:
        """Send again what is due. False: the client has not answered for too long."""
        line = session.line
        if line is None:
            return True
        registration = line.registration
        if registration is not None and registration.due <= now:
            if registration.attempts >= self._config.retry.attempts:
                return False
            self._out.count("retransmitted", "register")
            self._transmit_registration(session, line, registration, now)
        for outgoing in list(line.in_flight.values()):
            if outgoing.due > now:
                continue
            if outgoing.attempts >= self._config.retry.attempts:
                return False
            reference = self._reference(session, outgoing)
            assert reference is not None, "what is in flight has a topic the client was told of"
            self._out.count("retransmitted", "pubrel" if outgoing.leg is Leg.PUBCOMP else "publish")
            self._transmit(session, line, outgoing, reference, now)
        return True

    def suspend(self, session: Session) -> None:
        """Put what is in flight back to the head of the queue: the client sleeps, is gone or starts again."""
        line = session.line
        if line is None:
            return
        line.registration = None
        for outgoing in sorted(line.in_flight.values(), key=lambda each: each.seq, reverse=True):
            outgoing.attempts = 0
            line.waiting.appendleft(outgoing)
        line.in_flight.clear()
