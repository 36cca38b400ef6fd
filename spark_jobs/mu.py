"""MU: replaces references to sent tuples by what those came from (GeneaLog, section 6), one level of agents per stage.

A sink tuple k refers to d, which another agent has sent; d came from a and b: so k came from a and b. If these are
tuples of sources, they are edges of the graph. If they were sent themselves, the next stage goes on with them.

Agents are not in step. A reference waits for its delivery as long as need be, and meanwhile its sink counts as being no
further than the sink tuple that waits. A delivery is kept until no sink can refer to it any more (purge).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.chunks import OTHER_PARTS, SEQ_BITS, Numbers, pack
from protocol.graph import EdgeFlag, SinkFlag
from protocol.records import BEGINNING, END_OF_TIME
from spark_jobs.chunks import Chunk, Kind, by_bucket, joined
from spark_jobs.fleet import Fleet, Frontiers
from spark_jobs.limits import Limits
from spark_jobs.passing import Passing
from spark_jobs.shelf import Columns, Groups, Layout, Shelf, by_stream, spans
from spark_jobs.split import SENT, read_control
from spark_jobs.state import State
from spark_jobs.waiting import Waiting, read_waiting

_REFERENCES = Layout(flat=6)
_SINK, _SINK_TS, _SENT, _SENT_TS, _PARTS, _PROMISE = range(6)
_IN_PARTS, _TOO_LATE = 1, 2  # in its column: told in parts; what it refers to may have been let go of
_PASSING = (Kind.CONTROL, Kind.EDGE, Kind.SINK, Kind.RESOLVED, Kind.TOO_LATE)


class Mu:
    """One stage, for chains that have `level` Sends before the sink."""

    def __init__(self, level: int, levels: int, buckets: int) -> None:
        self._level, self._levels, self._buckets = level, levels, buckets

    def run(self, state: State, bucket: int, chunks: Sequence[Chunk]) -> list[Chunk]:
        """What the next stage gets from one bucket in one micro-batch."""
        fleet = Fleet.load(state)
        references = joined(chunks, Kind.REFERENCE)
        if references is not None and self._level == 1:
            references.append(fleet.promised(references[_SINK] >> SEQ_BITS))
        controls = read_control(chunks)
        for control in controls:
            fleet.apply(control.shard, control.rows)
        fleet.drop_promises()
        # References of the first stage come right from the log, and what sinks have promised there covers them.
        before = read_waiting(chunks, self._buckets if self._level > 1 else 0)
        work = _Work(self, state, fleet, fleet.frontiers(before))
        work.passing.note(controls)
        sent = joined(chunks, Kind.SENT)
        if sent is not None:
            work.keep(sent)
        work.resolve(work.due(None if sent is None else sent[1]), references)
        work.purge()
        waiting = work.save()
        work.forget_streams(before)
        fleet.save(state)
        for sink, hold in before.hold.items():
            waiting.add(sink, hold, before.oldest[sink])
        told = waiting.packed()
        passing = _PASSING if self.is_last else (*_PASSING, Kind.SENT)
        out = [chunk for chunk in chunks if chunk.kind in passing or chunk.kind >= Kind.ROWS]
        out += work.out()
        out += [Chunk(Kind.WAITING, each, told) for each in range(self._buckets)]
        out.append(Chunk(Kind.FIGURES, bucket, pack([np.array([self._level, *work.figures()], "<i8")])))
        return out

    @property
    def is_last(self) -> bool:
        return self._level == self._levels

    @property
    def buckets(self) -> int:
        return self._buckets


class _Work:
    """One micro-batch in one bucket."""

    def __init__(self, stage: Mu, state: State, fleet: Fleet, frontiers: Frontiers) -> None:
        self._stage, self._state, self._fleet, self._frontiers = stage, state, fleet, frontiers
        self._deliveries = Shelf(state, "sent", SENT, time=1, groups=by_stream)
        self._waiting = Shelf(state, "waiting", _REFERENCES, time=_SENT_TS, groups=_of_references, order=_SENT)
        self._purged = Limits(state, "purged")
        self.passing = Passing(state, fleet)
        self._told: dict[Kind, list[Columns]] = {}

    # Deliveries

    def keep(self, sent: Columns) -> None:
        """Keep deliveries. Every stage keeps all of them: tomorrow's plans may have longer ways than today's."""
        self._deliveries.add(sent)

    def _let_go(self, streams: Numbers, times: Numbers) -> None:
        """From now on, what refers to these, or to older ones, is late."""
        for number in np.unique(streams).tolist():
            below = int(times[streams == number].max()) + 1
            self._purged.rise(number, below)

    def purge(self) -> None:
        """Let go of the deliveries to which no sink can refer any more."""
        index = self._deliveries.index
        streams = np.unique(np.concatenate([index.first, *self._changed_streams()]))
        bounds = {stream: self._frontiers.bound(stream) for stream in streams.tolist()}
        bound_of = np.array([bounds[each] for each in index.first.tolist()], "<i8")
        for slot in self._deliveries.slots_where(index.low < bound_of):
            rows = self._deliveries.read(slot)
            if rows is None:
                continue
            of = rows[0] >> SEQ_BITS
            numbers, which = np.unique(of, return_inverse=True)
            gone = rows[1] < np.array([bounds[each] for each in numbers.tolist()], "<i8")[which]
            watermarks = np.array([self._fleet.watermark(each) for each in numbers.tolist()], "<i8")
            gone &= _is_whole(rows, rows[0]) | (rows[1] < watermarks[which])  # or else the rest would be taken for all
            if gone.any():
                self._let_go(of[gone], rows[1][gone])
                self._deliveries.replace(slot, SENT.take(rows, np.flatnonzero(~gone)))
        for number, bound in bounds.items():
            if BEGINNING < bound < END_OF_TIME:
                self._purged.rise(number, bound)

    def _changed_streams(self) -> list[Numbers]:
        nothing = np.zeros(len(self._deliveries.index.low), bool)
        loaded = [self._deliveries.read(slot) for slot in self._deliveries.slots_where(nothing)]
        return [rows[0] >> SEQ_BITS for rows in loaded if rows is not None]

    # References

    def due(self, arrived: Numbers | None) -> list[Columns]:
        """References that have waited and for which something has changed."""
        index, fleet = self._waiting.index, self._fleet
        if not len(index.low):
            return []
        streams, which = np.unique(index.first, return_inverse=True)
        passed = [fleet.watermark(each) for each in streams.tolist()]
        is_lost = [each in fleet.newly_lost for each in streams.tolist()]
        slots = {*self._waiting.slots_where((index.low < np.array(passed, "<i8")[which]) | np.array(is_lost)[which])}
        if arrived is not None:
            slots.update(np.unique(self._waiting.slots_of(arrived)).tolist())
        found: list[Columns] = []
        for slot in sorted(slots):
            rows = self._waiting.read(slot)
            if rows is not None:
                found.append(rows)
                self._waiting.replace(slot, [column[:0] for column in rows])
        return found

    def resolve(self, due: list[Columns], new: Columns | None) -> None:
        """Settle references, or let them wait."""
        tables = [*due, self._marked(new)] if new is not None else due
        if not tables:
            return
        references = _REFERENCES.concat(tables)
        slots = self._deliveries.slots_of(references[_SENT_TS])
        missing: list[NDArray[Any]] = []
        for slot in np.unique(slots).tolist():
            rows = np.flatnonzero(slots == slot)
            deliveries = self._deliveries.read(slot)
            missing.append(rows if deliveries is None else self._match(references, rows, deliveries))
        self._settle_missing(_REFERENCES.take(references, np.concatenate(missing)))

    def _marked(self, references: Columns) -> Columns:
        """Mark the references that come too late for deliveries that may have been let go of. Those that have waited do
        not: nothing is let go of that they would have found."""
        is_late = references[_SENT_TS] < self._purged.of(references[_SENT] >> SEQ_BITS, self._fleet.gone)
        marks = np.where(is_late, np.uint8(_TOO_LATE), np.uint8(0))
        return [*references[:_PARTS], references[_PARTS] | marks, references[_PROMISE]]

    def _match(self, references: Columns, rows: Numbers, deliveries: Columns) -> Numbers:
        """Unfold the references whose deliveries are here as a whole; returns the others."""
        wanted = references[_SENT][rows]
        first, last = np.searchsorted(deliveries[0], wanted), np.searchsorted(deliveries[0], wanted, "right")
        is_whole = _is_whole(deliveries, wanted)
        self._unfold(_REFERENCES.take(references, rows[is_whole]), deliveries, first[is_whole], last[is_whole])
        rest: Numbers = rows[~is_whole]
        return rest

    def _unfold(self, references: Columns, deliveries: Columns, first: Numbers, last: Numbers, flag: int = 0) -> None:
        """References to the parts `first` to `last` of deliveries: tell the origins instead."""
        if not len(first):
            return
        ends = np.r_[0, np.cumsum(deliveries[3])]
        counts = ends[last] - ends[first]
        places = spans(ends[first], counts)
        which = np.repeat(np.arange(len(first)), counts)
        origins, times, remote = (column[places] for column in deliveries[4:])
        is_remote = remote == 1
        sinks, sink_times = references[_SINK][which], references[_SINK_TS][which]
        parts = references[_PARTS][which] & _IN_PARTS
        changes = np.full(len(first), -1, "<i8")
        edges = [sinks, sink_times, origins, times, parts, np.zeros(len(which), "u1")]
        if is_remote.any() and self._stage.is_last:
            edges[5] = np.where(is_remote, np.uint8(EdgeFlag.TOO_DEEP), np.uint8(0))
        elif is_remote.any():
            promises = references[_PROMISE][which]
            self._tell(Kind.REFERENCE, [column[is_remote] for column in (*edges[:_PROMISE], promises)])
            changes += np.bincount(which[is_remote], minlength=len(first))
            edges = [column[~is_remote] for column in edges]
        self._tell(Kind.EDGE, edges)
        self._settled(references, changes, flag)

    def _settled(self, references: Columns, changes: Numbers, flag: int = 0) -> None:
        """So many references of sink tuples are settled."""
        flags = np.full(len(changes), flag, "u1")
        self._tell(Kind.RESOLVED, [references[_SINK], references[_SINK_TS], changes, flags])

    def _settle_missing(self, references: Columns) -> None:
        """References whose deliveries are not here: they wait, unless it is known that these will not come."""
        if not len(references[0]):
            return
        streams, which = np.unique(references[_SENT] >> SEQ_BITS, return_inverse=True)
        watermarks = np.array([self._fleet.watermark(each) for each in streams.tolist()], "<i8")
        has_passed = references[_SENT_TS] < watermarks[which]
        is_named = np.zeros(len(has_passed), bool)
        seqs = references[_SENT] & (1 << SEQ_BITS) - 1
        for place, number in enumerate(streams.tolist()):
            is_named |= (which == place) & self._fleet.lost(number).contain(seqs)
        is_late = has_passed & ~is_named & (references[_PARTS] & _TOO_LATE != 0)
        is_lost = (has_passed | is_named) & ~is_late
        if is_late.any():
            self._give_up_late(_REFERENCES.take(references, np.flatnonzero(is_late)))
        if is_lost.any():
            self._give_up_lost(_REFERENCES.take(references, np.flatnonzero(is_lost)))
        waits = ~is_late & ~is_lost
        if waits.any():
            self._waiting.add(_REFERENCES.take(references, np.flatnonzero(waits)))

    def _give_up_late(self, references: Columns) -> None:
        self._tell(Kind.TOO_LATE, [*references[:_PARTS], references[_PARTS] & _IN_PARTS])
        self._settled(references, np.full(len(references[_SINK]), -1, "<i8"))

    def _give_up_lost(self, references: Columns) -> None:
        """Of what was told in parts, some may have come before the rest was lost."""
        sinks, _, origins, times, _, _ = references
        self._tell(Kind.LOST, [sinks, origins])
        slots = self._deliveries.slots_of(times)
        is_settled = np.zeros(len(sinks), bool)
        for slot in np.unique(slots).tolist():
            deliveries = self._deliveries.read(slot)
            if deliveries is not None:
                rows = np.flatnonzero(slots == slot)
                first = np.searchsorted(deliveries[0], origins[rows])
                last = np.searchsorted(deliveries[0], origins[rows], "right")
                found = last > first
                some = _REFERENCES.take(references, rows[found])
                self._unfold(some, deliveries, first[found], last[found], SinkFlag.INCOMPLETE)
                is_settled[rows[found]] = True
        rest = _REFERENCES.take(references, np.flatnonzero(~is_settled))
        if len(rest[0]):
            self._settled(rest, np.full(len(rest[0]), -1, "<i8"), SinkFlag.INCOMPLETE)

    # The end of the micro-batch

    def _tell(self, kind: Kind, columns: Columns) -> None:
        self._told.setdefault(kind, []).append(columns)

    def out(self) -> Iterator[Chunk]:
        """What was found out, for the buckets that it concerns."""
        for kind, tables in self._told.items():
            columns = [np.concatenate(column) for column in zip(*tables, strict=True)]
            if kind == Kind.RESOLVED:
                columns = _summed(columns)
            by = columns[_SENT] if kind in (Kind.REFERENCE, Kind.EDGE, Kind.TOO_LATE) else columns[_SINK]
            yield from by_bucket(kind, by, columns, self._stage.buckets)

    def save(self) -> Waiting:
        """Keep everything; returns what waits.

        As long as sink K waits for d, which Send D delivers, K may yet come to name what d came from, and so it counts
        as being only so far that none of that expires. d came from nothing older than d.ts - U(S, D) of a source S, and
        S expires before W(K) - U(S, K), where U(S, K) >= U(S, D) + U(D, K): W(K) = d.ts + U(D, K) is low enough. Behind
        a length window, d may be made of older tuples, but of none that D, or K before it had named d, had promised to
        be done with."""
        self._deliveries.save()
        self._waiting.save()
        waiting, index, fleet = Waiting(), self._waiting.index.lowest(), self._fleet
        for sent, sink, low, oldest, promise in zip(*(column.tolist() for column in index), strict=True):
            if fleet.is_retired(sent):  # what comes of it after all is late
                waiting.add(sink, END_OF_TIME, oldest)
                continue
            delay = fleet.delay(sent, sink)
            if fleet.is_unbounded(sent):  # it may come from tuples of any age that were not promised to be gone
                bound = max(promise, fleet.reached(sent) + delay)
            else:
                bound = low + delay
            waiting.add(sink, min(oldest, bound), oldest)
        return waiting

    def forget_streams(self, before: Waiting) -> None:
        """Forget the names of streams that have passed and of which nothing is left here: what refers to them is late
        or lost."""
        index = self._waiting.index
        left = {*before.oldest, *np.unique(np.r_[self._deliveries.index.first, index.first, index.second]).tolist()}
        frontiers = self._frontiers
        gone = self._fleet.forget(lambda each: each not in left and self.passing.has_passed(each, frontiers))
        self.passing.save(gone)
        self._purged.set_aside([each for each in self._purged.streams if each in self._fleet.gone])
        self._purged.save()

    def figures(self) -> tuple[int, int, int]:
        """How many deliveries are kept and how many references wait, and the bytes of both."""
        return len(self._deliveries), len(self._waiting), self._deliveries.bytes + self._waiting.bytes


def _is_whole(deliveries: Columns, wanted: Numbers) -> NDArray[np.bool_]:
    """Of ids, whether all parts of them are among the deliveries."""
    first, last = np.searchsorted(deliveries[0], wanted), np.searchsorted(deliveries[0], wanted, "right")
    others = deliveries[2][np.maximum(last, 1) - 1] & OTHER_PARTS
    is_whole: NDArray[np.bool_] = last - first == others + 1
    return is_whole


def _summed(resolved: Columns) -> Columns:
    """One row per sink tuple of which something has changed."""
    sinks, first, which = np.unique(resolved[0], return_index=True, return_inverse=True)
    changes = np.zeros(len(sinks), "<i8")
    flags = np.zeros(len(sinks), "u1")
    np.add.at(changes, which, resolved[2])
    np.bitwise_or.at(flags, which, resolved[3])
    is_news = (changes != 0) | (flags != 0)
    return [column[is_news] for column in (sinks, resolved[1][first], changes, flags)]


def _of_references(columns: Columns) -> Groups:
    sent, sinks = columns[_SENT] >> SEQ_BITS, columns[_SINK] >> SEQ_BITS
    return Groups(sent, sinks, columns[_SENT_TS], columns[_SINK_TS], columns[_PROMISE])
