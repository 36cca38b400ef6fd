"""What a run was asked for, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from threadline.load.chain import Chain
from threadline.load.fleet import DeviceEnd
from threadline.load.histogram import Histogram
from threadline.load.loss import LOG, Loss
from threadline.load.profiles import Profile, Said, total
from threadline.load.questions import Asked
from threadline.load.steps import CLOSE, Bottleneck, Step
from threadline.load.watch import Sample


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What was asked for."""

    profile: Profile
    devices: int
    rate: float
    duration_s: float
    processes: int
    find_max: bool = False
    step_s: float = 20.0
    close: float = CLOSE
    """How many times the highest rate that holds may be below the lowest that does not."""
    users: int = 0
    """That ask the API meanwhile."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the agents."""
    folder: Path | None = None
    embedded: bool = False
    with_spark: bool = True
    """Whether it matters how far the graph is, not only the log."""
    chain: Chain | None = None
    """One that runs already. None: a new one is started."""
    connect_s: float = 60.0
    drain_s: float = 60.0
    """How long everything may take to arrive, once it comes no nearer."""


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    options: LoadOptions
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))
    connected: int = 0
    connect_s: float = 0.0
    from_s: float = 0.0
    to_s: float = 0.0
    """When the devices were at work, on the clock of the samples."""
    samples: list[Sample] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    highest: Step | None = None
    is_search_finished: bool = False
    """Of --find-max: whether it is known that not much more than the highest rate is sustained."""
    bottleneck: Bottleneck | None = None
    ends: list[DeviceEnd] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    checked: tuple[str, ...] = ()
    """Where it was looked for losses."""
    drained_s: float = 0.0
    asked: Asked | None = None
    was_stopped: bool = False
    """Before the devices had spoken for as long as they should; later on nothing can be cut short."""
    was_cold: bool = False
    """Spark had not got going when the devices began to speak, though it was waited for."""
    gone: dict[str, str] = field(default_factory=dict)
    """Components of a chain that ran already, and when they died."""
    failure: str | None = None
    """Why it could not be brought to its end."""

    @property
    def said_in_all(self) -> Said:
        """Also while it was warmed up."""
        return total(end.said for end in self.ends)

    @property
    def at_work_s(self) -> float:
        """For how long the devices spoke; 0 if they never did."""
        return self.to_s - self.from_s

    @property
    def measured(self) -> list[Sample]:
        """The looks from the moment on when the devices were at work, until everything had arrived."""
        return [each for each in self.samples if each.at_s > self.from_s] if self.at_work_s else []

    @property
    def units(self) -> int:
        """What was said in that time."""
        return self._more(lambda each: each.said)

    @property
    def missed(self) -> int:
        """What should have been said in that time and was not, as the processes of the devices were too slow."""
        return self._more(lambda each: each.missed)

    def _more(self, count_of: Callable[[Sample], int]) -> int:
        before = [count_of(each) for each in self.samples if each.at_s <= self.from_s]
        measured = self.measured
        return count_of(measured[-1]) - (before[-1] if before else 0) if measured else 0

    @property
    def caller_us(self) -> Histogram:
        return _merged(each.caller_us for each in self.measured)

    @property
    def late_ms(self) -> Histogram:
        return _merged(each.late_ms for each in self.measured)

    @property
    def lost(self) -> list[Loss]:
        """What will never arrive."""
        return [loss for loss in self.losses if not loss.may_arrive]

    @property
    def delayed(self) -> list[Loss]:
        """What has not arrived, and is still with the devices."""
        return [loss for loss in self.losses if loss.may_arrive]

    @property
    def left(self) -> int:
        """Batches that are still with the devices."""
        return sum(end.left for end in self.ends)

    @property
    def unwritten(self) -> int:
        """Records that the devices could not write."""
        return sum(end.unwritten for end in self.ends)

    @property
    def dropped(self) -> int:
        """Records that the devices gave up. Some may have arrived all the same: the losses tell, if they were looked
        for."""
        return sum(end.dropped for end in self.ends)

    @property
    def unsought(self) -> int:
        """Those of them that nobody has looked for: only the log has every kind of record."""
        return 0 if LOG in self.checked else self.dropped

    @property
    def is_everything_there(self) -> bool:
        """Nothing that was said is missing, as far as anybody has looked."""
        return not (self.losses or self.left or self.unwritten or self.unsought)

    @property
    def is_whole(self) -> bool:
        """All devices were there, everybody could do their work, and nothing is lost."""
        were_there = self.failure is None and not self.gone and self.connected == self.options.devices
        were_answered = self.asked is None or self.asked.was_answered or self.was_stopped
        return were_there and were_answered and self.is_everything_there


def _merged(parts: Iterator[Histogram]) -> Histogram:
    found = Histogram()
    for each in parts:
        found.merge(each)
    return found
