"""What an agent tells about its streams. Time is integer milliseconds everywhere."""

from __future__ import annotations

from enum import Enum
from typing import Any

from protocol.ids import StreamId, TupleId
from protocol.structs import Struct

# As a watermark: nothing is promised, nothing more will come. As a hold: nothing is held.
BEGINNING = -(2**63)
END_OF_TIME = 2**63 - 1


class OriginKind(Enum):
    """Where a contributing tuple was born: in a source, or behind the Send of another agent."""

    SOURCE = "source"
    REMOTE = "remote"


# Origins and deliveries are made by the thousand on small boards: plain classes, which compile well, with ids put
# together on demand. A compiled class is pickled by what it was made of.


class Origin:
    """A tuple that contributed to a delivery."""

    __slots__ = ("kind", "seq", "stream", "ts")

    def __init__(self, kind: OriginKind, stream: StreamId, seq: int, ts: int) -> None:
        self.kind = kind
        self.stream = stream
        self.seq = seq
        self.ts = ts

    @property
    def id(self) -> TupleId:
        return TupleId(self.stream, self.seq)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin) and (self.kind, self.stream, self.seq, self.ts) == (
            other.kind,
            other.stream,
            other.seq,
            other.ts,
        )

    def __hash__(self) -> int:
        return hash((self.stream, self.seq))

    def __repr__(self) -> str:
        return f"<{self.kind.value} {self.id} ts={self.ts}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Origin, (self.kind, self.stream, self.seq, self.ts))


_SOURCE = OriginKind.SOURCE  # looking up a member takes as long as half of the constructor


class SourcePayload(Origin):
    """A source tuple of this agent and what it said: told once, before the first delivery that names it."""

    __slots__ = ("payload",)

    def __init__(self, stream: StreamId, seq: int, ts: int, payload: Any) -> None:
        self.kind = _SOURCE
        self.stream = stream
        self.seq = seq
        self.ts = ts
        self.payload = payload

    def __reduce__(self) -> tuple[Any, ...]:
        return (SourcePayload, (self.stream, self.seq, self.ts, self.payload))


class Delivery:
    """A tuple that reached a Sink or a Send, and the tuples it came from, oldest first."""

    __slots__ = ("origins", "payload", "seq", "stream", "ts")

    def __init__(self, stream: StreamId, seq: int, ts: int, payload: Any, origins: tuple[Origin, ...]) -> None:
        self.stream = stream
        self.seq = seq
        self.ts = ts
        self.payload = payload
        self.origins = origins

    @property
    def id(self) -> TupleId:
        return TupleId(self.stream, self.seq)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Delivery) and (self.id, self.ts, self.payload, self.origins) == (
            other.id,
            other.ts,
            other.payload,
            other.origins,
        )

    def __hash__(self) -> int:
        return hash((self.stream, self.seq))

    def __repr__(self) -> str:
        return f"<delivery {self.id} ts={self.ts} payload={self.payload!r} origins={list(self.origins)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Names its sources and does not carry what they said, which was told once.
        origins = tuple(Origin(each.kind, each.stream, each.seq, each.ts) for each in self.origins)
        return (Delivery, (self.stream, self.seq, self.ts, self.payload, origins))


class Progress(Struct):
    """A promise about a delivering stream: later tuples have ts >= watermark; `hold` is the oldest
    ts that a length window may still bring back."""

    stream: StreamId
    watermark: int
    hold: int


class Late(Struct):
    """A tuple below the watermark that its source had promised: in no result and no provenance."""

    stream: StreamId
    ts: int
    payload: Any
    watermark: int


class Skipped(Struct):
    """A tuple or result left out because the user's function raised and the plan said to go on."""

    operator: str
    function: str
    ts: int | None
    payload: Any
    error: str


class Declared(Struct):
    """The plan of an epoch, as JSON: its first record."""

    plan: str


class Lost(Struct):
    """Tuples of a stream, or captured events, from one number to another."""

    name: str
    first: int
    last: int


class Gap(Struct):
    """What will never come, and why. `epoch` and `nonce` say whose records they were; batches are (first, last).

    After a crash nobody knows how much was lost: then `progress` says how far each delivering stream is known to have
    come, `next_seqs` the number of the first tuple of each stream that is not known, `next_event` that of the first
    captured event.
    """

    reason: str
    epoch: int
    nonce: int
    batches: tuple[int, int] | None = None
    tuples: tuple[Lost, ...] = ()
    events: tuple[int, int] | None = None
    progress: tuple[tuple[str, int, int], ...] = ()
    next_seqs: tuple[tuple[str, int], ...] = ()
    next_event: int | None = None


class End(Struct):
    """The epoch has ended as it should: nothing follows."""

    ts: int


class Received(Struct):
    """How much an agent has taken over of what another one sends it: told with what came of it, so that neither a tuple
    is taken twice nor its results are lost. `spool` says what `next_seq` counts in, `nonce` which start of the sender
    the last of it is from."""

    sender: str
    stream: str
    spool: int
    next_seq: int
    nonce: int = 0


class Status(Struct):
    """How the agent is: told every few seconds. `clock_ms` is the device's own idea of the time."""

    clock_ms: int
    spool_batches: int
    spool_bytes: int
    unacknowledged: int
    dropped: int
    replaced: int
    link: dict[str, Any]
    operators: dict[str, tuple[int, int, int, int]]


class Assertion(Struct):
    """A SAF event key: where a tuple of a stream stands in time and order, and its content if it is a first input."""

    stream: StreamId
    seq: int
    ts: int
    delay_ms: int
    payload: Any = None


class Sketch(Struct):
    """A Bloom filter over what an agent keeps to itself: vertices, or the edges between them."""

    of: str
    hashes: int
    entries: int
    bits: bytes


Record = SourcePayload | Delivery | Progress | Late | Skipped
