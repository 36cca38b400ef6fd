"""Everything about a client that is decided before it starts, with every default in one place."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.mqttsn import MAX_PACKET_BYTES, MAX_UDP_PAYLOAD_BYTES, RetryPolicy, is_topic_id, is_topic_name
from protocol.structs import Struct, made

MAX_CLIENT_ID_CHARS = 23
MAX_DURATION_S = 65_535
MAX_WINDOW = 32_768  # half of the message ids, so that a free one is always near


class Will(Struct):
    """What the gateway publishes for a client that vanishes without a goodbye."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False

    def __post_init__(self) -> None:
        if not is_topic_name(self.topic):
            raise ValueError(f"{self.topic!r} is no topic name for a will")
        if self.qos not in (0, 1, 2):
            raise ValueError(f"a will has QoS 0, 1 or 2, not {self.qos}")
        if len(self.payload) > MAX_UDP_PAYLOAD_BYTES - 4:
            raise ValueError(f"a will message of {len(self.payload)} bytes does not fit in a datagram")


def _retry_policy() -> RetryPolicy:
    return RetryPolicy(first_s=1.0, least_s=0.2, most_s=10.0, attempts=8)


class SessionConfig(Struct):
    """One client's identity, limits and patience."""

    client_id: str
    keep_alive_s: int = 60
    clean: bool = False
    will: Will | None = None
    predefined: Mapping[str, int] = made(factory=dict)
    gateways: int = 1
    window: int = 16
    max_queued: int = 1_000
    max_queued_bytes: int = 1 << 20
    max_topics: int = 1_024
    max_packet_bytes: int = min(MAX_PACKET_BYTES, MAX_UDP_PAYLOAD_BYTES)
    retry: RetryPolicy = made(factory=_retry_policy)
    connect_attempts: int = 4
    reconnect_first_s: float = 0.5
    reconnect_most_s: float = 30.0
    congestion_first_s: float = 0.5
    congestion_most_s: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= len(self.client_id) <= MAX_CLIENT_ID_CHARS:
            raise ValueError(f"a client id has 1 to {MAX_CLIENT_ID_CHARS} characters, not {self.client_id!r}")
        if not 1 <= self.keep_alive_s <= MAX_DURATION_S:
            raise ValueError(f"keep_alive_s is 1 to {MAX_DURATION_S}, not {self.keep_alive_s}")
        for name in ("gateways", "window", "max_queued", "max_queued_bytes", "max_topics", "connect_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        if self.window > MAX_WINDOW:
            raise ValueError(f"window is at most {MAX_WINDOW}, not {self.window}")
        for name, topic_id in self.predefined.items():
            if not is_topic_name(name):
                raise ValueError(f"{name!r} is no topic name for a predefined id")
            if not is_topic_id(topic_id):
                raise ValueError(f"a predefined topic id is 1 to 65534, not {topic_id} for {name!r}")
