"""Small classes of named fields, for what crosses a border: dataclasses with slots, at a fraction of the start-up cost.

`dataclasses` brings a good part of the standard library with it and compiles six methods per class at every start,
which a small board feels in time and memory. Here methods are shared, and nothing is compiled: a constructor is one of
a few that stand below, with the names of the fields put in. Treat them as values: nothing keeps you from changing one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar, TypeVar, dataclass_transform

T = TypeVar("T")
R = TypeVar("R", bound="Struct")


class _Made:
    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory


def made(*, factory: Callable[[], T]) -> T:
    """A default that is made anew for each struct."""
    return _Made(factory)  # type: ignore[return-value]


@dataclass_transform(field_specifiers=(made,))
class _StructType(type):
    """Makes a class of its annotated fields, and those of its bases before them."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _StructType:
        fields: tuple[str, ...] = ()
        defaults: dict[str, Any] = {}
        for base in bases:
            fields += getattr(base, "__match_args__", ())
            defaults.update(getattr(base, "_defaults", {}))
        own = [each for each, kind in namespace.get("__annotations__", {}).items() if "ClassVar" not in str(kind)]
        for each in own:
            if each in namespace:
                defaults[each] = namespace.pop(each)
        fields += tuple(own)
        namespace.update(__slots__=tuple(own), __match_args__=fields, _defaults=defaults)
        if fields and "__init__" not in namespace:
            checks = "__post_init__" in namespace or any(hasattr(base, "__post_init__") for base in bases)
            namespace["__init__"] = _constructor(fields, defaults, checks)
        return super().__new__(cls, name, bases, namespace)


class Struct(metaclass=_StructType):
    """Equal to another one of its class if all fields are."""

    _defaults: ClassVar[dict[str, Any]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in names_of(self))

    def __hash__(self) -> int:
        return hash(tuple([getattr(self, name) for name in names_of(self)]))

    def __repr__(self) -> str:
        fields = [f"{name}={getattr(self, name)!r}" for name in names_of(self)]
        return f"{type(self).__qualname__}({', '.join(fields)})"

    def _complete(self) -> None:
        """After the constructor, where a default has to be made or something is to be checked."""
        for name, default in self._defaults.items():
            if isinstance(default, _Made) and getattr(self, name) is default:
                setattr(self, name, default.factory())
        check = getattr(self, "__post_init__", None)
        if check is not None:
            check()


def names_of(struct: Struct) -> tuple[str, ...]:
    """The names of its fields, in order."""
    names: tuple[str, ...] = type(struct).__match_args__
    return names


def replaced(struct: R, **changes: Any) -> R:
    """The same struct with other values in some fields."""
    return type(struct)(**{**{name: getattr(struct, name) for name in names_of(struct)}, **changes})


def as_dict(struct: Struct) -> dict[str, Any]:
    """A struct by its names; structs within it, and in its lists and tuples, likewise."""
    return {name: _plain(getattr(struct, name)) for name in names_of(struct)}


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return as_dict(value)
    return [_plain(each) for each in value] if type(value) in (list, tuple) else value


def _constructor(fields: tuple[str, ...], defaults: dict[str, Any], completes: bool) -> Callable[..., None]:
    """For few fields one of the constructors below, by other names; else one that goes through its arguments."""
    given = tuple([defaults[name] for name in fields if name in defaults])
    completes = completes or any(isinstance(default, _Made) for default in given)
    if len(fields) > len(_CONSTRUCTORS) or completes:
        return _general_constructor(fields, defaults, completes)
    code = _CONSTRUCTORS[len(fields) - 1].__code__
    return FunctionType(code.replace(co_varnames=("self", *fields), co_names=fields), {}, "__init__", given)


def _general_constructor(fields: tuple[str, ...], defaults: dict[str, Any], completes: bool) -> Callable[..., None]:
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        if len(values) > len(fields):
            raise TypeError(f"{type(self).__name__} has {len(fields)} fields, not {len(values)}")
        for name, value in zip(fields, values, strict=False):
            setattr(self, name, value)
        for name in fields[len(values) :]:
            if name in named:
                setattr(self, name, named.pop(name))
            elif name in defaults:
                setattr(self, name, defaults[name])
            else:
                raise TypeError(f"{type(self).__name__} needs {name!r}")
        if named:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(named)}, or has it twice")
        if completes:
            self._complete()

    return __init__


def _init_1(self: Any, a: Any) -> None:
    self.a = a


def _init_2(self: Any, a: Any, b: Any) -> None:
    self.a = a
    self.b = b


def _init_3(self: Any, a: Any, b: Any, c: Any) -> None:
    self.a = a
    self.b = b
    self.c = c


def _init_4(self: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    self.a = a
    self.b = b
    self.c = c
    self.d = d


def _init_5(self: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
    self.a = a
    self.b = b
    self.c = c
    self.d = d
    self.e = e


def _init_6(self: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> None:
    self.a = a
    self.b = b
    self.c = c
    self.d = d
    self.e = e
    self.f = f


def _init_7(self: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> None:
    self.a = a
    self.b = b
    self.c = c
    self.d = d
    self.e = e
    self.f = f
    self.g = g


_CONSTRUCTORS = (_init_1, _init_2, _init_3, _init_4, _init_5, _init_6, _init_7)
