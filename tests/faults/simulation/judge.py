"""The log against what the agents said: everything is there once and as it was said, or a Gap names it.

That the graph is what the log says is found out batch by batch while it grows (`tests.support.graph_oracle`). Both
together: the graph is what the agents said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from collector.log_view import Entry, learn_names, records_of
from edge_agent.outbox.outbox import EXCEEDS
from edge_agent.outbox.recovery import CRASH
from protocol.ids import StreamId, disk_of
from protocol.records import Delivery, Gap
from protocol.row import Row
from protocol.wire.sections import Kind
from tests.faults.simulation.fleet import COUNTED
from tests.faults.simulation.truth import Life

_TUPLES = (Kind.SOURCE, Kind.DELIVERY)
# What stands for batches that were given up has the number of the first of them, and keeps all this.
_SAYS_NOTHING = (Kind.GAP, Kind.PLAN, Kind.STATUS, Kind.REGISTER, Kind.EPOCH, Kind.RECEIVED, Kind.END)


def entries_of(rows: Mapping[int, Sequence[Row]]) -> list[Entry]:
    """Rows of the log as the records that agents sent."""
    found: list[Entry] = []
    for each in rows.values():
        epochs: dict[tuple[str, int], int | None] = {}
        names: dict[int, StreamId] = {}
        for row in each:
            if row.kind in (Kind.REGISTER, Kind.SNAPSHOT, Kind.EPOCH):
                learn_names(row, epochs, names)
            kind = Kind(row.data[0]) if row.kind == Kind.PAYLOAD else Kind(row.kind)
            epoch = epochs.get((row.agent, row.nonce))
            found += [
                Entry(kind, row.agent, row.nonce, row.seq, each, epoch) for each in records_of(row, epoch or 0, names)
            ]
    return found


def judge(lives: Sequence[Life], rows: Mapping[int, Sequence[Row]]) -> list[str]:
    """What is wrong."""
    log = entries_of(rows)
    findings: list[str] = []
    for place, life in enumerate(lives):
        has_successor = any(each.agent == life.agent and each.begun for each in lives[place + 1 :])
        findings += [f"{life.name}: {finding}" for finding in _Judge(life, log, has_successor).findings()]
    known = {life.nonce for life in lives}
    findings += [
        f"the log knows a start of {each.agent} that nobody has seen"
        for each in log
        if each.nonce not in known and each.agent
    ]
    findings += [
        f"{life.name} was sent what is older than its sender had promised: {life.broken}"
        for life in lives
        if life.broken
    ]
    declared = {disk_of(each.nonce) for each in log if each.kind is Kind.PLAN}
    findings += [
        f"{life.name} has taken tuples of {sender} that left before the log knew of a plan on its disk"
        for life in lives
        for sender, nonce in {(sender, nonce) for sender, _, nonce, _ in life.taken}
        if disk_of(nonce) not in declared
    ]
    for sender, stream, receiver, sink in COUNTED:
        findings += _judge_crossing(lives, log, sender, stream, receiver, sink)
    return findings


def _numbers(spans: Iterable[tuple[int, int] | None]) -> set[int]:
    return {number for span in spans if span for number in range(span[0], span[1] + 1)}


class _Judge:
    """One epoch."""

    def __init__(self, life: Life, log: Sequence[Entry], has_successor: bool) -> None:
        self.life = life
        self.has_successor = has_successor
        self.mine = [each for each in log if each.nonce == life.nonce and each.kind not in (Kind.SNAPSHOT, Kind.RETIRE)]
        self.gaps: list[Gap] = [
            each.record for each in log if each.kind is Kind.GAP and each.record.nonce == life.nonce
        ]
        self.crashes = [gap for gap in self.gaps if CRASH in gap.reason]

    @property
    def is_sure(self) -> bool:
        """Whether its disk has kept all that was written to it, so that what a Gap says of its end is exact."""
        return not (self.life.power_cut or self.life.reflashed)

    @property
    def _has_lost_batches(self) -> bool:
        """Whether its disk has lost batches, which are named, and nobody knows what was in them."""
        return not self.is_sure and any(gap.batches for gap in self.gaps)

    def findings(self) -> Iterator[str]:
        yield from self._end()
        yield from self._batches()
        yield from self._events()
        for name in dict.fromkeys(name for name, _ in self.life.tuples):
            yield from self._stream(name)
        yield from self._sources()
        yield from self._deliveries()
        yield from self._promises()

    def _end(self) -> Iterator[str]:
        life = self.life
        ends = [each.seq for each in self.mine if each.kind is Kind.END]
        if ends and ends != [max(each.seq for each in self.mine)]:
            yield "something follows its end"
        if ends and self.crashes:
            yield "it has ended, and is said to have crashed"
        last = max((each.seq for each in self.mine), default=-1)
        if life.safe.ended and not ends and not any(gap.batches and gap.batches[1] > last for gap in self.gaps):
            yield "its end is not in the log"
        if life.begun and life.killed and not life.ending and self.is_sure and self.has_successor and not self.crashes:
            yield "nobody was told that it was killed"

    def _batches(self) -> Iterator[str]:
        seqs = [each.seq for each in self.mine]
        given_up = _numbers(gap.batches for gap in self.gaps)
        if seqs != sorted(seqs):
            yield "its batches are not in order"
        holes = set(range(max([-1, *seqs, *given_up]) + 1)) - set(seqs) - given_up
        if holes:
            yield f"batches that nobody names are missing: {sorted(holes)}"
        both = given_up & {each.seq for each in self.mine if each.kind not in _SAYS_NOTHING}
        if both:
            yield f"batches are in the log, and said not to be: {sorted(both)}"
        if sum(each.kind is Kind.PLAN for each in self.mine) > 1:
            yield "its plan is told twice"

    def _events(self) -> Iterator[str]:
        life = self.life
        events = [each.record for each in self.mine if each.kind is Kind.EVENT]
        named = _numbers(gap.events for gap in self.gaps)
        yield from self._numbered("events", [each.number for each in events], named, len(life.events), life.safe.events)
        captured = dict(enumerate(life.events))
        for each in events:
            if each != captured.get(each.number):
                yield f"{each} is not what was captured: {captured.get(each.number)}"
        if self.is_sure and any(gap.next_event != len(events) + len(named) for gap in self.crashes):
            yield f"a gap says another next event than {len(events) + len(named)}: {self.crashes}"

    def _stream(self, name: str) -> Iterator[str]:
        life = self.life
        told = [seq for of, seq in life.tuples if of == name]
        safe = sum(of == name for of, _ in life.tuples[: life.safe.tuples])
        logged = [each.record.seq for each in self.mine if each.kind in _TUPLES and each.record.stream.name == name]
        named = _numbers((lost.first, lost.last) for gap in self.gaps for lost in gap.tuples if lost.name == name)
        if told != list(range(len(told))):
            yield f"the agent itself counts {name} as {told}"
        yield from self._numbered(f"tuples of {name}", logged, named, len(told), safe, self._exceeding(name))
        for gap in self.crashes if self.is_sure else ():
            if dict(gap.next_seqs).get(name, 0) != len(logged) + len(named):
                yield f"a gap says another next tuple of {name} than {len(logged) + len(named)}: {gap}"

    def _exceeding(self, name: str) -> set[int]:
        """What one message of another agent has brought about, and is too large for the spool: nobody can wait for that
        to fit."""
        gaps = [gap for gap in self.gaps if gap.reason == EXCEEDS and self.life.taken]
        return _numbers((lost.first, lost.last) for gap in gaps for lost in gap.tuples if lost.name == name)

    def _numbered(
        self, what: str, logged: list[int], named: set[int], told: int, safe: int, exceeding: Set[int] = frozenset()
    ) -> Iterator[str]:
        """Things that were told with numbers from 0 on, of which some were safe."""
        if logged != sorted(set(logged)):
            yield f"{what} are twice in the log, or out of order: {logged}"
        if named & set(logged):
            yield f"{what} are in the log, and named as missing: {sorted(named & set(logged))}"
        known = named | set(logged)
        holes = set(range(max(known, default=-1) + 1)) - known
        if holes and not self._has_lost_batches:
            yield f"{what} are missing and not named: {sorted(holes)}"
        if len(known) > told:
            yield f"there are more {what} than were told: {len(known)} of {told}"
        if set(range(safe)) - known:
            yield f"{what} that were on disk are missing and not named: {sorted(set(range(safe)) - known)}"
        if named - exceeding and not (self.life.dropping or self.life.power_cut or self.life.reflashed):
            yield f"{what} were given up, which nobody has allowed: {sorted(named - exceeding)}"

    def _sources(self) -> Iterator[str]:
        """Readings are in the log as the plan told them, and the plan told what the device has read."""
        life = self.life
        invented = Counter(life.sources.values()) - Counter(life.readings)
        if invented:
            yield f"the plan tells what was never read: {sorted(invented)}"
        untold = Counter(life.due) - Counter(life.sources.values())
        if untold:
            yield f"the plan does not tell what was read: {sorted(untold)}"
        for each in self.mine:
            if each.kind is Kind.SOURCE:
                said = each.record.ts, each.record.payload
                told = life.sources.get((each.record.stream.name, each.record.seq))
                if said != told:
                    yield f"{each.record} says {said}, which is not what was told: {told}"

    def _deliveries(self) -> Iterator[str]:
        for each in self.mine:
            if each.kind is Kind.DELIVERY:
                told = self.life.deliveries.get((each.record.stream.name, each.record.seq))
                if told is None:
                    yield f"{each.record} was never told"
                elif _facts(told) != _facts(each.record):
                    yield f"{each.record} is not what was told: {told}"

    def _promises(self) -> Iterator[str]:
        """They rise, and nothing that was said before one comes after it."""
        life = self.life
        batches = {(each.record.stream.name, each.record.seq): each.seq for each in self.mine if each.kind in _TUPLES}
        before: dict[tuple[str, int], int] = {}
        for name, watermark, tuples in life.promises:
            before.setdefault((name, watermark), tuples)
        last: dict[str, int] = {}
        for each in self.mine:
            if each.kind is not Kind.PROGRESS:
                continue
            name, watermark = each.record.stream.name, each.record.watermark
            if watermark < last.get(name, watermark):
                yield f"the promise of {name} goes back to {watermark}"
            last[name] = watermark
            if (name, watermark) not in before:
                yield f"{name} has never promised {watermark}"
                continue
            late = [one for one in life.tuples[: before[name, watermark]] if batches.get(one, -1) > each.seq]
            if late:
                yield f"{late} came after the promise {watermark} of {name}"


def _facts(delivery: Delivery) -> tuple[object, ...]:
    origins = [
        (each.kind, each.stream.agent, each.stream.nonce, each.stream.name, each.seq, each.ts)
        for each in delivery.origins
    ]
    return delivery.ts, delivery.payload, sorted(origins, key=repr)


def _judge_crossing(
    lives: Sequence[Life], log: Sequence[Entry], sender: str, stream: str, receiver: str, sink: str
) -> Iterator[str]:
    """Every tuple that crossed has one result: none has two, and none is missing, unless it came late to its receiver,
    or its sender gave it up: of these, receivers are told how many there are at most."""
    senders = [life for life in lives if life.agent == sender]
    receivers = [life for life in lives if life.agent == receiver]
    if not receivers:
        return
    way = f"{sender}/{stream} to {receiver}/{sink}"
    results: Counter[tuple[int, int]] = Counter()
    of_starts: Counter[tuple[int, int, int]] = Counter()
    for each in log:
        if each.kind is Kind.DELIVERY and each.agent == receiver and each.record.stream.name == sink:
            origins = [(origin.stream.nonce, origin.seq) for origin in each.record.origins]
            results.update(origins)
            of_starts.update((each.nonce, *origin) for origin in origins)
    if twice_by_one := [each for each, times in of_starts.items() if times > 1]:
        yield f"{way}: taken twice by one start: {twice_by_one}"
    if any(life.reflashed or (life.power_cut and not life.synced) for life in receivers):
        return  # whoever has forgotten what it took, takes it again
    twice = [each for each, times in results.items() if times > 1]
    if twice:
        yield f"{way}: taken twice: {twice}"
    nonces = {life.nonce for life in receivers}
    gaps = [each.record for each in log if each.kind is Kind.GAP and each.record.nonce in nonces]
    is_given_up = any(lost.name == sink for gap in gaps for lost in gap.tuples)
    if is_given_up:
        return
    has_given_up = any(life.has_given_up for life in senders)
    never_arrived = 0
    late = {(nonce, seq) for life in receivers for of, name, nonce, seq in life.late if (of, name) == (sender, stream)}
    for life in senders:
        if life.reflashed:
            continue
        told = [seq for of, seq in life.tuples if of == stream]
        # What was delivered and not yet sent when it was killed is excused.
        due = told[: life.sent.get(stream, 0) if life.killed else _safe_of(life, stream)]
        missing = [seq for seq in due if not results[life.nonce, seq] and (life.nonce, seq) not in late]
        never_arrived += len(missing)
        if missing and not has_given_up:
            yield f"{way}: never arrived of {life.name}: {missing}"
    named = _given_up(log, sender, stream, receiver)
    if has_given_up and never_arrived > named:
        yield f"{way}: {never_arrived} never arrived, and {named} at most are named as given up"


def _given_up(log: Sequence[Entry], sender: str, stream: str, receiver: str) -> int:
    """How many tuples its sender has given up, at most, as a receiver was told."""
    reason = re.compile(rf"given up by {sender}: \d+ messages of {stream} with (\d+) tuples at most")
    told = [reason.fullmatch(each.record.reason) for each in log if each.kind is Kind.GAP and each.agent == receiver]
    return sum(int(each[1]) for each in told if each)


def _safe_of(life: Life, stream: str) -> int:
    return sum(of == stream for of, _ in life.tuples[: life.safe.tuples])
