"""What becomes of an agent: its starts, one after the other, their plans, and what each has taken from others.

A start is in one of these states, which rows of the log move it between:

    announced   others have named tuples of it            -> open (its plan), over (a later start speaks)
    open        it has told its plan, or has returned     -> over (End, a Gap that says it was cut short, a later plan),
                                                             retired (Retire)
    retired     it was given up                           -> open (it promises something), over (as above)
    over        nothing more will come of it              -> forgotten, once nothing of it is left in this bucket

While a start is announced, nobody knows where tuples of its agent go: nothing of that agent expires. The sinks of an
open start are as far as they have promised, those of others hold nothing back. But the start that has ended last is
also `stopped`, if it received: what others send meanwhile waits for the next one, so its sinks count until then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.ids import disk_of
from spark_jobs.ways import Ways

Sent = tuple[int, str]  # a start of an agent, and a Send of it
_MOST_DISKS = 16  # of an agent that are remembered


class Start(NamedTuple):
    """A start of an agent, and the Sends of others from which it has taken something."""

    nonce: int
    ways: Ways
    heard: frozenset[Sent]


@dataclass(slots=True)
class Agent:
    """What is known of an agent. Its starts are told apart by their nonces."""

    plans: dict[int, Ways] = field(default_factory=dict)
    """The newest last, by numbers that grow; one is not told twice in a row. Tuples of starts that had older ones may
    still be under way elsewhere."""
    since: dict[int, int] = field(default_factory=dict)
    """Of starts that have told a plan: the number of that."""
    open: dict[int, Ways | None] = field(default_factory=dict)
    """Starts of which more is expected."""
    retired: dict[int, Ways | None] = field(default_factory=dict)
    """Starts that were given up: they may come back."""
    over: dict[int, Ways | None] = field(default_factory=dict)
    """Starts of which nothing more will come, in the order in which they were, as far as that is known."""
    announced: dict[int, int] = field(default_factory=dict)
    """Starts of which only others have spoken so far, and their epochs, as the agent itself counts them."""
    disks: dict[int, int] = field(default_factory=dict)
    """The disks whose starts have spoken, the one that spoke last at the end, and how far each had counted then."""
    heard: dict[int, frozenset[Sent]] = field(default_factory=dict)
    """Of starts that have not ended: the Sends of others from which they, or those before them, have taken tuples."""
    stopped: Start | None = None
    """The start that has ended last, if it received, until there is another: what others send to the agent meanwhile
    waits for that."""
    is_left_unread: bool = False
    """The start that has ended last had a plan that cannot be read."""
    is_retired: bool = False
    """It was given up, and has not been heard of since: nobody waits for it."""

    @property
    def is_unknown(self) -> bool:
        """Whether its tuples take ways that nobody knows: a plan that has not come, or cannot be read."""
        return bool(self.announced) or self.is_left_unread or any(ways is None for ways in self.open.values())

    def heard_by(self, nonce: int) -> frozenset[Sent]:
        """The Sends of others from which a start has taken tuples."""
        if self.stopped is not None and self.stopped.nonce == nonce:
            return self.stopped.heard
        return self.heard.get(nonce, frozenset())

    def named(self, nonce: int, other: Sent) -> None:
        """A start has taken, or named, tuples of a Send of another agent. It may say so in its last words."""
        if self.stopped is not None and self.stopped.nonce == nonce:
            self.stopped = self.stopped._replace(heard=self.stopped.heard | {other})
        elif nonce not in self.over:
            self.heard[nonce] = self.heard.get(nonce, frozenset()) | {other}

    def was_named(self, nonce: int, epoch: int) -> None:
        """Another agent has named tuples of a start."""
        if nonce in self.open or nonce in self.retired or nonce in self.over:
            return
        if self._has_passed(nonce, epoch):
            self.over[nonce] = None
        else:
            self.announced[nonce] = epoch

    def spoke(self, nonce: int, epoch: int) -> None:
        """A start has named tuples of its own: starts before it will not speak any more."""
        disk = disk_of(nonce)
        self.disks[disk] = max(epoch, self.disks.pop(disk, 0))
        while len(self.disks) > _MOST_DISKS:
            del self.disks[next(iter(self.disks))]
        self.announced.pop(nonce, None)
        passed = sorted((at, each) for each, at in self.announced.items() if self._has_passed(each, at))
        for _, each in passed:
            self.over[each] = None
            del self.announced[each]

    def _has_passed(self, nonce: int, epoch: int) -> bool:
        """Whether a start that has not spoken never will: later ones of its disk have, or another disk has since."""
        disk = disk_of(nonce)
        return disk in self.disks and (epoch < self.disks[disk] or disk != next(reversed(self.disks)))

    def started(self, nonce: int, ways: Ways | None) -> None:
        """A plan: what older starts had promised, they have promised."""
        heard = [*self.heard.values(), self.stopped.heard if self.stopped else frozenset()]
        self.heard = {nonce: frozenset().union(*heard)}
        self.over |= self.open | self.retired
        self.open, self.retired, self.stopped = {nonce: ways}, {}, None
        self.is_left_unread = self.is_retired = False
        self.over.pop(nonce, None)
        self.announced.pop(nonce, None)
        if ways is not None:
            newest = max(self.plans, default=0)
            number = newest if newest and self.plans[newest] == ways else newest + 1
            self.plans[number] = ways
            self.since.setdefault(nonce, number)

    def ended(self, nonce: int) -> None:
        """A start has ended."""
        self.is_left_unread |= nonce in self.open and self.open[nonce] is None
        ways = self.open.pop(nonce, None) or self.retired.get(nonce)
        self.over[nonce] = self.over.get(nonce) or ways
        self.retired.pop(nonce, None)
        self.announced.pop(nonce, None)
        heard = self.heard.pop(nonce, frozenset())
        if ways is not None and ways.receives:
            self.stopped = Start(nonce, ways, heard)

    def given_up(self, nonce: int) -> None:
        """Nobody waits for it any more, be it silent or stopped."""
        self.announced, self.stopped, self.is_left_unread, self.is_retired = {}, None, False, True
        self.retired = {**self.retired, **self.open}
        self.open = {}
        if nonce not in self.over:
            self.retired.setdefault(nonce, None)

    def returned(self, nonce: int) -> None:
        """A start that was given up, or that a newer one had followed, goes on."""
        self.is_retired = False
        own = self.retired.pop(nonce, None) or self.over.pop(nonce, None)
        self.open[nonce] = own or next(reversed(self.plans.values()), None)

    def forget(self, own: str, left: Collection[tuple[str, int]], most: int) -> set[int]:
        """Nothing is left of starts but of these: let go of the others, but for so many, and of their plans. Returns
        which are forgotten."""
        kept = {nonce for nonce in self.since if (own, nonce) in left} | self.open.keys() | self.retired.keys()
        if self.stopped:
            kept.add(self.stopped.nonce)
        self.since = {nonce: number for nonce, number in self.since.items() if nonce in kept}
        first = min(self.since.values(), default=max(self.plans, default=0))
        self.plans = {number: ways for number, ways in self.plans.items() if number >= first}
        going = {nonce for nonce in [*self.over][:-most] if (own, nonce) not in left}
        self.over = {nonce: ways for nonce, ways in self.over.items() if nonce not in going}
        return going

    def unhear(self, starts: frozenset[int]) -> None:
        """These starts of others are forgotten."""
        self.heard = {nonce: _without(of, starts) for nonce, of in self.heard.items()}
        if self.stopped:
            self.stopped = self.stopped._replace(heard=_without(self.stopped.heard, starts))


def _without(sends: frozenset[Sent], starts: frozenset[int]) -> frozenset[Sent]:
    return frozenset(each for each in sends if each[0] not in starts)
