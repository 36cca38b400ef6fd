"""Values as users have them, captured at the moment of the call.

A dict with text keys, a dataclass and a NamedTuple are written without their names: these are the value's *shape*,
which a batch tells once. What has no meaning elsewhere (a socket, a lock) is replaced by a placeholder that names its
type, and counted: capturing must not break the program that is watched.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.wire import msgpack
from protocol.wire.msgpack import MOST_DEPTH, Ext, Pairs, TooLarge
from protocol.wire.values import (
    ARRAY,
    BIG_NUMBER,
    FIRST_SECOND,
    LAST_SECOND,
    MOST_EMPTY_CELLS,
    MOST_NUMBER_BYTES,
    PLACEHOLDER,
    TIMESTAMP,
    TIMESTAMP96,
    TOO_LARGE,
    Captured,
    Packed,
    Shape,
    cells,
    epoch,
)

if TYPE_CHECKING:  # a program that uses none of these should not wait for them
    from datetime import datetime, time, timedelta

MOST_BYTES = 16 * 1024
MOST_SHAPES = 1024
MOST_SHAPE_NAMES, MOST_SHAPE_CHARACTERS = 256, 4096


class Unserialisable(TypeError):
    """In strict mode: a value that cannot leave the process."""


class _Layout(NamedTuple):
    """Where parts of certain types, which are all numbers and texts and lists, have those that have a length."""

    texts: Callable[[tuple[Any, ...]], Iterable[str]] | None
    lists: tuple[int, ...]


class Packer:
    """Packs the values of one agent, and counts what it had to replace."""

    def __init__(self, *, strict: bool = False, most_bytes: int = MOST_BYTES) -> None:
        self.replaced = 0
        self._strict = strict
        self._most_bytes = most_bytes
        self._most_length = most_bytes // 4  # of parts that are kept as they are
        self._shapes: dict[tuple[str, ...], Shape] = {}
        self._readers: dict[type, tuple[Shape, Callable[[Any], Any]] | None] = {}
        self._converters: dict[type, Callable[[Any], Any]] = {}
        self._layouts: dict[tuple[type, ...], _Layout | None] = {}

    def pack(self, value: Any) -> Packed:
        """A value as its shape and what it holds. Later changes of the value change nothing."""
        shape, captured, _ = self.pack_sized(value)
        return shape, captured

    def pack_sized(self, value: Any) -> tuple[Shape | None, Captured, int]:
        """The same, and about how many bytes that takes up."""
        kind = type(value)
        shape: Shape | None
        if kind is dict:
            names = tuple(value)
            try:
                shape = self._shapes[names]
            except KeyError:
                shape = self._new_shape(names)
            except Exception:  # a key that raises when it is compared
                shape = None
            if shape is None:
                data = self.encode(value)
                return None, data, len(data)
            parts = tuple(value.values())
            if len(parts) != len(names):  # another thread has changed it meanwhile
                return self.pack_sized(value.copy())
        elif kind in _SIMPLE:
            shape, parts = None, (value,)
        else:
            try:
                known = self._readers[kind]
            except KeyError:
                known = self._new_reader(kind)
            if known is None:
                data = self.encode(value)
                return None, data, len(data)
            shape, read = known
            try:
                parts = read(value)
            except Exception:  # not all of its fields have a value
                data = self.encode(value)
                return None, data, len(data)
        kinds = tuple(map(type, parts))
        try:
            layout = self._layouts[kinds]
        except KeyError:
            layout = self._new_layout(kinds)
        if layout is not None:
            texts, lists = layout
            size = 9 * len(parts)
            length = 0
            if texts is not None:
                length = sum(map(len, texts(parts)))
                size += length
            if lists:
                copied = list(parts)
                for place in lists:
                    part = copied[place]
                    length += 4 * len(part)
                    if length > self._most_length:
                        break
                    copied[place] = part = tuple(part)
                    if not set(map(type, part)) <= _NUMBERS:  # issuperset would look at them one by one
                        break
                    size += 9 * len(part)
                else:
                    return shape, tuple(copied), size
            elif length <= self._most_length:
                return shape, parts, size
        data = self.encode(value if shape is None else list(parts), kind)
        return shape, data, len(data)

    def encode(self, value: Any, kind: type | None = None) -> bytes:
        """A value as bytes, without a shape. `kind` is what the value was, if these are only its parts."""
        try:
            try:
                return msgpack.pack(value, self._plain, self._most_bytes)
            except (Unserialisable, TooLarge):
                raise
            except Exception:  # cycles, numbers of more than 64 bits, texts that are none, objects that raise
                return self._encode_repaired(value)
        except TooLarge as error:
            return msgpack.pack(self._too_large(kind or type(value), error.size), self._plain)

    def _new_shape(self, names: tuple[Any, ...]) -> Shape | None:
        # What is no shape is not kept: its keys may be objects of the user's, and any number of them.
        if not names or not all(type(name) is str and name.isprintable() for name in names) or not _may_be_shape(names):
            return None
        # Keys that differ from one value to the next are data, not names: do not learn them for ever.
        if len(self._shapes) >= MOST_SHAPES:
            self._shapes.clear()
        shape = self._shapes[names] = Shape("", names)
        return shape

    def _new_layout(self, kinds: tuple[type, ...]) -> _Layout | None:
        """How parts of these types are captured: numbers and texts as they are, and lists of numbers copied, which is
        quick, and all of it goes into columns later. None: anything else becomes bytes here and now."""
        if len(self._layouts) >= MOST_SHAPES:
            self._layouts.clear()
        layout: _Layout | None = None
        if _PLAIN.issuperset(kinds):
            texts = [place for place, kind in enumerate(kinds) if kind is str]
            lists = [place for place, kind in enumerate(kinds) if kind is list or kind is tuple]
            layout = _Layout(_several(texts) if texts else None, tuple(lists))
        self._layouts[kinds] = layout
        return layout

    def _new_reader(self, kind: type) -> tuple[Shape, Callable[[Any], Any]] | None:
        if len(self._readers) >= MOST_SHAPES:
            self._readers.clear()
        found: tuple[Shape, Callable[[Any], Any]] | None = None
        names = names_of(kind)
        if names and _may_be_shape(names):
            read: Callable[[Any], Any] = tuple
            if not issubclass(kind, tuple):
                read = attrgetter(*names) if len(names) > 1 else _single(names[0])
            found = Shape(f"{kind.__module__}:{kind.__qualname__}", names), read
        self._readers[kind] = found
        return found

    def _plain(self, value: Any) -> Any:
        """Something that MessagePack knows, in place of a value that it does not."""
        kind = type(value)
        try:
            convert = self._converters[kind]
        except KeyError:
            if len(self._converters) >= MOST_SHAPES:
                self._converters.clear()
            convert = self._converters[kind] = self._converter(kind)
        return convert(value)

    def _converter(self, kind: type) -> Callable[[Any], Any]:
        """How values of a type become plain, by the first of its bases that is known.

        Types are known by their names: a value of a library's type exists only where that library was imported.
        """
        if issubclass(kind, enum.Enum):
            return attrgetter("value")
        for base in kind.__mro__:
            name = f"{base.__module__}.{base.__qualname__}"
            if name in _CONVERTERS:
                return _CONVERTERS[name]
            if name == "numpy.ndarray":
                return self._array
            if name in ("builtins.range", "collections.deque"):
                return self._listed
        if issubclass(kind, Set):
            return self._listed
        if issubclass(kind, Mapping):
            return self._mapped
        if hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__struct_fields__"):
            names = names_of(kind) or getattr(kind, "__struct_fields__", ())
            return lambda value: _fields(value, names)
        return self._unknown

    def _listed(self, value: Any) -> list[Any]:
        # Some are endless. One part more than there is room for is enough to be too large.
        return list(islice(value, self._most_bytes + 1))

    def _mapped(self, value: Any) -> dict[Any, Any]:
        return {key: value[key] for key in islice(value, self._most_bytes + 1)}

    def _array(self, value: Any) -> Any:
        if value.dtype.char in _LONG:
            value = value.astype(_LONG[value.dtype.char])
        if value.dtype.kind not in "iufb" or hasattr(value, "mask"):
            return value.tolist()
        if value.nbytes > self._most_bytes:  # do not even copy it
            return self._too_large(type(value), value.nbytes)
        shape = value.shape if cells(value.shape) <= max(value.nbytes, MOST_EMPTY_CELLS) else (0,)
        return Ext(ARRAY, msgpack.pack([value.dtype.str, shape], self._plain) + value.tobytes())

    def _unknown(self, value: Any) -> Any:
        return self._refused(value, "it has no meaning outside of this process")

    def _encode_repaired(self, value: Any) -> bytes:
        try:
            return msgpack.pack(self._repaired(value, 0, set()), self._plain, self._most_bytes)
        except (Unserialisable, TooLarge):
            raise
        except Exception as error:
            return msgpack.pack(self._refused(value, f"raised {type(error).__name__}"), self._plain)

    def _repaired(self, value: Any, depth: int, around: set[int]) -> Any:
        """A copy with whatever stood in the way replaced, part by part. `around` are the values that it is part of."""
        kind = type(value)
        if kind is int and not -(1 << 63) <= value < 1 << 64:
            data = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
            return self._refused(value, "too many digits") if len(data) > MOST_NUMBER_BYTES else Ext(BIG_NUMBER, data)
        if kind is str:
            return value.encode("utf-8", "backslashreplace").decode()
        if kind in _ATOMS or kind is Ext:
            return value
        if id(value) in around:
            return self._refused(value, "it is a part of itself")
        if depth >= MOST_DEPTH - 1:  # what takes its place has a level of its own
            return self._refused(value, "nested too deep")
        around.add(id(value))
        try:
            if isinstance(value, dict):
                return Pairs(
                    (self._repaired(key, depth + 1, around), self._repaired(part, depth + 1, around))
                    for key, part in list(dict.items(value))
                )
            if isinstance(value, (list, tuple)):
                return [self._repaired(part, depth + 1, around) for part in _parts(value)]
            return self._repaired(self._plain(value), depth + 1, around)
        except Unserialisable:
            raise
        except Exception as error:
            return self._refused(value, f"raised {type(error).__name__}")
        finally:
            around.discard(id(value))

    def _refused(self, value: Any, why: str) -> Any:
        if self._strict:
            raise Unserialisable(f"a {_name(type(value))} cannot be captured: {why}")
        self.replaced += 1
        return {PLACEHOLDER: _name(type(value))}

    def _too_large(self, kind: type, size: int) -> Any:
        if self._strict:
            raise Unserialisable(f"a {_name(kind)} of {size} bytes, and {self._most_bytes} may be captured")
        self.replaced += 1
        return {TOO_LARGE: _name(kind), "bytes": size}


_NUMBERS = frozenset({type(None), bool, int, float})
_ATOMS = frozenset({type(None), bool, int, float, str, bytes, bytearray})
_SIMPLE = _ATOMS | {list, tuple, set, frozenset}
_PLAIN = _NUMBERS | {str, list, tuple}


def _may_be_shape(names: tuple[str, ...]) -> bool:
    # Names of thousands of fields do not belong into a table that goes with every batch.
    return len(names) <= MOST_SHAPE_NAMES and sum(map(len, names)) <= MOST_SHAPE_CHARACTERS


def _parts(value: Any) -> list[Any]:
    """What a list or tuple holds, whatever a subclass of it says."""
    return list(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))


def _fields(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields that have a value."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = getattr(value, name)
        except Exception:
            pass
    return found


def names_of(kind: type) -> tuple[str, ...]:
    """The names of a dataclass's or NamedTuple's fields; none for any other type."""
    if hasattr(kind, "__dataclass_fields__"):
        from dataclasses import fields

        return tuple(field.name for field in fields(kind))
    names = getattr(kind, "_fields", ())
    return tuple(names) if issubclass(kind, tuple) and isinstance(names, tuple) else ()


def _several(places: list[int]) -> Callable[[tuple[Any, ...]], Iterable[Any]]:
    """The parts at these places, as a tuple, also if it is one."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1))


def _single(name: str) -> Callable[[Any], Any]:
    return lambda value: (getattr(value, name),)


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _timestamp(value: datetime) -> Any:
    if value.tzinfo is None:
        return value.isoformat()
    since = value - epoch()
    seconds = since.days * 86_400 + since.seconds
    if not FIRST_SECOND <= seconds <= LAST_SECOND:  # in UTC it would be in no year that there is
        return value.isoformat()
    if 0 <= seconds < 1 << 34:
        return Ext(TIMESTAMP, (since.microseconds * 1000 << 34 | seconds).to_bytes(8, "big"))
    return Ext(TIMESTAMP, TIMESTAMP96.pack(since.microseconds * 1000, seconds))


def _time(value: time) -> str:
    return value.isoformat().replace("+00:00", "Z")


def _duration(value: timedelta) -> str:
    total = abs(value)
    sign = "-" if value != total else ""
    days = f"{total.days}D" if total.days or not total else ""
    seconds = (
        f"{total.seconds}.{total.microseconds:06}".rstrip("0").rstrip(".") if total.microseconds else total.seconds
    )
    return f"{sign}P{days}" + (f"T{seconds}S" if total.seconds or total.microseconds else "")


_LONG = {"g": "f8", "G": "c16"}  # NumPy's numbers of more than 64 bits, and the nearest that others know


def _scalar(value: Any) -> Any:
    return value.astype(_LONG.get(value.dtype.char, value.dtype)).item()


def _pair(value: complex) -> list[float]:
    return [value.real, value.imag]


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "builtins.str": str.__str__,
    "builtins.float": float.__float__,
    "builtins.int": int.__int__,
    "builtins.bytes": bytes,
    "builtins.bytearray": bytes,
    "builtins.memoryview": bytes,
    "builtins.complex": _pair,
    "array.array": list,
    "datetime.datetime": _timestamp,
    "datetime.date": lambda value: value.isoformat(),
    "datetime.time": _time,
    "datetime.timedelta": _duration,
    "decimal.Decimal": str,
    "uuid.UUID": str,
    "pathlib.PurePath": str,
    "pathlib._local.PurePath": str,
    "numpy.generic": _scalar,
}
