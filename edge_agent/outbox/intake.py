"""Where the program and its plan leave their records: a queue in memory that has a limit.

Any thread appends to it, one thread takes from it. A caller never waits for a disk; when memory is full because the
disk does not keep up, the oldest records go, by name, unless callers were told to wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

from edge_agent.config import Settings
from protocol.structs import Struct
from protocol.wire.sections import Kind, Pending

_PATIENCE_S = 1.0
NUMBERED = (Kind.SOURCE, Kind.DELIVERY, Kind.ASSERTION)
NOTES = (Kind.PROGRESS, Kind.RECEIVED, Kind.STATUS)
"""The next ones say all that these say."""
_IRREPLACEABLE = (Kind.PLAN, Kind.GAP, Kind.END)


class After(Struct):
    """Something to do when everything before it is on disk. `durable`: also safe from a power cut. With `forgo` it can
    be done without, if there is no memory for it: then that is called instead."""

    action: Callable[[], object]
    size: int = 0
    durable: bool = False
    forgo: Callable[[], object] | None = None


class Dropped:
    """Stands in the queue where records were dropped: as a rule for want of memory."""

    def __init__(self, reason: str = "dropped: the disk could not keep up") -> None:
        self.reason = reason
        self.events = 0
        self.count = 0
        self.is_told = False
        """The batch that names them is on its way to the disk."""
        self.tuples: dict[str, tuple[int, int]] = {}

    def add(self, row: Pending) -> None:
        if row[0] in NOTES:
            return
        self.count += 1
        if row[0] is Kind.EVENT:
            self.events += 1
        elif row[0] in NUMBERED:
            first, _ = self.tuples.get(row[1].name, (row[2], 0))
            self.tuples[row[1].name] = first, row[2]


class Together(Struct):
    """Records that are all on disk or none of them."""

    rows: Sequence[tuple[Pending, int]]


Queued = Pending | Dropped | After | Together


class Intake:
    """The queue of one agent."""

    def __init__(self, settings: Settings) -> None:
        self.dropped = 0
        self._memory_bytes = self._most_bytes = settings.memory_bytes
        self._blocks = settings.when_full == "block"
        self._lock = threading.RLock()  # to be held by itself where every microsecond counts
        self._condition = threading.Condition(self._lock)  # the writing thread waits here
        self._room = threading.Condition(self._lock)  # and those who are faster than it here
        self._queue: deque[tuple[Queued, int]] = deque()
        self._held_bytes = 0
        self._parked = self._urgent = self._woken = self._closed = self._standing_still = False
        self._refusal: Callable[[], object] | None = None
        self._writer = 0

    # Any thread

    def put(self, row: Pending, size: int) -> None:
        """Take a record over. Returns at once as long as there is memory for it.

        No lock is taken as a rule, because it would take as long as all the rest. The queue needs none; CPython does
        not switch threads within the sum; and that it is looked at whether the writer sleeps only after something was
        put there is what keeps it from oversleeping.
        """
        if self._held_bytes + size > self._most_bytes:
            if self._refuses(row):
                return
            with self._lock:
                if not self._make_room(size, row[0]):
                    return
        self._queue.append((row, size))
        self._held_bytes += size
        if self._parked:
            with self._lock:
                self._unpark()

    def _unpark(self) -> None:
        if self._parked:
            self._parked = False
            self._condition.notify_all()

    def put_all(self, rows: Sequence[tuple[Pending, int]]) -> None:
        """Take records over that a crash must leave all of, or none."""
        if self._refuses(*[row for row, _ in rows]):
            return
        size = sum([size for _, size in rows])
        with self._lock:
            if self._held_bytes + size > self._most_bytes:
                self._make_room(size)
            self._queue.append((Together(rows), size))
            self._held_bytes += size
            self._unpark()

    def after(self, action: Callable[[], object], size: int = 0, forgo: Callable[[], object] | None = None) -> None:
        """Have the writing thread do something when everything put so far is on disk. If that fails for want of room,
        it is done again later; `forgo` takes its place if memory is full meanwhile, or if nothing is taken any more."""
        if self._refuses():
            if forgo is not None:
                forgo()
            return
        with self._condition:
            if self._held_bytes + size > self._most_bytes:
                self._make_room(size)
            self._queue.append((After(action, size, forgo=forgo), size))
            self._held_bytes += size
            self._unpark()

    def ask(self, action: Callable[[], object]) -> None:
        """Have the writing thread do something as soon as everything put so far is on disk, safe from a power cut."""
        with self._condition:
            self._queue.append((After(action, durable=True), 0))
            self._urgent = True
            self._condition.notify_all()

    def wake(self) -> None:
        """Make the writing thread look around."""
        with self._condition:
            self._woken = True
            self._condition.notify_all()

    def close(self) -> None:
        """Nobody need wait for room any more: there is as much again for what those say who come to their end now.
        Beyond that the oldest records go, at once."""
        with self._condition:
            if not self._closed:
                self._closed = True
                self._most_bytes = self._memory_bytes = 2 * self._memory_bytes
            self._room.notify_all()

    def refuse(self, tell: Callable[[], object] = lambda: None) -> None:
        """Nothing will ever be written again: what comes now counts as dropped. `tell` is for whoever has put it."""
        self.close()
        with self._condition:
            self._refusal = tell
            self._memory_bytes = self._most_bytes = -1  # so that `put` looks

    @property
    def held_bytes(self) -> int:
        """Records that are in memory and in no batch yet."""
        return self._held_bytes

    def _refuses(self, *rows: Pending) -> bool:
        """Whether nothing is taken any more. It is told without the lock: whoever hears of it may put something."""
        if self._refusal is None:
            return False
        count = sum([row[0] not in NOTES for row in rows])
        with self._lock:
            self.dropped += count
        if count:
            self._refusal()
        return True

    def _make_room(self, size: int, kind: Kind | None = None) -> bool:
        """Memory is full: the caller is faster than the writer. It is slowed down to the writer's pace; but it does not
        wait for a disk that is full or stands still, unless it was told to. False: the record can be done without."""
        if threading.get_ident() == self._writer:  # it would wait for itself
            return kind is not Kind.STATUS
        deadline = monotonic() + _PATIENCE_S
        while self._held_bytes + size > self._most_bytes and self._held_bytes:
            if self._closed or (not self._blocks and (self._standing_still or monotonic() >= deadline)):
                self._standing_still = True
                if not self._drop():
                    break
            else:
                before = self._held_bytes
                self._urgent = True
                self._condition.notify_all()
                self._room.wait(_PATIENCE_S)
                if self._held_bytes < before:
                    deadline = monotonic() + _PATIENCE_S
        return True

    def _drop(self) -> bool:
        """The oldest records in the queue, an eighth of the memory at a time; a note takes their place. Tells whether
        there were any."""
        note, counted = Dropped(), 0
        kept: list[tuple[Queued, int]] = []
        before = self._held_bytes
        goal = before - self._memory_bytes // 8
        while self._queue and self._held_bytes > goal:
            row, size = self._queue.popleft()
            if isinstance(row, Dropped):
                note, counted = row, row.count
            elif isinstance(row, Together):
                self._held_bytes -= size
                for each, _ in row.rows:
                    note.add(each)
            elif isinstance(row, After) and row.forgo is not None:
                self._held_bytes -= size
                row.forgo()
            elif isinstance(row, After) or row[0] in _IRREPLACEABLE:
                kept.append((row, size))
            else:
                self._held_bytes -= size
                note.add(row)
        self._queue.extendleft(reversed(kept))
        self.dropped += note.count - counted
        if note.count:
            self._queue.appendleft((note, 0))
        return self._held_bytes < before

    # The writing thread

    def take_over(self) -> None:
        """This thread writes from now on. What it puts itself does not wait for room, which only it can make."""
        self._writer = threading.get_ident()

    def take(self) -> list[tuple[Queued, int]]:
        """All that is in the queue. From then on it cannot be dropped any more."""
        with self._condition:  # others append meanwhile, without the lock
            return [self._queue.popleft() for _ in range(len(self._queue))]

    def sleep(self, until: float, *, is_noticed: bool, not_before: float) -> None:
        """Until there is something to do. `is_noticed`: what is in the queue, or will be, is taken in time; what is
        urgent is so from `not_before` on."""
        with self._condition:
            now = monotonic()
            urgent = self._urgent and now >= not_before
            if not (urgent or self._woken or (self._queue and not is_noticed)):
                # What comes while a flush is planned need not wake anybody.
                self._parked = not is_noticed
                if not (self._parked and self._queue):  # none came just now, before they could see that we sleep
                    self._condition.wait(min(max(0.0, until - now), threading.TIMEOUT_MAX))
                self._parked = False
            self._woken = False

    def pause(self) -> None:
        """The disk takes nothing now: who was told to wait for it does so from now on, so that no more is in memory
        only."""
        with self._condition:
            self._urgent = False
            if self._blocks and not self._closed:
                self._most_bytes = 0

    def resume(self) -> None:
        """It does again."""
        with self._condition:
            self._standing_still = False
            self._most_bytes = self._memory_bytes
            self._room.notify_all()

    def free(self, size: int, *, is_written: bool = False) -> None:
        """So much memory is free again. If that is because something was written, the disk was only slow."""
        with self._condition:
            self._standing_still = self._standing_still and not is_written
            self._held_bytes -= size
            self._room.notify_all()
