"""Topics as people write them and as they travel."""

from __future__ import annotations

import pytest

from edge_agent.transport import SessionConfig
from edge_agent.transport.topics import Topic, TopicBook
from protocol.mqttsn import MalformedPacket, TopicType, short_topic_id


def book(limit: int = 10, **predefined: int) -> TopicBook:
    return TopicBook(SessionConfig("a", predefined=predefined, max_topics=limit))


def test_names_become_normal_short_or_predefined_topics() -> None:
    topics = book(known=3)
    assert topics.to_publish("a/b") == Topic(TopicType.NORMAL, "a/b", 0)
    assert topics.to_publish("ab") == Topic(TopicType.SHORT, "ab", short_topic_id("ab"))
    assert topics.to_publish("é") == Topic(TopicType.SHORT, "é", short_topic_id("é"))
    assert topics.to_publish("known") == topics.to_publish(3) == Topic(TopicType.PREDEFINED, "known", 3)
    assert topics.to_publish(4) == Topic(TopicType.PREDEFINED, "", 4)


def test_topics_name_themselves_in_errors() -> None:
    assert str(book().to_publish("a/b")) == "a/b"
    assert str(book().to_publish(4)) == "predefined topic 4"


def test_ids_hold_until_they_are_forgotten() -> None:
    topics = book()
    topic = topics.to_publish("a/b")
    assert topics.number_of(topic) is None
    topics.registered("a/b", 9)
    assert topics.number_of(topic) == 9 and topics.name_of(TopicType.NORMAL, 9) == "a/b"
    topics.forget("a/b")
    assert topics.number_of(topic) is None and topics.name_of(TopicType.NORMAL, 9) == "a/b"
    topics.registered("a/b", 9)
    topics.forget_number(9)
    assert topics.number_of(topic) is None
    topics.registered("a/b", 9)
    topics.forget_all()
    assert topics.number_of(topic) is None and topics.name_of(TopicType.NORMAL, 9) is None


def test_an_id_announced_by_the_gateway_is_not_used_to_publish() -> None:
    topics = book()
    topics.announced("a/b", 9)
    assert topics.number_of(topics.to_publish("a/b")) is None


def test_a_short_id_that_is_no_text_is_malformed() -> None:
    with pytest.raises(MalformedPacket):
        book().name_of(TopicType.SHORT, 0xFFFF)


@pytest.mark.parametrize(
    ("wanted", "topic", "covered"),
    [
        ("a/b", "a/b", True),
        ("a/+", "a/b", True),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("a/b", "a/c", False),
        (4, 4, True),
        (4, 5, False),
        ("#", 4, False),
        (3, "known", True),
    ],
)
def test_a_subscription_covers_what_its_filter_matches(wanted: str | int, topic: str | int, covered: bool) -> None:
    assert book(known=3).to_subscribe(wanted).covers(topic) is covered


def test_every_table_is_bounded() -> None:
    topics = book(limit=5)
    for number in range(1, 100):
        topics.to_publish(f"a/{number}")
        topics.registered(f"a/{number}", number)
    assert len(topics._known) <= 5 and len(topics._ids) == len(topics._names) == 5
    assert topics.name_of(TopicType.NORMAL, 99) == "a/99"
