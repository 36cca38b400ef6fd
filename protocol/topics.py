"""The MQTT topics of one agent. A shard is a fixed slice of the agents, so that consumers can split the work."""

from __future__ import annotations

import re
from zlib import crc32

SHARDS = 16
AGENT_NAME = "[a-z0-9-]{1,23}"


def shard_of(agent: str) -> int:
    """The shard an agent belongs to, the same for every process and for ever."""
    return crc32(agent.encode()) % SHARDS


def up_topic(agent: str) -> str:
    """Where an agent publishes its batches."""
    return f"tl/{shard_of(agent)}/{agent}/up"


def agent_of_up(topic: str) -> str | None:
    """The agent that publishes its batches on this topic, None if no agent does."""
    agent = topic.removesuffix("/up").rpartition("/")[2]
    return agent if topic == up_topic(agent) and re.fullmatch(AGENT_NAME, agent) else None


def down_topic(agent: str) -> str:
    """Where an agent is told what has arrived."""
    return f"tl/{shard_of(agent)}/{agent}/down"


def tuples_topic(agent: str, stream: str) -> str:
    """Where an agent publishes what crosses to other agents. A stream may be called anything, a topic level may not."""
    return f"tl/{shard_of(agent)}/{agent}/tuples/{_quoted(stream)}"


def state_topic(agent: str) -> str:
    """Where the gateway keeps, retained, whether the agent is online, asleep or offline.

    Any client id may connect, so what is not plain in a topic level is percent-encoded.
    """
    return f"tl/{shard_of(agent)}/{_quoted(agent)}/state"


def _quoted(name: str) -> str:
    if name.isascii() and name.replace("-", "").isalnum():
        return name
    from urllib.parse import quote

    return quote(name, safe="")
