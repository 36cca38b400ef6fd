"""ANK-1 (Ananke, section 5.1), in buckets: vertices, edges and labels of the live forward-provenance graph.

A source tuple belongs to the bucket of its id, which knows whether its vertex is out and labels it once no sink can
name it any more. A sink tuple belongs to the bucket of its own id, which labels it when all its origins are out. Both
happen in one micro-batch for all buckets, and the store keeps its rows in the order K, S, E, L.

Nothing is ever told twice. While a sink tuple waits for some of its origins, what is known of the others is remembered:
two sent tuples may have come from the same source.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.chunks import OTHER_PARTS, SEQ_BITS, Numbers, pack
from protocol.graph import EdgeFlag, Reason, SinkFlag
from protocol.records import BEGINNING, END_OF_TIME
from spark_jobs.aside import Aside, Forgotten
from spark_jobs.chunks import Chunk, Kind, joined
from spark_jobs.fleet import ENDLESS, Fleet
from spark_jobs.limits import Limits
from spark_jobs.passing import Passing
from spark_jobs.shelf import Columns, Groups, Layout, Shelf, by_stream
from spark_jobs.split import read_control
from spark_jobs.state import State
from spark_jobs.waiting import Waiting, read_waiting

MOST_FRONTIERS = 100  # that are told: those of the sinks that are furthest behind
LEVEL = 0  # in its figures: those of MU have the numbers of their levels
_SOURCES = Layout(flat=2)  # id, ts
_PENDING = Layout(flat=6)  # sink, ts, references that are not settled, parts that have come, other parts, flags
_PAIRS = Layout(flat=4)  # sink, ts, source, whether the sink tuple is told in parts


class Ank:
    """The last stage."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets

    def run(self, state: State, bucket: int, chunks: Sequence[Chunk]) -> list[Chunk]:
        """What the store gets from one bucket in one micro-batch."""
        fleet = Fleet.load(state)
        controls = read_control(chunks)
        for control in controls:
            fleet.apply(control.shard, control.rows)
        fleet.drop_promises()
        work = _Work(state, bucket, fleet, read_waiting(chunks, self._buckets))
        work.passing.note(controls)
        work.sink_tuples(joined(chunks, Kind.SINK), joined(chunks, Kind.RESOLVED))
        edges = joined(chunks, Kind.EDGE)
        if edges is not None:
            work.edges(edges)
        late = joined(chunks, Kind.TOO_LATE)
        if late is not None:
            work.late(late)
        work.label_sources()
        work.forget_pairs()
        work.save()
        work.forget_streams()
        fleet.save(state)
        return [*(chunk for chunk in chunks if chunk.kind >= Kind.ROWS), *work.out]


class _Work:
    """One micro-batch in one bucket."""

    def __init__(self, state: State, bucket: int, fleet: Fleet, waiting: Waiting) -> None:
        self._state, self._bucket, self._fleet, self._waiting = state, bucket, fleet, waiting
        self._frontiers = fleet.frontiers(waiting)
        self._sources = Shelf(state, "sources", _SOURCES, time=1, groups=by_stream)
        self._pending = Shelf(state, "pending", _PENDING, time=1, groups=_of_pending)
        self._pairs = Shelf(state, "pairs", _PAIRS, time=1, groups=by_stream)
        self._labelled = Limits(state, "labelled")
        self._aside = Aside(state)
        self.passing = Passing(state, fleet)
        self._told_latest = BEGINNING  # of the sink tuples that are told now
        self.out: list[Chunk] = []

    def _tell(self, kind: Kind, *columns: NDArray[np.generic]) -> None:
        if len(columns[0]):
            self.out.append(Chunk(kind, self._bucket, pack(columns)))

    # Sink tuples

    def sink_tuples(self, told: Columns | None, resolved: Columns | None) -> None:
        """New sink tuples, and what became of the references of these and of older ones."""
        rows: list[Columns] = []
        if told is not None:
            ids, times, references, part = told
            self._told_latest = int(times[times < ENDLESS].max(initial=BEGINNING))
            one, nothing = np.ones(len(ids), "<i8"), np.zeros(len(ids), "<i8")
            rows.append([ids, times, references, one, (part & OTHER_PARTS).astype("<i8"), nothing])
        if resolved is not None:
            ids, times, changes, flags = resolved
            nothing = np.zeros(len(ids), "<i8")
            rows.append([ids, times, changes, nothing, nothing, flags.astype("<i8")])
        known: list[Numbers] = [np.empty(0, "<i8")]
        for slot in self._slots_of_pending(rows):
            pending = self._pending.read(slot)
            if pending is not None:
                rows.append(pending)
                known.append(pending[0])
                self._pending.replace(slot, [column[:0] for column in pending])
        if rows:
            self._settle(_PENDING.concat(rows), np.concatenate(known))

    def _slots_of_pending(self, rows: list[Columns]) -> list[int]:
        """Where something has changed, or parts that have not come will never come."""
        index = self._pending.index
        streams, which = np.unique(index.first, return_inverse=True)
        watermarks = np.array([self._fleet.watermark(each) for each in streams.tolist()], "<i8")
        overdue = (index.second != 0) & (index.low < watermarks[which]) if len(streams) else np.zeros(0, bool)
        slots = set(self._pending.slots_where(overdue))
        for columns in rows:
            slots.update(np.unique(self._pending.slots_of(columns[1])).tolist())
        return sorted(slots)

    def _settle(self, rows: Columns, known: Numbers) -> None:
        """Sum up what is said of each sink tuple: it is complete if no reference and no part is left."""
        order = np.argsort(rows[0], kind="stable")
        ids, times, references, parts, others, flags = (column[order] for column in rows)
        begins = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
        ids, times = ids[begins], times[begins]
        references = np.add.reduceat(references, begins)
        parts = np.add.reduceat(parts, begins)
        others = np.maximum.reduceat(others, begins)
        flags = np.bitwise_or.reduceat(flags, begins)
        is_new = ~np.isin(ids, known)
        self._tell(Kind.NEW_SINK, ids[is_new], times[is_new])
        streams, which = np.unique(ids >> SEQ_BITS, return_inverse=True)
        watermarks = np.array([self._fleet.watermark(each) for each in streams.tolist()], "<i8")
        is_whole = parts == others + 1
        is_cut = ~is_whole & (times < watermarks[which])
        flags = np.where(is_cut, flags | SinkFlag.INCOMPLETE, flags)
        is_complete = (references == 0) & (is_whole | is_cut)
        self._tell(Kind.SINK_LABEL, ids[is_complete], flags[is_complete].astype("u1"))
        left = np.flatnonzero(~is_complete)
        if len(left):
            self._pending.add([column[left] for column in (ids, times, references, parts, others, flags)])

    # Edges

    def edges(self, edges: Columns) -> None:
        """Pairs of a sink tuple and a source tuple, some of them perhaps twice."""
        sinks, _, sources, times, _, flags = self._news(edges)
        streams = sources >> SEQ_BITS
        self._recall(streams)
        is_late = times < self._labelled.of(streams)
        if is_late.any():
            reasons = np.full(int(is_late.sum()), Reason.AFTER_LABEL, "u1")
            self._tell(Kind.LATE, sinks[is_late], sources[is_late], times[is_late], reasons)
            in_time = ~is_late
            sinks, sources, times, flags = (column[in_time] for column in (sinks, sources, times, flags))
        self._new_sources(sources, times, flags)
        self._tell(Kind.NEW_EDGE, sinks, sources, flags)

    def late(self, pairs: Columns) -> None:
        """Pairs of a sink tuple and a sent tuple that was let go of, some of them perhaps twice."""
        sinks, _, origins, times, _ = self._news(pairs)
        self._tell(Kind.LATE, sinks, origins, times, np.full(len(sinks), Reason.PURGED, "u1"))

    def _news(self, pairs: Columns) -> Columns:
        """Those that are not out yet, each once. From now on they are."""
        pairs = _once(pairs)
        sinks, sink_times, sources, *_ = pairs
        is_new = ~self._is_told(sinks, sink_times, sources)
        if not is_new.all():
            pairs = [column[is_new] for column in pairs]
        sinks, sink_times, sources, _, parts, *_ = pairs
        self._remember(sinks, sink_times, sources, parts)
        return pairs

    def _recall(self, streams: Numbers) -> None:
        """Know the streams again that were forgotten and are named after all."""
        for number in np.unique(streams[self._fleet.gone.contain(streams)]).tolist():
            stream, limit = self._aside.get(number)
            self._fleet.recall(number, stream)
            self._labelled.rise(number, limit)

    def _is_told(self, sinks: Numbers, sink_times: Numbers, sources: Numbers) -> NDArray[np.bool_]:
        """Which pairs are out already."""
        told = np.zeros(len(sinks), bool)
        if len(self._pairs.index.low):
            slots = self._pairs.slots_of(sink_times)
            for slot in np.unique(slots).tolist():
                pairs = self._pairs.read(slot)
                if pairs is not None:
                    rows = np.flatnonzero(slots == slot)
                    told_sinks, _, told_sources, _ = pairs
                    told[rows] = _contains(told_sinks, told_sources, sinks[rows], sources[rows])
        return told

    def _remember(self, sinks: Numbers, sink_times: Numbers, sources: Numbers, parts: NDArray[np.uint8]) -> None:
        """Keep the pairs of sink tuples of which more will come."""
        streams, which = np.unique(sinks >> SEQ_BITS, return_inverse=True)
        oldest = np.array([self._waiting.oldest.get(each, END_OF_TIME) for each in streams.tolist()], "<i8")
        chosen = (parts != 0) | (sink_times >= oldest[which]) if len(streams) else np.zeros(0, bool)
        if chosen.any():
            self._pairs.add([column[chosen] for column in (sinks, sink_times, sources, parts)])

    def forget_pairs(self) -> None:
        """Let go of the pairs of sink tuples of which nothing more will come."""
        index = self._pairs.index
        if not len(index.low):
            return
        streams, which = np.unique(index.first, return_inverse=True)
        waiting = np.array([self._waiting.oldest.get(each, END_OF_TIME) for each in streams.tolist()], "<i8")
        watermarks = np.array([self._fleet.watermark(each) for each in streams.tolist()], "<i8")
        for slot in self._pairs.slots_where(index.low < waiting[which]):
            pairs = self._pairs.read(slot)
            if pairs is None:
                continue
            sinks, sink_times, _, parts = pairs
            of = sinks >> SEQ_BITS
            at = np.minimum(np.searchsorted(streams, of), len(streams) - 1)
            is_known = streams[at] == of
            gone = is_known & (sink_times < waiting[at]) & ((parts == 0) | (sink_times < watermarks[at]))
            if gone.any():
                self._pairs.replace(slot, _PAIRS.take(pairs, np.flatnonzero(~gone)))

    # Source tuples

    def _new_sources(self, sources: Numbers, times: Numbers, flags: NDArray[np.uint8]) -> None:
        """Tell the vertices that are not out yet."""
        ids, first = np.unique(sources, return_index=True)
        times, sent = times[first], flags[first] & EdgeFlag.TOO_DEEP
        slots = self._sources.slots_of(times)
        is_new = np.ones(len(ids), bool)
        for slot in np.unique(slots).tolist():
            live = self._sources.read(slot)
            if live is not None:
                rows = np.flatnonzero(slots == slot)
                at = np.minimum(np.searchsorted(live[0], ids[rows]), len(live[0]) - 1)
                is_new[rows] = live[0][at] != ids[rows]
        if is_new.any():
            self._sources.add([ids[is_new], times[is_new]])
        self._tell(Kind.NEW_SOURCE, ids[is_new], times[is_new], sent[is_new].astype("u1"))

    def label_sources(self) -> None:
        """Label the sources that no sink can name any more."""
        index = self._sources.index
        bounds = self._bounds(index.first)
        for slot in self._sources.slots_where(index.low < bounds):
            live = self._sources.read(slot)
            if live is None:
                continue
            ids, times = live
            expired = times < self._bounds(ids >> SEQ_BITS)
            if expired.any():
                self._tell(Kind.SOURCE_LABEL, ids[expired])
                self._sources.replace(slot, _SOURCES.take(live, np.flatnonzero(~expired)))
                self._mark_labelled(ids[expired] >> SEQ_BITS, times[expired])

    def _bounds(self, streams: Numbers) -> Numbers:
        numbers, which = np.unique(streams, return_inverse=True)
        return self._frontiers.of(numbers)[which]

    def _mark_labelled(self, streams: Numbers, times: Numbers) -> None:
        """What names a source before this from now on is late. A bound that is no time says nothing of what is to
        come: an agent that was given up may return."""
        for number in np.unique(streams).tolist():
            bound = self._frontiers.bound(number)
            below = bound if bound < END_OF_TIME else int(times[streams == number].max()) + 1
            self._labelled.rise(number, below)

    # The end of the micro-batch

    def save(self) -> None:
        """Keep everything, and tell how much that is."""
        shelves = (self._sources, self._pending, self._pairs)
        for shelf in shelves:
            shelf.save()
        for number in self._labelled.streams:
            bound = self._frontiers.bound(number)
            if bound < END_OF_TIME:
                self._labelled.rise(number, bound)
        self._tell(Kind.STAMP, np.array([self._stamp()], "<i8"))
        kept = [LEVEL, *map(len, shelves), sum(shelf.bytes for shelf in shelves)]
        self._tell(Kind.FIGURES, np.array(kept, "<i8"))
        if self._bucket == 0:
            behind = sorted((reached, *sink) for sink, reached in self._frontiers.sinks.items())[:MOST_FRONTIERS]
            self.out.append(Chunk(Kind.FRONTIERS, 0, json.dumps(behind).encode()))

    def forget_streams(self) -> None:
        """Forget the names of streams of which nothing is left and that, as far as the log says, no sink will name."""
        indexes = [shelf.index.first for shelf in (self._sources, self._pending, self._pairs)]
        left = {*self._waiting.oldest, *np.unique(np.concatenate(indexes)).tolist()}
        frontiers = self._frontiers
        gone = self._fleet.forget(lambda each: each not in left and self.passing.has_passed(each, frontiers))
        self._aside.put({number: Forgotten(stream, self._labelled.get(number)) for number, stream in gone.items()})
        self._labelled.forget(gone)
        self._labelled.save()
        self.passing.save(gone)

    def _stamp(self) -> int:
        """How far the sinks have come that have said anything, never back. If all have ended, what they have told."""
        told = [reached for reached in self._frontiers.sinks.values() if BEGINNING < reached < ENDLESS]
        before = self._state.get("stamp", 0)
        last = BEGINNING if before is None else int(np.frombuffer(before, "<i8")[0])
        stamp = max(last, min(told, default=self._told_latest))
        if stamp > last:
            self._state.put("stamp", 0, np.array([stamp], "<i8").tobytes())
        return stamp


def _once(edges: Columns) -> Columns:
    """Each pair once, by source and sink."""
    sinks, _, sources, *_ = edges
    order = np.lexsort((sinks, sources))
    sinks, sources = sinks[order], sources[order]
    is_first = np.r_[True, (sinks[1:] != sinks[:-1]) | (sources[1:] != sources[:-1])]
    return [column[order[is_first]] for column in edges]


def _contains(sinks: Numbers, sources: Numbers, wanted_sinks: Numbers, wanted_sources: Numbers) -> NDArray[np.bool_]:
    """Which of the wanted pairs are among the pairs."""
    pairs = np.empty(len(sinks) + len(wanted_sinks), [("sink", "<i8"), ("source", "<i8")])
    pairs["sink"], pairs["source"] = np.r_[sinks, wanted_sinks], np.r_[sources, wanted_sources]
    _, which = np.unique(pairs, return_inverse=True)
    return np.isin(which[len(sinks) :], which[: len(sinks)])


def _of_pending(columns: Columns) -> Groups:
    """The second stream is no stream: 1 if there are more parts to come."""
    sinks, times, _, parts, others, _ = columns
    nothing = np.zeros(len(sinks), "<i8")
    return Groups(sinks >> SEQ_BITS, (parts <= others).astype("<i8"), times, nothing, nothing)
