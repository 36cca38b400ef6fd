"""One shard of the log and what is known of its agents: batches in, rows out, nothing twice and nothing missing unsaid.

All of it is rebuilt from the log itself: each segment begins with what was known when it was started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from pathlib import Path
from time import monotonic

from collector.batch_rows import MOST_SEQ, PACKER, BatchRows, encoded_gap
from collector.epochs import AgentEpochs, Arrival, EpochState, Tally
from collector.log import NOBODY, LogDamaged, LogError, Row, ShardWriter
from collector.log.writer import SEGMENT_BYTES
from collector.quarantine import Quarantine
from collector.registry import ClosedEpoch, Registry, RegistryError
from protocol.records import Gap
from protocol.topics import shard_of
from protocol.wire.answers import Logged
from protocol.wire.batch import Header, decode_batch, read_header, unframe
from protocol.wire.compression import READABLE
from protocol.wire.errors import MalformedBatch, UnknownCodec
from protocol.wire.sections import (
    Kind,
)
from protocol.wire.values import decode

_LOG = logging.getLogger(__name__)
CODECS = sum(1 << codec for codec in READABLE)
RETIRE_AFTER_S = 24 * 3600.0
MOST_AGENTS = 50_000  # of one shard
_ROOM_FOR = 100  # agents, whenever room is made: each time takes a while
_ROOM_AGAIN_S = 1.0
_REFUSALS_TOLD_S = 60.0
_EARLY_PATIENCE_S = 120.0


@dataclass(slots=True)
class Counters:
    """What happened to the batches of a shard."""

    batches: int = 0
    bytes: int = 0
    records: int = 0
    origins: int = 0
    rows: int = 0
    malformed: int = 0
    quarantined: int = 0
    unreadable_plans: int = 0
    gaps: int = 0
    reflashed: int = 0
    duplicate_agents: int = 0
    retired: int = 0
    unknown_codec: int = 0
    refused_agents: int = 0


@dataclass(slots=True)
class _Agent:
    epochs: AgentEpochs
    heard_at: float
    duplicate: bool = False


class ShardLog:
    """The agents of one shard and the log that their batches go to. Not for several threads."""

    def __init__(
        self,
        folder: Path,
        shard: int,
        registry: Registry,
        quarantine: Quarantine,
        *,
        retire_after_s: float = RETIRE_AFTER_S,
        clock: Callable[[], float] = monotonic,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Take the shard, or raise ShardInUse at once."""
        self.shard = shard
        self.counters = Counters()
        self._registry = registry
        self._quarantine = quarantine
        self._retire_after_s = retire_after_s
        self._clock = clock
        self._agents: dict[str, _Agent] = {}
        self._tally = Tally()
        self._unanswered: dict[tuple[str, int], None] = {}
        self._refusals_told_at: float | None = None
        self._no_room_until = 0.0
        self._writer = ShardWriter(folder, shard, segment_bytes=segment_bytes, was_written=self._is_known)
        try:
            self._replay(self._writer.tail())
            self._confirm_registry()
            self._close_epochs(self._agents)
            self._writer.begin(self._snapshot, self._told_loss())
        except BaseException:
            self._writer.close()
            raise

    def _confirm_registry(self) -> None:
        """What the log says of numbers is what the registry has given. Else it would give some of them again."""
        states = [
            state
            for known in self._agents.values()
            for state in (*known.epochs.closing.values(), *known.epochs.known.values())
        ]
        own = [((at.agent, at.nonce, name), number) for at in states for name, number in at.own_streams.items()]
        others = [pair for at in states for pair in at.other_streams.items()]
        self._registry.confirm([*own, *others])

    def _is_known(self) -> bool:
        """Whether an agent of the shard was ever given anything: then something of it was logged as well."""
        return any(shard_of(agent) == self.shard for agent in self._registry.agents())

    def _told_loss(self) -> list[Row]:
        """What the log has lost for good has a name in it. Of each agent that comes back, what it does not send again
        is named besides, as always."""
        loss = self._writer.repair.loss
        if not loss:
            return []
        self.counters.gaps += 1
        return [Row(Kind.GAP, NOBODY, 0, 0, encoded_gap(Gap(loss, 0, 0), NOBODY, 0))]

    def close(self) -> None:
        """Let a successor have the shard. What was not committed is gone."""
        self._writer.close()

    # Batches

    def take(self, agent: str, payload: bytes) -> None:
        """What an agent has published. Whatever it is: nothing is raised but that it cannot be logged now."""
        try:
            oldest, data = unframe(payload, agent)
            header, _ = read_header(data)
            if header.next_seq > MOST_SEQ:
                raise MalformedBatch(f"no epoch has {header.next_seq} batches")
        except MalformedBatch as error:
            self._refuse(agent, payload, str(error))
            return
        known = self._agents.get(agent)
        if known is None:
            if len(self._agents) >= MOST_AGENTS and not self._make_room():
                self._refuse_agent(agent)
                return
            known = self._agents[agent] = self._new_agent(agent)
        known.heard_at = self._clock()
        self._recall(known, header.nonce)
        self._unanswered[agent, header.nonce] = None
        for arrival, gap in known.epochs.arrived(Arrival(agent, oldest, header, data)):
            self._log(known, arrival, gap)

    def _new_agent(self, agent: str) -> _Agent:
        return _Agent(AgentEpochs(agent, self._tally), self._clock())

    def _make_room(self) -> bool:
        """Leave to the registry those agents of which nothing is expected and nothing was heard for longest: first
        those that have ended. Of the retired it does not know as much, should they return after all."""
        if self._clock() < self._no_room_until:
            return False
        unanswered = {agent for agent, _ in self._unanswered}  # what was heard of them may not be committed yet
        silent = [
            (state is not None and state.retired, known.heard_at, agent)
            for agent, known in self._agents.items()
            for state in (known.epochs.current,)
            if agent not in unanswered and known.epochs.expects_nothing
        ]
        leaving = [agent for *_, agent in nsmallest(_ROOM_FOR, silent)]
        closed = [
            ClosedEpoch(agent, state.nonce, state.epoch, state.next_seq)
            for agent in leaving
            for place in (self._agents[agent].epochs.closing, self._agents[agent].epochs.known)
            for state in place.values()
        ]
        if closed:
            self._registry.close_epochs(closed)
        for agent in leaving:
            del self._agents[agent]
        if not leaving:
            self._no_room_until = self._clock() + _ROOM_AGAIN_S
        return bool(leaving)

    def _refuse_agent(self, agent: str) -> None:
        self.counters.refused_agents += 1
        now = self._clock()
        if self._refusals_told_at is None or now - self._refusals_told_at >= _REFUSALS_TOLD_S:
            self._refusals_told_at = now
            _LOG.error(
                "no room for more agents shard=%d most=%d agent=%s refused_batches=%d",
                self.shard, MOST_AGENTS, agent, self.counters.refused_agents,
            )  # fmt: skip

    def _refuse(self, agent: str, payload: bytes, reason: str) -> None:
        """Nobody knows what it was: the agent, if it was one, sends it again."""
        self.counters.malformed += 1
        self._quarantine.keep(agent, payload, reason)
        if _is_round(self.counters.malformed):
            _LOG.warning("refused what is no batch agent=%s reason=%s count=%d", agent, reason, self.counters.malformed)

    def _recall(self, known: _Agent, nonce: int) -> EpochState | None:
        """An epoch that was closed long ago, if it is one: a late copy of its batches must not be taken for news."""
        epochs = known.epochs
        found = epochs.find(nonce)
        if found is None:
            closed = self._registry.closed_epoch(epochs.agent, nonce)
            if closed is not None:
                shown, next_seq = closed
                found = epochs.recalled[nonce] = EpochState(epochs.agent, shown, nonce, next_seq)
        return found

    def _log(self, known: _Agent, arrival: Arrival, missing: Gap | None) -> None:
        agent, header, epochs = arrival.agent, arrival.header, known.epochs
        found = epochs.find(header.nonce)
        state, is_reflashed = (found, False) if found is not None else self._new_epoch(agent, header, epochs.last_plan)
        made = BatchRows(state, state.next_seq, self._registry, partial(self._recall, known))
        if missing is not None:
            made.add_gap(missing)
        made.seq = max(header.seq, state.next_seq)
        if found is None:
            made.add(Kind.EPOCH, PACKER.encode(state.epoch))
        before = len(made.rows)
        try:
            made.add_batch(decode_batch(arrival.data, agent))
        except UnknownCodec:
            self.counters.unknown_codec += 1
            return
        except (RegistryError, LogError):
            raise
        except Exception as error:  # what breaks us once would break us for ever
            if not isinstance(error, MalformedBatch):
                _LOG.exception("a batch was not understood agent=%s seq=%d", agent, header.seq)
            del made.rows[before:]
            self._put_away(made, arrival, str(error)[:300])
        self._writer.append(made.rows)
        # From here on nothing fails: the rows will be in the log.
        if found is not None and epochs.current is not None and state is not epochs.current:
            self._returned(known)
        elif found is None:
            known.duplicate = False
        if is_reflashed:
            self.counters.reflashed += 1
            _LOG.warning("agent counts its starts anew agent=%s counter=%d shown=%d", agent, header.epoch, state.epoch)
        for row in made.rows:
            epochs.follow(state, row)
        assert state.next_seq == header.next_seq, (state, header)
        self._count(made, len(arrival.data))

    def _new_epoch(self, agent: str, header: Header, plan_before: bytes) -> tuple[EpochState, bool]:
        """A start, and whether the agent counts its starts anew."""
        epoch = self._registry.epoch_of(agent, header.nonce, header.epoch)
        return EpochState(agent, epoch.shown, header.nonce, plan_before=plan_before), epoch.reflashed

    def _returned(self, known: _Agent) -> None:
        """Something new of an epoch that is not the newest: two devices have one name."""
        if not known.duplicate:
            self.counters.duplicate_agents += 1
            _LOG.error("two devices use one name agent=%s", known.epochs.agent)
        known.duplicate = True

    def _put_away(self, made: BatchRows, arrival: Arrival, reason: str) -> None:
        """A batch that cannot be understood is not waited for, and does not keep others waiting."""
        header = arrival.header
        made.add_gap(Gap(f"quarantined: {reason}", header.epoch, header.nonce, (made.seq, header.next_seq - 1)))
        made.records = made.origins = made.unreadable_plans = 0
        self.counters.quarantined += 1
        self._quarantine.keep(arrival.agent, arrival.data, reason)
        _LOG.warning("quarantined a batch agent=%s seq=%d reason=%s", arrival.agent, made.seq, reason)

    def _count(self, made: BatchRows, size_bytes: int) -> None:
        counters = self.counters
        counters.batches += 1
        counters.bytes += size_bytes
        counters.rows += len(made.rows)
        counters.records += made.records
        counters.origins += made.origins
        counters.unreadable_plans += made.unreadable_plans
        counters.gaps += sum(row.kind == Kind.GAP for row in made.rows)

    # Commits and answers

    def commit(self) -> list[tuple[str, Logged]]:
        """Make everything durable and readable; returns what to tell the agents."""
        self._writer.commit()
        self._close_epochs(dict.fromkeys(agent for agent, _ in self._unanswered))
        answers: list[tuple[str, Logged]] = []
        for agent, nonce in self._unanswered:
            known = self._agents[agent]
            answers.append((agent, known.epochs.answer(nonce, CODECS, known.duplicate)))
        for agent, _ in self._unanswered:
            self._agents[agent].epochs.recalled.clear()
        self._unanswered.clear()
        return answers

    def _close_epochs(self, agents: Iterable[str]) -> None:
        """Epochs of which nothing more is expected are in the registry from now on, and no longer in memory.

        Only after a commit: what has closed them must not be lost itself.
        """
        for agent in agents:
            closing = self._agents[agent].epochs.closing
            if not closing:
                continue
            try:
                closed = [ClosedEpoch(agent, nonce, each.epoch, each.next_seq) for nonce, each in closing.items()]
                self._registry.close_epochs(closed)
                closing.clear()
            except RegistryError as error:
                _LOG.warning("epochs stay in memory agent=%s count=%d error=%s", agent, len(closing), error)
                return

    @property
    def idle(self) -> bool:
        """Nothing waits for a commit or an answer."""
        return not self._unanswered and not self._writer.held_rows

    def greet(self) -> None:
        """Have the next commit tell every agent how far it has come: those that wait for an answer need not wait any
        longer. Not at once, as something may not be committed yet."""
        for agent, known in self._agents.items():
            if (current := known.epochs.current) is not None:
                self._unanswered[agent, current.nonce] = None

    def retire(self) -> None:
        """Give up agents that were silent for very long: nobody need wait for them. If they return, they return."""
        now = self._clock()
        unanswered = {agent for agent, _ in self._unanswered}
        for agent, known in list(self._agents.items()):
            epochs, silent_s = known.epochs, now - known.heard_at
            state = epochs.current
            if silent_s >= _EARLY_PATIENCE_S:
                epochs.forget_early()
                if state is None and not epochs.closing and agent not in unanswered:
                    del self._agents[agent]
            if state is None or state.retired or silent_s < self._retire_after_s or not state.may_be_awaited:
                continue
            row = Row(Kind.RETIRE, agent, state.nonce, state.next_seq, b"")
            self._writer.append([row])
            epochs.follow(state, row)
            self.counters.retired += 1
            how = "has ended long ago" if state.ended else "is silent"
            _LOG.warning("retired an agent that %s agent=%s epoch=%d", how, agent, state.epoch)

    def excuse(self, away_s: float) -> None:
        """For so long no agent could be heard: that was no silence of theirs."""
        for known in self._agents.values():
            known.heard_at += away_s

    @property
    def duplicates(self) -> int:
        return self._tally.duplicates

    @property
    def early_dropped(self) -> int:
        return self._tally.early_dropped

    @property
    def agents(self) -> int:
        return len(self._agents)

    # The log as memory

    def _snapshot(self) -> list[Row]:
        return [
            Row(Kind.SNAPSHOT, agent, state.nonce, state.next_seq, PACKER.encode(state.told()))
            for agent, known in self._agents.items()
            for state in (*known.epochs.closing.values(), *known.epochs.known.values())
        ]

    def _replay(self, rows: Iterable[Row]) -> None:
        for row in rows:
            try:
                self._replay_row(row)
            except (MalformedBatch, TypeError, ValueError, KeyError, IndexError) as error:
                raise LogDamaged(f"shard {self.shard}: a row of {row.agent!r} cannot be read: {error!r}") from error

    def _replay_row(self, row: Row) -> None:
        if row.agent == NOBODY:
            return
        known = self._agents.get(row.agent)
        if known is None:
            known = self._agents[row.agent] = self._new_agent(row.agent)
        if row.kind == Kind.SNAPSHOT:
            known.epochs.adopt(EpochState.from_told(decode(row.data)))
            return
        state = known.epochs.find(row.nonce)
        if state is None:
            epoch = self._registry.epoch_of(row.agent, row.nonce, 0)
            state = EpochState(row.agent, epoch.shown, row.nonce)
        known.epochs.follow(state, row)


def _is_round(count: int) -> bool:
    """1, 2, 4, 8 and so on: often enough to be told of what may come by the thousand."""
    return count & (count - 1) == 0
