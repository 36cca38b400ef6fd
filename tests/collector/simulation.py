"""Agents and a translator over a bad network, in one process and in simulated time: from records to the log.

The agents' outboxes, spools and uplinks and the shard's log are the real ones. Between them, batches and answers are
lost, copied, delayed and overtaken, and everybody may be killed at any moment, also in the middle of writing. What a
killed process leaves is what its files hold at that moment. A run is decided by its steps and its seed alone.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from collector.log import LogError
from collector.quarantine import Quarantine
from collector.registry import RegistryError, RegistryUnavailable
from collector.shard_log import ShardLog
from edge_agent.config import Settings
from edge_agent.epoch import Epoch, begin_epoch
from edge_agent.lanes import Uplink
from edge_agent.outbox import Outbox
from edge_agent.outbox.memory import Memory
from edge_agent.outbox.recovery import close_journal, gap_after_crash
from edge_agent.spool import Spool, SpoolUnwritable, Syncer
from protocol.ids import StreamId
from protocol.records import Declared, Delivery, End, Origin, OriginKind, Progress, SourcePayload
from protocol.wire.answers import Logged, decode_answer, encode_answer
from protocol.wire.packer import Packer
from protocol.wire.sections import EventKind, Kind, Pending, pending_sized
from tests.collector.agents import QuickRegistry

SHARD = 3
SEGMENT_BYTES = 2_000
RETIRE_AFTER_S = 1_000.0
_VERY_LATE_S = 60.0
_STREAMS = ("reports", "alerts")  # a source, and the Sink that it leads to
_ROW_BYTES = 100  # that a captured event takes up, about


class LogDisk:
    """The disk under the log, of which the tests wait for nothing: they read through the same kernel."""

    is_full = False

    @classmethod
    def sync(cls, fd: int) -> None:
        if cls.is_full and ".arrows" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.ENOSPC, "the disk is full")


class Killed(BaseException):
    """The process ends here, whatever it was doing."""


@dataclass(slots=True)
class Life:
    """What one epoch of an agent was told to record, and how much of it was on disk."""

    agent: str
    epoch: int
    nonce: int
    events: list[tuple[EventKind, int]] = field(default_factory=list)
    tuples: list[tuple[str, int]] = field(default_factory=list)
    promises: dict[int, int] = field(default_factory=dict)
    """Watermarks, each with how many tuples came before it."""
    safe_events: int = 0
    safe_tuples: int = 0
    begun: bool = False
    ending: bool = False
    ended: bool = False
    killed: bool = False

    def is_safe(self, events: int, tuples: int, ended: bool) -> None:
        self.safe_events, self.safe_tuples, self.ended = events, tuples, ended


class Device:
    """One process of an agent, as `Agent` puts it together, but for threads and the network."""

    def __init__(self, world: World, name: str, folder: Path, settings: Settings, spool_bytes: int) -> None:
        self.name = name
        self.folder = folder
        self._world = world
        self._fuse: int | None = None
        self.disk_is_full = False
        self._packer = Packer()
        self._seqs = dict.fromkeys(_STREAMS, 0)
        self.spool = Spool.open(folder / "up", max_bytes=spool_bytes, fsync=settings.fsync)
        self.memory = Memory(folder)
        for owner, methods in ((self.spool, ("append", "journal", "replace_oldest", "sync")), (self.memory, ("keep",))):
            for method in methods:
                setattr(owner, method, partial(self._mortally, getattr(owner, method)))
        self.epoch = Epoch(begin_epoch(folder).counter, world.random.getrandbits(64))
        self.life = Life(name, self.epoch.counter, self.epoch.nonce)

    def begin(self, settings: Settings) -> None:
        """Take up what the last process left."""
        world, memory = self._world, self.memory
        left = close_journal(self.spool, self.name)
        gap = gap_after_crash(self.spool, memory.last, self.name, left, self.epoch)
        self.outbox = Outbox(self.name, self.epoch, self.spool, memory, self._packer, settings)
        self.outbox._syncer = PromptSyncer()
        self.outbox.state.positions = {} if memory.last is None else memory.last.positions
        if gap is not None:
            self._put(gap)
        self._put(Declared("{}"))
        self.uplink = Uplink(self.name, self.spool, self._publish, settings.window, Random(world.random.random()))
        self.outbox.given_up = self.uplink.given_up
        world.lives.append(self.life)
        self.outbox.begin(left)
        self.life.begun = not self.outbox.trouble

    def light_fuse(self, operations: int) -> None:
        """Die in the middle of writing, after so many operations on files."""
        self._fuse = operations

    def _mortally(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._burn()
        if self.disk_is_full:
            raise OSError(errno.ENOSPC, "the disk is full") if operation.__name__ == "keep" else SpoolUnwritable("full")
        result = operation(*args, **options)
        self._burn()
        return result

    def _burn(self) -> None:
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                raise Killed

    # What the program says

    def _put(self, record: Any) -> None:
        self.outbox.put(*pending_sized(record, self._packer))

    def _mark(self) -> None:
        life = self.life
        self.outbox.after(partial(life.is_safe, len(life.events), len(life.tuples), life.ending))

    def tasks(self, number: int) -> None:
        """Tasks begin and end."""
        for _ in range(number):
            for kind in (EventKind.TASK_BEGUN, EventKind.TASK_ENDED):
                ts = len(self.life.events)
                self.life.events.append((kind, ts))
                row = (Kind.EVENT, kind, ts, ts // 2)
                data = [(f"data-{ts}", "w", (), *self._packer.pack({"value": self._world.random.random()}))]
                begun: Pending = (0, f"task-{ts}", "f", [], data)
                self.outbox.put((*row, *begun) if kind is EventKind.TASK_BEGUN else (*row, 0, "", data), _ROW_BYTES)
        self._mark()

    def readings(self, number: int) -> None:
        """Source tuples, a delivery that came of them and of what another agent has delivered, and a promise."""
        world, life = self._world, self.life
        reports, alerts = [StreamId(self.name, self.epoch.counter, name, self.epoch.nonce) for name in _STREAMS]
        origins: list[Origin] = []
        for _ in range(number):
            seq = self._seqs["reports"]
            self._seqs["reports"] += 1
            life.tuples.append(("reports", seq))
            origins.append(SourcePayload(reports, seq, seq * 10, {"speed": world.random.random()}))
            self._put(origins[-1])
        for other in world.lives:
            if other.agent != self.name and world.random.random() < 0.3:
                stream = StreamId(other.agent, other.epoch, "alerts", other.nonce)
                origins.append(Origin(OriginKind.REMOTE, stream, world.random.randrange(9), 5))
        seq = self._seqs["alerts"]
        self._seqs["alerts"] += 1
        life.tuples.append(("alerts", seq))
        self._put(Delivery(alerts, seq, seq * 10, "alert", tuple(origins)))
        life.promises[seq] = len(life.tuples)
        self._put(Progress(alerts, seq, seq))
        self._mark()

    def end(self) -> None:
        """Say that nothing follows."""
        self.life.ending = True
        self._put(End(0))
        self._mark()
        self.outbox.finish()
        self.flush()

    def flush(self) -> None:
        """Ask for everything to be on disk; whether it is, `Life` will tell."""
        with suppress(TimeoutError):
            self.outbox.flush(0.0)

    # Its thread

    def step(self, now: float) -> float:
        return min(self.outbox.step(now), self.uplink.step(now))

    def _publish(self, data: bytes, number: int) -> None:
        world = self._world
        world.carry(partial(world.arrive, self.name, data))
        world.later(world.random.random() * 0.1, partial(self._over, number))

    def _over(self, number: int) -> None:
        if self._world.devices.get(self.name) is self:
            self.uplink.over(number, self._world.now)

    def answered(self, data: bytes) -> None:
        answer = decode_answer(data, self.name)
        assert isinstance(answer, Logged)
        self.uplink.logged(answer, self._world.now)

    def drop(self) -> None:
        """Let go of files that nobody looks at any more."""
        self._fuse, self.disk_is_full = None, False
        self.spool.close()
        self.memory.close()


class PromptSyncer(Syncer):
    """Syncs at once: a thread would make runs differ."""

    def order(self, handles: Sequence[int]) -> None:
        for handle in handles:
            os.close(handle)


class FlakyRegistry(QuickRegistry):
    """A registry whose disk is full now and then."""

    is_full = False

    def _transaction(self) -> Any:
        if self.is_full:
            raise RegistryUnavailable("the disk is full")
        return super()._transaction()


class World:
    """Everything, and the time in which it happens."""

    def __init__(self, folder: Path, seed: int, settings: Settings, spool_bytes: int, agents: int = 2) -> None:
        self.random = Random(seed)
        self.now = monotonic()
        self.folder = folder
        self.log = folder / "log"
        self.settings = settings
        self.lives: list[Life] = []
        self.devices: dict[str, Device] = {}
        self.loss = self.copies = self.delay_s = 0.0
        self.is_connected = True
        self.retired = 0
        self._spool_bytes = spool_bytes
        self._folders = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._skew_s = 0.0
        self._is_committing = False
        self.registry = FlakyRegistry(self.log / "registry.db")
        self.quarantine = Quarantine(self.log / "quarantine")
        self.shard: ShardLog | None = None
        self.start_translator()
        for number in range(agents):
            self.start_device(f"agent-{number}")

    # Time

    def later(self, delay_s: float, event: Callable[[], None]) -> None:
        heappush(self._events, (self.now + delay_s, next(self._order), event))

    def run(self, seconds: float) -> None:
        """Let time pass; anything that is due happens in its order."""
        end = self.now + seconds
        while True:
            due = self._events[0][0] if self._events else end
            for device in list(self.devices.values()):
                due = min(due, max(self._step(device), self.now + 0.001))
            if due >= end:
                break
            self.now = max(self.now, due)
            while self._events and self._events[0][0] <= self.now:
                heappop(self._events)[2]()
        self.now = end

    def _step(self, device: Device) -> float:
        try:
            return device.step(self.now)
        except Killed:
            self.kill_device(device.name)
            return self.now

    # The network and the broker

    def carry(self, deliver: Callable[[], None]) -> None:
        """To the other side, or not; a copy may come very late."""
        for copy in range(2 if self.random.random() < self.copies else 1):
            if self.is_connected and self.random.random() >= self.loss:
                delay_s = 0.005 + self.random.random() * self.delay_s + copy * self.random.random() * _VERY_LATE_S
                self.later(delay_s, partial(self._deliver, deliver))

    def _deliver(self, deliver: Callable[[], None]) -> None:
        if self.is_connected:
            deliver()

    def kill_broker(self) -> None:
        """All that is under way is gone."""
        self._events = [event for event in self._events if getattr(event[2], "func", None) != self._deliver]
        self._events.sort()

    # The translator

    def start_translator(self) -> None:
        if self.shard is None:
            try:
                self.shard = ShardLog(
                    self.log,
                    SHARD,
                    self.registry,
                    self.quarantine,
                    retire_after_s=RETIRE_AFTER_S,
                    clock=lambda: self.now + self._skew_s,
                    segment_bytes=SEGMENT_BYTES,
                )
            except (RegistryError, LogError):
                return
            self.shard.greet()
            self._commit()

    def kill_translator(self) -> None:
        """Without a commit: closing only lets go of the lock."""
        if self.shard is not None:
            self.shard.close()
            self.shard = None

    def arrive(self, agent: str, data: bytes) -> None:
        if self.shard is not None:
            with suppress(RegistryError):
                self.shard.take(agent, data)
            if not self._is_committing:
                self._is_committing = True
                self.later(0.02, self._commit)

    def _commit(self) -> None:
        self._is_committing = False
        if self.shard is not None:
            try:
                for agent, answer in self.shard.commit():
                    self.carry(partial(self._answer, agent, encode_answer(answer, agent)))
            except LogError:
                self._is_committing = True
                self.later(1.0, self._commit)

    def _answer(self, agent: str, data: bytes) -> None:
        device = self.devices.get(agent)
        if device is not None:
            try:
                device.answered(data)
            except Killed:  # it may write when it learns that something can go
                self.kill_device(agent)

    def retire(self) -> None:
        """Nobody was heard for a long time."""
        self._skew_s += 2 * RETIRE_AFTER_S
        if self.shard is not None:
            self.shard.retire()
            self.retired += self.shard.counters.retired
            self._commit()

    # The devices

    def start_device(self, name: str, fuse: int | None = None) -> None:
        if name in self.devices:
            return
        folders = sorted(self.folder.glob(f"{name}.*"))
        folder = folders[-1] if folders else self.folder / f"{name}.{next(self._folders):06d}"
        device = Device(self, name, folder, self.settings, self._spool_bytes)
        self.devices[name] = device
        if fuse is not None:
            device.light_fuse(fuse)
        try:
            device.begin(self.settings)
        except Killed:
            self.kill_device(name)

    def kill_device(self, name: str) -> None:
        """What is left is what is in its files now."""
        device = self.devices.pop(name, None)
        if device is not None:
            device.life.killed = True
            shutil.copytree(device.folder, self.folder / f"{name}.{next(self._folders):06d}")
            device.drop()

    def stop_device(self, name: str) -> None:
        """It says its end, and ends; its batches stay for the next start."""
        device = self.devices.get(name)
        if device is not None:
            device.end()
            self.run(0.01)
            if name in self.devices:
                del self.devices[name]
                device.life.killed = not device.life.ended
                device.drop()

    # The end

    def heal(self) -> None:
        """Everything works from now on, until nothing is left to be sent."""
        self.loss = self.copies = self.delay_s = 0.0
        self.is_connected, self.registry.is_full, LogDisk.is_full = True, False, False
        self.start_translator()
        for name in sorted({life.agent for life in self.lives}):
            self.start_device(name)
            device = self.devices[name]
            device.disk_is_full = False
            device.light_fuse(1 << 60)
            device.end()
        idle, left = 0, -1
        while idle < 100:  # as long as it gets less
            self.run(10.0)
            if all(device.spool.count == 0 and device.life.ended for device in self.devices.values()):
                self.run(2 * _VERY_LATE_S)
                return
            before, left = left, sum(device.spool.count for device in self.devices.values())
            idle = 0 if left < before else idle + 1
        raise AssertionError({name: device.spool.count for name, device in self.devices.items()})

    def close(self) -> None:
        for device in self.devices.values():
            device.drop()
        self.kill_translator()
        self.registry.close()
