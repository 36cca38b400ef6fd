"""Packing: whatever a program holds is captured without an exception, and can be read."""

from __future__ import annotations

import collections
import copy
import enum
import sys
import threading
import types
from array import array
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from time import process_time
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.wire import msgpack
from protocol.wire.columns import Reader
from protocol.wire.msgpack import MOST_DEPTH
from protocol.wire.packer import MOST_BYTES, MOST_SHAPE_NAMES, MOST_SHAPES, Packer, Unserialisable
from protocol.wire.values import PLACEHOLDER, TOO_LARGE, ArrayValue, Payloads, Shape, put_payloads
from tests.protocol.wire.odd_values import (
    ANYTHING,
    Bits,
    Blob,
    Colour,
    Fraction,
    Items,
    Level,
    Mode,
    Name,
    Nothing,
    Number,
    Odd,
    Packet,
    Place,
    Point,
    Raising,
    RaisingField,
    RaisingKey,
    RaisingMapping,
    Reading,
    Single,
    Table,
    Unset,
    alike,
    arrived,
    in_company,
    nested,
)


@given(ANYTHING)
@example({"a": [2**70, "\ud800", {"b": Packet(1)}, memoryview(b"abcdef")[::2]]})
def test_anything_arrives(value: Any) -> None:
    in_company(value)


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(ANYTHING, max_size=5))
def test_many_values_arrive_as_each_of_them_does(told: list[Any]) -> None:
    assert alike(arrived(*told), [arrived(value)[0] for value in told])


@given(st.lists(st.dictionaries(st.sampled_from("ab"), st.none() | st.booleans() | st.integers() | st.floats())))
@example([{"a": 1, "b": 2.5}] * 20 + [{"a": True, "b": 2.5}, {"b": 1, "a": None}])
@example([{"a": (1, 2), "b": "x"}, {"a": (), "b": "x"}, {"a": [1.5], "b": ""}])
@example([{"a": 2**70, "b": -(2**63)}, {"a": 1, "b": 2**64 - 1}])
def test_tables_of_values(told: list[dict[str, Any]]) -> None:
    """Columns of one type, of several, and of one that changes on the way."""
    assert alike(arrived(*told), [expected(value) for value in told])


@given(ANYTHING)
def test_what_has_a_plain_equal_arrives_as_that(value: Any) -> None:
    packer = Packer()
    (found,) = arrived(value, packer=packer)
    plain = value._asdict() if isinstance(value, Point) else value  # further down, a NamedTuple is a list
    if packer.replaced == 0 and "\\ud" not in repr(value):
        assert alike(found, expected(plain)), (found, expected(plain))


def expected(value: Any) -> Any:
    """What a value is to others, said in the plainest way."""
    if isinstance(value, enum.Enum):
        return expected(value.value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return ArrayValue(value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, bool) or value is None:
        return value
    for kind in (str, int, float, bytes):
        if isinstance(value, kind):
            return value.__getnewargs__()[0]
    if isinstance(value, datetime):
        in_utc = value - datetime(1970, 1, 1, tzinfo=UTC) if value.tzinfo else None
        fits = in_utc is not None and timedelta(days=-719_162) <= in_utc < timedelta(days=2_932_897)
        return value.astimezone(UTC) if fits else value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, time):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        days, rest = divmod(abs(value), timedelta(days=1))
        seconds = f"{Decimal(rest // timedelta(microseconds=1)).scaleb(-6).normalize():f}"
        sign = "-" if value < timedelta(0) else ""
        return f"{sign}P{days}D" if not rest else f"{sign}P{days}DT{seconds}S" if days else f"{sign}PT{seconds}S"
    if isinstance(value, (Decimal, UUID, PurePosixPath)):
        return str(value)
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, (Reading, Place, Single)):
        return {name: expected(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Packet):
        return {"size": expected(value.size), "ok": value.ok}
    if isinstance(value, (dict, types.MappingProxyType)):
        return {_expected_key(expected(key)): expected(part) for key, part in value.items()}
    return [expected(part) for part in value]


def _expected_key(key: Any) -> Any:
    if isinstance(key, list):
        return tuple(_expected_key(part) for part in key)
    return str(key) if isinstance(key, dict) else key


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (None, None),
        (Reading("a", 2.5), {"sensor": "a", "celsius": 2.5}),
        (Place(1), {"lane": 1, "_hidden": 3}),
        (Point(1, 2), {"x": 1, "y": 2}),
        ([Point(1, 2), Place(4)], [[1, 2], {"lane": 4, "_hidden": 3}]),
        (Nothing(), {}),
        (Unset(1), {"given": 1}),
        (RaisingField(), {}),
        (Packet(7), {"size": 7, "ok": True}),
        ([Colour.RED, Colour.PAIR, Level.LOW, Mode.ON, Bits.A | Bits.B], ["red", [1, 2], 1, "on", 3]),
        ([Name("n"), Number(5), Fraction(0.5), Blob(b"b")], ["n", 5, 0.5, b"b"]),
        (Items([1, 2]), [1, 2]),
        ({"table": Table(a=1)}, {"table": {"a": 1}}),
        (timedelta(0), "P0D"),
        (timedelta(days=-1, microseconds=5), "-PT86399.999995S"),
        (time(1, 2, tzinfo=UTC), "01:02:00Z"),
        (datetime(2020, 1, 2, 3, 4, 5, 6), "2020-01-02T03:04:05.000006"),
        (datetime(9999, 12, 31, tzinfo=timezone(timedelta(hours=-12))), datetime(9999, 12, 31, 12, tzinfo=UTC)),
        (
            datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))),
            "9999-12-31T23:00:00-12:00",
        ),
        (2**64, 2**64),
        (-(2**300), -(2**300)),
        ({Place(1): 2, (1, (2, 3)): 4}, {"{'lane': 1, '_hidden': 3}": 2, (1, (2, 3)): 4}),
        ([bytearray(b"a"), memoryview(b"abcd")[::2], array("i", [1, 2])], [b"a", b"ac", [1, 2]]),
        ([{1: 2}.keys(), collections.deque([1]), range(3)], [[1], [1], [0, 1, 2]]),
        ([np.str_("s"), np.bytes_(b"b"), np.bool_(True), np.float32(0.5)], ["s", b"b", True, 0.5]),
        ([np.longdouble(0.5), np.datetime64("2020-01-01"), np.datetime64("NaT")], [0.5, "2020-01-01", None]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array([1, None, "x"], dtype=object), [1, None, "x"]),
        (np.array([1 + 2j]), [[1.0, 2.0]]),
        (np.array([0.5], dtype=np.longdouble), ArrayValue("<f8", (1,), np.array([0.5]).tobytes())),
        (np.ma.array([1, 2], mask=[False, True]), [1, None]),
        ("a\ud800", "a\\ud800"),
    ],
)
def test_kinds_of_values(value: Any, arrives: Any) -> None:
    assert alike(in_company(value), arrives)


@pytest.mark.parametrize(
    "made",
    [
        np.arange(6, dtype=">i2").reshape(2, 3)[:, ::2],
        np.array(7.5),
        np.zeros((0, 3)),
        np.zeros((1000, 0)),
        np.array([True, False]),
        np.array([1.5, -2.0], dtype=np.float16),
    ],
)
def test_arrays_say_their_type_shape_and_numbers(made: Any) -> None:
    arrived = in_company({"array": made})["array"]
    assert (np.dtype(arrived.dtype), arrived.shape) == (made.dtype, made.shape)
    assert arrived.tolist() == made.tolist()


def test_an_array_of_very_many_empty_rows_is_just_empty() -> None:
    """It is nothing to capture, but would be a million lists to show."""
    assert in_company(np.zeros((1_000_000, 0))).shape == (0,)


@pytest.mark.parametrize(
    "value",
    [
        Raising(),
        threading.Lock(),
        object(),
        Reading,
        len,
        (part for part in [1]),
        RaisingMapping({1: 2}),
        datetime(2020, 1, 1, tzinfo=Odd()),
    ],
)
@pytest.mark.parametrize("around", [lambda part: part, lambda part: {"a": 1, "b": part}, lambda part: [[part], 2]])
def test_what_has_no_meaning_elsewhere_is_replaced_and_counted(value: Any, around: Any) -> None:
    packer = Packer()
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    assert alike(arrived(around(value), packer=packer), [around({PLACEHOLDER: name})])
    assert packer.replaced == 1
    with pytest.raises(Unserialisable, match="cannot be captured"):
        Packer(strict=True).pack(around(value))


@pytest.mark.parametrize("around", [lambda part: part, lambda part: {"a": 1, "b": part}, lambda part: [[part], 2]])
def test_a_number_of_thousands_of_digits_is_replaced(around: Any) -> None:
    """And not by another number."""
    assert in_company(around(2**40_000)) == around({PLACEHOLDER: "int"})
    assert in_company(around(-(2**8000))) == around(-(2**8000))


@pytest.mark.parametrize("key", [Raising(), RaisingKey(), Place(1), frozenset({1}), Colour.RED, None, (1, Raising())])
def test_any_key_arrives_somehow(key: Any) -> None:
    assert list(in_company({key: 1}).values()) == [1]
    assert list(in_company({"nested": {key: 1}})["nested"].values()) == [1]
    assert list(in_company({"repaired": 2**70, "nested": {key: 1}})["nested"].values()) == [1]


KINDS_OF_NESTING = [
    lambda part: [part],
    lambda part: (part,),
    lambda part: {"a": part},
    lambda part: [0, {"k": part}],
    Single,
    lambda part: {(1, part) if isinstance(part, int) else 2: part},
]


@pytest.mark.parametrize("kind", KINDS_OF_NESTING)
@pytest.mark.parametrize("levels", [1, 2, MOST_DEPTH // 2, MOST_DEPTH, MOST_DEPTH + 1, 400, 2000])
def test_nesting_of_any_depth(levels: int, kind: Any) -> None:
    found = in_company(nested(levels, kind))
    if levels <= MOST_DEPTH // 2 or levels > MOST_DEPTH:
        assert (PLACEHOLDER in repr(found)) == (levels > MOST_DEPTH)


@pytest.mark.parametrize("kind", [lambda part: [part], lambda part: {1: part}, Single])
def test_up_to_the_limit_nothing_is_replaced(kind: Any) -> None:
    packer = Packer()
    packer.pack(nested(MOST_DEPTH, kind))
    assert packer.replaced == 0
    packer.pack(nested(MOST_DEPTH + 2, kind))
    assert packer.replaced == 1


def cycles() -> list[Any]:
    itself: list[Any] = []
    itself += [itself, itself]
    by_name: dict[str, Any] = {"a": 1}
    by_name["me"] = by_name
    one, other = Single(None), Single(None)
    one.only, other.only = [other, other], {"one": one}
    return [itself, by_name, one]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("place", range(3))
def test_a_value_that_contains_itself(place: int) -> None:
    assert PLACEHOLDER in repr(in_company(cycles()[place]))
    with pytest.raises(Unserialisable, match="part of itself"):
        Packer(strict=True).pack(cycles()[place])


@pytest.mark.timeout(10)
@pytest.mark.parametrize("value", [range(10**15), "x" * 20_000, list(range(20_000)), {"a": 1, "b": b"x" * 20_000}])
def test_a_value_that_is_too_large_is_replaced(value: Any) -> None:
    packer = Packer()
    (found,) = arrived(value, packer=packer)
    assert found[TOO_LARGE] == type(value).__name__
    assert found["bytes"] > MOST_BYTES
    assert packer.replaced == 1
    with pytest.raises(Unserialisable, match="may be captured"):
        Packer(strict=True).pack(value)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", [list, tuple, set, collections.deque, lambda many: {"a": list(many)}, dict.fromkeys])
def test_millions_by_mistake_do_not_take_long(kind: Any) -> None:
    value = kind(range(1_000_000))
    a_tenth = least_time(lambda: msgpack.pack(list(range(100_000)), str))
    assert arrived(value)[0]["bytes"] > MOST_BYTES
    assert least_time(lambda: arrived(value)) < 5 * a_tenth, "as if they had been written"


def least_time(work: Callable[[], object]) -> float:
    """CPU seconds, at best: others may be using the same caches."""
    found: list[float] = []
    for _ in range(3):
        before = process_time()
        work()
        found.append(process_time() - before)
    return min(found)


def test_a_large_array_costs_only_itself() -> None:
    """It is not even copied, and what stands beside it is kept."""
    packer = Packer()
    (found,) = arrived({"frame": np.zeros((1000, 1000)), "number": 7}, packer=packer)
    assert found == {"frame": {TOO_LARGE: "numpy.ndarray", "bytes": 8_000_000}, "number": 7}
    assert packer.replaced == 1


def test_names_of_very_many_fields_are_data() -> None:
    """A shape goes into a table that is told with every batch, and its size counts for nothing elsewhere."""
    few = {f"name{number}": number for number in range(MOST_SHAPE_NAMES)}
    assert Packer().pack(few)[0] == Shape("", tuple(few))
    for many in ({f"name{number}": 1 for number in range(1000)}, {"n" * 5000: 1, "m": 2}):
        assert Packer().pack(many)[0] is None
        assert arrived(many) == [many]
    assert TOO_LARGE in arrived({f"name{number}": 1 for number in range(100_000)})[0]


def test_shapes_and_types_are_not_remembered_for_ever() -> None:
    packer = Packer()
    for number in range(MOST_SHAPES + 10):
        packer.pack({f"sensor{number}": 1})
        packer.pack({f"a{place}": place if number >> place & 1 else "" for place in range(11)})
        packer.pack(type(f"Made{number}", (tuple,), {"_fields": ("a",)})((1,)))
        packer.pack(type(f"Made{number}", (int,), {})(1))
    known = (packer._shapes, packer._readers, packer._converters, packer._layouts)
    assert all(0 < len(each) <= MOST_SHAPES for each in known)


def test_keys_that_are_no_names_are_not_remembered_at_all() -> None:
    key = Point(1, 2)
    packer = Packer()
    before = sys.getrefcount(key)
    packer.pack({key: 1})
    assert sys.getrefcount(key) == before


def test_equal_names_are_one_shape() -> None:
    packer = Packer()
    assert packer.pack({"a": 1, "b": 2})[0] is packer.pack({"a": 3, "b": 4})[0]
    assert packer.pack({"b": 1, "a": 2})[0] == Shape("", ("b", "a"))
    assert packer.pack(Reading("a", 1.0))[0] == Shape(f"{Reading.__module__}:Reading", ("sensor", "celsius"))


@given(st.dictionaries(st.text(), st.lists(st.integers()), min_size=1))
def test_later_changes_change_nothing(value: dict[str, list[int]]) -> None:
    told = [value, list(value.values()), Single(value), {"inside": value}]
    before = copy.deepcopy(arrived(*told))
    packed = [Packer().pack(each) for each in told]
    for part in value.values():
        part.append(7)
    value.clear()
    out = bytearray()
    shapes = [None, *[shape for shape, _ in packed]]
    put_payloads(
        out, [0 if shape is None else place for place, (shape, _) in enumerate(packed, 1)], [data for _, data in packed]
    )
    assert Payloads(Reader(bytes(out)), len(told), shapes).values() == before


def test_a_dict_that_another_thread_changes() -> None:
    """It may arrive as it was before, after or in between, but always as something that can be read."""
    shared: dict[str, Any] = {f"k{number}": number for number in range(20)}
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for number in range(20, 40):
                shared[f"k{number}"] = np.int64(number)
            for number in range(20, 40):
                del shared[f"k{number}"]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            found = arrived(shared, {"inside": shared}, [shared])
            assert found[0]["k0"] == found[1]["inside"]["k0"] == found[2][0]["k0"] == 0
    finally:
        stop.set()
        thread.join()
