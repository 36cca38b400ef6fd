"""Conditions mean the same in memory and in SQLite, and bad ones are refused with what is wrong."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from collector.filters import (
    MOST_CONDITIONS,
    MOST_PATH,
    MOST_PATTERN,
    MOST_STEPS,
    MOST_VALUE,
    BadFilter,
    Bound,
    Path,
    attribute_sql,
    check_pattern,
    comparable,
    is_missing,
    parse,
    parse_all,
    parse_path,
    path_text,
    register,
    restored,
    value_at,
)
from collector.plain import as_json

VALUE = {"loss": 0.25, "name": "accuracy", "ok": True, "no": None, "list": [1, {"a.b": "x"}], "0": "zero", "n": 1}


@pytest.mark.parametrize(
    "text",
    [
        "loss<0.3",
        "loss <= 0.25",
        "loss=0.25",
        "loss!=0.3",
        "loss>-1e3",
        "name~^acc",
        "name ~ c+u",
        "name=accuracy",
        'name="accuracy"',
        "name>acc",
        "name!=1",
        "ok=true",
        "ok!=1",
        "no=null",
        "no?",
        "list.0=1",
        "list.0=1.0",
        'list.1."a.b"=x',
        'list=[1.0, {"a.b": "x"}]',
        "0=zero",
        '"0"=zero',
        "$?",
        "n>=1",
        '"n"<2',
    ],
)
def test_holds(text: str) -> None:
    assert parse(text).matches(VALUE)
    assert _in_sqlite(text, VALUE)


@pytest.mark.parametrize(
    "text",
    [
        "loss<0.25",
        "loss>zero",
        "name<5",
        "name>5",
        "name~^cc",
        "loss~0",
        "ok=1",
        "ok>0",
        "no=0",
        "missing?",
        "missing!=1",
        "missing=null",
        "list.2?",
        'list."0"?',
        "list.x?",
        "loss.x?",
        'n="1"',
        "n=true",
        '0="0"',
        "$=1",
        "name=",
        "name=NaN",
    ],
)
def test_does_not_hold(text: str) -> None:
    assert not parse(text).matches(VALUE)
    assert not _in_sqlite(text, VALUE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("=3", "empty"),
        ("a..b=1", "empty"),
        (".a=1", "empty"),
        ("a.=1", "empty"),
        ('"open=1', "empty"),
        ("a", "PATH OP VALUE"),
        ("a!b", "PATH OP VALUE"),
        ('"a"b=1', "PATH OP VALUE"),
        ('"\\x"=1', "no JSON text"),
        ("$.a=1", "the value itself"),
        ("a?b", "nothing follows ?"),
        ("a==1", "no operator =="),
        ("a=~b", "no operator =~"),
        ("a<", "a number or a text"),
        ("a<null", "a number or a text"),
        ("a>=[1]", "a number or a text"),
        ("a=1e999", "too large"),
        ('a="\\ud800"', "surrogate"),
        ('"\\ud800"=1', "surrogate"),
        ("a~\ud800", "surrogate"),
        ("a~(", "missing )"),
        ("a~(?=b)", "RE2"),
        (r"a~(x)\1", "RE2"),
        ("a~((a{1,30}){1,30}){1,30}", "RE2"),
        ("a~(.{0,300}x){3}", "too long to look for"),
        ("a~" + "x" * (MOST_PATTERN + 1), "characters"),
        ("a" * (MOST_PATH + 1) + "=1", "characters"),
        (".".join("a" * (MOST_STEPS + 1)) + "=1", "names"),
        ("a=" + "1" * (MOST_VALUE + 1), "characters"),
    ],
)
def test_bad_conditions_are_refused_with_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(BadFilter, match=r".") as caught:
        parse(text)
    assert reason in caught.value.reason
    assert len(str(caught.value)) < 1_000


def test_the_number_of_conditions_is_bounded() -> None:
    assert len(parse_all(["a=1"] * MOST_CONDITIONS)) == MOST_CONDITIONS
    with pytest.raises(BadFilter, match="more than"):
        parse_all(["a=1"] * (MOST_CONDITIONS + 1))


def test_a_value_may_be_nested_as_deeply_as_its_length_allows() -> None:
    depth = MOST_VALUE // 2
    deep: Any = []
    for _ in range(depth - 1):
        deep = [deep]
    try:
        assert parse("a=" + "[" * depth + "]" * depth).matches({"a": deep})
    except BadFilter as error:  # where the stack is short
        assert "deep" in error.reason


def test_the_order_of_names_does_not_matter() -> None:
    for value in ({"a": 1, "b": [{"c": 2, "d": 3}]}, {"b": [{"d": 3.0, "c": 2}], "a": 1}):
        text = '$={"b": [{"d": 3, "c": 2.0}], "a": 1.0}'
        assert parse(text).matches(value) and _in_sqlite(text, value)


def test_a_path_alone() -> None:
    assert parse_path("used.rate") == ("used", "rate")
    assert parse_path('a."b.c".0."0"') == ("a", "b.c", 0, "0")
    assert parse_path("$") == ()
    assert parse_path("$too_large") == ("$too_large",)
    with pytest.raises(BadFilter, match="belongs to no path"):
        parse_path("a<b")


def test_patterns_of_others_are_checked_too() -> None:
    check_pattern("^car-[0-9]+$")
    with pytest.raises(BadFilter, match="RE2"):
        check_pattern("[")


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(
    ["a", "b", "0", "$", "a.b", '"']
)
NUMBERS = (
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, -0.0, 1, 1.0, 2**53, 2**53 + 1, float(2**53), 2**63, 2**64, -(2**63), float(2**63), 10**400])
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(NAMES, part, max_size=3), max_leaves=6
)


def _paths(value: Any) -> Iterator[tuple[Path, Any]]:
    """All paths in a value, with what is there."""
    yield (), value
    parts: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value))
    for step, part in parts:
        for path, found in _paths(part):
            yield (step, *path), found


def _means(found: Any, operator: str, value: Any) -> bool:
    """What a condition means for a value that is there, written as plainly as can be."""
    if operator == "=":
        return _same(found, value)
    if operator == "!=":
        return not _same(found, value)
    kinds = {_kind(found), _kind(value)}
    if kinds not in ({"number"}, {"text"}):
        return False
    if _kind(found) == "number":
        found, value = _number(found), _number(value)
    return bool({"<": found < value, "<=": found <= value, ">": found > value, ">=": found >= value}[operator])


def _same(one: Any, other: Any) -> bool:
    if _kind(one) != _kind(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(_number(one) == _number(other)) if _kind(one) == "number" else bool(one == other)


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return repr(value)
    return {int: "number", float: "number", str: "text", list: "list", dict: "dict"}[type(value)]


def _number(value: Any) -> Any:
    """A number as SQLite has it: an integer of 64 bits, or else a float."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value) if abs(value) < 10**308 else 1.7976931348623157e308
    return value


def _in_sqlite(text: str, value: Any) -> bool:
    db = sqlite3.connect(":memory:")
    register(db)
    condition, bind = parse(text), Bound()
    attribute = attribute_sql(bind(as_json(value)), condition.path, bind)
    held = condition.sql("found", bind)
    ((found,),) = db.execute(
        f"WITH one AS (SELECT {attribute} AS found) SELECT count(*) FROM one WHERE {held}", bind.values
    )
    db.close()
    return bool(found)


@given(VALUES, st.data())
@example([2**53 + 1, float(2**53)], None)
@example({"a": 10**400}, None)
def test_both_ways_to_test_a_condition_agree_with_its_meaning(value: Any, data: st.DataObject | None) -> None:
    places = list(_paths(value))
    if data is None:
        cases = [(path, operator, told) for path, _ in places for operator in ("=", "<", ">=") for _, told in places]
    else:
        path = data.draw(st.sampled_from([path for path, _ in places]) | st.lists(NAMES, max_size=2).map(tuple))
        known = st.sampled_from([told for _, told in places])
        cases = [(path, data.draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="])), data.draw(known | SCALARS))]
    for path, operator, told in cases:
        if operator not in ("=", "!=") and _kind(told) not in ("number", "text"):
            continue
        if len(json.dumps(told)) > MOST_VALUE:
            continue
        text = f"{path_text(path)}{operator}{json.dumps(told)}"
        found = value_at(value, path)
        expected = not is_missing(found) and _means(found, operator, told)
        assert parse(text).matches(value) == expected
        assert _in_sqlite(text, value) == expected
        assert parse(f"{path_text(path)}?").matches(value) == (not is_missing(found))
        assert _in_sqlite(f"{path_text(path)}?", value) == (not is_missing(found))


@given(TEXTS, st.sampled_from(["a", "^a", "[ab]$", ".", r"\d", "(?i)A|b", "é"]))
def test_patterns_are_found_in_both_ways(text: str, pattern: str) -> None:
    assert parse(f"$~{pattern}").matches(text) == _in_sqlite(f"$~{pattern}", text)


@given(st.lists(NAMES | st.integers(0, 10**9 - 1), max_size=4).map(tuple))
def test_a_path_that_is_written_is_read_again(path: Path) -> None:
    assert parse_path(path_text(path)) == path


@given(VALUES)
def test_a_comparable_value_is_restored(value: Any) -> None:
    assert _same(restored(comparable(value)), json.loads(json.dumps(value)))


def test_what_is_no_json_has_no_attributes() -> None:
    db = sqlite3.connect(":memory:")
    register(db)
    for text in (None, "{", "nan", "[" * 5_000):
        assert db.execute("SELECT attribute(?, '[]')", (text,)).fetchone() == (None,)
