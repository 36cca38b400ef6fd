"""What the graph must be, by definition: computed anew from the whole log after every micro-batch, nothing clever.

`Log` holds all that a prefix of the log says. From it follow the sink vertices, the edges (references resolved
recursively over everything that the log holds) and which sink tuples are settled; when source tuples may be labelled is
in `tests.support.label_bounds`. Nothing here is shared with the pipeline.

Edges are due when the log has what they need; behind a sent tuple that is told in parts, when it has all of them. In
two places the design leaves freedom: after a retirement (`late`), or if the clock of its agent had gone back, a sent
tuple may be gone when something refers to it, and a pipeline may find that out only when the promise of its stream has
passed it; and a gap may name a tuple of which later parts come: what these tell of a sent tuple may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from protocol.chunks import SEQ_BITS, read_deliveries, read_progress
from protocol.ids import StreamId, disk_of
from protocol.records import BEGINNING, END_OF_TIME, Gap
from protocol.row import Row
from protocol.wire.sections import Kind, decode_section
from protocol.wire.values import decode

INFINITY = float("inf")
Bound = float
"""A time: an int, or one of the two infinities."""
Start = tuple[str, int]
"""An agent and the nonce of one of its starts."""
Place = tuple[str, str]
"""An agent and a stream of it, whatever the start."""


class Origin(NamedTuple):
    id: int
    ts: int
    remote: bool


@dataclass
class Delivered:
    """A tuple that reached a sink or a send, as far as the log has told it."""

    ts: int
    sent: bool
    micro_batch: int
    promise: Bound
    """What its stream had promised before the micro-batch that told it first."""
    origins: list[Origin] = field(default_factory=list)
    parts: int = 0
    """So many parts of it have come."""
    other_parts: int = 0
    """So many parts there are besides each of them."""


@dataclass
class Resolved:
    """Where a sink tuple came from."""

    sources: dict[int, int] = field(default_factory=dict)
    deep: dict[int, int] = field(default_factory=dict)
    """Sent tuples behind more agents than the pipeline has levels."""
    lost: set[int] = field(default_factory=set)
    cut: set[int] = field(default_factory=set)
    """Deliveries, the sink tuple included, of which further origins will never come."""
    waiting: set[int] = field(default_factory=set)
    """What has to come before all is known, the sink tuple included."""
    may_wait: set[int] = field(default_factory=set)
    """Sent tuples that may be gone, of which the pipeline does not know yet that they have come."""
    sure: set[int] = field(default_factory=set)
    """Sources, and sent tuples that are too deep, without those behind sent tuples that may wait, or of which only some
    parts have come."""


class Log:
    """All that the log has said so far."""

    def __init__(self, levels: int, late: bool = False) -> None:
        self.levels = levels
        self.late = late
        self.micro_batch = 0
        self.streams: dict[int, tuple[str, int, str]] = {}
        self.plans: dict[Start, dict[str, Any]] = {}
        self.starts: dict[str, list[int]] = {}
        """The nonces of an agent, as they came."""
        self.deliveries: dict[int, Delivered] = {}
        self.progress: dict[int, tuple[Bound, Bound]] = {}
        self.ended: set[Start] = set()
        self.taken_by: dict[str, set[tuple[int, str]]] = {}
        """The streams of starts of others of which an agent has taken, or named, tuples."""
        self.spoken: dict[str, list[tuple[int, int]]] = {}
        """Of each agent: the disks and epochs of starts that have spoken, in that order."""
        self.announced: dict[str, dict[int, int]] = {}
        """Starts of which only others have spoken so far, with their epochs: nobody knows what comes of them."""
        self.passed: set[Start] = set()
        """Starts that were cut short, as the next one says; and starts of which only others have spoken, and of whose
        agents a later one has spoken."""
        self.retired: set[Start] = set()
        """Of which nothing has come since."""
        self.returned: dict[Start, set[int]] = {}
        """Of starts that were retired: the streams that have promised something since."""
        self.gaps: list[tuple[str, Gap]] = []
        self.core_rows: list[Row] = []

    def add(self, micro_batch: Mapping[int, Sequence[Row]]) -> None:
        """The rows of all shards."""
        self.micro_batch += 1
        before = dict(self.progress)
        self.core_rows = [row for rows in micro_batch.values() for row in rows]
        for row in self.core_rows:
            self._add_row(row, before)

    def _add_row(self, row: Row, before: Mapping[int, tuple[Bound, Bound]]) -> None:
        start = (row.agent, row.nonce)
        if row.kind == Kind.SNAPSHOT:  # what the log has said before
            return
        if row.kind == Kind.RETIRE:
            self.announced.pop(row.agent, None)
            newest = self.newest(row.agent)  # starts without a plan may have followed it
            for given_up in {start, start if newest is None else (row.agent, newest)}:
                self.retired.add(given_up)
                self.returned[given_up] = set()
            return
        self.retired.discard(start)
        if row.nonce not in self.starts.setdefault(row.agent, []):
            self.starts[row.agent].append(row.nonce)
        match row.kind:
            case Kind.REGISTER:
                number, agent, epoch, name, nonce, *own_count = decode(row.data)
                epoch = own_count[0] if own_count else epoch  # as others know it
                self.streams[number] = (agent, nonce, name)
                self.taken_by.setdefault(row.agent, set()).add((nonce, name))
                if agent == row.agent:
                    self.spoken.setdefault(agent, []).append((disk_of(nonce), epoch))
                    self.announced.get(agent, {}).pop(nonce, None)
                elif nonce not in self.starts.get(agent, []) and (agent, nonce) not in self.passed:
                    self.announced.setdefault(agent, {})[nonce] = epoch
                for each, at in list(self.announced.get(agent, {}).items()):
                    if self._will_not_speak(agent, each, at):
                        self.passed.add((agent, each))
                        del self.announced[agent][each]
            case Kind.RECEIVED:
                self.taken_by.setdefault(row.agent, set()).update((each.nonce, each.stream) for each in _records(row))
            case Kind.PLAN:
                [declared] = _records(row)
                self.plans[start] = json.loads(declared.plan)
                self.passed.discard(start)  # it was taken for over, and comes after all
                self.announced.get(row.agent, {}).pop(row.nonce, None)
            case Kind.DELIVERY:
                self._add_deliveries(row.data, before)
            case Kind.PROGRESS:
                chunk = read_progress(row.data)
                for number, watermark, hold in zip(*(column.tolist() for column in _columns(chunk)), strict=True):
                    self.progress[number] = (_time(watermark), _time(hold))
                    if start in self.returned:
                        self.returned[start].add(number)
            case Kind.GAP:
                gaps = _records(row)
                self.gaps += [(row.agent, gap) for gap in gaps]
                for gap in gaps:
                    if gap.next_event is not None:
                        self.passed.add((row.agent, gap.nonce))
                        self.announced.get(row.agent, {}).pop(gap.nonce, None)
            case Kind.END:
                self.ended.add(start)
                self.announced.get(row.agent, {}).pop(row.nonce, None)

    def _will_not_speak(self, agent: str, nonce: int, epoch: int) -> bool:
        """Whether a later start of the same disk has spoken, or one of another disk after some start of this one."""
        spoken = self.spoken.get(agent, [])
        of_disk = [at for disk, at in spoken if disk == disk_of(nonce)]
        return bool(of_disk) and (epoch < max(of_disk) or spoken[-1][0] != disk_of(nonce))

    def _add_deliveries(self, data: bytes, before: Mapping[int, tuple[Bound, Bound]]) -> None:
        chunk = read_deliveries(data)
        at = 0
        for place, number in enumerate(chunk.id.tolist()):
            end = at + int(chunk.count[place])
            if number not in self.deliveries:
                promise = min(before.get(number >> SEQ_BITS, (-INFINITY, -INFINITY)))
                self.deliveries[number] = Delivered(
                    int(chunk.ts[place]), bool(chunk.sent[place]), self.micro_batch, promise
                )
            delivered = self.deliveries[number]
            columns = chunk.origin_id[at:end], chunk.origin_ts[at:end], chunk.remote[at:end]
            delivered.origins += [
                Origin(origin, ts, bool(remote))
                for origin, ts, remote in zip(*(column.tolist() for column in columns), strict=True)
            ]
            delivered.parts += 1
            delivered.other_parts = int(chunk.part[place]) & 0xFF
            at = end

    @property
    def sink_tuples(self) -> dict[int, Delivered]:
        return {number: each for number, each in self.deliveries.items() if not each.sent}

    @property
    def all_ended(self) -> bool:
        """Every agent has ended its newest start, and nobody is named that never came."""
        named = {
            to
            for plan in self.plans.values()
            for node in plan["nodes"]
            if node["operator"] == "send"
            for to in node["parameters"]["to"]
        }
        return all((agent, nonces[-1]) in self.ended for agent, nonces in self.starts.items()) and named <= {
            agent for agent, _ in self.plans
        }

    @property
    def may_take_again(self) -> bool:
        """Whether batches are lost in which an agent may have told what it had taken of others: though it has ended, it
        has to be expected to start again and to take it."""
        receivers = {
            agent
            for (agent, _), plan in self.plans.items()
            if any(node["operator"] == "receive" for node in plan["nodes"])
        }
        return any(gap.batches is not None and agent in receivers for agent, gap in self.gaps)

    def newest(self, agent: str) -> int | None:
        """The newest start of an agent that has told its plan."""
        return next((each for each in reversed(self.starts.get(agent, [])) if (agent, each) in self.plans), None)

    # Origins

    def never_comes(self, number: int, ts: int) -> bool:
        """Whether what the log does not have of a tuple will never be in it."""
        return self._has_passed(number, ts) or self._is_named_lost(number)

    def _has_passed(self, number: int, ts: int) -> bool:
        """Whether the stream of a tuple has ended, or has promised that nothing as old will come."""
        agent, nonce, _ = self.streams[number >> SEQ_BITS]
        if (agent, nonce) in self.ended | self.passed or (
            nonce in self.starts.get(agent, []) and self.starts[agent][-1] != nonce
        ):
            return True
        return self.progress.get(number >> SEQ_BITS, (-INFINITY, 0))[0] > ts

    def _is_named_lost(self, number: int) -> bool:
        """Whether a gap names a tuple. If only its first parts are lost, others may come all the same."""
        agent, nonce, name = self.streams[number >> SEQ_BITS]
        seq = number & (1 << SEQ_BITS) - 1
        return any(
            lost.name == name and lost.first <= seq <= lost.last
            for told_by, gap in self.gaps
            if (told_by, gap.nonce) == (agent, nonce)
            for lost in gap.tuples
        )

    def resolve(self, number: int) -> Resolved:
        """Where a sink tuple came from."""
        found = Resolved()
        self.resolve_into(found, number, self.deliveries[number].ts, 0, sink=number)
        return found

    def behind(self, sent: int) -> Resolved:
        """Where a sent tuple came from."""
        found = Resolved()
        if sent in self.deliveries:
            self.resolve_into(found, sent, self.deliveries[sent].ts, 1)
        return found

    def resolve_into(
        self,
        found: Resolved,
        number: int,
        ts: int,
        depth: int,
        referred: int = 0,
        is_sure: bool = True,
        sink: int | None = None,
    ) -> None:
        """The same for any delivery, which stands so many agents behind the sink and was referred to by then."""
        delivered = self.deliveries.get(number)
        if delivered is None or delivered.parts <= delivered.other_parts:
            if not self.never_comes(number, ts):
                found.waiting.add(number)
                is_sure = is_sure and depth == 0
            elif delivered is None:
                found.lost.add(number)
            else:
                found.cut.add(number)
                if not self._has_passed(number, ts):
                    found.may_wait.add(number)
                if self._is_named_lost(number):  # then nobody has to wait for those of its parts that come
                    is_sure = is_sure and depth == 0
        if delivered is not None:
            may_be_gone = delivered.micro_batch < referred and not self.never_comes(number, ts)
            if may_be_gone and (self.late or (sink is not None and self.went_back(sink, number))):
                found.may_wait.add(number)
                is_sure = False
            referred = max(referred, delivered.micro_batch)
        for origin in [] if delivered is None else delivered.origins:
            if origin.remote and depth < self.levels:
                self.resolve_into(found, origin.id, origin.ts, depth + 1, referred, is_sure, sink)
                continue
            table = found.deep if origin.remote else found.sources
            table[origin.id] = origin.ts
            if is_sure:
                found.sure.add(origin.id)

    def went_back(self, sink: int, origin: int) -> bool:
        """Whether a sink tuple comes from something that is older than an earlier start of its agent had promised, of a
        later start whose clock had gone back: a receiver that runs finds such tuples late, but if it is killed among
        them, its next start takes the rest."""
        agent, nonce, name = self.streams[sink >> SEQ_BITS]
        starts, others = self.starts[agent], self.starts.get(self.streams[origin >> SEQ_BITS][0], [])
        earlier = starts[: starts.index(nonce)]
        promised = [
            min(self.progress.get(number, (-INFINITY, 0)))
            for number, (of, start, stream) in self.streams.items()
            if (of, stream) == (agent, name) and start in earlier
        ]
        ts = self._time_of(sink, origin)
        is_later = self.streams[origin >> SEQ_BITS][1] in others[1:]
        return is_later and any(ts < each < INFINITY for each in promised)

    def _time_of(self, sink: int, origin: int) -> Bound:
        known = self.deliveries.get(origin)
        return known.ts if known is not None else self.resolve(sink).sources.get(origin, INFINITY)


def _records(row: Row) -> list[Any]:
    return cast("list[Any]", decode_section(Kind(row.kind), row.data, StreamId(row.agent, 0, "", row.nonce)))


def _columns(chunk: Any) -> list[Any]:
    return [chunk.stream, chunk.watermark, chunk.hold]


def last_promises(rows: Iterable[Row]) -> dict[int, tuple[int, int]]:
    """Of each stream only the last one matters."""
    found: dict[int, tuple[int, int]] = {}
    for row in rows:
        if row.kind == Kind.PROGRESS:
            for number, *promise in zip(
                *(column.tolist() for column in _columns(read_progress(row.data))), strict=True
            ):
                found[number] = (promise[0], promise[1])
    return found


def _time(ts: int) -> Bound:
    return {BEGINNING: -INFINITY, END_OF_TIME: INFINITY}.get(ts, ts)
