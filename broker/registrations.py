"""Topic ids: a client asks for one with REGISTER or SUBSCRIBE, or the gateway has a name to tell it of.

A client keeps its ids as long as its session lasts, so those of a persistent session are in the journal. They are noted
whenever they are told: if the journal failed, the client asks again, and must not be answered until it works.
"""

from __future__ import annotations

from broker.config import GatewayConfig
from broker.journal import Journal
from broker.outputs import Outputs
from broker.session import Session, TooManyTopics
from protocol.mqttsn import RegAck, Register, ReturnCode, is_topic_name


class Registrations:
    """Gives out topic ids, a limited number to each client."""

    def __init__(self, config: GatewayConfig, outputs: Outputs, journal: Journal) -> None:
        self._config = config
        self._out = outputs
        self._journal = journal

    def topic_id(self, session: Session, name: str) -> int:
        """The client's id for a name, a new one if need be; TooManyTopics if it has its share."""
        topic_id = session.topics.assign(name, self._config.max_topics_per_session)
        if not session.clean:
            self._journal.save_topic(session.client_id, topic_id, name)
        return topic_id

    def told_topic_id(self, session: Session, name: str) -> int:
        """The same, for an answer that tells the client of it."""
        topic_id = self.topic_id(session, name)
        session.topics.told.add(topic_id)
        return topic_id

    def register(self, session: Session, message: Register, now: float) -> None:
        """Answer a client's REGISTER."""
        topic_id, code = 0, ReturnCode.ACCEPTED
        if not is_topic_name(message.topic) or message.topic.startswith("$"):
            code = ReturnCode.INVALID_TOPIC
        else:
            try:
                topic_id = self.told_topic_id(session, message.topic)
            except TooManyTopics:
                code = ReturnCode.CONGESTION
        if code is not ReturnCode.ACCEPTED:
            self._out.count("register refused", code.name.lower())
        self._out.send(RegAck(topic_id, message.msg_id, code), session.peer)
