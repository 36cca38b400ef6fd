"""Conditions on captured values, as people write them: `loss<0.3`, `used.rate=0.1`, `name~^acc`, `error?`.

    PATH OP VALUE    OP is one of  =  !=  <  <=  >  >=  ~
    PATH?            there is such a value

PATH is names joined by dots; a number is a place in a list, or a name; `$` is the value itself; a name in which an
operator, a dot or a quote occurs is written as a JSON text. VALUE is JSON, or else the text itself. Behind `~` it is a
regular expression (RE2) that has to be found in a text. Numbers are less or greater than numbers, texts than texts, by
code point; `=` and `!=` take anything. What is not there matches nothing.

A condition has one meaning and two ways to test it, on a value in memory and within SQLite. Both compare what
`comparable` makes of a value, and SQLite gets it by a function of ours: its own ones cannot name every key, take true
for 1, and do not read every number exactly in every version.
"""

from __future__ import annotations

import json
import operator
import re
import sqlite3
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, cast

import msgspec
import re2

MOST_CONDITIONS = 20
MOST_PATH = 300  # characters
MOST_STEPS = 20
MOST_VALUE = 1_000
MOST_PATTERN = 200
_MOST_PROGRAM = 2_000  # instructions: short patterns can be large
_PATTERN_BYTES = 2 << 20

Path = tuple[str | int, ...]
"""Names, and numbers, which are places in lists or names."""
Comparable = int | float | str | bytes
"""A number, a text, or anything else as canonical JSON in bytes. SQLite knows them apart as Python does."""
Operator = Literal["=", "!=", "<", "<=", ">", ">=", "~", "?"]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_STEP = re.compile(r'\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*")\s*|(?P<name>[^."=!<>~?]+))')
_PLACE = re.compile(r"0|[1-9][0-9]{0,8}")
_PLAIN_NAME = re.compile(r'(?!-)[^."=!<>~?,\s]+')
_OPERATOR = re.compile(r"\s*(!=|<=|>=|=|<|>|~|\?)")
_MISSING = object()


class BadFilter(ValueError):
    """A condition, a path or a pattern that means nothing; `text` is the one, `reason` what is wrong with it."""

    def __init__(self, text: str, reason: str) -> None:
        shown = text if len(text) <= 100 else f"{text[:100]}..."
        super().__init__(f"{shown!r}: {reason}")
        self.text = text
        self.reason = reason


class Bind(Protocol):
    """Takes a value and returns the name by which a statement has it."""

    def __call__(self, value: Comparable | None, /) -> str: ...


class Bound:
    """The values of one statement, by the names that it has for them."""

    def __init__(self) -> None:
        self.values: dict[str, Comparable | None] = {}

    def __call__(self, value: Comparable | None, /) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = value
        return f":{name}"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; `value` is the pattern behind `~`."""

    path: Path
    operator: Operator
    value: Comparable
    text: str

    def matches(self, value: Any) -> bool:
        """Whether it holds for a value, as JSON has it."""
        found = value_at(value, self.path)
        return found is not _MISSING and self.holds(comparable(found))

    def holds(self, found: Comparable) -> bool:
        """Whether it holds for what is at its path."""
        if self.operator == "?":
            return True
        if self.operator == "=":
            return found == self.value
        if self.operator == "!=":
            return found != self.value
        if self.operator == "~":
            return isinstance(found, str) and _is_found(cast("str", self.value), found)
        return _kind(found) is _kind(self.value) and _COMPARISONS[self.operator](found, self.value)

    def sql(self, expression: str, bind: Bind) -> str:
        """The same for an expression that is what is at its path, or NULL. It occurs up to twice in the result, and
        must not have the affinity of a column."""
        if self.operator == "?":
            return f"{expression} IS NOT NULL"
        if self.operator == "~":
            return f"is_found({bind(self.value)}, {expression})"
        comparison = f"{expression} {self.operator} {bind(self.value)}"
        if self.operator in _COMPARISONS:
            types = "('text')" if isinstance(self.value, str) else "('integer', 'real')"
            return f"(typeof({expression}) IN {types} AND {comparison})"
        return comparison


def parse(text: str) -> Condition:
    """Read a condition."""
    path, rest = _read_path(text)
    found = _OPERATOR.match(rest)
    if found is None:
        raise BadFilter(text, "a condition is PATH OP VALUE, with one of = != < <= > >= ~, or PATH?")
    name, told = cast("Operator", found[1]), rest[found.end() :].strip()
    if name == "?":
        if told:
            raise BadFilter(text, f"nothing follows ?, but here is {told[:20]!r}")
        return Condition(path, name, "", text)
    if name == "~":
        check_pattern(told)
        return Condition(path, name, told, text)
    return Condition(path, name, _read_value(text, name, told), text)


def parse_all(texts: Iterable[str]) -> tuple[Condition, ...]:
    """Read conditions that have to hold together."""
    found: list[Condition] = []
    for text in texts:
        if len(found) == MOST_CONDITIONS:
            raise BadFilter(text, f"there are more than {MOST_CONDITIONS} conditions")
        found.append(parse(text))
    return tuple(found)


def parse_path(text: str) -> Path:
    """Read a path that stands alone."""
    path, rest = _read_path(text)
    if rest:
        raise BadFilter(text, f"{rest[:20]!r} belongs to no path: a name with dots or operators is put in quotes")
    return path


def path_text(path: Path) -> str:
    """A path as `parse_path` reads it."""
    return ".".join(_step_text(step) for step in path) or "$"


def value_at(value: Any, path: Path) -> Any:
    """What is at a path; if nothing is, something that `is_missing`."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(str(step), _MISSING)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return _MISSING
    return value


def is_missing(found: Any) -> bool:
    """Whether `value_at` has found nothing."""
    return found is _MISSING


def comparable(value: Any) -> Comparable:
    """A value of JSON as something that is equal to whatever means the same and nothing else."""
    if isinstance(value, (str, float)):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(1 << 63) <= value < 1 << 63 else _large(value)
    return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":")).encode()


def restored(found: Comparable | None) -> Any:
    """The value of JSON that became comparable."""
    return json.loads(found) if isinstance(found, bytes) else found


def attribute_sql(column: str, path: Path, bind: Bind) -> str:
    """What is at a path of a column of JSON, comparable, or NULL."""
    return f"attribute({column}, {bind(json.dumps(path))})"


def check_pattern(pattern: str) -> None:
    """BadFilter unless it is a regular expression that is cheap to look for."""
    if len(pattern) > MOST_PATTERN:
        raise BadFilter(pattern, f"a pattern has at most {MOST_PATTERN} characters")
    _check_encoding(pattern)
    try:
        size = _compiled(pattern).programsize
    except re2.error as error:
        told = error.args[0] if error.args else "it is none"
        reason = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
        raise BadFilter(pattern, f"this is no regular expression of RE2: {reason}") from None
    if size > _MOST_PROGRAM:
        raise BadFilter(pattern, "this pattern repeats so much that it would take too long to look for")


def matcher(pattern: str) -> Callable[[str], bool]:
    """Says of texts whether all of one matches a regular expression. BadFilter if it is none."""
    check_pattern(pattern)  # by itself, so that no part of it leaves the group
    found = _compiled(f"^(?:{pattern})$")
    return lambda text: found.search(text.encode(errors="replace")) is not None


def register(db: sqlite3.Connection) -> None:
    """Give a connection the functions that conditions need."""
    db.create_function("attribute", 2, _attribute, deterministic=True)
    db.create_function("is_found", 2, _is_found, deterministic=True)


def _attribute(text: str | None, path: str) -> Comparable | None:
    if text is None:
        return None
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    found = value_at(value, _steps(path))
    return None if found is _MISSING else comparable(found)


@lru_cache(maxsize=256)
def _steps(path: str) -> Path:
    return tuple(json.loads(path))


def _is_found(pattern: str, found: Comparable | None) -> bool:
    return isinstance(found, str) and _compiled(pattern).search(found.encode(errors="replace")) is not None


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _PATTERN_BYTES
    return re2.compile(pattern, options)


def _kind(value: Comparable) -> type:
    return type(value) if isinstance(value, (str, bytes)) else float


def _large(value: int) -> float:
    """A number that is too large for SQLite's integers."""
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def _canonical(value: Any) -> Any:
    """With numbers that are equal written the same."""
    if isinstance(value, dict):
        return {name: _canonical(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_canonical(part) for part in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 63:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return comparable(value)
    return value


def _read_path(text: str) -> tuple[Path, str]:
    """The path that a text begins with, and the rest of it."""
    _check_encoding(text)
    steps: list[str | int] = []
    at = 0
    while True:
        found = _STEP.match(text, at)
        if found is None or not found[0].strip():
            raise BadFilter(text, "a path is names joined by dots, and one of them is empty")
        at = found.end()
        step = _read_step(text, found)
        if step is not None:
            steps.append(step)
        if at > MOST_PATH or len(steps) > MOST_STEPS:
            raise BadFilter(text, f"a path has at most {MOST_PATH} characters and {MOST_STEPS} names")
        if at == len(text) or text[at] != ".":
            return tuple(steps), text[at:]
        if step is None:
            raise BadFilter(text, "$ is the value itself: no path goes on from there")
        at += 1


def _read_step(text: str, found: re.Match[str]) -> str | int | None:
    """A name, a place, or None for the value itself."""
    if found["quoted"] is not None:
        try:
            name = json.loads(found["quoted"])
        except ValueError as error:
            raise BadFilter(text, f"{found['quoted'][:20]} is no JSON text: {error}") from None
        _check_encoding(name)
        return cast("str", name)
    name = found["name"].strip()
    if name == "$":
        return None
    return int(name) if _PLACE.fullmatch(name) else name


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return str(step)
    is_plain = _PLAIN_NAME.fullmatch(step) and not _PLACE.fullmatch(step) and step != "$"
    return step if is_plain else json.dumps(step, ensure_ascii=False)


def _read_value(text: str, name: str, told: str) -> Comparable:
    if len(told) > MOST_VALUE:
        raise BadFilter(text, f"a value has at most {MOST_VALUE} characters")
    if told.startswith(("=", "<", ">", "~")):
        raise BadFilter(text, f"there is no operator {name}{told[0]}; a text that begins like that is put in quotes")
    try:
        value = _read_json(told)
        _check_encoding(json.dumps(value, ensure_ascii=False))
        found = comparable(value)
    except RecursionError:
        raise BadFilter(text, "the value is nested too deeply") from None
    if found in (float("inf"), float("-inf")):
        raise BadFilter(text, "this number is too large")
    if name in _COMPARISONS and (told == "" or isinstance(found, bytes)):
        raise BadFilter(text, f"{name} compares with a number or a text; in quotes, everything is a text")
    return found


def _read_json(told: str) -> Any:
    try:
        return json.loads(told, parse_constant=_no_number)
    except ValueError:
        return told


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _check_encoding(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadFilter(text, "half of a character (a lone surrogate) occurs in it") from None
