"""Between which bounds the labels of source tuples lie, by all that the log has said (`tests.support.told_log`).

A source tuple s of stream S may be labelled when s.ts < min(W(K), hold(K)) - U(S, K) for every reachable sink K, and
then it must be. W(K) is held back by each tuple k of K that waits for a sent tuple: to k.ts. Two bounds are computed,
because in some places the design leaves freedom. `required` is the safe side, and otherwise it is the bold one, of what
is allowed:

* where there are length windows, or may be, a tuple k that waits may have older sources than k.ts - U. So it may hold
  back its sink (required) to what the sink had promised before its micro-batch, or to what the sent tuple's own stream
  has promised, plus U from there; or (allowed) to k.ts only, as long as nothing is late because of it;
* a crashed agent that is back counts with what its new start has promised (required) or its old one (allowed);
* a retired agent that is back counts from its first row (required), or for each stream from its next Progress
  (allowed); until then, tuples that wait for what it has sent hold back (required), or not (allowed);
* a sent tuple that may be gone, of which the pipeline does not know that it has come, holds back the sink tuple that
  refers to it (required), or not (allowed);
* plans of all starts of an agent count (required), or only that of the source's own start, and the newest where that
  is not known, or of other agents (allowed).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from protocol.chunks import SEQ_BITS
from tests.support.told_log import INFINITY, Bound, Log, Place, Start


class Bounds:
    """Below which times the tuples of each stream must, or may, be labelled. Found when they are asked for."""

    def __init__(self, log: Log, *, required: bool, purged: Mapping[int, Iterable[int]] | None = None) -> None:
        """`purged` are sent tuples that the pipeline had let go of when sink tuples referred to them: nobody has to
        wait for what is behind these."""
        self._log = log
        self._required = required
        self._held_back = self._waiting_sinks(purged or {})
        self._found: dict[int, Bound] = {}

    def of(self, number: int) -> Bound:
        """Of a stream, by its number."""
        if number not in self._found:
            self._found[number] = self._of(*self._log.streams[number])
        return self._found[number]

    def _of(self, agent: str, nonce: int, name: str) -> Bound:
        known = {start for start in self._log.plans if start[0] == agent}
        if not ((agent, nonce) in known if self._required else known):
            return -INFINITY
        bounds = [
            min(self._promise(*place), self._held_back.get(place, INFINITY)) - delay
            for place, delay in _delays(self._log, agent, nonce, name, self._required).items()
        ]
        return min(bounds, default=-INFINITY if self._required else INFINITY)

    # What waits

    def _waiting_sinks(self, purged: Mapping[int, Iterable[int]]) -> dict[Place, Bound]:
        """To when each sink is held back by tuples of it that wait."""
        found: dict[Place, Bound] = {}
        for number, each in self._log.sink_tuples.items():
            resolved = self._log.resolve(number)
            waiting = resolved.waiting | resolved.may_wait
            if not self._required:
                waiting = {one for one in resolved.waiting if not self._is_away(one >> SEQ_BITS)}
                for origin in purged.get(number, ()):
                    waiting -= self._log.behind(origin).waiting
            if waiting:
                agent, _, name = self._log.streams[number >> SEQ_BITS]
                bound: Bound = each.ts
                if self._required and _has_length_windows(self._log):
                    bound = min(bound, each.promise, *[self._promised_behind(one, (agent, name)) for one in waiting])
                found[agent, name] = min(bound, found.get((agent, name), INFINITY))
        return found

    def _is_away(self, number: int) -> bool:
        """Whether its agent was retired, and the stream has promised nothing since."""
        start = self._log.streams[number][:2]
        return start in self._log.returned and number not in self._log.returned[start]

    def _promised_behind(self, number: int, sink: Place) -> Bound:
        """What a sent tuple that has not come may bring to a sink at the worst, by the promise of its stream."""
        stream = self._log.streams[number >> SEQ_BITS]
        promise = min(self._log.progress.get(number >> SEQ_BITS, (-INFINITY, 0)))
        return promise + _delays(self._log, *stream, required=False).get(sink, 0)

    # What was promised

    def _promise(self, agent: str, sink: str) -> Bound:
        """min(W, hold) of a sink, as far as it holds anything back; INFINITY if nothing more is expected of it."""
        log = self._log
        starts = [nonce for nonce in log.starts.get(agent, []) if (agent, nonce) in log.plans]
        if sink == "" and starts:
            return -INFINITY
        if not starts:
            return INFINITY if any(name == agent for name, _ in log.retired) else -INFINITY
        newest = (agent, starts[-1])
        if newest in log.retired and not (self._required and newest in log.passed):  # its next start has spoken since
            return INFINITY
        if self._is_over(newest):
            return self._promised_before_it_stopped(*newest, sink)
        promise = self._promised(agent, starts[-1], sink)
        if self._required or newest not in log.returned:
            promise = min(promise, self._promised_before_it_stopped(*newest, sink))
        if not self._required:
            for nonce in starts[:-1]:
                if (agent, nonce) not in log.ended and (agent, nonce) not in log.returned:
                    promise = max(promise, self._promised(agent, nonce, sink))
        return promise

    def _is_over(self, start: Start) -> bool:
        """Whether it has ended, or was cut short."""
        return start in self._log.ended or start in self._log.passed

    def _promised(self, agent: str, nonce: int, sink: str) -> Bound:
        log = self._log
        numbers = [number for number, stream in log.streams.items() if stream == (agent, nonce, sink)]
        is_away = (agent, nonce) in log.returned and not log.returned[agent, nonce].intersection(numbers)
        if is_away and not self._required:
            return INFINITY
        if numbers:
            return min(log.progress.get(numbers[0], (-INFINITY, 0)))
        names = [node["name"] for node in log.plans[agent, nonce]["nodes"] if node["operator"] == "sink"]
        return -INFINITY if sink in names else INFINITY

    def _promised_before_it_stopped(self, agent: str, nonce: int, sink: str, seen: tuple[str, ...] = ()) -> Bound:
        """Of an agent that has ended, or is about to: as long as others send to it, it may start again and take what it
        has not taken. If it has come to the end of that, there is no more but of starts after the last one that it has
        taken anything of; and what these send may be of any time."""
        log = self._log
        found: Bound = INFINITY
        plan = log.plans[agent, nonce]
        for node in plan["nodes"]:
            if node["operator"] != "receive" or not _leads_to(plan, node, sink):
                continue
            sender = node["parameters"]["sender"]
            newest = log.newest(sender)
            if sender == agent or (newest is None and sender not in log.announced):
                continue
            is_new = may_be_older = False
            if newest is None or (sender, newest) in log.retired or sender in seen:
                pass
            elif not self._required and log.returned.get((sender, newest)) == set():
                pass  # it has said something since it was retired, but promised nothing
            else:
                stream = node["parameters"]["stream"]
                news = self._news(sender, stream, agent)
                may_be_older = any(
                    (sender, each, stream) in log.streams.values() for each in news if each != log.starts[sender][0]
                )
                is_new = bool(news)
                if self._is_over((sender, newest)):
                    is_new = is_new or any(
                        self._promised_before_it_stopped(sender, newest, each["name"], (*seen, agent)) < INFINITY
                        for each in log.plans[sender, newest]["nodes"]
                        if each["operator"] in ("sink", "send")
                    )
            numbers = [
                number
                for number, stream in log.streams.items()
                if stream in ((agent, nonce, sink), (agent, nonce, _stream_of(plan, sink)))
            ]
            reached = min(log.progress.get(numbers[0], (-INFINITY, 0))) if numbers else -INFINITY
            found = min(found, -INFINITY if may_be_older or (reached == INFINITY and is_new) else reached)
        return found

    def _news(self, sender: str, stream: str, receiver: str) -> list[int]:
        """The starts after the last one that a receiver has taken anything of, if there is something for it."""
        log = self._log
        starts, taken = log.starts[sender], log.taken_by.get(receiver, set())
        last = max((place for place, nonce in enumerate(starts) if (nonce, stream) in taken), default=-1)
        return [
            nonce
            for nonce in starts[last + 1 :]
            if (sender, nonce, stream) in log.streams.values()
            or (nonce == starts[-1] and (sender, nonce) not in log.ended and self._sends(sender, nonce, stream))
        ]

    def _sends(self, agent: str, nonce: int, stream: str) -> bool:
        """Whether the plan of a start has a Send, or is not known."""
        plan = self._log.plans.get((agent, nonce))
        nodes = plan["nodes"] if plan else []
        sends = [node["parameters"]["stream"] for node in nodes if node["operator"] == "send"]
        return plan is None or stream in sends


def _delays(log: Log, agent: str, nonce: int, name: str, required: bool) -> dict[Place, int]:
    """U by sink for a source or send stream: every path is walked. An agent that is named, but has told no plan, is a
    sink without a name."""
    found: dict[Place, int] = {}
    for at, total in _walk(log, agent, nonce, name, required):
        found[at] = max(found.get(at, 0), total)
    return found


def _walk(log: Log, agent: str, nonce: int, name: str, required: bool) -> Iterator[tuple[Place, int]]:
    if log.announced.get(agent):
        yield (agent, ""), 0
    for plan in _plans_of(log, agent, required, nonce):
        for node in plan["nodes"]:
            if node["operator"] == "source" and node["name"] == name:
                yield from _onward(log, agent, plan, node, 0, required)
            elif node["operator"] == "send" and node["parameters"]["stream"] == name:
                yield from _crossing(log, agent, node, 0, required)


def _onward(
    log: Log, agent: str, plan: dict[str, Any], node: dict[str, Any], total: int, required: bool
) -> Iterator[tuple[Place, int]]:
    total += _window_ms(node)
    if node["operator"] == "sink":
        yield (agent, node["name"]), total
    elif node["operator"] == "send":
        yield from _crossing(log, agent, node, total, required)
    for consumer in plan["nodes"]:
        if node["name"] in consumer.get("inputs", []):
            yield from _onward(log, agent, plan, consumer, total, required)


def _crossing(log: Log, agent: str, send: dict[str, Any], total: int, required: bool) -> Iterator[tuple[Place, int]]:
    for receiver in send["parameters"]["to"]:
        plans = _plans_of(log, receiver, required)
        if not plans or log.announced.get(receiver):
            yield (receiver, ""), 0
        for plan in plans:
            for node in plan["nodes"]:
                wanted = {"sender": agent, "stream": send["parameters"]["stream"]}
                if node["operator"] == "receive" and node["parameters"] == wanted:
                    yield from _onward(log, receiver, plan, node, total, required)


def _plans_of(log: Log, agent: str, required: bool, nonce: int | None = None) -> list[dict[str, Any]]:
    """Of all starts of the agent, or of the newest or the given one."""
    told = [log.plans[agent, each] for each in log.starts.get(agent, []) if (agent, each) in log.plans]
    if required:
        return told
    return [plan] if nonce is not None and (plan := log.plans.get((agent, nonce))) else told[-1:]


def _has_length_windows(log: Log) -> bool:
    """Somewhere in the fleet, or in a plan that has not come."""
    nodes = [node for plan in log.plans.values() for node in plan["nodes"]]
    senders = {node["parameters"]["sender"] for node in nodes if node["operator"] == "receive"}
    known = {agent for agent, _ in log.plans}
    if not senders | {agent for agent, *_ in log.streams.values()} <= known:
        return True
    return any(node.get("parameters", {}).get("window", {}).get("kind") == "length" for node in nodes)


def _stream_of(plan: dict[str, Any], name: str) -> str:
    """What a sink or a send is called in ids."""
    (node,) = (node for node in plan["nodes"] if node["name"] == name)
    return str(node.get("parameters", {}).get("stream", name))


def _leads_to(plan: dict[str, Any], node: dict[str, Any], name: str) -> bool:
    followers = [each for each in plan["nodes"] if node["name"] in each.get("inputs", [])]
    return node["name"] == name or any(_leads_to(plan, each, name) for each in followers)


def _window_ms(node: dict[str, Any]) -> int:
    window = node.get("parameters", {}).get("window", {})
    keys = {"time": ["size_ms"], "band": ["distance_ms"], "recent": ["size_ms", "left_ms", "right_ms"], "length": []}
    return max([window[key] for key in keys[window["kind"]] if key in window], default=0) if window else 0
