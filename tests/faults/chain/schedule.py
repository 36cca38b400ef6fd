"""What goes wrong in a run, and when: all of it decided by one seed.

A fault has a target, begins at some time and ends after a while. Two faults never meet at one target, and there is time
between them, so that each finds its target at work; at different targets they overlap as they like.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from tests.faults.chain.works import CENTER, GAUGE, MILL, QUARRY, ROADSIDE, YARD

WATCH = "watch"
"""The agent that captures a workflow."""
WORKERS = (QUARRY, MILL, YARD, GAUGE)
STEADY = (ROADSIDE, CENTER)
"""Agents that run a query of the papers and never die, so that it must find what it finds on one machine."""
AGENTS = (*WORKERS, *STEADY, WATCH)
SERVICES = ("mosquitto", "gateway", "translator", "spark", "api")
_APART_S = 2.5


class Kind(StrEnum):
    """What can go wrong."""

    LOSS = "loss"
    DUPLICATES = "duplicates"
    REORDERING = "reordering"
    CORRUPTION = "corruption"
    PARTITION = "partition"
    ONE_WAY = "one way"
    REBINDING = "NAT rebinding"
    KILL = "kill -9"
    FORGET = "broker forgets its queue"
    WORKER = "kill -9 of a Spark worker"
    STOP = "SIGSTOP"
    FULL_DISK = "full disk"
    SLOW_READER = "slow reader"
    SLEEP = "agent sleeps"
    REFLASH = "reflashed"
    REPLAN = "new plan"
    SKEW = "clock jumps"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    kind: Kind
    target: str
    at_s: float
    for_s: float
    strength: float
    """From 0 to 1, for those that may be more or less bad."""

    def __str__(self) -> str:
        return f"{self.at_s:5.1f} s  {self.kind} at {self.target} for {self.for_s:.1f} s"

    @property
    def busies(self) -> str:
        """What no other fault may touch meanwhile."""
        return f"link of {self.target}" if self.kind in LINK_KINDS else self.target


@dataclass(frozen=True, slots=True)
class _Choice:
    """A kind of fault: whom it may hit, for how long, and how likely it is."""

    kind: Kind
    targets: Sequence[str]
    for_s: tuple[float, float]
    weight: float


LINK_KINDS = frozenset(
    (Kind.LOSS, Kind.DUPLICATES, Kind.REORDERING, Kind.CORRUPTION, Kind.PARTITION, Kind.ONE_WAY, Kind.REBINDING)
)
_MORTAL = (*WORKERS, WATCH)
_CHOICES = [
    _Choice(Kind.LOSS, AGENTS, (4, 12), 1.5),
    _Choice(Kind.DUPLICATES, AGENTS, (4, 12), 1.0),
    _Choice(Kind.REORDERING, AGENTS, (4, 12), 1.0),
    _Choice(Kind.CORRUPTION, AGENTS, (4, 12), 1.5),
    _Choice(Kind.PARTITION, AGENTS, (2, 8), 1.0),
    _Choice(Kind.ONE_WAY, AGENTS, (2, 8), 1.0),
    _Choice(Kind.REBINDING, AGENTS, (0, 0), 1.0),
    _Choice(Kind.KILL, ("mosquitto", "gateway", "translator", "api", *_MORTAL), (0.2, 3), 4.0),
    _Choice(Kind.FORGET, ("mosquitto",), (0.2, 3), 1.0),
    _Choice(Kind.STOP, ("mosquitto", "gateway", "translator", "api", *AGENTS), (1, 6), 2.0),
    _Choice(Kind.FULL_DISK, ("translator", QUARRY, MILL, WATCH), (2, 6), 1.5),
    _Choice(Kind.SLOW_READER, ("api",), (5, 15), 0.7),
    _Choice(Kind.SLEEP, _MORTAL, (1, 6), 1.0),
    _Choice(Kind.REFLASH, (QUARRY, GAUGE, WATCH), (0.5, 2), 1.0),
    _Choice(Kind.REPLAN, (QUARRY, YARD, GAUGE), (0.2, 2), 1.0),
    _Choice(Kind.SKEW, (QUARRY, GAUGE), (0.2, 2), 1.0),
]
_OF_SPARK = [
    _Choice(Kind.KILL, ("spark",), (0.5, 2), 2.0),
    _Choice(Kind.WORKER, ("spark",), (0, 0), 1.0),
    _Choice(Kind.STOP, ("spark",), (2, 10), 1.0),
    _Choice(Kind.FULL_DISK, ("spark",), (2, 8), 1.0),
]
"""A run has one of these at most: Spark takes its time to start."""
_SPARK_CHANCE = 0.7
LEAST_KINDS = 3


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run before it has begun."""

    seed: int
    duration_s: float
    faults: Sequence[Fault] = field(default_factory=tuple)

    @property
    def disks(self) -> set[str]:
        """Whose disk will be full."""
        return {fault.target for fault in self.faults if fault.kind == Kind.FULL_DISK}


def schedule(seed: int, duration_s: float = 30.0, faults: int = 12) -> Schedule:
    """The faults of a seed, in the order in which they begin."""
    dice = Random(f"chain {seed}")
    chosen: list[Fault] = []
    while len(chosen) < faults or len({each.kind for each in chosen}) < LEAST_KINDS:
        choices = _OF_SPARK if not chosen and dice.random() < _SPARK_CHANCE else _CHOICES
        (choice,) = dice.choices(choices, [each.weight for each in choices])
        made = _made(choice, dice, duration_s)
        if _fits(made, chosen):
            chosen.append(made)
    return Schedule(seed, duration_s, tuple(sorted(chosen, key=lambda each: each.at_s)))


def _made(choice: _Choice, dice: Random, duration_s: float) -> Fault:
    target = dice.choice(choice.targets)
    first_s = duration_s / 2 if target == "spark" else 0.0  # it is not there from the beginning
    at_s, for_s = dice.uniform(first_s, duration_s), dice.uniform(*choice.for_s)
    return Fault(choice.kind, target, at_s, min(for_s, duration_s / 2), dice.random())


def _fits(made: Fault, others: Iterable[Fault]) -> bool:
    return not any(
        each.busies == made.busies
        and each.at_s < made.at_s + made.for_s + _APART_S
        and made.at_s < each.at_s + each.for_s + _APART_S
        for each in others
    )
