"""What goes wrong in a run, and when: all of it decided by one seed.

A fault has a target, begins at some time and ends after a while. Two faults never meet at one target, and there is time
between them, so that each finds its target at work; at different targets they overlap as they like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
CLOUD = ("mosquitto", "gateway", "translator", "api")
CHECKPOINT = "checkpoint"
"""Of Spark; it may have a disk of its own."""


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
    BLACKOUT = "kill -9 of the cloud"
    FORGET = "broker forgets its queue"
    WORKER = "kill -9 of a Spark worker"
    STOP = "SIGSTOP"
    FULL_DISK = "full disk"
    SLOW_READER = "slow reader"
    SLEEP = "agent sleeps"
    REFLASH = "reflashed"
    REPLAN = "new plan"
    SKEW = "clock jumps"
    GONE = "agent never returns"


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
    def apart_s(self) -> float:
        """How long its target is left alone afterwards: what waited for room in memory has to be written first."""
        return 3.0 if self.kind == Kind.FULL_DISK else 1.5

    @property
    def renews_exchange(self) -> bool:
        """Whether an agent is started anew that sends to others or receives from them. A receiver that has taken the
        end of its sender waits for the next start of that; and what that says is for the next start of the receiver.
        So neither may happen when they come to their ends."""
        is_started = self.kind in (Kind.KILL, Kind.SLEEP, Kind.REFLASH, Kind.REPLAN, Kind.SKEW)
        return is_started and self.target in (QUARRY, MILL, YARD)

    @property
    def busies(self) -> frozenset[str]:
        """What no other fault may touch meanwhile."""
        if self.kind == Kind.BLACKOUT:
            return frozenset(CLOUD)
        if self.target == CHECKPOINT:
            return frozenset(("spark",))
        return frozenset((f"link of {self.target}" if self.kind in LINK_KINDS else self.target,))


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
    _Choice(Kind.KILL, (*CLOUD, *_MORTAL), (0.2, 3), 5.0),
    _Choice(Kind.BLACKOUT, ("cloud",), (0.2, 3), 1.0),
    _Choice(Kind.FORGET, ("mosquitto",), (0.2, 3), 1.0),
    _Choice(Kind.STOP, (*CLOUD, *AGENTS), (1, 6), 2.0),
    _Choice(Kind.FULL_DISK, ("translator", QUARRY, MILL, WATCH), (2, 6), 1.5),
    _Choice(Kind.SLOW_READER, ("api",), (5, 15), 0.7),
    _Choice(Kind.SLEEP, _MORTAL, (1, 6), 1.0),
    _Choice(Kind.REFLASH, (QUARRY, MILL, GAUGE, WATCH), (0.5, 2), 1.5),
    _Choice(Kind.REPLAN, (QUARRY, YARD, GAUGE), (0.2, 2), 1.0),
    _Choice(Kind.SKEW, (QUARRY, GAUGE), (0.2, 2), 1.0),
]
_OF_SPARK = [
    _Choice(Kind.KILL, ("spark",), (0.5, 2), 2.0),
    _Choice(Kind.WORKER, ("spark",), (0, 0), 1.0),
    _Choice(Kind.STOP, ("spark",), (2, 10), 1.0),
    _Choice(Kind.FULL_DISK, ("spark", CHECKPOINT), (2, 8), 1.5),
]
"""A run has one of these at most: Spark takes its time to start."""
_SPARK_CHANCE, _GONE_CHANCE, _EARLY_CHANCE, _THIN_CHANCE, _DURABLE_CHANCE = 0.6, 0.15, 0.4, 0.3, 0.2
LEAST_KINDS = 3
FAULTS = (10, 20)
_RETIRE_AFTER_S = 15.0
_NEVER_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run before it has begun."""

    seed: int
    duration_s: float
    faults: Sequence[Fault] = field(default_factory=tuple)
    ends_at_s: float | None = None
    """When the sources come to their ends. None: when everything has healed."""
    thin: frozenset[str] = frozenset()
    """Agents that have a small spool and much to say: when they are cut off, they have to give something up."""
    qos: Mapping[str, int] = field(default_factory=dict)
    durable: bool = False
    """Whether what the watch captures is on disk before it goes on."""

    @property
    def disks(self) -> set[str]:
        """Whose disk will be full."""
        return {fault.target for fault in self.faults if fault.kind == Kind.FULL_DISK}

    @property
    def retire_after_s(self) -> float:
        """How long agents are waited for: not for ever, if one never returns."""
        return _RETIRE_AFTER_S if any(fault.kind == Kind.GONE for fault in self.faults) else _NEVER_S


def schedule(seed: int, duration_s: float = 30.0) -> Schedule:
    """The faults of a seed, in the order in which they begin."""
    dice = Random(f"chain {seed}")
    chosen: list[Fault] = []
    if dice.random() < _SPARK_CHANCE:
        chosen.append(_made(_chosen(_OF_SPARK, dice), dice, duration_s))
    if dice.random() < _GONE_CHANCE:
        chosen.append(Fault(Kind.GONE, GAUGE, duration_s, 0.0, 0.0))
    ends_at_s = dice.uniform(0.6, 0.95) * duration_s if dice.random() < _EARLY_CHANCE else None
    wanted = dice.randint(*FAULTS)
    while len(chosen) < wanted or len({each.kind for each in chosen}) < LEAST_KINDS:
        made = _made(_chosen(_CHOICES, dice), dice, duration_s)
        if made.renews_exchange and ends_at_s is not None and made.at_s + made.for_s + made.apart_s > ends_at_s:
            continue
        if not any(_meet(made, each) for each in chosen):
            chosen.append(made)
    return Schedule(
        seed,
        duration_s,
        tuple(sorted(chosen, key=lambda each: each.at_s)),
        ends_at_s,
        frozenset(agent for agent in (QUARRY, WATCH) if dice.random() < _THIN_CHANCE),
        {agent: dice.choice((0, 1, 1, 2)) for agent in AGENTS},
        dice.random() < _DURABLE_CHANCE,
    )


def _chosen(choices: Sequence[_Choice], dice: Random) -> _Choice:
    return dice.choices(choices, [each.weight for each in choices])[0]


def _made(choice: _Choice, dice: Random, duration_s: float) -> Fault:
    target = dice.choice(choice.targets)
    first_s = duration_s / 2 if target in ("spark", CHECKPOINT) else 0.0  # it is not there from the beginning
    at_s, for_s = dice.uniform(first_s, duration_s), dice.uniform(*choice.for_s)
    return Fault(choice.kind, target, at_s, min(for_s, duration_s / 2), dice.random())


def _meet(one: Fault, other: Fault) -> bool:
    """Whether two faults are at one target, with too little time between them."""
    return (
        not one.busies.isdisjoint(other.busies)
        and one.at_s < other.at_s + other.for_s + other.apart_s
        and other.at_s < one.at_s + one.for_s + one.apart_s
    )
