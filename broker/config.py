"""The limits and times of the session machine that can be set, with every default in one place."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from protocol.mqttsn import RetryPolicy, is_topic_id, is_topic_name


class ConfigError(ValueError):
    """A setting that cannot work; the text names the setting and the value."""


class PredefinedTopics:
    """Topic ids both sides know beforehand: for every client, and for single clients in addition."""

    def __init__(self, names: dict[int, str] | None = None, by_client: dict[str, dict[int, str]] | None = None) -> None:
        common = names or {}
        self._names = {"": common, **{client: {**common, **own} for client, own in (by_client or {}).items()}}
        self._ids = {client: {name: number for number, name in own.items()} for client, own in self._names.items()}

    def name(self, client_id: str, topic_id: int) -> str | None:
        """The name behind an id; a client's own ids come before those for all."""
        return (self._names.get(client_id) or self._names[""]).get(topic_id)

    def id_of(self, client_id: str, name: str) -> int | None:
        """The id for a name, or None: then the name has to be registered."""
        return (self._ids.get(client_id) or self._ids[""]).get(name)

    @staticmethod
    def load(path: Path) -> PredefinedTopics:
        """Read a TOML file: a table `[topics]` of id = "name", and `[clients.NAME]` for single clients."""
        try:
            data = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"predefined topics: cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"predefined topics: {path} is not TOML: {error}") from error
        unknown = sorted(set(data) - {"topics", "clients"})
        if unknown:
            raise ConfigError(f"predefined topics: {path}: [{unknown[0]}] is neither [topics] nor [clients.NAME]")
        clients = data.get("clients", {})
        if not isinstance(clients, dict):
            raise ConfigError(f"predefined topics: {path}: [clients] holds one table per client")
        return PredefinedTopics(
            _table(path, "topics", data.get("topics", {})),
            {client: _table(path, f"clients.{client}", table) for client, table in clients.items()},
        )


def _table(path: Path, title: str, table: object) -> dict[int, str]:
    if not isinstance(table, dict):
        raise ConfigError(f'predefined topics: {path}: [{title}] is not a table of id = "name"')
    topics: dict[int, str] = {}
    for key, name in table.items():
        if not key.isdecimal() or not is_topic_id(int(key)):
            raise ConfigError(f"predefined topics: {path}: [{title}] id {key!r} is not between 1 and 65534")
        if not isinstance(name, str) or not is_topic_name(name):
            raise ConfigError(f"predefined topics: {path}: [{title}] {key} = {name!r} is not a topic name")
        topics[int(key)] = name
    return topics


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Limits and times of the session machine. Times are in seconds."""

    gateway_id: int = 1
    predefined: PredefinedTopics = field(default_factory=PredefinedTopics)
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    keep_alive_grace: float = 1.5
    idle_limit_s: float = 24 * 3600
    """A connected client without keep-alive is dropped after so long a silence."""
    session_expiry_s: float = 7 * 24 * 3600
    """A persistent session is forgotten so long after its client went offline."""
    repeated_connect_s: float = 3.0
    """An identical CONNECT within this time is a copy of the last one, not a new start."""
    exchange_memory_s: float = 10.0
    """How long a finished QoS 2 exchange is remembered, against copies the network delayed."""
    exchange_memory_count: int = 256
    retained_window_s: float = 10.0
    """How long after SUBSCRIBE retained messages are taken to be meant for the new subscriber."""

    max_sessions: int = 200_000
    max_unconfirmed: int = 4_096
    """Sessions that never spoke after CONNECT; the oldest makes room, so a flood of fresh ids stays in bounds."""
    max_departed: int = 10_000
    """Clients without a session whose retained "offline" is kept; the oldest is taken back."""
    max_client_id_bytes: int = 64
    max_topics_per_session: int = 4_096
    max_subscriptions_per_session: int = 256
    max_uploads_per_session: int = 1_024
    max_pending_publishes: int = 20_000
    """Publishes handed to MQTT and not yet acknowledged; beyond it devices are told of congestion."""
    max_pending_bytes: int = 64 * 1024 * 1024
    max_buffered_messages: int = 1_000
    """Messages waiting for one client, asleep or slow; then the oldest is dropped and counted."""
    max_buffered_bytes: int = 256 * 1024
    max_buffered_bytes_total: int = 256 * 1024 * 1024
    in_flight_per_client: int = 8
    advertise_every_s: float = 0.0
    """0 does not advertise."""
