"""What the agents were made to say, noted where they said it: the truth that log and graph are measured by."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.events import Event
from protocol.records import Delivery


@dataclass(slots=True)
class Mark:
    """How much an epoch had said at some moment."""

    events: int = 0
    tuples: int = 0
    ended: bool = False


@dataclass(slots=True)
class Life:
    """One epoch of an agent."""

    agent: str
    epoch: int
    nonce: int
    version: int
    """Of its plan."""
    dropping: bool
    """Its agent may drop what does not fit, by name."""
    synced: bool
    """Its agent syncs every batch: a power cut takes nothing that was written."""
    events: list[Event] = field(default_factory=list)
    """Captured, each at its number."""
    readings: list[tuple[int, int]] = field(default_factory=list)
    """What its source gave it: times and values."""
    due: list[tuple[int, int]] = field(default_factory=list)
    """Of these, what its plan must have told by now."""
    tuples: list[tuple[str, int]] = field(default_factory=list)
    """Source tuples and deliveries, by stream and number, in the order in which they were told."""
    sources: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """The times and values of source tuples."""
    deliveries: dict[tuple[str, int], Delivery] = field(default_factory=dict)
    promises: list[tuple[str, int, int]] = field(default_factory=list)
    """A stream, its watermark, and how many tuples of the epoch were told before."""
    taken: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Tuples of other agents that went through its plan: the sender, its stream, and the nonce and number of each."""
    late: set[tuple[str, str, int, int]] = field(default_factory=set)
    """Of these, what is older than some start of its sender had promised before, so that no result need come of it."""
    broken: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Of these, what is older than the very start that sent it had promised."""
    sent: dict[str, int] = field(default_factory=dict)
    """How many tuples of a stream for other agents are safe in the spool of its Send: no power cut takes them."""
    has_given_up: bool = False
    """Whether one of its Sends had no room for something, be it of an earlier start, and let go of it."""
    written: Mark = field(default_factory=Mark)
    """What was on disk for whoever reads it through the same kernel: a kill cannot take it."""
    durable: Mark = field(default_factory=Mark)
    """What a power cut cannot take."""
    begun: bool = False
    """Its beginning is on disk."""
    ending: bool = False
    killed: bool = False
    power_cut: bool = False
    reflashed: bool = False
    """Its disk was taken away with all that was on it."""

    @property
    def name(self) -> str:
        return f"{self.agent}@{self.epoch}"

    @property
    def mark(self) -> Mark:
        """All that was said until now."""
        return Mark(len(self.events), len(self.tuples), self.ending)

    @property
    def safe(self) -> Mark:
        """What must not be lost without a word, however it ended."""
        if self.reflashed:
            return Mark()
        return self.durable if self.power_cut else self.written
