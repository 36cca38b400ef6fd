"""Crossings: tuples arrive as what they were, where the receiver knows what that is; no code of its own is run."""

from __future__ import annotations

import abc
import sys
import types
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import StreamId
from protocol.records import BEGINNING, END_OF_TIME, Origin, OriginKind
from protocol.wire import crossing as module
from protocol.wire.crossing import Crossing, decode_crossing
from protocol.wire.errors import MalformedBatch
from protocol.wire.packer import Packer
from protocol.wire.values import TOO_LARGE, Shape
from tests.protocol.wire.strategies import INT64, ORIGIN, PAYLOAD, TS, encoded_crossing

STREAM = StreamId("car-7", 3, "stopped", 2**64 - 1)
ORIGIN_1 = Origin(OriginKind.SOURCE, STREAM, 1, 2)


class Point(NamedTuple):
    x: int
    y: int


class Checked(NamedTuple("_Checked", [("x", int)])):
    __slots__ = ()

    def __new__(cls, x: int) -> Checked:
        raise AssertionError("a constructor was run")


@dataclass
class Car:
    number: int
    speed: float = 1.5

    class Door(NamedTuple):
        side: str


@dataclass(frozen=True, slots=True)
class Frozen:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise AssertionError("a constructor was run")


@dataclass
class Closing:
    number: int

    def __del__(self) -> None:
        assert self.number == 0, "a destructor was run"


@dataclass
class Failure(Exception):
    number: int


@dataclass
class Abstract(abc.ABC):
    number: int

    @abc.abstractmethod
    def work(self) -> None: ...


def crossed(*payloads: Any, packer: Packer | None = None) -> list[Any]:
    """The values that arrive."""
    tuples = [(5, payload, ORIGIN_1) for payload in payloads]
    data = encoded_crossing(Crossing(STREAM, 9, 4, tuples, 6, 7, False), packer or Packer())
    return [payload for _, payload, _ in decode_crossing(data, STREAM.agent, STREAM.name).tuples]


@given(
    st.lists(st.tuples(TS, PAYLOAD, ORIGIN), max_size=8),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**62),
    INT64 | st.sampled_from([BEGINNING, END_OF_TIME]),
    INT64,
    st.booleans(),
    st.integers(0, 99),
)
def test_what_is_sent_is_received(
    tuples: list[Any], spool: int, seq: int, watermark: int, hold: int, idle: bool, lost: int
) -> None:
    sent = Crossing(STREAM, spool, seq, tuples, watermark, hold, idle, lost)
    assert decode_crossing(encoded_crossing(sent, Packer()), STREAM.agent, STREAM.name) == sent


@pytest.mark.parametrize("value", [Point(1, 2), Car(7, 2.5), Car.Door("left"), Frozen(3), {"a": 1}, 7, None, [1, 2]])
def test_values_of_a_type_that_is_known_here(value: Any) -> None:
    (arrived,) = crossed(value)
    assert (type(arrived), arrived) == (type(value), value)


def test_values_of_many_types_together() -> None:
    values = [Point(1, 2), Car(7), {"x": 1, "y": 2}, Point(3, 4), None]
    assert crossed(*values) == values


def test_no_constructor_is_run() -> None:
    frozen = object.__new__(Frozen)
    object.__setattr__(frozen, "number", -1)
    checked = tuple.__new__(Checked, (1,))
    arrived = crossed(frozen, checked)
    assert [type(each) for each in arrived] == [Frozen, Checked]
    assert arrived[0].number == -1


def test_a_type_that_is_not_known_here() -> None:
    @dataclass
    class Local:
        number: int

    assert crossed(Local(1)) == [{"number": 1}]


@pytest.mark.parametrize("kind", [Closing, Failure, Abstract])
def test_types_that_cannot_be_made_without_their_code(kind: type) -> None:
    shape = Shape(f"{__name__}:{kind.__qualname__}", ("number",))
    assert module._maker(shape)({"number": 7}) == {"number": 7}


def test_other_names_are_another_type() -> None:
    shape = Shape(f"{__name__}:Point", ("x", "z"))
    assert module._maker(shape)({"x": 1, "z": 2}) == {"x": 1, "z": 2}


@pytest.mark.parametrize(
    "name",
    [
        *("", ":", "os:system", "os:path.join", "builtins:tuple", "time:struct_time", "no:thing"),
        *(f"{__name__}:{name}" for name in ("crossed", "Car.number", "Car.__init__", "STREAM")),
    ],
)
def test_names_of_no_type(name: str) -> None:
    assert module._maker(Shape(name, ("number",)))({"number": 7}) == {"number": 7}


def test_nothing_is_imported_to_find_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    lazy = types.ModuleType("lazy")
    lazy.__getattr__ = asked.append  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    assert module._maker(Shape("lazy:Thing", ("number",)))({"number": 7}) == {"number": 7}
    assert asked == []


def test_a_value_that_was_too_large_is_no_value_of_its_type() -> None:
    arrived = crossed(Car(b"x" * 20_000), Point(b"x" * 20_000, 2))  # type: ignore[arg-type]
    assert [sorted(each) for each in arrived] == [[TOO_LARGE, "bytes"]] * 2


def test_every_agent_can_read_it() -> None:
    """Whatever it could install: only zlib is everywhere."""
    for tuples in ([], [(1, {"a": number}, ORIGIN_1) for number in range(5000)]):
        data = encoded_crossing(Crossing(STREAM, 1, 2, tuples, 3, 4, True), Packer())
        assert data[0] in (0, 1, 2)


@pytest.mark.parametrize("seq", [-1, 2**36])
def test_an_origin_that_could_not_be_told_further(seq: int) -> None:
    tuples = [(5, 1, Origin(OriginKind.REMOTE, STREAM, seq, 2))]
    data = encoded_crossing(Crossing(STREAM, 9, 4, tuples, 6, 7, False), Packer())
    with pytest.raises(MalformedBatch, match="2\\^36"):
        decode_crossing(data, STREAM.agent, STREAM.name)
