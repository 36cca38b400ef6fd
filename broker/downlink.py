"""From the broker to the device: a bounded queue per client, topic registration on the way, retransmission.

Messages keep their order: the head of the queue waits for its REGACK before anything behind it moves. A message that
is in flight when the client falls asleep or disappears goes back to the head of the queue with its message id, so
that the client can tell a copy from a new message.
"""

from __future__ import annotations

from random import Random

from broker.config import GatewayConfig
from broker.journal import Journal
from broker.outputs import Outputs
from broker.session import REACHABLE, Leg, Line, Outgoing, Registration, Session, State, TooManyTopics
from protocol.mqttsn import (
    MAX_PACKET_BYTES,
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

_PUBLISH_OVERHEAD = 9
_UNUSED = (TopicType.NORMAL, 0)
"""The topic of a PUBREL, which has none."""


class Downlink:
    """Sends messages to clients and keeps them until they are acknowledged or, counted, dropped."""

    def __init__(self, config: GatewayConfig, outputs: Outputs, journal: Journal, random: Random) -> None:
        self._config = config
        self._out = outputs
        self._journal = journal
        self._random = random
        self.buffered_bytes = 0

    def deliver(self, session: Session, topic: str, payload: bytes, qos: int, retain: bool, now: float) -> None:
        """Queue a message for a client, and send it if the client can hear it."""
        if max(len(payload), len(topic.encode())) + _PUBLISH_OVERHEAD > MAX_PACKET_BYTES:
            self._out.count("dropped", "larger than a packet")
            return
        if qos == 0 and session.state in (State.OFFLINE, State.RETURNING):
            self._out.count("dropped", "qos 0 to an offline client")
            return
        line = session.open_line(self._config.retry)
        outgoing = Outgoing(line.next_seq, topic, payload, qos, retain)
        line.next_seq += 1
        self._make_room(session, line, outgoing.size)
        line.waiting.append(outgoing)
        line.buffered_bytes += outgoing.size
        self.buffered_bytes += outgoing.size
        if qos > 0 and not session.clean:
            self._journal.save_message(session.client_id, outgoing)
        if session.state in REACHABLE:
            self.pump(session, now)

    def _make_room(self, session: Session, line: Line, size: int) -> None:
        config = self._config
        while line.waiting and (
            len(line.waiting) >= config.max_buffered_messages
            or line.buffered_bytes + size > config.max_buffered_bytes
            or self.buffered_bytes + size > config.max_buffered_bytes_total
        ):
            self._forget(session, line, line.waiting.popleft())
            self._out.count("dropped", f"buffer full, client {session.state.name.lower()}")

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
        """Send as much as may be in flight at once."""
        line = session.line
        if line is None:
            return
        while line.waiting and line.registration is None and len(line.in_flight) < self._config.in_flight_per_client:
            outgoing = line.waiting[0]
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
            topic_id, is_new = session.topics.assign(topic, self._config.max_topics_per_session)
        except TooManyTopics:
            return False
        if is_new and not session.clean:
            self._journal.save_topic(session.client_id, topic_id, topic)
        line.next_register_id = line.next_register_id % 0xFFFF + 1
        line.registration = Registration(topic, topic_id, line.next_register_id)
        self._transmit_registration(session, line, line.registration, now)
        return True

    def _transmit_registration(self, session: Session, line: Line, registration: Registration, now: float) -> None:
        registration.attempts += 1
        registration.sent_at = now
        registration.due = now + line.round_trip.wait_s(registration.attempts, self._random)
        self._out.send(Register(registration.topic_id, registration.msg_id, registration.topic), session.peer)

    def _transmit(
        self, session: Session, line: Line, outgoing: Outgoing, reference: tuple[TopicType, int], now: float
    ) -> None:
        outgoing.attempts += 1
        outgoing.sent_at = now
        outgoing.due = now + line.round_trip.wait_s(outgoing.attempts, self._random)
        if outgoing.leg is Leg.PUBCOMP:
            self._out.send(PubRel(outgoing.msg_id), session.peer)
        else:
            self._send_publish(session, outgoing, reference)
            outgoing.sent_before = True

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
        if registration.attempts == 1:
            line.round_trip.measured(now - registration.sent_at)
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
        outgoing = None if line is None else line.in_flight.get(message.msg_id)
        if line is None or outgoing is None:
            self._invalid_qos_0_topic(session, message)
        elif message.return_code == ReturnCode.INVALID_TOPIC:
            self._tell_again(session, line, outgoing)
            self.pump(session, now)
        elif message.return_code == ReturnCode.CONGESTION:
            self._out.count("congestion from a client")
        elif message.return_code != ReturnCode.ACCEPTED:
            self._forget(session, line, line.in_flight.pop(message.msg_id))
            self._out.count("dropped", "client refused the message")
            self.pump(session, now)
        elif outgoing.leg is Leg.PUBACK:
            self._finish(session, line, outgoing, now)
        else:
            self._out.count("refused", "puback to a qos 2 message")

    def _tell_again(self, session: Session, line: Line, refused: Outgoing) -> None:
        """The client has no such topic id (any more): register it again before anything of that topic is sent."""
        session.topics.told.discard(session.topics.by_name.get(refused.topic, 0))
        if refused.attempts >= self._config.retry.attempts:
            self._forget(session, line, line.in_flight.pop(refused.msg_id))
            self._out.count("dropped", "client refused the topic")
        same = [each for each in line.in_flight.values() if each.topic == refused.topic and each.leg is not Leg.PUBCOMP]
        for outgoing in reversed(same):
            line.waiting.appendleft(line.in_flight.pop(outgoing.msg_id))

    def _invalid_qos_0_topic(self, session: Session, message: PubAck) -> None:
        """A client may say of a QoS 0 message that it does not know its topic id: tell it before the next one."""
        if message.return_code == ReturnCode.INVALID_TOPIC and message.topic_id in session.topics.told:
            session.topics.told.discard(message.topic_id)
        else:
            self._out.count("refused", "puback for nothing")

    def received(self, session: Session, message: PubRec, now: float) -> None:
        """PUBREC: the client has the message; it may be released."""
        line = session.line
        outgoing = None if line is None else line.in_flight.get(message.msg_id)
        if line is None or outgoing is None or outgoing.qos != 2:
            # The exchange is over here; let the client finish it as well.
            self._out.send(PubRel(message.msg_id), session.peer)
            return
        if outgoing.leg is Leg.PUBREC:
            if outgoing.attempts == 1:
                line.round_trip.measured(now - outgoing.sent_at)
            outgoing.leg = Leg.PUBCOMP
            outgoing.attempts = 0
        self._transmit(session, line, outgoing, _UNUSED, now)

    def completed(self, session: Session, message: PubComp, now: float) -> None:
        """PUBCOMP ends a QoS 2 delivery."""
        line = session.line
        outgoing = None if line is None else line.in_flight.get(message.msg_id)
        if line is None or outgoing is None or outgoing.leg is not Leg.PUBCOMP:
            self._out.count("refused", "pubcomp for nothing")
            return
        self._finish(session, line, outgoing, now)

    def _finish(self, session: Session, line: Line, outgoing: Outgoing, now: float) -> None:
        if outgoing.attempts == 1:
            line.round_trip.measured(now - outgoing.sent_at)
        del line.in_flight[outgoing.msg_id]
        self._forget(session, line, outgoing)
        self.pump(session, now)

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
