"""Holds a log against its registry: which numbers streams have, and of which shards there should be rows.

The registry knows everything before the log does. What the log says and the registry does not was given by another one,
as by the copy of which this is an older one; and what the registry knows and the log does not is gone.
"""

from __future__ import annotations

from collections.abc import Iterator

from collector.log import Row
from collector.registry import RegistryView
from protocol.topics import shard_of
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind
from protocol.wire.values import decode

_Stream = tuple[str, int, str]
"""Agent, nonce and name."""


class Registered:
    """Is told of every row of a log that others may be writing. Without a sound registry it finds nothing."""

    def __init__(self, registry: RegistryView | None) -> None:
        self._registry = registry
        self._agents = registry.agents() if registry else []
        self._heard: set[str] = set()
        self._told: set[_Stream] = set()

    def misfit_of(self, row: Row) -> str:
        """What a row says of numbers that the registry does not say; of each stream once."""
        self._heard.add(row.agent)
        if self._registry is None or row.kind not in (Kind.REGISTER, Kind.SNAPSHOT):
            return ""
        try:
            numbers = dict(_numbers_in(row))
        except (MalformedBatch, TypeError, ValueError, KeyError) as error:
            return f"cannot be read: {error!r}"
        for stream, number in numbers.items():
            given = self._registry.number_of(*stream)
            if given != number and stream not in self._told:
                self._told.add(stream)
                agent, _, name = stream
                return f"stream {name} of {agent} is number {number} here, and {given or 'none'} in registry.db"
        return ""

    def gone(self, there: set[int]) -> list[int]:
        """The shards that are not there, though agents of them are known, and of these agents nothing was heard."""
        return sorted({shard_of(agent) for agent in self._agents if agent not in self._heard} - there)


def _numbers_in(row: Row) -> Iterator[tuple[_Stream, int]]:
    """The numbers of streams that a row tells."""
    told = decode(row.data)
    if row.kind == Kind.REGISTER:
        number, agent, _, name, nonce, *_ = told
        yield (agent, nonce, name), number
        return
    for name, number in told["own_streams"].items():
        yield (row.agent, row.nonce, name), number
    for number, agent, nonce, name in told["other_streams"]:
        yield (agent, nonce, name), number
