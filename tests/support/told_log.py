"""What the graph must be, by definition: computed anew from the whole log after every micro-batch, nothing clever.

`Log` holds all that a prefix of the log says. From it follow the sink vertices, the edges (references resolved
recursively over everything that the log holds), which sink tuples are settled, and between which bounds the labels of
source tuples lie. Nothing here is shared with the pipeline.

Labels. A source tuple s of stream S may be labelled when s.ts < min(W(K), hold(K)) - U(S, K) for every reachable sink
K, and then it must be. W(K) is held back by each tuple k of K that waits for a sent tuple: to k.ts. Two bounds are
computed, because in some places the design leaves freedom. `required` is the safe side, and `allowed` the bold one:

* where there are length windows, or may be, a tuple k that waits may have older sources than k.ts - U. So it may hold
  back its sink (required) to what the sink had promised before its micro-batch, or to what the sent tuple's own stream
  has promised, plus U from there; or (allowed) to k.ts only, as long as nothing is late because of it;
* a crashed agent that is back counts with what its new start has promised (required) or its old one (allowed);
* a retired agent that is back counts from its first row (required), or for each stream from its next Progress
  (allowed); until then, tuples that wait for what it has sent hold back (required), or not (allowed);
* after a retirement (`late`), or if the clock of its agent had gone back, a sent tuple may be gone when something
  refers to it: a pipeline may find that out only when the promise of its stream has passed it; until then the sink
  tuple may wait (required) or not (allowed);
* a gap may name a tuple of which later parts come: what these tell of a sent tuple may be left out;
* plans of all starts of an agent count (required), or only that of the source's own start, and the newest where that
  is not known, or of other agents (allowed).

Edges are due when the log has what they need; behind a sent tuple that is told in parts, when it has all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
            newest = self._newest(row.agent)  # starts without a plan may have followed it
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

    # Labels

    def delays(self, agent: str, nonce: int, name: str, required: bool) -> dict[Place, int]:
        """U by sink for a source or send stream: every path is walked. An agent that is named, but has told no plan, is
        a sink without a name."""
        found: dict[Place, int] = {}
        for at, total in self._walk(agent, nonce, name, required):
            found[at] = max(found.get(at, 0), total)
        return found

    def _walk(self, agent: str, nonce: int, name: str, required: bool) -> Iterator[tuple[Place, int]]:
        if self.announced.get(agent):
            yield (agent, ""), 0
        for plan in self._plans_of(agent, required, nonce):
            for node in plan["nodes"]:
                if node["operator"] == "source" and node["name"] == name:
                    yield from self._onward(agent, plan, node, 0, required)
                elif node["operator"] == "send" and node["parameters"]["stream"] == name:
                    yield from self._crossing(agent, node, 0, required)

    def _onward(
        self, agent: str, plan: dict[str, Any], node: dict[str, Any], total: int, required: bool
    ) -> Iterator[tuple[Place, int]]:
        total += _window_ms(node)
        if node["operator"] == "sink":
            yield (agent, node["name"]), total
        elif node["operator"] == "send":
            yield from self._crossing(agent, node, total, required)
        for consumer in plan["nodes"]:
            if node["name"] in consumer.get("inputs", []):
                yield from self._onward(agent, plan, consumer, total, required)

    def _crossing(self, agent: str, send: dict[str, Any], total: int, required: bool) -> Iterator[tuple[Place, int]]:
        for receiver in send["parameters"]["to"]:
            plans = self._plans_of(receiver, required)
            if not plans or self.announced.get(receiver):
                yield (receiver, ""), 0
            for plan in plans:
                for node in plan["nodes"]:
                    wanted = {"sender": agent, "stream": send["parameters"]["stream"]}
                    if node["operator"] == "receive" and node["parameters"] == wanted:
                        yield from self._onward(receiver, plan, node, total, required)

    def _plans_of(self, agent: str, required: bool, nonce: int | None = None) -> list[dict[str, Any]]:
        """Of all starts of the agent, or of the newest or the given one."""
        told = [self.plans[agent, each] for each in self.starts.get(agent, []) if (agent, each) in self.plans]
        if required:
            return told
        return [plan] if nonce is not None and (plan := self.plans.get((agent, nonce))) else told[-1:]

    def has_plan(self, agent: str, nonce: int | None) -> bool:
        """Whether a start of the agent has told its plan, or any start."""
        return any(start == (agent, start[1] if nonce is None else nonce) for start in self.plans)

    def promise(self, agent: str, sink: str, required: bool) -> Bound:
        """min(W, hold) of a sink, as far as it holds anything back; INFINITY if nothing more is expected of it."""
        starts = [nonce for nonce in self.starts.get(agent, []) if (agent, nonce) in self.plans]
        if sink == "" and starts:
            return -INFINITY
        if not starts:
            return INFINITY if any(name == agent for name, _ in self.retired) else -INFINITY
        newest = (agent, starts[-1])
        if newest in self.retired and not (required and newest in self.passed):  # its next start has spoken since
            return INFINITY
        if self._is_over(newest):
            return self._promised_before_it_stopped(*newest, sink, required)
        promise = self._promised(agent, starts[-1], sink, required)
        if required or newest not in self.returned:
            promise = min(promise, self._promised_before_it_stopped(*newest, sink, required))
        if not required:
            for nonce in starts[:-1]:
                if (agent, nonce) not in self.ended and (agent, nonce) not in self.returned:
                    promise = max(promise, self._promised(agent, nonce, sink, required))
        return promise

    def _is_over(self, start: Start) -> bool:
        """Whether it has ended, or was cut short."""
        return start in self.ended or start in self.passed

    def _promised_before_it_stopped(
        self, agent: str, nonce: int, sink: str, required: bool, seen: tuple[str, ...] = ()
    ) -> Bound:
        """Of an agent that has ended, or is about to: as long as others send to it, it may start again and take what it
        has not taken. If it has come to the end of that, there is no more but of starts after the last one that it has
        taken anything of; and what these send may be of any time."""
        found: Bound = INFINITY
        plan = self.plans[agent, nonce]
        for node in plan["nodes"]:
            if node["operator"] != "receive" or not self._leads_to(plan, node, sink):
                continue
            sender = node["parameters"]["sender"]
            newest = self._newest(sender)
            if sender == agent or (newest is None and sender not in self.announced):
                continue
            is_new = may_be_older = False
            if newest is None or (sender, newest) in self.retired or sender in seen:
                pass
            elif not required and self.returned.get((sender, newest)) == set():
                pass  # it has said something since it was retired, but promised nothing
            else:
                stream = node["parameters"]["stream"]
                news = self._news(sender, stream, agent)
                may_be_older = any(
                    (sender, each, stream) in self.streams.values() for each in news if each != self.starts[sender][0]
                )
                is_new = bool(news)
                if self._is_over((sender, newest)):
                    is_new = is_new or any(
                        self._promised_before_it_stopped(sender, newest, each["name"], required, (*seen, agent))
                        < INFINITY
                        for each in self.plans[sender, newest]["nodes"]
                        if each["operator"] in ("sink", "send")
                    )
            numbers = [
                number
                for number, stream in self.streams.items()
                if stream in ((agent, nonce, sink), (agent, nonce, self._stream_of(plan, sink)))
            ]
            reached = min(self.progress.get(numbers[0], (-INFINITY, 0))) if numbers else -INFINITY
            found = min(found, -INFINITY if may_be_older or (reached == INFINITY and is_new) else reached)
        return found

    def _news(self, sender: str, stream: str, receiver: str) -> list[int]:
        """The starts after the last one that a receiver has taken anything of, if there is something for it."""
        starts, taken = self.starts[sender], self.taken_by.get(receiver, set())
        last = max((place for place, nonce in enumerate(starts) if (nonce, stream) in taken), default=-1)
        return [
            nonce
            for nonce in starts[last + 1 :]
            if (sender, nonce, stream) in self.streams.values()
            or (nonce == starts[-1] and (sender, nonce) not in self.ended and self._sends(sender, nonce, stream))
        ]

    def _sends(self, agent: str, nonce: int, stream: str) -> bool:
        """Whether the plan of a start has a Send, or is not known."""
        plan = self.plans.get((agent, nonce))
        nodes = plan["nodes"] if plan else []
        sends = [node["parameters"]["stream"] for node in nodes if node["operator"] == "send"]
        return plan is None or stream in sends

    def _stream_of(self, plan: dict[str, Any], name: str) -> str:
        """What a sink or a send is called in ids."""
        (node,) = (node for node in plan["nodes"] if node["name"] == name)
        return str(node.get("parameters", {}).get("stream", name))

    def _leads_to(self, plan: dict[str, Any], node: dict[str, Any], name: str) -> bool:
        followers = [each for each in plan["nodes"] if node["name"] in each.get("inputs", [])]
        return node["name"] == name or any(self._leads_to(plan, each, name) for each in followers)

    def _newest(self, agent: str) -> int | None:
        """The newest start of an agent that has told its plan."""
        return next((each for each in reversed(self.starts.get(agent, [])) if (agent, each) in self.plans), None)

    def _promised(self, agent: str, nonce: int, sink: str, required: bool) -> Bound:
        numbers = [number for number, stream in self.streams.items() if stream == (agent, nonce, sink)]
        is_away = (agent, nonce) in self.returned and not self.returned[agent, nonce].intersection(numbers)
        if is_away and not required:
            return INFINITY
        if numbers:
            return min(self.progress.get(numbers[0], (-INFINITY, 0)))
        names = [node["name"] for node in self.plans[agent, nonce]["nodes"] if node["operator"] == "sink"]
        return -INFINITY if sink in names else INFINITY

    def _is_away(self, number: int) -> bool:
        """Whether its agent was retired, and the stream has promised nothing since."""
        start = self.streams[number][:2]
        return start in self.returned and number not in self.returned[start]

    @property
    def _has_length_windows(self) -> bool:
        """Somewhere in the fleet, or in a plan that has not come."""
        nodes = [node for plan in self.plans.values() for node in plan["nodes"]]
        senders = {node["parameters"]["sender"] for node in nodes if node["operator"] == "receive"}
        known = {agent for agent, _ in self.plans}
        if not senders | {agent for agent, *_ in self.streams.values()} <= known:
            return True
        return any(node.get("parameters", {}).get("window", {}).get("kind") == "length" for node in nodes)

    def _promised_behind(self, number: int, sink: Place) -> Bound:
        """What a sent tuple that has not come may bring to a sink at the worst, by the promise of its stream."""
        stream = self.streams[number >> SEQ_BITS]
        promise = min(self.progress.get(number >> SEQ_BITS, (-INFINITY, 0)))
        return promise + self.delays(*stream, required=False).get(sink, 0)

    def held_back(self, required: bool, purged: Mapping[int, Iterable[int]] | None = None) -> dict[Place, Bound]:
        """To when each sink is held back by tuples of it that wait. `purged` are sent tuples that the pipeline had let
        go of when sink tuples referred to them: nobody has to wait for what is behind these."""
        found: dict[Place, Bound] = {}
        for number, each in self.sink_tuples.items():
            resolved = self.resolve(number)
            waiting = resolved.waiting | resolved.may_wait
            if not required:
                waiting = {one for one in resolved.waiting if not self._is_away(one >> SEQ_BITS)}
                for origin in (purged or {}).get(number, ()):
                    waiting -= self.behind(origin).waiting
            if waiting:
                agent, _, name = self.streams[number >> SEQ_BITS]
                bound: Bound = each.ts
                if required and self._has_length_windows:
                    bound = min(bound, each.promise, *[self._promised_behind(one, (agent, name)) for one in waiting])
                found[agent, name] = min(bound, found.get((agent, name), INFINITY))
        return found

    def bounds(self, required: bool, purged: Mapping[int, Iterable[int]] | None = None) -> Bounds:
        """Below which times the tuples of each stream must or may be labelled."""
        return Bounds(self, self.held_back(required, purged), required)


class Bounds:
    """Found when they are asked for."""

    def __init__(self, log: Log, held_back: Mapping[Place, Bound], required: bool) -> None:
        self._log = log
        self._held_back = held_back
        self._required = required
        self._found: dict[int, Bound] = {}

    def of(self, number: int) -> Bound:
        """Of a stream, by its number."""
        if number not in self._found:
            self._found[number] = self._of(*self._log.streams[number])
        return self._found[number]

    def _of(self, agent: str, nonce: int, name: str) -> Bound:
        log = self._log
        if not log.has_plan(agent, nonce if self._required else None):
            return -INFINITY
        bounds = [
            min(log.promise(*place, self._required), self._held_back.get(place, INFINITY)) - delay
            for place, delay in log.delays(agent, nonce, name, self._required).items()
        ]
        return min(bounds, default=-INFINITY if self._required else INFINITY)


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


def _window_ms(node: dict[str, Any]) -> int:
    window = node.get("parameters", {}).get("window", {})
    keys = {"time": ["size_ms"], "band": ["distance_ms"], "recent": ["size_ms", "left_ms", "right_ms"], "length": []}
    return max([window[key] for key in keys[window["kind"]] if key in window], default=0) if window else 0
