"""What an agent tells about its streams. Time is integer milliseconds everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from protocol.ids import StreamId, TupleId

# As a watermark: nothing is promised, nothing more will come. As a hold: nothing is held.
BEGINNING = -(2**63)
END_OF_TIME = 2**63 - 1


class OriginKind(Enum):
    """Where a contributing tuple was born: in a source, or behind the Send of another agent."""

    SOURCE = "source"
    REMOTE = "remote"


class Origin(NamedTuple):
    """A tuple that contributed to a delivery."""

    kind: OriginKind
    id: TupleId
    ts: int


@dataclass(frozen=True, slots=True)
class SourcePayload:
    """What a contributing source tuple said: told once, before the first delivery that names it."""

    id: TupleId
    ts: int
    payload: Any


@dataclass(frozen=True, slots=True)
class Delivery:
    """A tuple that reached a Sink or a Send, and the tuples it came from, oldest first."""

    id: TupleId
    ts: int
    payload: Any
    origins: tuple[Origin, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """A promise about a delivering stream: later tuples have ts >= watermark; `hold` is the oldest
    ts that a length window may still bring back."""

    stream: StreamId
    watermark: int
    hold: int


@dataclass(frozen=True, slots=True)
class Late:
    """A tuple below the watermark that its source had promised: in no result and no provenance."""

    stream: StreamId
    ts: int
    payload: Any
    watermark: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A tuple or result left out because the user's function raised and the plan said to go on."""

    operator: str
    function: str
    ts: int | None
    payload: Any
    error: str


Record = SourcePayload | Delivery | Progress | Late | Skipped
