"""How a topic is written on the wire, and which ids stand for which names while a connection lives.

An application names a topic by its name, by a two-octet short name or by a predefined id; on the wire these are
three kinds of 16-bit ids. Ids of normal names are the gateway's to give: they are asked for once per connection and
forgotten with it, because a gateway that restarted may have given the same number to another name.
"""

from __future__ import annotations

from edge_agent.transport.config import SessionConfig
from protocol.mqttsn import (
    MAX_TOPIC_BYTES,
    TopicType,
    has_wildcard,
    is_topic_filter,
    is_topic_id,
    is_topic_name,
    matches,
    short_topic_id,
    short_topic_name,
)
from protocol.structs import Struct

_NORMAL, _PREDEFINED, _SHORT = int(TopicType.NORMAL), int(TopicType.PREDEFINED), int(TopicType.SHORT)


class Topic(Struct):
    """A topic or filter as the application means it. `number` is 0 for a normal name: the gateway gives it one."""

    kind: int
    name: str
    number: int

    def __str__(self) -> str:
        return self.name or f"predefined topic {self.number}"

    @property
    def field(self) -> str | int:
        """The topic field of SUBSCRIBE and UNSUBSCRIBE."""
        return self.number if self.kind == _PREDEFINED else self.name

    def covers(self, topic: str | int) -> bool:
        """Whether a subscription to this topic is meant to see messages of `topic`."""
        if isinstance(topic, int):
            return self.kind == _PREDEFINED and self.number == topic
        return self.name == topic or (has_wildcard(self.name) and matches(self.name, topic))


class TopicBook:
    """The names and ids one client knows. Every table in it is bounded."""

    def __init__(self, config: SessionConfig) -> None:
        self._limit = config.max_topics
        self._predefined = dict(config.predefined)
        self._predefined_names = {number: name for name, number in config.predefined.items()}
        self._known: dict[str | int, Topic] = {}
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def to_publish(self, topic: str | int) -> Topic:
        """The topic to publish to. ValueError if one cannot."""
        known = self._known.get(topic)
        if known is None:
            if isinstance(topic, str) and not is_topic_name(topic):
                raise ValueError(
                    f"{topic!r} is no topic name: 1 to {MAX_TOPIC_BYTES} octets, no wildcard, no control character"
                )
            known = self._resolve(topic)
            if len(self._known) >= self._limit:
                self._known.clear()
            self._known[topic] = known
        return known

    def to_subscribe(self, topic_filter: str | int) -> Topic:
        """The topic or filter to subscribe to. ValueError if one cannot."""
        if isinstance(topic_filter, str) and not is_topic_filter(topic_filter):
            raise ValueError(f"{topic_filter!r} is no topic filter")
        return self._resolve(topic_filter)

    def _resolve(self, topic: str | int) -> Topic:
        if isinstance(topic, int):
            if not is_topic_id(topic):
                raise ValueError(f"a predefined topic id is 1 to 65534, not {topic}")
            return Topic(_PREDEFINED, self._predefined_names.get(topic, ""), topic)
        number = self._predefined.get(topic)
        if number is not None:
            return Topic(_PREDEFINED, topic, number)
        if len(topic.encode()) == 2 and not has_wildcard(topic):
            return Topic(_SHORT, topic, short_topic_id(topic))
        return Topic(_NORMAL, topic, 0)

    def number_of(self, topic: Topic) -> int | None:
        """The id to publish with, None if the gateway has to be asked first."""
        return self._ids.get(topic.name) if topic.kind == _NORMAL else topic.number

    def name_of(self, kind: int, number: int) -> str | int | None:
        """The topic of a received message, None if its id was never announced. MalformedPacket: no short name."""
        if kind == _NORMAL:
            return self._names.get(number)
        if kind == _PREDEFINED:
            return self._predefined_names.get(number, number)
        return short_topic_name(number)

    def registered(self, name: str, number: int) -> None:
        """The gateway answered our REGISTER: the id holds in both directions."""
        _bounded(self._ids, self._limit)
        self._ids[name] = number
        self.announced(name, number)

    def announced(self, name: str, number: int) -> None:
        """The gateway will use this id for this name (its REGISTER, or a SUBACK)."""
        _bounded(self._names, self._limit)
        self._names[number] = name

    def forget(self, name: str) -> None:
        """The gateway does not know the id we have for this name."""
        self._ids.pop(name, None)

    def forget_number(self, number: int) -> None:
        """The gateway does not know this id."""
        for name in [name for name, known in self._ids.items() if known == number]:
            del self._ids[name]

    def forget_numbers(self) -> None:
        """The gateway may have forgotten the ids it gave us to publish with."""
        self._ids.clear()

    def forget_all(self) -> None:
        """The connection is over, and all ids with it."""
        self._ids.clear()
        self._names.clear()


def _bounded(table: dict[str, int] | dict[int, str], limit: int) -> None:
    """Room for one more: the oldest entry goes. The peer is asked, or asks, again when it is needed."""
    while len(table) >= limit:
        del table[next(iter(table))]  # type: ignore[arg-type]
