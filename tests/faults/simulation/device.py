"""A device: the agent of the product with its plan, its spool and its client, stepped by hand instead of by threads."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from math import inf
from random import Random
from typing import Any

from edge_agent.agent import Agent
from edge_agent.config import Settings
from edge_agent.exchange import Exchange
from edge_agent.exchange.send_streams import SendStream
from edge_agent.outbox import Outbox
from edge_agent.plan_run import PlanRun
from edge_agent.spool import Syncer
from edge_agent.stream import Plan, Watermark
from edge_agent.transport import Client, State
from protocol.events import DataItem, Event, TaskBegun, TaskEnded
from protocol.ids import StreamId
from protocol.records import BEGINNING, END_OF_TIME, Delivery, End, Progress, Record, SourcePayload
from protocol.wire.crossing import Crossing, PackedTuple
from protocol.wire.sections import EventKind, Kind
from tests.faults.simulation.disk import Disk, Killed, close_files
from tests.faults.simulation.fleet import DISORDER_MS, SOURCE, WINDOW_MS
from tests.faults.simulation.timeline import Process, Timeline
from tests.faults.simulation.truth import Life

_EVENT_BYTES = 100
NOBODY = 0
"""The number of no thread."""


class SteppedClient(Client):
    """The client without its thread and its socket."""

    def start(self) -> Client:
        return self  # what it is asked to do makes it connect


class PromptSyncer(Syncer):
    """Syncs at once: a thread would make runs differ."""

    def order(self, handles: Sequence[int]) -> None:
        try:
            for handle in handles:
                os.fdatasync(handle)
        except OSError as error:
            self.error = error
        finally:
            for handle in handles:
                os.close(handle)


class Room(threading.Condition):
    """What a caller waits at until the writing thread has made room. There is but one thread: it writes meanwhile, as
    far as it can. More time does not pass for whoever waits, so patience ends if that did not help."""

    def __init__(self, outbox: Outbox, timeline: Timeline) -> None:
        super().__init__(outbox._lock)
        self._outbox = outbox
        self._timeline = timeline

    def wait(self, timeout: float | None = None) -> bool:
        outbox = self._outbox
        before = outbox.held_bytes
        outbox.take_over()
        outbox.step(self._timeline.now)
        outbox._writer = NOBODY
        outbox._standing_still = outbox.held_bytes >= before
        return True


class NotedSend(SendStream):
    """A Send of which it is noted how much is safe in its spool, and whether it had to give anything up."""

    life: Life
    _added = 0

    def __init__(self, most_bytes: int | None, stream: StreamId, folder: str, settings: Settings) -> None:
        if most_bytes is not None:
            settings = copy(settings)
            object.__setattr__(settings, "spool_bytes", most_bytes)  # an agent's own spool must not be so small
        super().__init__(stream, folder, settings)

    def add(self, tuples: list[PackedTuple], watermark: int, hold: int, idle: bool, now: float) -> None:
        super().add(tuples, watermark, hold, idle, now)
        if tuples:
            self._added = tuples[-1][2].seq + 1

    def _write(self) -> None:
        try:
            super()._write()
        finally:
            self.life.has_given_up |= self.lost > 0
        self.life.sent[self.stream.name] = self._added


class SteppedAgent(Agent):
    """The agent without its thread."""

    def start(self) -> Agent:
        self._outbox.take_over()
        self._client.start()
        self.subscribe()
        return self


class NotedRun(PlanRun):
    """A plan of which all that it says is noted first."""

    def __init__(self, agent: Agent, plan: Plan, life: Life) -> None:
        self._life = life
        self._promised: defaultdict[tuple[str | int, ...], int] = defaultdict(lambda: BEGINNING)
        """By stream, and by stream and start of its sender."""
        super().__init__(agent, plan)

    def _emit(self, record: Record) -> None:
        life = self._life
        if isinstance(record, (SourcePayload, Delivery)):
            life.tuples.append((record.stream.name, record.seq))
            if isinstance(record, Delivery):
                life.deliveries[record.stream.name, record.seq] = record
            else:
                life.sources[record.stream.name, record.seq] = record.ts, record.payload
        elif isinstance(record, Progress):
            life.promises.append((record.stream.name, record.watermark, len(life.tuples)))
        super()._emit(record)

    def _take_over(self, exchange: Exchange, crossing: Crossing) -> None:
        life, sent = self._life, crossing.stream
        for ts, _, origin in crossing.tuples:
            taken = sent.agent, sent.name, origin.stream.nonce, origin.seq
            life.taken.append(taken)
            if ts < self._promised[sent.agent, sent.name]:
                life.late.add(taken)
            if ts < self._promised[sent.agent, sent.name, sent.nonce]:
                life.broken.append(taken)
        for whose in ((sent.agent, sent.name), (sent.agent, sent.name, sent.nonce)):
            self._promised[whose] = max(self._promised[whose], crossing.watermark)
        super()._take_over(exchange, crossing)

    def take(self) -> bool:
        """What has come from other agents; whether there was any."""
        return self._take()


class Due:
    """The readings that the plan must have told, by its own promises: those that were not late, and for which no window
    waits any more."""

    def __init__(self, life: Life, version: int) -> None:
        self._life = life
        self._disorder_ms, self._window_ms = (DISORDER_MS, WINDOW_MS) if version else (0, 0)
        self._promised = BEGINNING
        self._waiting: list[tuple[int, int]] = []

    def read(self, items: list[tuple[int, int]]) -> None:
        """The plan has taken them."""
        for ts, value in items:
            if ts >= self._promised:
                self._waiting.append((ts, value))
            self.promise(ts - self._disorder_ms)

    def promise(self, ts: int) -> None:
        """Nothing older comes."""
        self._promised = max(self._promised, ts)
        self._life.due += [each for each in self._waiting if each[0] + self._window_ms <= self._promised]
        self._waiting = [each for each in self._waiting if each[0] + self._window_ms > self._promised]


class Device(Process):
    """One process of an agent. Its folder outlives it."""

    def __init__(
        self,
        timeline: Timeline,
        disk: Disk,
        settings: Settings,
        plan: Plan | None,
        version: int,
        dice: Random,
        send: Callable[[str, bytes], None],
    ) -> None:
        super().__init__(timeline)
        self.name = settings.name
        self.disk = disk
        self._dice = dice
        self._send = send
        self._settings = settings
        self._plan = plan
        self._version = version
        self.life: Life | None = None
        self.agent: SteppedAgent | None = None
        self._run: NotedRun | None = None
        self.clock_ms = 0
        """Where its source is in time."""
        self._is_finishing = False
        self._due: Due

    def begin(self, lives: list[Life]) -> None:
        """Start the process: it takes up what the last one left."""
        settings = self._settings
        agent = SteppedAgent.__new__(SteppedAgent)
        try:
            agent.__init__(settings, None if self._plan is None else self._plan.document())  # type: ignore[misc]
        finally:  # it may have died on the way, and yet have told that it began
            epoch = vars(agent).get("epoch")
            if epoch is not None:
                dropping, synced = settings.when_full != "block", settings.fsync == "batch"
                self.life = Life(self.name, epoch.counter, epoch.nonce, self._version, dropping, synced)
                lives.append(self.life)
        assert self.life is not None
        self._due = Due(self.life, self._version)
        self.life.begun = not agent._outbox.trouble
        for send in () if agent.exchange is None else agent.exchange._sends.values():
            assert isinstance(send, NotedSend)
            send.life = self.life
        self.agent = agent
        if self._plan is not None:
            self._run = NotedRun(agent, self._plan, self.life)
        agent.start()
        agent._outbox._room = Room(agent._outbox, self.timeline)

    # What its program says

    @contextmanager
    def _speaking(self, agent: SteppedAgent) -> Iterator[None]:
        """The program has the word: a caller, who is another thread. With `block` it would have to wait for things
        that only happen afterwards, so its memory has no end. It may die when it makes the agent write."""
        if self._settings.when_full != "block":
            agent._outbox._writer = NOBODY
        try:
            yield
        except Killed as error:
            self.timeline.on_killed(self, error)
        agent._outbox.take_over()

    def capture(self, number: int, noise_bytes: int) -> None:
        """Tasks begin and end."""
        agent, life = self.agent, self.life
        assert agent is not None and life is not None
        with self._speaking(agent):
            for _ in range(number):
                for kind in (EventKind.TASK_BEGUN, EventKind.TASK_ENDED):
                    ts = len(life.events)
                    said = {"value": ts, "noise": self._dice.randbytes(noise_bytes)}
                    life.events.append(_event(kind, ts, said))
                    data = [(f"data-{ts}", "w", (), *agent.packer.pack(said))]
                    row: tuple[Any, ...] = (Kind.EVENT, kind, ts, ts // 2)
                    row += (0, f"task-{ts}", "f", [], data) if kind is EventKind.TASK_BEGUN else (0, "", data)
                    agent.put(row, _EVENT_BYTES + noise_bytes)
        self._mark()

    def read(self, number: int, noise: int) -> None:
        """Its source gives some readings, as its clock says."""
        if self._run is None or SOURCE not in self._run.engine._sources or self._is_finishing:
            return
        dice, items = self._dice, []
        for _ in range(number):
            self.clock_ms += dice.randrange(0, 400)
            ts = self.clock_ms - (dice.randrange(0, 250) if self._version else 0)
            items.append((ts, dice.getrandbits(noise)))
        assert self.agent is not None and self.life is not None
        self.life.readings += items
        with self._speaking(self.agent):
            self._run.engine.feed(SOURCE, items)
            self._due.read(items)
            if dice.random() < 0.3:
                self._run.engine.feed(SOURCE, [Watermark(self.clock_ms)])
                self._due.promise(self.clock_ms)
        self._mark()

    def _mark(self) -> None:
        """Note when what was said so far is on disk."""
        agent, life = self.agent, self.life
        assert agent is not None and life is not None
        is_durable = self._settings.fsync == "batch"

        def written(mark: Any) -> None:
            life.written = mark
            if is_durable:
                life.durable = mark

        agent._outbox.after(partial(written, life.mark))
        self.due = self.timeline.now

    def flush(self) -> None:
        """Ask for everything to be safe from a power cut."""
        agent, life = self.agent, self.life
        assert agent is not None and life is not None

        def durable(mark: Any) -> None:
            life.written = life.durable = mark

        agent._outbox.ask(partial(durable, life.mark))
        self.due = self.timeline.now

    def sleep(self, seconds: int) -> None:
        """The device saves power: it is reached now and then only."""
        assert self.agent is not None
        if self.agent._client.connected:
            self.agent._client.sleep(seconds)
            self.due = self.timeline.now

    def wake(self) -> None:
        assert self.agent is not None
        self.agent._client.wake()
        self.due = self.timeline.now

    def close_source(self) -> None:
        """Nothing more is read: all windows close."""
        if self._run is not None and SOURCE in self._run.engine._sources and not self._is_finishing:
            self._is_finishing = True
            self._run.engine.close(SOURCE)
            self._due.promise(END_OF_TIME)
            self._mark()

    @property
    def is_quiet(self) -> bool:
        """Nothing is left that it has to tell anybody, and its plan has nothing to do."""
        agent = self.agent
        assert agent is not None
        waits = agent.exchange is not None and (agent.exchange.waiting or agent.exchange.arrived)
        return not (agent.left or waits or agent._outbox._queue or agent._outbox._afters or agent._outbox._group.rows)

    @property
    def has_no_room(self) -> bool:
        """Whether something for others is in memory only, and has to stay there."""
        exchange = self.agent.exchange if self.agent else None
        return exchange is not None and any(send.waiting and send.trouble for send in exchange._sends.values())

    def end(self) -> None:
        """Say that nothing follows."""
        agent, life = self.agent, self.life
        assert agent is not None and life is not None
        if not life.ending:
            self._is_finishing = True
            agent.emit(End(0))
            agent.ended = True
            life.ending = True
            agent._finishing = True
            agent._outbox.finish()
            self.flush()

    # Its threads

    def datagram(self, datagram: bytes) -> None:
        """One has come."""
        self.put(partial(self._receive, datagram))

    def _receive(self, datagram: bytes) -> None:
        assert self.agent is not None
        self.agent._client._session.receive(datagram, self.timeline.now)

    def step(self, now: float) -> float:
        agent = self.agent
        if agent is None:
            return inf
        client = agent._client
        session = client._session
        for news in self.take():
            news()
        while True:
            session.tick(now)
            if session.state is State.SEEKING:
                session.opened(now)
                session.tick(now)
            datagrams = session.datagrams.copy()
            session.datagrams.clear()
            for datagram in datagrams:
                self._send(self.name, datagram)
            delivered, session.delivered = session.delivered, []
            settled = session.settled.copy()
            session.settled.clear()
            session.notices.clear()
            client._call_back(delivered, settled)
            took = self._run is not None and not agent.ended and self._run.take()
            if took:
                self._mark()
            until = agent.turn(now)
            if not (took or agent._inbox or session.backlog or session.datagrams or session.settled):
                break
        deadline = session.next_deadline()
        return min(until, inf if deadline is None else deadline)

    def drop(self) -> None:
        """The process is gone; what it had open is closed, as the kernel does it."""
        self.inbox.clear()
        self.leave()
        close_files(self.disk.folder)


def _event(kind: EventKind, number: int, said: dict[str, Any]) -> Event:
    """A captured event as the log has to tell it."""
    data = (DataItem(f"data-{number}", "w", (), said),)
    if kind is EventKind.TASK_BEGUN:
        return TaskBegun(number, number, number // 2, 0, f"task-{number}", "f", (), data)
    return TaskEnded(number, number, number // 2, "finished", "", data)
