"""Which clients want which filter. All clients share the gateway's MQTT session, so a filter is subscribed to once.

Who subscribes to a filter that is already subscribed to has it subscribed again: that makes the broker send its
retained messages, which then go to the new subscriber alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from broker.config import GatewayConfig
from broker.journal import Journal
from broker.outputs import MqttSubscribe, MqttUnsubscribe, Outputs
from broker.registrations import Registrations
from broker.session import Session, Subscription, TooManyTopics
from protocol.mqttsn import (
    ReturnCode,
    SubAck,
    Subscribe,
    TopicType,
    UnsubAck,
    Unsubscribe,
    has_wildcard,
    is_topic_filter,
    matches,
)

_RETAINED_SEEN_MAX = 10_000


@dataclass(slots=True)
class _Waiting:
    """A client whose SUBACK waits for the broker's."""

    session: Session
    msg_id: int
    topic_id: int
    subscription: Subscription
    former_qos: int


@dataclass(slots=True)
class _Filter:
    subscribers: dict[Session, Subscription] = field(default_factory=dict)
    waiting: list[_Waiting] = field(default_factory=list)

    @property
    def qos(self) -> int:
        """QoS 1 is the most that is asked of the broker: the bridge keeps copies out by itself, across crashes."""
        waiting = (each.subscription.qos for each in self.waiting)
        return min(1, max((*(each.qos for each in self.subscribers.values()), *waiting), default=0))


class Subscriptions:
    """The filters of all sessions and the SUBACKs that are owed."""

    def __init__(self, config: GatewayConfig, outputs: Outputs, journal: Journal, registrations: Registrations) -> None:
        self._config = config
        self._out = outputs
        self._journal = journal
        self._registrations = registrations
        self._broker_is_up = False
        self._filters: dict[str, _Filter] = {}
        self._asking: dict[Session, set[str]] = {}

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._filters

    def count(self, session: Session, besides: str) -> int:
        """How many filters a client has or has asked for, besides one."""
        return len({*session.subscriptions, *self._asking.get(session, ())} - {besides})

    def subscribe(self, session: Session, message: Subscribe, now: float) -> None:
        """Take a client's SUBSCRIBE to the broker, or refuse it."""
        topic_filter = self._filter(session, message)
        topic_id = message.topic if isinstance(message.topic, int) else 0
        code = ReturnCode.ACCEPTED
        if topic_filter is None:
            code = ReturnCode.INVALID_TOPIC
        elif not self._broker_is_up or self.count(session, topic_filter) >= self._config.max_subscriptions_per_session:
            code = ReturnCode.CONGESTION
        elif message.topic_type == TopicType.NORMAL and not has_wildcard(topic_filter):
            try:
                topic_id = self._registrations.told_topic_id(session, topic_filter)
            except TooManyTopics:
                code = ReturnCode.CONGESTION
        if topic_filter is None or code is not ReturnCode.ACCEPTED:
            self._out.count("subscribe refused", code.name.lower())
            self._out.send(SubAck(0, message.msg_id, code), session.peer)
        else:
            self._ask(session, topic_filter, message.qos, message.msg_id, topic_id, now)

    def unsubscribe(self, session: Session, message: Unsubscribe, now: float) -> None:
        """Answer a client's UNSUBSCRIBE: what it was not subscribed to, it is not subscribed to now."""
        topic_filter = self._filter(session, message)
        if topic_filter is not None:
            self.remove(session, topic_filter)
            if not session.clean:
                self._journal.delete_subscription(session.client_id, topic_filter)
        self._out.send(UnsubAck(message.msg_id), session.peer)

    def _filter(self, session: Session, message: Subscribe | Unsubscribe) -> str | None:
        if isinstance(message.topic, int):
            return self._config.predefined.name(session.client_id, message.topic)
        # Shared subscriptions are refused: to the broker, all our clients are one.
        return message.topic if is_topic_filter(message.topic) and not message.topic.startswith("$share") else None

    def _ask(self, session: Session, topic_filter: str, qos: int, msg_id: int, topic_id: int, now: float) -> None:
        """Ask the broker on behalf of a client; a repeated question is not asked twice.

        The broker may send messages before it answers, so the client counts as a subscriber from here on.
        """
        entry = self._filters.setdefault(topic_filter, _Filter())
        waiting = next((each for each in entry.waiting if each.session is session), None)
        if waiting is not None and waiting.subscription.qos == qos:
            waiting.msg_id = msg_id
            return
        if waiting is None:
            subscription = session.subscriptions.get(topic_filter) or Subscription(qos)
            waiting = _Waiting(session, msg_id, topic_id, subscription, subscription.qos)
            entry.waiting.append(waiting)
            self._asking.setdefault(session, set()).add(topic_filter)
        waiting.msg_id, waiting.topic_id = msg_id, topic_id
        waiting.subscription.qos = qos
        waiting.subscription.expect_retained(now)
        self._out.mqtt.append(MqttSubscribe(topic_filter, entry.qos, retained=True))

    def answered(self, topic_filter: str, accepted: bool, now: float) -> None:
        """The broker has answered: pass it on."""
        entry = self._filters.get(topic_filter)
        if entry is None:
            return
        for waiting in entry.waiting:
            session = waiting.session
            self._asks_no_more(session, topic_filter)
            subscription = waiting.subscription
            subscription.retained_until = now + self._config.retained_window_s
            code = ReturnCode.ACCEPTED if accepted else ReturnCode.NOT_SUPPORTED
            self._out.send(SubAck(waiting.topic_id, waiting.msg_id, code, subscription.qos), session.peer)
            if accepted:
                session.subscriptions[topic_filter] = entry.subscribers[session] = subscription
                if not session.clean:
                    self._journal.save_subscription(session.client_id, topic_filter, subscription.qos)
            else:
                subscription.qos = waiting.former_qos
        entry.waiting.clear()
        self._drop_if_unused(topic_filter, entry)

    def broker_lost(self) -> None:
        """Nobody will answer what was asked: tell those who wait to try again."""
        self._broker_is_up = False
        for topic_filter, entry in list(self._filters.items()):
            for waiting in entry.waiting:
                self._out.count("subscribe refused", "congestion")
                self._out.send(SubAck(0, waiting.msg_id, ReturnCode.CONGESTION, 0), waiting.session.peer)
                waiting.subscription.qos = waiting.former_qos
                waiting.subscription.retained_until = -inf
            entry.waiting.clear()
            self._drop_if_unused(topic_filter, entry)
        self._asking.clear()

    def broker_back(self) -> None:
        """Have every filter subscribed to, in case the broker has forgotten."""
        self._broker_is_up = True
        for topic_filter, entry in self._filters.items():
            self._out.mqtt.append(MqttSubscribe(topic_filter, entry.qos, retained=False))

    def adopt(self, session: Session) -> None:
        """Take over the subscriptions of a restored session."""
        for topic_filter, subscription in session.subscriptions.items():
            self._filters.setdefault(topic_filter, _Filter()).subscribers[session] = subscription

    def remove(self, session: Session, topic_filter: str) -> None:
        session.subscriptions.pop(topic_filter, None)
        entry = self._filters.get(topic_filter)
        if entry is not None:
            entry.subscribers.pop(session, None)
            entry.waiting = [each for each in entry.waiting if each.session is not session]
            self._asks_no_more(session, topic_filter)
            self._drop_if_unused(topic_filter, entry)

    def remove_all(self, session: Session) -> None:
        for topic_filter in {*session.subscriptions, *self._asking.get(session, ())}:
            self.remove(session, topic_filter)

    def _asks_no_more(self, session: Session, topic_filter: str) -> None:
        asked = self._asking.get(session)
        if asked is not None:
            asked.discard(topic_filter)
            if not asked:
                del self._asking[session]

    def _drop_if_unused(self, topic_filter: str, entry: _Filter) -> None:
        if not entry.subscribers and not entry.waiting:
            del self._filters[topic_filter]
            self._out.mqtt.append(MqttUnsubscribe(topic_filter))

    def recipients(self, topic_filter: str, topic: str, retained: bool, now: float) -> list[tuple[Session, int]]:
        """(client, subscribed QoS) of everybody a message that came in through a filter is for."""
        entry = self._filters.get(topic_filter)
        if entry is None:
            return []
        subscribers = entry.subscribers
        if entry.waiting:
            subscribers = {**subscribers, **{each.session: each.subscription for each in entry.waiting}}
        return [
            (session, subscription.qos)
            for session, subscription in subscribers.items()
            if self._wants(subscription, topic, retained, now)
            and (retained or not _comes_otherwise(session, topic_filter, subscription.qos, topic))
        ]

    @staticmethod
    def _wants(subscription: Subscription, topic: str, retained: bool, now: float) -> bool:
        seen = subscription.retained_seen
        if seen is None:
            return not retained
        if now > subscription.retained_until:
            subscription.retained_seen = None
            return not retained
        if retained and topic in seen:
            return False
        if len(seen) < _RETAINED_SEEN_MAX:
            seen.add(topic)
        return True


def _comes_otherwise(session: Session, topic_filter: str, qos: int, topic: str) -> bool:
    """Whether a client gets a message through another of its filters, of a higher QoS or, at the same one, later name.

    The broker sends a copy for every filter; one of them is for the client.
    """
    return len(session.subscriptions) > 1 and any(
        (other.qos, name) > (qos, topic_filter) and matches(name, topic)
        for name, other in session.subscriptions.items()
        if name != topic_filter
    )
