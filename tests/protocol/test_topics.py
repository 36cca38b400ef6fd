"""Topic names, filters and matching, against tables and a regular expression that is obviously right."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqttsn import MAX_TOPIC_BYTES, has_wildcard, is_topic_filter, is_topic_name, matches
from protocol.topics import SHARDS, shard_of, state_topic

_LEVELS = st.sampled_from(["", "a", "b", "$s", "+", "#", "a+", "#b", "ä"])
_TEXTS = st.lists(_LEVELS, min_size=1, max_size=4).map("/".join)


def is_filter_by_rule(text: str) -> bool:
    """MQTT 4.7.1: a wildcard occupies an entire level, and `#` only the last."""
    return text != "" and re.fullmatch(r"(?:(?:[^/+#]*|\+)/)*(?:[^/+#]*|\+|#)", text) is not None


def matches_by_rule(topic_filter: str, name: str) -> bool:
    """MQTT 4.7: `+` is one level, `/#` any number of them including none, and a leading wildcard spares `$`."""
    pattern = re.escape(topic_filter).replace(r"\+", "[^/]*")
    pattern = re.sub(r"(/?)\\#$", lambda found: "(?:/.*)?" if found[1] else ".*", pattern)
    spared = name.startswith("$") and topic_filter[0] in "+#"
    return not spared and re.fullmatch(pattern, name) is not None


@pytest.mark.parametrize("name", ["a", "/", "a/b", "/a", "a/", "a//b", "$SYS/x", "ä/π", " ", "x" * MAX_TOPIC_BYTES])
def test_a_name_one_can_publish_to(name: str) -> None:
    assert is_topic_name(name)
    assert is_topic_filter(name)
    assert not has_wildcard(name)


@pytest.mark.parametrize(
    "name", ["", "+", "#", "a/+", "a/#", "a+", "#a", "a\0b", "\0", "x" * (MAX_TOPIC_BYTES + 1), "ä" * 513]
)
def test_a_name_one_cannot_publish_to(name: str) -> None:
    assert not is_topic_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "a\x01b",
        "a\x1fb",
        "a\x7fb",
        "a\x85b",
        "a\x9fb",
        "a\ufffeb",
        "a\uffffb",
        "a\U0010ffff",
        "a\ufdd0",
        "a" + "/a" * 300,
    ],
)
def test_a_name_over_which_brokers_end_the_connection_is_no_name(name: str) -> None:
    """MQTT 1.5.4 lets a broker do so for control and non-characters; Mosquitto also does for very many levels."""
    assert not is_topic_name(name)
    assert not is_topic_filter(name)


@pytest.mark.parametrize("topic_filter", ["+", "#", "a/+", "a/#", "+/#", "/#", "/+", "+/a/+", "a/+/", "//#", "$SYS/#"])
def test_a_filter_with_wildcards(topic_filter: str) -> None:
    assert is_topic_filter(topic_filter)
    assert has_wildcard(topic_filter)
    assert not is_topic_name(topic_filter)


@pytest.mark.parametrize(
    "topic_filter",
    ["", "a+", "+a", "a/b+", "a+/b", "#/", "#/a", "a#", "a/b#", "a/#/b", "##", "a/\0", "+\0", "x" * 1025, "++"],
)
def test_a_filter_one_cannot_subscribe_to(topic_filter: str) -> None:
    assert not is_topic_filter(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "name", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
        ("a/b", "a/b/", False),
        ("a/b", "a", False),
        ("a/+", "a/b", True),
        ("a/+", "a/", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("+/b", "a/b", True),
        ("+/b", "/b", True),
        ("+", "/", False),
        ("+/+", "/", True),
        ("#", "a", True),
        ("#", "/", True),
        ("a/#", "a", True),
        ("a/#", "a/", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("a/+/#", "a", False),
        ("a/+/#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/+", "$SYS/x", True),
        ("a/#", "a/$b", True),
        ("a/+", "a/$b", True),
        ("a.b", "axb", False),
    ],
)
def test_matching_follows_mqtt(topic_filter: str, name: str, expected: bool) -> None:
    assert matches(topic_filter, name) is expected
    assert matches_by_rule(topic_filter, name) is expected


@given(_TEXTS)
def test_filters_are_told_apart_as_the_rule_says(text: str) -> None:
    assert is_topic_filter(text) is is_filter_by_rule(text)
    assert is_topic_name(text) is (is_filter_by_rule(text) and not has_wildcard(text))


@given(_TEXTS.filter(is_topic_filter), _TEXTS.filter(is_topic_name))
def test_filters_match_as_the_rule_says(topic_filter: str, name: str) -> None:
    assert matches(topic_filter, name) is matches_by_rule(topic_filter, name)


@given(_TEXTS.filter(is_topic_name))
def test_a_name_matches_itself_and_nothing_but_itself(name: str) -> None:
    assert matches(name, name)
    assert not matches(name, name + "x")
    assert not matches(name, name + "/x")


@given(st.text(min_size=1, max_size=30).filter(str.isprintable))
def test_any_client_id_gives_one_level_of_a_state_topic(client_id: str) -> None:
    topic = state_topic(client_id)
    assert is_topic_name(topic)
    assert matches("tl/+/+/state", topic)
    assert topic.split("/")[1] == str(shard_of(client_id))


def test_ids_that_differ_have_topics_that_differ() -> None:
    ids = ["a/b", "a%2Fb", "a+b", "a b", "+", "#", "ä", "A", "a"]
    assert len({state_topic(client_id) for client_id in ids}) == len(ids)


def test_a_shard_never_changes() -> None:
    # Written down once: consumers split the work by these numbers.
    assert SHARDS == 16
    assert [shard_of(agent) for agent in ("car-7", "pump-1", "", "ä")] == [8, 6, 0, 3]
    assert state_topic("car-7") == "tl/8/car-7/state"


def test_shards_share_the_agents_evenly() -> None:
    counts = [0] * SHARDS
    for number in range(16_000):
        counts[shard_of(f"agent-{number}")] += 1
    assert 850 < min(counts) <= max(counts) < 1_150
