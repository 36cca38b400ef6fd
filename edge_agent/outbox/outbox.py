"""From the caller to the disk: records are left by any thread and written by one.

    intake  in memory, bounded; a caller only ever appends to it
    group   what the next batch will hold; every flush interval its new records go to the spool's journal
    spool   closed batches, until they are acknowledged

Records are numbered in the order in which they are written, so whatever is lost before that can still be named.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic

from edge_agent.config import Settings
from edge_agent.epoch import Epoch
from edge_agent.logger import Logger
from edge_agent.outbox.division import Part, divided, events_in
from edge_agent.outbox.giving_up import give_up_oldest
from edge_agent.outbox.grouping import Group
from edge_agent.outbox.intake import NOTES, NUMBERED, After, Dropped, Intake, Queued, Together
from edge_agent.outbox.memory import Memory, Progressed
from edge_agent.outbox.pieces import Piece, encode_piece
from edge_agent.spool import Spool, SpoolError, SpoolFull, SpoolUnwritable, Syncer, Unsynced
from protocol.records import Gap, Lost, Received
from protocol.structs import Struct
from protocol.wire.batch import Header
from protocol.wire.documents import read_document
from protocol.wire.packer import Packer
from protocol.wire.sections import EventKind, Kind, Pending, pending

_LOG = Logger(__name__)
# If records come so soon after others, it looks for more by itself for so long: to wake it takes a caller as long as to
# leave a record. If they do not, it would wake up many times for nothing.
_LINGER_S = 2.0
_LOOK_S = 1.0
_RETRY_S = 1.0  # or sooner, if what it waits for is room in the spool
_TELL_S = 10.0  # a spool that is full may have room for a moment, many times a second
EXCEEDS = "dropped: results that belong together exceed the spool"
_PIECE_RATIO = 8  # times what they count in memory is more than what records take up in the journal
_NEVER = float("inf")
_TASK_ENDED = int(EventKind.TASK_ENDED)
# The next start says these by itself, or in a Gap.
_SAID_AGAIN = (Kind.PLAN, Kind.PROGRESS, Kind.GAP, Kind.END, Kind.STATUS, Kind.RECEIVED)


def _waits(row: Pending) -> bool:
    """With ProvLight's grouping: an ended task, or the end of all."""
    return row[0] is Kind.END or (row[0] is Kind.EVENT and row[1] == _TASK_ENDED)


class _Batch(Struct):
    """A batch on its way into the spool, and how many records of its group it holds."""

    data: bytes
    group: Group
    count: int


class Outbox(Intake):
    """The records of one epoch on their way to the spool. `step` and `wait` belong to the writing thread."""

    def __init__(
        self, agent: str, epoch: Epoch, spool: Spool, memory: Memory, packer: Packer, settings: Settings
    ) -> None:
        super().__init__(settings)
        self.state = Progressed(epoch.counter, epoch.nonce)
        # What earlier starts have written is to be missed, if a power cut takes it, until this one writes something.
        self.state.spool_next = max(spool.next, 0 if memory.last is None else memory.last.spool_next)
        self.trouble = ""
        self.given_up: Callable[[], None] = lambda: None
        self.declared_by: int | None = None
        """With so many batches the log has this start's plan."""
        self._agent = agent
        self._spool = spool
        self._memory = memory
        spool.before_deleting = self._keep_what_they_tell
        self._packer = packer
        self._settings = settings
        self._finishing = False
        # From here on: the writing thread's own.
        self._taken: deque[tuple[Queued, int]] = deque()
        # What waits to fill a batch, and what leaves with the next step. With ProvLight's grouping the former are ended
        # tasks and the latter all else, otherwise nothing is in a hurry.
        self._group = Group(settings)
        self._leaving = Group(settings)
        self._journaled = 0  # so many records of the group are in the journal
        self._is_whole = True  # and they do not end within records that belong together
        self._left: Sequence[bytes] = ()  # batches that an earlier process has left in the journal
        self._ready: deque[_Batch] = deque()
        # What has to be in the journal before the first of these is written: each piece, and for which batch after the
        # last one that is written.
        self._pieces: deque[tuple[int, Piece]] = deque()
        self._afters: deque[After] = deque()
        self._has_begun = self._closes_next = self._is_plan_unsafe = False
        self._has_news = False  # for the memory: another batch was written since it was asked to keep something
        self._flush_at = _NEVER
        self._came_at = -_NEVER
        self._linger_until = 0.0
        self._retry_at = 0.0
        self._full_bytes = 0  # of the spool, if it was that
        self._tell_at = 0.0
        self._has_told = False
        self._syncer = Syncer()
        self._syncing: Unsynced | None = None
        self._sync_at = _NEVER
        self._sync_fails = False  # the last one did; how the next one goes is looked at, though nothing comes

    def _keep_what_they_tell(self) -> None:
        """Released batches are about to leave the disk: how far everything had come with them must be on it."""
        state = self.state if self._has_begun else self._memory.last
        if state is not None:
            self._memory.keep(state, durable=self._settings.fsync != "never")

    def begin(self, left: Sequence[bytes] = ()) -> None:
        """Write what was put so far, before the program can say anything: what an earlier process had no room for, and
        how it ended. Only then is this epoch the one to remember, so that no start and no crash goes unnoticed."""
        self._spool.delete_released()
        self._left = left
        if self._memory.last is None:
            self._try_to_remember()
        self._urgent = True
        self.step(monotonic())

    # Any thread

    def flush(self, timeout: float | None = None, look: Callable[[], None] = lambda: None) -> None:
        """Return when everything put so far is on disk, safe from a power cut. Whoever does not want to wait any longer
        raises something in `look`, which is called now and then."""
        done = threading.Event()
        self.ask(done.set)
        deadline = _NEVER if timeout is None else monotonic() + timeout
        while not done.wait(min(_LOOK_S, max(0.0, deadline - monotonic()))):
            look()
            if monotonic() >= deadline:
                raise TimeoutError(f"not on disk after {timeout} s: {self.trouble or 'the disk is slow'}")

    def finish(self) -> None:
        """From now on nothing waits for more to fill a batch."""
        self._finishing = True

    def hurry(self) -> None:
        """On the writing thread: what is written next becomes a batch at once."""
        self._closes_next = self._urgent = True

    def end(self) -> None:
        """The writing thread has ended."""
        self._syncer.close()

    @property
    def unwritten(self) -> int:
        """When the writing thread has ended: how many records of the program and its plan are in memory only."""
        rows = [*self._leaving.rows, *self._group.rows[self._journaled :]]
        for row, _ in [*self._taken, *self._queue]:
            if isinstance(row, Together):
                rows += [each for each, _ in row.rows]
            elif isinstance(row, tuple):
                rows.append(row)
        return sum([row[0] not in _SAID_AGAIN for row in rows])

    # The writing thread

    def wait(self, until: float) -> None:
        """Sleep until there is something to do."""
        self.sleep(until, is_noticed=self._flush_at != _NEVER, not_before=self._retry_at)

    def step(self, now: float) -> float:
        """Write what is to be written by now; returns when to come back at the latest."""
        if self._queue and self._flush_at == _NEVER:
            self._flush_at = now + self._settings.flush_s
        elif not self._queue and not self.trouble and now >= self._flush_at:
            self._flush_at = self._next_flush(now)
        if now < self._retry_at and self._spool.size_bytes >= self._full_bytes:
            return self._retry_at
        unfinished = self._taken or self._afters or self._ready or self._left or self.trouble
        if self._urgent or unfinished or now >= min(self._flush_at, self._closing_at(), self._sync_at):
            try:
                self._write(now)
            except (SpoolError, OSError) as error:
                self._meet_trouble(error, now)
                return self._retry_at
            if self.trouble and not self._sync_fails:
                self._end_trouble(now)
        return min(self._flush_at, self._closing_at(), self._sync_at)

    def try_again(self) -> None:
        """There may be room now in a spool of others that something could not be written to."""
        self._retry_at = 0.0

    def _meet_trouble(self, error: Exception, now: float) -> None:
        """What could not be written waits; and who has asked for it waits too, so that no more is in memory only."""
        if not self._has_told and now >= self._tell_at:
            _LOG.warning("records wait in memory agent=%s error=%s", self._agent, error)
            self._has_told = True
        self.trouble = str(error)
        self._retry_at = now + _RETRY_S
        self._full_bytes = self._spool.size_bytes if isinstance(error, SpoolFull) else 0
        self.pause()
        if self._has_begun:
            self._try_to_remember()  # batches may have been written before the trouble, and may be sent meanwhile

    def _end_trouble(self, now: float) -> None:
        if self._has_told:
            _LOG.warning("records are written again agent=%s", self._agent)
            self._tell_at, self._has_told = now + _TELL_S, False
        self.trouble = ""
        self._retry_at, self._full_bytes = 0.0, 0
        self.resume()

    def _try_to_remember(self) -> None:
        try:
            self._memory.keep(self.state, durable=True)
        except OSError as error:
            _LOG.debug("progress is not remembered agent=%s error=%s", self._agent, error)

    def _closing_at(self) -> float:
        """When a group is old enough to become a batch."""
        return _NEVER if self._group.since is None else self._group.since + self._settings.batch_age_s

    def _write(self, now: float) -> None:
        """Each record at once or not at all: what could not be written stays where it was."""
        self._urgent = False
        self._append_ready()
        self._sort_taken(now)
        # Only what is in the queue can be dropped, so no more is taken from there as long as anything is left.
        came = self.take()
        if came:
            if now - self._came_at <= _LINGER_S:
                self._linger_until = now + _LINGER_S
            self._came_at = now
            self._taken.extend(came)
        self._sort_taken(now)
        self._close(self._leaving)
        if self._group.is_full or now >= self._closing_at() or self._finishing or self._closes_next:
            self._close(self._group)
            self._closes_next = False
        self._journal()
        durable = any(after.durable for after in self._afters)
        if durable:
            self._spool.sync(force=True)
            self._sync_fails = False
        elif self._settings.fsync == "interval":
            self._sync_aside(now)
        if self._has_news or not self._has_begun:
            self._memory.keep(self.state, durable=durable)
            self._has_news = False
        elif durable:
            self._memory.sync()
        self._has_begun = True
        while self._afters:
            self._afters[0].action()
            self.free(self._afters.popleft().size)
        # What came meanwhile has waited since then: a disk that is slow must not make it wait twice.
        self._flush_at = self._next_flush(now)

    def _next_flush(self, now: float) -> float:
        """When to write next what may have come by then."""
        return now + self._settings.flush_s if self._queue or now < self._linger_until else _NEVER

    def _sync_aside(self, now: float) -> None:
        """Have it synced while we go on: what is captured meanwhile must not wait for a slow disk."""
        self._sync_at = now + self._settings.flush_s if self._syncer.busy else _NEVER
        if self._syncer.busy:
            return
        error = self._syncer.error
        if self._syncing is not None:
            self._sync_fails = error is not None
            self._spool.synced(self._syncing, failed=self._sync_fails)
            self._syncing = None
        if error is not None:
            self._syncer.error = None
            raise SpoolUnwritable(f"the spool of {self._agent!r} cannot be synced: {error}") from error
        self._syncing = self._spool.unsynced()
        if self._syncing is None:
            self._sync_fails = False  # nothing is left of what could not be synced
            return
        self._syncer.order(self._syncing.handles)
        if self._sync_fails or not self._syncing.is_all:
            self._sync_at = now + self._settings.flush_s

    def _sort_taken(self, now: float) -> None:
        taken, group, in_a_hurry = self._taken, self._group, self._settings.grouping == "ended"
        while taken:
            row, size = taken[0]
            if type(row) is tuple and row[0] is Kind.EVENT and not in_a_hurry:  # as a rule
                if group.is_full or not group.has_room(size):
                    self._close(group)
                group.add(row, size, now)
            elif isinstance(row, Together) and not self._has_room_for(row, size):
                self._forgo(row)
                continue
            else:
                self._sort_in(row, size, now)
            taken.popleft()

    def _sort_in(self, row: Queued, size: int, now: float) -> None:
        """A record into its group. What may fail comes first: a group that is full becomes a batch before."""
        if isinstance(row, After):
            self._afters.append(row)
            return
        group = self._group
        if isinstance(row, Together):
            self._add_together(row, size, now)
            return
        if isinstance(row, Dropped):
            self._tell_dropped(row, now)
            return
        if row[0] is Kind.PROGRESS:
            self.free(size)
        else:
            if self._settings.grouping == "ended" and not _waits(row):
                group = self._leaving
            if group.is_full or not group.has_room(size):
                self._close(group)
        group.add(row, size, now)

    def _has_room_for(self, together: Together, size: int) -> bool:
        """Whether the journal of an empty spool could hold it at once, and again in parts."""
        most = self._settings.spool_bytes // 4
        if size * _PIECE_RATIO <= most:
            return True
        header = Header(self.state.epoch, self.state.nonce, self.state.next_seq)
        return len(encode_piece(Piece(header, 0, [row for row, _ in together.rows]))) <= most

    def _forgo(self, together: Together) -> None:
        """Give up what belongs together, comes next and can never be written so, by name. What was taken from other
        agents to make it was taken all the same."""
        kept = [(row, size) for row, size in together.rows if row[0] in NOTES]
        dropped = Dropped(EXCEEDS)
        for row, _ in together.rows:
            dropped.add(row)
        self.dropped += dropped.count
        self.free(sum([size for row, size in together.rows if row[0] not in NOTES]))
        self._taken.popleft()
        if kept:
            self._taken.appendleft((Together(kept), sum([size for _, size in kept])))
        self._taken.appendleft((dropped, 0))
        _LOG.error("%s agent=%s count=%d", EXCEEDS, self._agent, dropped.count)

    def _add_together(self, together: Together, size: int, now: float) -> None:
        group = self._group
        if group.is_full or not group.has_room(size):
            self._close(group)
        for row, held_bytes in together.rows:
            group.add(row, held_bytes, now)
            if row[0] is Kind.PROGRESS:
                self.free(held_bytes)
        self._is_whole = False

    def _tell_dropped(self, dropped: Dropped, now: float) -> None:
        """In a batch of its own: their numbers are used up when it is written, and not before, for as long as nobody
        names them a crash must leave them to the next start."""
        self._close(self._leaving)
        self._close(self._group)
        if not dropped.is_told:
            dropped.is_told = True
            self._group.add(self._gap_for(dropped), 0, now)
            self._close(self._group)

    def _gap_for(self, dropped: Dropped) -> Pending:
        """Records that were dropped, by name."""
        first = self.state.next_event
        lost = tuple(Lost(name, *numbers) for name, numbers in sorted(dropped.tuples.items()))
        events = (first, first + dropped.events - 1) if dropped.events else None
        return pending(Gap(dropped.reason, self.state.epoch, self.state.nonce, None, lost, events), self._packer)

    def _close(self, group: Group) -> None:
        """A group becomes a batch: two or more if it turns out too large for one."""
        if not self._is_whole:
            self._journal()  # what belongs together, before a batch takes a part of it
        if group is self._group:
            self._close(self._leaving)  # what is promised here, and the end, come after all that was said before them
        while group:
            if group is self._group:
                self._divide()
                self._append_ready()
                continue
            besides = self._group.rows[: self._journaled]
            self._leave(besides)
            self._append_ready()
            if besides and not group and self._spool.journal_is_roomy:
                self._close(self._group)  # what waits there was written again and again, and the journal is full of it

    def _divide(self) -> None:
        """The group as batches. The first makes obsolete what the journal has of all of them: what others hold of that
        is written again, each part for its own batch."""
        group, before = self._group, 0
        for ahead, part in enumerate(self._parts(group)):
            kept = part.rows[: max(0, self._journaled - before)]
            if ahead and kept:
                self._pieces.append((ahead, Piece(part.header, part.first_event, [*kept], before)))
            self._ready.append(_Batch(part.data, group, len(part.rows)))
            before += len(part.rows)

    def _leave(self, besides: Sequence[Pending]) -> None:
        """The next batch of what leaves at once. It makes the journal obsolete: what waits in the group besides is
        written again, for the batch after it."""
        part = next(self._parts(self._leaving))
        if besides:
            after = Header(part.header.epoch, part.header.nonce, part.header.next_seq)
            self._pieces.append((1, Piece(after, part.first_event + events_in(part.rows), [*besides])))
        self._ready.append(_Batch(part.data, self._leaving, len(part.rows)))

    def _parts(self, group: Group) -> Iterator[Part]:
        state = self.state
        header = Header(state.epoch, state.nonce, state.next_seq)
        rows, progress, batch_bytes = group.rows, group.progress(), self._settings.batch_bytes
        return divided(
            header, rows, progress, state.next_event, self._agent, batch_bytes, is_moderate=group.is_moderate
        )

    def _append_ready(self) -> None:
        """Once it is encoded a batch does not change any more, however often the spool refuses it: what is in the
        journal for the batch after it would not fit to another one."""
        if self._left:
            self._in_room(partial(self._spool.append_recovered, self._left))
            self._left = ()
        while self._pieces:
            ahead, piece = self._pieces[0]
            self._write_piece(piece, ahead)
            self._pieces.popleft()
        while self._ready:
            batch = self._ready[0]
            self._in_room(partial(self._spool.append, batch.data))
            self._ready.popleft()
            self._written(batch)
            if self._is_plan_unsafe:
                self._spool.sync(force=True)  # without it, nobody knows what becomes of all that follows
                self._is_plan_unsafe = False

    def _written(self, batch: _Batch) -> None:
        group, count = batch.group, batch.count
        self._note(group.rows[:count], group.progress() if count == len(group.rows) else [])
        freed = group.written(count, len(batch.data))
        if group is self._group:
            self._journaled = max(0, self._journaled - count)
        self.free(freed, is_written=True)

    def _in_room(self, write: Callable[[], object]) -> None:
        """Write something to the spool, for which the oldest batches go if need be."""
        while True:
            try:
                write()
                return
            except SpoolFull:
                self._give_up()

    def _give_up(self) -> None:
        """The spool is full: the oldest batches go, if that is what the user wants."""
        if self._settings.when_full != "drop-oldest":
            raise SpoolFull(f"the spool of {self._agent!r} is full")
        self.dropped += give_up_oldest(self._spool, self._agent, self._packer)
        self.given_up()

    def _note(self, rows: Sequence[Pending], progress: Sequence[Pending]) -> None:
        """What these records say of how far everything has come."""
        self._has_news = True
        state = self.state
        state.spool_next = self._spool.next
        state.next_seq += 1
        state.next_event += events_in(rows)
        for row in rows:
            if row[0] in NUMBERED:
                state.next_seqs[row[1].name] = row[2] + 1
            elif row[0] is Kind.PLAN:
                self.declared_by, self._is_plan_unsafe = state.next_seq, True
            elif row[0] is Kind.END:
                state.ended = True
            elif row[0] is Kind.GAP:
                state.pass_over(read_document(Gap, row[1]))
            elif row[0] is Kind.RECEIVED:
                received = read_document(Received, row[1])
                state.positions[f"{received.sender}/{received.stream}"] = [received.spool, received.next_seq]
        for row in progress:
            state.progress[row[1].name] = [row[2], row[3]]

    def _journal(self) -> None:
        """What is in no batch yet, so that a crash cannot take it away."""
        rows = self._group.rows[self._journaled :]
        if rows or self._group.progress():
            state = self.state
            header = Header(state.epoch, state.nonce, state.next_seq)
            first_event = state.next_event + events_in(self._group.rows[: self._journaled])
            self._write_piece(Piece(header, first_event, [*rows, *self._group.progress()]), 0)
            self._journaled = len(self._group.rows)
        self._is_whole = True

    def _write_piece(self, piece: Piece, ahead: int) -> None:
        self._in_room(partial(self._spool.journal, encode_piece(piece), self._spool.next + ahead))
