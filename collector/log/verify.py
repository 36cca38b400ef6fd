"""Reads a whole log and says what is wrong with it.

Besides sound bytes, it looks for what the translators promise: each (agent, nonce) has its batches in the order of
their seqs, every one once, its rows together, none left out but those that a gap names: from the first one on or, if
old segments were removed, from where the oldest snapshot says that it had come. The log may be written to, and old
segments removed, meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from pathlib import Path

from collector.log.ends import noted_end
from collector.log.errors import LogDamaged
from collector.log.layout import (
    damaged_numbers,
    damaged_path,
    end_numbers,
    lost_numbers,
    lost_path,
    segment_numbers,
    segment_path,
    shard_folder,
    shards,
)
from collector.log.position import published
from collector.log.row import FIRST, NOBODY, Position
from collector.log.segment import Segment, SegmentUnreadable
from protocol.ranges import Ranges
from protocol.row import Row

GapOf = Callable[[Row], tuple[int, range] | None]
MisfitOf = Callable[[Row], str]
_EVERYTHING = Position(1 << 62, 0)


class Fault(Enum):
    """What can be wrong."""

    DAMAGED = "damaged"
    """The rest of a segment, or a file, cannot be read, though it was published."""
    WRONG_CHECK = "wrong check"
    MISSING_SEGMENT = "missing segment"
    NO_POSITION = "no position"
    """Nobody knows up to where the shard may be read, so nobody can read it."""
    LOST = "lost"
    """Rows were damaged and cut; what was found is set aside until somebody has looked at it."""
    MISSING_SEQ = "missing seq"
    OUT_OF_ORDER = "out of order"
    DUPLICATE = "duplicate"
    MISFIT = "does not fit"
    """A row says something else than what is known elsewhere."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and at which row."""

    fault: Fault
    shard: int
    at: Position
    text: str

    def __str__(self) -> str:
        return f"shard {self.shard} segment {self.at.segment} row {self.at.row}: {self.fault.value}: {self.text}"


@dataclass(slots=True)
class ShardReport:
    """What a shard holds, and what is wrong with it."""

    shard: int
    segments: int = 0
    batches: int = 0
    rows: int = 0
    size_bytes: int = 0
    torn_bytes: int = 0
    """Behind the last whole record batch, and not published: of a writer at work, or of one that was killed."""
    losses: int = 0
    """Segments of which the log tells that rows were lost."""
    findings: list[Finding] = field(default_factory=list)


def verify(
    folder: Path,
    *,
    own_kinds: Collection[int],
    gap_of: GapOf = lambda row: None,
    misfit_of: MisfitOf = lambda row: "",
) -> Iterator[ShardReport]:
    """Read everything, shard by shard.

    `own_kinds` are those that the translators write by themselves: such rows are part of no agent batch, their seqs say
    which one is next. `gap_of` tells which seqs a row says will never come, and of which nonce of its agent;
    `misfit_of` what is wrong with what a sound row says.
    """
    for shard in shards(folder):
        yield _Shard(folder, shard, _Order(own_kinds, gap_of), misfit_of).verified()


class _Shard:
    """Reads one shard."""

    def __init__(self, folder: Path, shard: int, order: _Order, misfit_of: MisfitOf) -> None:
        self._path = shard_folder(folder, shard)
        self._order = order
        self._misfit_of = misfit_of
        self._report = ShardReport(shard)

    def verified(self) -> ShardReport:
        try:
            self._verify()
        except OSError as error:
            self._found(Fault.DAMAGED, FIRST, f"{error.filename or self._path} cannot be read: {error.strerror}")
        return self._report

    def _found(self, fault: Fault, at: Position, text: str) -> None:
        if fault in (Fault.DAMAGED, Fault.MISSING_SEGMENT):
            self._order.skip()
        self._report.findings.append(Finding(fault, self._report.shard, at, text))

    def _verify(self) -> None:
        end = _EVERYTHING
        try:
            end = published(self._path)
        except LogDamaged as error:
            self._found(Fault.NO_POSITION, FIRST, str(error))
        except OSError as error:
            self._found(Fault.NO_POSITION, FIRST, f"{error.filename} cannot be read: {error.strerror}")
        numbers, told = segment_numbers(self._path), lost_numbers(self._path)
        self._report.losses = len(told)
        for number in damaged_numbers(self._path):
            self._found(Fault.LOST, Position(number, 0), _loss(self._path, number))
        for missing in _missing(numbers, end, end_numbers(self._path)):
            if missing not in told:
                self._found(Fault.MISSING_SEGMENT, Position(missing, 0), "not there")
        self._order.begin(is_whole=numbers == [*range(1, len(numbers) + 1)])
        for number in numbers:
            try:
                with Segment(segment_path(self._path, number)) as segment:
                    self._read(segment, number, end, is_told=number in told)
            except FileNotFoundError:
                if number < min(segment_numbers(self._path), default=0):
                    self._order.begin(is_whole=False)  # it was removed just now, as old ones are
                else:
                    self._found(Fault.MISSING_SEGMENT, Position(number, 0), "not there any more")
            except SegmentUnreadable as error:
                self._found(Fault.DAMAGED, Position(number, 0), str(error))

    def _read(self, segment: Segment, number: int, end: Position, is_told: bool) -> None:
        row = end_bytes = 0
        report = self._report
        report.segments += 1
        try:
            for frame in segment.frames():
                _, rows, wrong = segment.judged(frame)
                self._judge(rows, {*wrong}, Position(number, row))
                report.batches += 1
                row, end_bytes = frame.end_row, frame.end
            last = end.row if number == end.segment else noted_end(self._path, number)
            if last is not None and row < last and not is_told:
                self._found(Fault.DAMAGED, Position(number, row), f"ends here, but was published up to row {last}")
        except LogDamaged as error:
            if Position(number, row) < end or isinstance(error, SegmentUnreadable):
                self._found(Fault.DAMAGED, Position(number, row), str(error))
            else:
                report.torn_bytes += segment.size_bytes - end_bytes
        report.rows += row
        report.size_bytes += end_bytes

    def _judge(self, rows: list[Row], wrong: set[int], start: Position) -> None:
        """The rows of one commit, of which some are not as they were written."""
        faults = [(index, Fault.WRONG_CHECK, "") for index in sorted(wrong)]
        faults += self._order.faults(rows)
        for index, row in enumerate(rows):
            if index not in wrong and (misfit := self._misfit_of(row)):
                faults.append((index, Fault.MISFIT, misfit))
        for index, fault, text in faults:
            at = Position(start.segment, start.row + index)
            self._found(fault, at, f"{_named(rows[index])}{text and ': '}{text}")


def _missing(numbers: list[int], end: Position, full: list[int]) -> list[int]:
    """The segments that are not there but should be. The oldest ones may have been removed; the newest never is."""
    if end is _EVERYTHING:
        expected = range(numbers[0], numbers[-1]) if numbers else range(0)
    elif numbers:
        expected = range(numbers[0], end.segment + 1)
    else:
        expected = range(end.segment, end.segment + (end > FIRST))
    return sorted({*expected, *full} - {*numbers})


def _loss(shard_path: Path, number: int) -> str:
    path = lost_path(shard_path, number)
    text = path.read_text(errors="replace").strip() if path.exists() else "set aside, and not told in the log yet"
    return f"{text} (take {damaged_path(shard_path, number).name} away to say that you know)"


@dataclass(slots=True)
class _Track:
    """What has been seen of one (agent, nonce)."""

    first: int
    last: int


class _Order:
    """Follows the seqs of every (agent, nonce) through a shard."""

    def __init__(self, own_kinds: Collection[int], gap_of: GapOf) -> None:
        self._own_kinds = own_kinds
        self._gap_of = gap_of
        self.begin(is_whole=False)

    def begin(self, *, is_whole: bool) -> None:
        """Know of nothing, as before the first row, or after rows that nobody will read: then nobody can say which were
        the first seqs of those that come next."""
        self._is_whole = is_whole
        self._tracks: dict[tuple[str, int], _Track] = {}
        self._absent: defaultdict[tuple[str, int], Ranges] = defaultdict(Ranges)
        """Seqs that will never come, or that were reported: also of those of which nothing was seen yet."""

    def skip(self) -> None:
        """Rows cannot be read: starts may have begun in them."""
        self._is_whole = False

    def faults(self, rows: list[Row]) -> Iterator[tuple[int, Fault, str]]:
        """What breaks the order in the rows of one commit: at which row, and how."""
        if any(row.agent == NOBODY for row in rows):  # a loss is told, of agents that may be in the registry only
            self.begin(is_whole=False)
        index = 0
        for agent_batch, group in groupby(rows, key=self._agent_batch):
            batch = list(group)
            if agent_batch is not None:
                yield from ((index, *each) for each in self._batch_faults(batch))
            else:
                for own, row in enumerate(batch, index):
                    yield from ((own, *each) for each in self._own_faults(row))
            index += len(batch)

    def _agent_batch(self, row: Row) -> tuple[str, int, int] | None:
        return None if row.kind in self._own_kinds or row.agent == NOBODY else (row.agent, row.nonce, row.seq)

    def _batch_faults(self, batch: list[Row]) -> Iterator[tuple[Fault, str]]:
        _, agent, nonce, seq, _ = batch[0]
        for row in batch:
            gap = self._gap_of(row)
            if gap is not None and gap[1]:
                of, span = gap
                self._absent[agent, of].cover([(span[0], span[-1])])
        track = self._track(agent, nonce)
        if track is None:
            self._tracks[agent, nonce] = _Track(seq, seq)
        elif seq == track.last:
            yield Fault.OUT_OF_ORDER, "its agent batch began earlier, with others in between"
        elif seq < track.last:
            came_before = seq >= track.first and seq not in self._absent[agent, nonce]
            yield Fault.DUPLICATE if came_before else Fault.OUT_OF_ORDER, f"after seq {track.last}"
        else:
            yield from self._holes(agent, nonce, track.last + 1, seq)
            track.last = seq

    def _own_faults(self, row: Row) -> Iterator[tuple[Fault, str]]:
        """All that is before the next seq has come, or was named."""
        if row.agent == NOBODY:
            return
        track = self._track(row.agent, row.nonce)
        if track is None:
            self._tracks[row.agent, row.nonce] = _Track(0, row.seq - 1)
        else:
            yield from self._holes(row.agent, row.nonce, track.last + 1, row.seq)
            track.last = max(track.last, row.seq - 1)

    def _track(self, agent: str, nonce: int) -> _Track | None:
        """None if nobody can say how far it had come."""
        if self._is_whole:
            return self._tracks.setdefault((agent, nonce), _Track(0, -1))
        return self._tracks.get((agent, nonce))

    def _holes(self, agent: str, nonce: int, start: int, stop: int) -> Iterator[tuple[Fault, str]]:
        """What is missing of the seqs before one that is next."""
        if start >= stop:
            return
        absent = self._absent[agent, nonce]
        holes = [*absent.without(start, stop - 1)]
        absent.cover(holes)
        for first, last in holes:
            yield Fault.MISSING_SEQ, f"seqs {first} to {last} never came"


def _named(row: Row) -> str:
    return f"kind {row.kind} of {row.agent} nonce {row.nonce:016x} seq {row.seq}"
