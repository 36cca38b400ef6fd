"""Was anything lost? All that the devices said, against what is in the log and in the graph.

Of every device the log must hold each result, reading and event once and in order, and as many origins in all; the
graph must hold each result, as many origins in all, and each task from its begin to its end. What is missing is lost,
also if a Gap names it: the Gap only says why. Only if a device has not sent everything yet, and gave up nothing, it may
still be there. What it could not write is gone with its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collector.log import FIRST, LogReader, Position, SegmentRemoved
from collector.store import StoreReader, open_store
from protocol.chunks import SEQ_BITS, Numbers, read_deliveries, read_sources
from protocol.ids import StreamId
from protocol.records import Gap
from protocol.row import Row
from protocol.wire.columns import Reader
from protocol.wire.sections import Kind, decode_section
from threadline.load.fleet import DeviceEnd
from threadline.load.profiles import RESULTS, Said, total

LOG, GRAPH = "log", "graph"
"""Where it is looked for losses."""
Start = tuple[str, int]
"""Of an agent: its name and nonce."""
_NO_KEY = -1


@dataclass(frozen=True, slots=True)
class Loss:
    """So much of what a device said is not where it should be."""

    agent: str
    where: str
    what: str
    said: int
    found: int
    gaps: tuple[str, ...] = ()
    left: int = 0
    """Batches that the device still has."""
    unwritten: int = 0
    dropped: int = 0
    """Records of the device that are gone, as in `DeviceEnd`."""

    @property
    def may_arrive(self) -> bool:
        """Whether it is with the device, as far as one can tell."""
        is_gone = bool(self.gaps or self.unwritten or self.dropped)
        return bool(self.left) and not is_gone and self.found < self.said

    def __str__(self) -> str:
        text = f"{self.agent}: {self.found} of {self.said} {self.what} are in the {self.where}"
        notes = list(self.gaps)
        if self.left:
            notes.append(f"it still has {self.left} batches")
        if self.dropped and not self.gaps:  # their names are in a Gap that has not come
            notes.append(f"it gave up {self.dropped} records")
        if self.unwritten:
            notes.append(f"{self.unwritten} records could not be written")
        return f"{text} ({'; '.join(notes)})" if notes else text


@dataclass(slots=True)
class Held:
    """What the log has of one start of an agent."""

    said: Said = field(default_factory=Said)
    gaps: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    _next: dict[str, int] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """What a row of the log tells."""
        match row.kind:
            case Kind.SOURCE:
                ids = read_sources(row.data).id
                self._follow("readings", ids)
                self.said.readings += len(ids)
            case Kind.DELIVERY:
                chunk = read_deliveries(row.data)
                self._follow("results", chunk.id)
                self.said.results += len(chunk.id)
                self.said.origins += int(chunk.count.sum())
            case Kind.EVENT:
                reader = Reader(row.data)
                count, first = reader.varint(), reader.varint()
                self._in_order("events", first, first + count)
                self.said.events += count
            case Kind.GAP:
                gaps = decode_section(Kind.GAP, row.data, StreamId(row.agent, 0, "", row.nonce))
                assert isinstance(gaps, list)
                self.gaps += [_told(each) for each in gaps if isinstance(each, Gap)]

    def _follow(self, what: str, ids: Numbers) -> None:
        seqs = ids & (1 << SEQ_BITS) - 1
        if len(seqs) > 1 and bool((seqs[1:] - seqs[:-1] != 1).any()):
            self.disorder.append(f"{what} {int(seqs[0])} to {int(seqs[-1])} are not one after the other")
        self._in_order(what, int(seqs[0]), int(seqs[-1]) + 1)

    def _in_order(self, what: str, first: int, end: int) -> None:
        """What is missing is seen by its number; what comes twice or too early is a defect."""
        if first < self._next.get(what, 0):
            self.disorder.append(f"{what} from {first} on come again behind {self._next[what] - 1}")
        self._next[what] = end


def _told(gap: Gap) -> str:
    parts = [f"Gap: {gap.reason}"]
    if gap.batches is not None:
        parts.append(f"batches {gap.batches[0]} to {gap.batches[1]}")
    parts += [f"{each.name} {each.first} to {each.last}" for each in gap.tuples]
    if gap.events is not None:
        parts.append(f"events {gap.events[0]} to {gap.events[1]}")
    return ", ".join(parts)


def log_ends(folder: Path) -> dict[int, Position]:
    """Where each shard of the log ends now."""
    reader = LogReader(folder)
    return {shard: reader.end(shard) for shard in reader.shards()}


def held_by_log(folder: Path, begins: Mapping[int, Position], starts: Iterable[Start]) -> dict[Start, Held]:
    """What the log has of each of them, behind these places: SegmentRemoved if not all of that is there any more."""
    found = {start: Held() for start in starts}
    reader = LogReader(folder)
    for shard in reader.shards():
        for row in reader.rows(shard, begins.get(shard, FIRST), reader.end(shard)):
            held = found.get((row.agent, row.nonce))
            if held is not None:
                held.add(row)
    return found


def unreadable(where: str, ends: Sequence[DeviceEnd], error: Exception) -> Loss:
    """Nobody can say what has arrived, so all of it counts as lost."""
    said = total(end.said for end in ends)
    why = f"it cannot be read: {error}"
    if isinstance(error, SegmentRemoved):
        why += "; let nobody remove segments (--remove-segments-after) while devices are counted"
    return Loss("all devices", where, "records", said.results + said.readings + said.events, 0, (why,))


def lost_before_log(ends: Sequence[DeviceEnd], held: dict[Start, Held]) -> Iterator[Loss]:
    """What devices said and the log does not hold, or holds more than once."""
    for end in ends:
        of_log = held[end.agent, end.nonce]
        for what in ("results", "origins", "readings", "events"):
            said, found = getattr(end.said, what), getattr(of_log.said, what)
            if said != found:
                gaps = tuple(of_log.gaps)
                yield Loss(end.agent, LOG, what, said, found, gaps, end.left, end.unwritten, end.dropped)
        for text in of_log.disorder:
            yield Loss(end.agent, "log in order", "records", 1, 0, (text,))


def lost_before_graph(ends: Sequence[DeviceEnd], store: str) -> Iterator[Loss]:
    """What devices said and the graph does not hold."""
    with StoreReader(open_store(store).path) as reader, reader.moment():
        found = held_by_store(reader, ends)
    for end in ends:
        results, origins, begun, ended = found[end.agent, end.nonce]
        for what, said, held in (
            ("results", end.said.results, results),
            ("origins", end.said.origins, origins),
            ("begins of tasks", end.said.tasks, begun),
            ("ends of tasks", end.said.tasks, ended),
        ):
            if said != held:
                yield Loss(end.agent, GRAPH, what, said, held, (), end.left, end.unwritten, end.dropped)


def held_by_store(reader: StoreReader, ends: Sequence[DeviceEnd]) -> dict[Start, tuple[int, int, int, int]]:
    """Results, their origins, tasks that have begun, and those that have ended, of each device."""
    wanted = {(end.agent, end.nonce): end for end in ends}
    streams = {
        stream.number: (stream.agent, stream.nonce)
        for stream in reader.streams(name=RESULTS)
        if (stream.agent, stream.nonce) in wanted
    }
    earliest, latest = reader.times(streams, None)
    counts = dict.fromkeys(wanted, (0, 0))
    if earliest is not None and latest is not None and streams:
        for slot in reader.count_sinks(earliest, latest, latest - earliest + 1, streams):
            counts[streams[slot.stream]] = slot.sinks, slot.origins
    found: dict[Start, tuple[int, int, int, int]] = {}
    for start, end in wanted.items():
        tasks = reader.tasks_after(*start, _NO_KEY) if end.said.tasks else []
        found[start] = *counts[start], len(tasks), sum(ended is not None for _, _, ended in tasks)
    return found
