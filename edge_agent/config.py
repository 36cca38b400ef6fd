"""Everything about an agent that is decided before it starts: defaults, then a TOML file, then the environment.

Flags come last; the command line applies them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from protocol.address import parse_address
from protocol.structs import Struct, replaced
from protocol.topics import AGENT_NAME

WhenFull = Literal["drop-oldest", "block"]
Fsync = Literal["batch", "interval", "never"]
Grouping = Literal["all", "ended"]

_ENVIRONMENT = {
    "THREADLINE_AGENT": "name",
    "THREADLINE_GATEWAY": "gateway",
    "THREADLINE_SPOOL": "spool",
    "THREADLINE_DURABLE": "durable",
    "THREADLINE_STRICT": "strict",
}


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


class ConfigError(Exception):
    """A setting that cannot be used."""


class Settings(Struct):
    """One agent's identity, limits and patience."""

    name: str = ""
    gateway: str = ""  # HOST:PORT, several with commas in between
    spool: str = ""
    spool_bytes: int = 64 << 20
    when_full: WhenFull = "drop-oldest"
    fsync: Fsync = "interval"
    durable: bool = False  # every capture call returns when its record is on disk
    strict: bool = False  # what cannot be captured is an exception
    flush_s: float = 0.2  # how long a record may be in memory only
    batch_bytes: int = 1_200
    batch_records: int = 1_000
    batch_age_s: float = 1.0
    grouping: Grouping = "all"  # or ProvLight's: only ended tasks wait for others, all else leaves at once
    memory_bytes: int = 4 << 20
    qos: int = 1
    window: int = 16
    status_s: float = 10.0
    keep_alive_s: int = 60

    def __post_init__(self) -> None:
        if self.name and not re.fullmatch(AGENT_NAME, self.name):
            raise ConfigError(f"name {self.name!r}: 1 to 23 small letters, digits and dashes are allowed")
        for address in self.gateways:
            try:
                parse_address(address, least_port=1)
            except ValueError as error:
                raise ConfigError(f"gateway {error}") from error
        for name, choices in (("when_full", WhenFull), ("fsync", Fsync), ("grouping", Grouping)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(f"{name} is {' or '.join(get_args(choices))}, not {getattr(self, name)!r}")
        least: dict[str, float] = {
            "spool_bytes": 64 << 10,
            "flush_s": 0.001,
            "batch_bytes": 64,
            "batch_records": 1,
            "batch_age_s": 0.001,
            "memory_bytes": 64 << 10,
            "window": 1,
            "status_s": 0.1,
            "keep_alive_s": 1,
        }
        for name, limit in least.items():
            if getattr(self, name) < limit:
                raise ConfigError(f"{name} is at least {limit}, not {getattr(self, name)}")
        if self.batch_bytes > 32 << 10:
            raise ConfigError(f"batch_bytes is at most {32 << 10}, not {self.batch_bytes}")
        if self.qos not in (0, 1, 2):
            raise ConfigError(f"qos is 0, 1 or 2, not {self.qos}")

    @property
    def gateways(self) -> list[str]:
        return [address.strip() for address in self.gateway.split(",") if address.strip()]


def load_settings(
    path: str | os.PathLike[str] | None = None, environment: Mapping[str, str] = os.environ, **flags: Any
) -> Settings:
    """Settings from a file (or the one that THREADLINE_CONFIG names), the environment and flags that are not None."""
    known = Settings.__match_args__
    found: dict[str, Any] = {}
    path = path or environment.get("THREADLINE_CONFIG")
    if path:
        for name, value in _read(os.fspath(path)).items():
            if name not in known:
                raise ConfigError(f"{path}: there is no setting {name!r}, only {', '.join(known)}")
            found[name] = value
    for variable, name in _ENVIRONMENT.items():
        if environment.get(variable):
            found[name] = environment[variable]
    found.update({name: value for name, value in flags.items() if value is not None})
    settings = Settings()
    for name, value in found.items():
        settings = replaced(settings, **{name: _typed(name, value, getattr(settings, name))})
    return settings


def _read(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def _typed(name: str, value: Any, default: Any) -> Any:
    """A setting as what it has to be; the environment knows texts only."""
    kind = type(default)
    if kind is bool and isinstance(value, str) and value.lower() in ("1", "true", "yes", "0", "false", "no"):
        return value.lower() in ("1", "true", "yes")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{name} is {_WORDS[kind]}, not {value!r}")
    return value
