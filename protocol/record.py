"""Small classes of named fields, for what crosses a border: dataclasses with slots, at a fraction of the start-up cost.

`dataclasses` brings a good part of the standard library with it and writes six methods per class at every start, which
a small board feels in time and memory. Here one method is written, the constructor; the others are shared. Treat
records as values: nothing keeps you from changing one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


class _Made:
    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory


def made(*, factory: Callable[[], T]) -> T:
    """A default that is made anew for each record."""
    return _Made(factory)  # type: ignore[return-value]


@dataclass_transform(field_specifiers=(made,))
def record(plain: type[T]) -> type[T]:
    """A class by its annotated fields."""
    inherited: tuple[str, ...] = getattr(plain, "__match_args__", ())
    defaults: dict[str, Any] = dict(getattr(plain, "_defaults", {}))
    namespace = dict(vars(plain))
    own = tuple(name for name, kind in namespace.get("__annotations__", {}).items() if "ClassVar" not in str(kind))
    for name in own:
        if name in namespace:
            defaults[name] = namespace.pop(name)
    for name in ("__dict__", "__weakref__"):
        namespace.pop(name, None)
    names = inherited + own
    namespace.update(__slots__=own, __match_args__=names, _defaults=defaults)
    namespace.setdefault("__init__", _constructor(plain, names, defaults))
    for method in (__eq__, __hash__, __repr__):
        namespace.setdefault(method.__name__, method)
    kind: Any = type(plain)
    slotted: type[T] = kind(plain.__name__, plain.__bases__, namespace)
    return slotted


def _constructor(plain: type, names: tuple[str, ...], defaults: dict[str, Any]) -> Any:
    parameters, body = [], []
    for name in names:
        default = defaults.get(name)
        if isinstance(default, _Made):
            parameters.append(f"{name}=None")
            body.append(f" self.{name} = _defaults[{name!r}].factory() if {name} is None else {name}")
        else:
            parameters.append(f"{name}=_defaults[{name!r}]" if name in defaults else name)
            body.append(f" self.{name} = {name}")
    if hasattr(plain, "__post_init__"):
        body.append(" self.__post_init__()")
    source = f"def __init__(self, {', '.join(parameters)}):\n" + ("\n".join(body) or " pass")
    namespace: dict[str, Any] = {"_defaults": defaults}
    exec(source, namespace)
    return namespace["__init__"]


def __eq__(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    names: tuple[str, ...] = self.__match_args__
    return all(getattr(self, name) == getattr(other, name) for name in names)


def __hash__(self: Any) -> int:
    return hash(tuple([getattr(self, name) for name in self.__match_args__]))


def __repr__(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__match_args__)})"


def replaced(value: T, **changes: Any) -> T:
    """The same record with other values in some fields."""
    kind: Any = type(value)
    names: tuple[str, ...] = kind.__match_args__
    return kind(**{**{name: getattr(value, name) for name in names}, **changes})  # type: ignore[no-any-return]


def as_dict(value: Any) -> dict[str, Any]:
    """A record by its names; records within it, and in its lists and tuples, likewise."""
    return {name: _plain(getattr(value, name)) for name in value.__match_args__}


def _plain(value: Any) -> Any:
    if hasattr(value, "_defaults") and hasattr(value, "__match_args__"):
        return as_dict(value)
    return [_plain(each) for each in value] if type(value) in (list, tuple) else value
