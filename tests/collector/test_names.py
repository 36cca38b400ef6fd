"""Ids as people write them: what is printed is read again, and nothing else is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.names import (
    MOST_CHARACTERS,
    BadName,
    DataName,
    Epoch,
    StreamPattern,
    TaskName,
    TupleName,
    VertexName,
    WorkflowName,
    parse_name,
    parse_stream,
)

agents = st.from_regex(r"[a-z0-9-]{1,23}", fullmatch=True)
epochs = st.integers(0, 10**18 - 1).map(Epoch) | st.integers(0, 2**64 - 1).map(lambda nonce: Epoch(None, nonce))
texts = st.text(max_size=60)
names: st.SearchStrategy[VertexName] = st.one_of(
    st.builds(TupleName, agents, st.text(min_size=1, max_size=60), epochs, st.integers(0, 2**36 - 1)),
    st.builds(TaskName, agents, epochs, st.integers(0, 10**18 - 1)),
    st.builds(WorkflowName, agents, epochs, st.integers(0, 10**18 - 1)),
    st.builds(DataName, texts, texts, agents, epochs),
    st.tuples(texts, texts).map(lambda both: DataName(*both)),
)


@given(names)
def test_what_is_printed_is_read_again(name: VertexName) -> None:
    assert parse_name(str(name)) == name


@given(texts | st.from_regex(r"(task|workflow|data)?:?[a-z/]*@[~0-9a-f]*:[0-9/]*", fullmatch=True))
def test_what_is_read_is_printed_as_it_was(text: str) -> None:
    try:
        found = parse_name(text)
    except BadName as error:
        assert "is no id" in str(error)
    else:
        assert parse_name(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "car-7",
        "car-7/reports",
        "car-7/reports@3",
        "car-7/@3:1",
        "/reports@3:1",
        "car-7/reports@3:x",
        "car-7/reports@-3:1",
        f"car-7/reports@3:{2**36}",
        "task:car-7@3",
        "task:car-7@3:12:4",
        "data:no-slash",
        "x" * (MOST_CHARACTERS + 1),
    ],
)
def test_what_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadName):
        parse_name(text)


def test_a_stream_may_be_called_anything() -> None:
    assert parse_name("car-7/a/b@1:2@3:4") == TupleName("car-7", "a/b@1:2", Epoch(3), 4)
    assert parse_name("car-7/x@~ff:4") == TupleName("car-7", "x", Epoch(None, 255), 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alerts", StreamPattern("alerts", None, None)),
        ("car-7/alerts", StreamPattern("alerts", "car-7", None)),
        ("car-7/alerts@3", StreamPattern("alerts", "car-7", Epoch(3))),
        ("alerts@3", StreamPattern("alerts", None, Epoch(3))),
        ("car-7/a/b", StreamPattern("a/b", "car-7", None)),
    ],
)
def test_streams_that_a_text_means(text: str, expected: StreamPattern) -> None:
    assert parse_stream(text) == expected


def test_an_empty_text_means_no_stream() -> None:
    for text in ("", "x" * (MOST_CHARACTERS + 1)):
        with pytest.raises(BadName, match="is no stream"):
            parse_stream(text)


def test_streams_that_a_pattern_matches() -> None:
    of = ("car-7", "alerts", 3, 0x1F40)
    for text in ("alerts", "car-7/alerts", "alerts@3", "car-7/alerts@3", "alerts@~1f40"):
        assert parse_stream(text).matches(*of), text
    for text in ("alert", "car-8/alerts", "alerts@4", "car-7/alerts@~1f41"):
        assert not parse_stream(text).matches(*of), text
    assert not parse_stream("alerts@3").matches("car-7", "alerts", None, 3), "nobody has told its epoch"
