"""The cloud side: the translator with its shards of the log, and the job that makes the graph of it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from collector.log import LogDamaged, LogError, LogReader, Position, remove_segments
from collector.quarantine import Quarantine
from collector.registry import Registry, RegistryError, RegistryUnavailable
from collector.shard_log import ShardLog
from protocol.graph import GraphBatch
from protocol.row import Row
from protocol.topics import agent_of_up, down_topic, shard_of
from protocol.wire.answers import encode_answer
from tests.collector.agents import QuickRegistry
from tests.faults.simulation.disk import Disk, close_files
from tests.faults.simulation.mqtt import RECONNECT_S, Broker, Mail
from tests.faults.simulation.timeline import Process, Timeline
from tests.support.graph_oracle import GraphOracle
from tests.support.pipeline import MicroBatch, Pipeline, plain

NAME = "translator"
RETIRE_AFTER_S = 1_000.0
SEGMENT_BYTES = 3_000
_COMMIT_S = 0.005
_TROUBLE_S = 1.0


class FlakyRegistry(QuickRegistry):
    """A registry whose disk is full now and then."""

    is_full = False

    def _transaction(self) -> Any:
        if self.is_full:
            raise RegistryUnavailable("the disk is full")
        return super()._transaction()


class TranslatorProcess(Process):
    """One life of the translator: it stands in for `collector.translator`, round by round."""

    def __init__(self, timeline: Timeline, disk: Disk, broker: Broker, registry: Registry, shards: list[int]) -> None:
        super().__init__(timeline)
        self.disk = disk
        self._broker = broker
        self._registry = registry
        self._wanted = shards
        self._quarantine = Quarantine(disk.folder / "quarantine")
        self._shards: dict[int, ShardLog] = {}
        self._troubled: dict[int, float] = {}
        self._silent_s = 0.0
        self._commit_at = timeline.now
        self._is_connected = False
        self.is_running = True

    def begin(self) -> None:
        """Take the shards, and listen."""
        self._open()
        self._connect()

    def _open(self) -> None:
        for shard in [each for each in self._wanted if each not in self._shards]:
            try:
                self._shards[shard] = ShardLog(
                    self.disk.folder,
                    shard,
                    self._registry,
                    self._quarantine,
                    retire_after_s=RETIRE_AFTER_S,
                    clock=lambda: self.timeline.now + self._silent_s,
                    segment_bytes=SEGMENT_BYTES,
                )
            except (LogError, RegistryError):
                continue
            if self._is_connected:
                self._listen(shard)

    # MQTT

    def _connect(self) -> None:
        if not self.is_running or self._is_connected:
            return
        if not self._broker.connect(NAME, self._mail, False, self._lost):
            self.timeline.later(RECONNECT_S, self._connect)
            return
        self._is_connected = True
        for shard in self._shards:
            self._listen(shard)

    def _listen(self, shard: int) -> None:
        greet = partial(self.put, partial(self._greet, shard))
        self._broker.subscribe(NAME, f"tl/{shard}/+/up", 1, greet)

    def _greet(self, shard: int) -> None:
        if shard in self._shards:
            self._shards[shard].greet()

    def _lost(self) -> None:
        self._is_connected = False
        self.timeline.later(RECONNECT_S, self._connect)

    def _mail(self, mail: Mail) -> None:
        self.put(partial(self._take, mail))

    def _take(self, mail: Mail) -> None:
        agent = agent_of_up(mail.topic)
        shard = None if agent is None else self._shards.get(shard_of(agent))
        if agent is None or shard is None or shard.shard in self._troubled:
            return
        with suppress(LogError, RegistryError):  # not taken, not acknowledged: it comes again
            shard.take(agent, mail.payload)

    # A round

    def step(self, now: float) -> float:
        if self.inbox:
            for news in self.take():
                news()
            self._commit_at = min(self._commit_at, now + _COMMIT_S)
        if now < self._commit_at:
            return self._commit_at
        if len(self._shards) < len(self._wanted):
            self._open()
        for number, shard in self._shards.items():
            if not shard.idle and now >= self._troubled.get(number, 0.0):
                self._commit(shard)
        is_well = len(self._shards) == len(self._wanted) and not self._troubled
        self._commit_at = now + (10.0 if is_well else _TROUBLE_S)
        return self._commit_at

    def _commit(self, shard: ShardLog) -> None:
        try:
            answers = shard.commit()
            if self._troubled.pop(shard.shard, None) is not None:
                shard.greet()
                answers += shard.commit()
        except LogError:
            self._troubled[shard.shard] = self.timeline.now + _TROUBLE_S
            return
        for agent, answer in answers:
            self._broker.publish(down_topic(agent), encode_answer(answer, agent), 0)

    def retire(self) -> None:
        """Nobody was heard for very long."""
        self._silent_s += 2 * RETIRE_AFTER_S
        for shard in self._shards.values():
            with suppress(LogError):
                shard.retire()
        self._commit_at = self.due = self.timeline.now

    def end(self) -> None:
        """Without a commit, and without a word."""
        self.is_running = False
        self.inbox.clear()
        self._broker.disconnect(NAME)
        self.leave()
        close_files(self.disk.folder)


class GraphJob(Process):
    """The job of which Spark runs the parts: micro-batches from the log, through MU and ANK, into the graph.

    Its checkpoint says how far the log was read, and holds the state of every stage. A micro-batch is planned first, so
    that it is the same when it has to be run again; it is stored under its number, once; then the checkpoint moves on.
    """

    def __init__(self, timeline: Timeline, log: Path, dice: Random, *, late: bool) -> None:
        super().__init__(timeline)
        self.oracle = GraphOracle(late=late)
        self.findings: list[str] = []
        self.rows: dict[int, list[Row]] = {}
        """All that was read, by shard."""
        self.batches = 0
        self.reruns = 0
        self.pace_s = 4.0
        self.dies: str | None = None
        """Where it dies in its next micro-batch: before it is stored, or after."""
        self._reader = LogReader(log)
        self._log = log
        self._dice = dice
        self._pipeline = Pipeline(seed=dice.getrandbits(32))
        self._passed: dict[int, Position] = {}
        self._planned: tuple[dict[int, Position], dict[int, list[Row]]] | None = None
        self._stored: GraphBatch | None = None

    def step(self, now: float) -> float:
        try:
            self.run_batch()
        except LogDamaged:  # a power cut has taken the published position: the translator has to come first
            return now + 1.0
        return now + self._dice.random() * self.pace_s

    def run_batch(self) -> bool:
        """One micro-batch, if there is anything new."""
        if self._planned is None and not self._plan():
            return False
        assert self._planned is not None
        planned, rows = self._planned
        states = {key: type(state)(state) for key, state in self._pipeline.states.items()}
        made = self._pipeline.run(rows)
        dies, self.dies = self.dies, None
        if dies == "before it is stored":
            self._start_again(states)
            return True
        self._store(rows, made)
        if dies == "after it is stored":
            self._start_again(states)
            return True
        self._passed, self._planned, self._stored = planned, None, None
        return True

    def _plan(self) -> bool:
        """How far the next micro-batch goes; whether there is anything in it."""
        ahead: dict[int, Position] = {}
        rows: dict[int, list[Row]] = {}
        for shard in self._reader.shards():
            start, end = self._passed.get(shard, Position(1, 0)), self._reader.end(shard)
            if start > end:
                raise LogDamaged(f"shard {shard} was read up to {start} and ends at {end}")
            if start < end:
                most_rows = self._dice.choice((5, 50, 1_000))
                ahead[shard] = min(self._reader.ahead(shard, start, most_rows, 1 << 20), end)
                rows[shard] = list(self._reader.rows(shard, start, ahead[shard]))
        if any(rows.values()):
            self._planned = {**self._passed, **ahead}, rows
        else:
            self._passed |= ahead
        return self._planned is not None

    def _store(self, rows: MicroBatch, made: GraphBatch) -> None:
        """A batch that is known is skipped; it must be what it was."""
        if self._stored is None:
            self._stored = made
            self.batches += 1
            for shard, each in rows.items():
                self.rows.setdefault(shard, []).extend(each)
            self.findings += self.oracle.add(rows, made)
        elif plain(made) != plain(self._stored):
            self.findings.append(f"micro-batch {made.batch} gives something else when it is run again")

    def _start_again(self, states: Any) -> None:
        """The next process has what the checkpoint has."""
        self.reruns += 1
        self._pipeline.batches.pop()
        self._pipeline.states.clear()
        self._pipeline.states.update(states)

    def remove_old(self) -> int:
        """Segments that the checkpoint has passed are not needed any more. What a power cut has damaged stays as it is
        until its writer has seen to it."""
        try:
            return sum(len(remove_segments(self._log, shard, place)) for shard, place in self._passed.items())
        except LogDamaged:
            return 0
