"""Follows the log: rows as records, in groups of bounded size, from where each shard was left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from collector.forwarding.errors import ForwardingError
from collector.log import NOBODY, LogDamaged, LogError, LogReader, Position, Row, SegmentRemoved, log_id
from collector.log.row import check_of
from collector.log_view import Entry
from collector.registry import RegistryView
from protocol.chunks import payload_section
from protocol.ids import StreamId
from protocol.records import Delivery, Origin
from protocol.wire.errors import MalformedBatch
from protocol.wire.sections import Kind, decode_section, records

MOST_ROWS = 500
MOST_BYTES = 1 << 20
_MOST_EPOCHS = 1 << 16
_FOR_THE_GRAPH = frozenset((Kind.SOURCE, Kind.DELIVERY, Kind.PROGRESS))  # in numbers; tuples come with their payloads
_OLDER_COPY = "if this is an older copy of the log, a new --position file forwards all that it has"
_OWN_KINDS = range(Kind.SNAPSHOT, 256)  # what the log says of itself


class Group(NamedTuple):
    """Records of one shard that follow one another, where the next ones begin, and the check of the row before that."""

    shard: int
    end: Position
    check: int | None
    entries: list[Entry]


class _Mark(NamedTuple):
    """Where a shard ended at a time."""

    end: Position
    seen_at: float


class Follower:
    """The log from some positions on. `positions` is where it goes on; whoever has worked off a group moves it.

    A log can be put back from an older copy, and then grow on beyond a position: the rows before that are others than
    those that were worked off. `checks` has the last of these, and they are compared.

    `is_bounded`: it ends where the log ends now, or else never.
    """

    def __init__(
        self, folder: Path, positions: dict[int, Position], agent: str | None = None, *, is_bounded: bool = False
    ) -> None:
        self.positions = positions
        self.checks: dict[int, int | None] = {}
        self._folder = folder
        self._agent = agent
        self._registry = folder / "registry.db"
        self._reader = LogReader(folder)
        self._marks: dict[int, _Mark] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._unknown: set[tuple[str, int]] = set()
        with _readable():
            self.log_id = log_id(folder)
            if not self._registry.exists():
                raise LogError(f"{self._registry} is not there: put it back from a copy")
            self._bounds = {shard: self._reader.end(shard) for shard in self._reader.shards()} if is_bounded else None

    def groups(self, most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES) -> Iterator[Group]:
        """The next group of each shard that has more."""
        self._unknown.clear()
        with _readable():
            for shard in self._reader.shards():
                bound = self._bound(shard)
                start = self.positions[shard]
                if start >= bound:
                    continue
                end = min(self._reader.ahead(shard, start, most_rows, most_bytes), bound)
                rows = list(self._reader.rows(shard, start, end))
                check = check_of(rows[-1]) if rows else None
                yield Group(shard, end, check, [entry for row in rows for entry in self._entries(row)])

    def check_log(self) -> None:
        """ForwardingError if the log is not there any more, or if another one or an older copy is in its place."""
        with _readable():
            if log_id(self._folder) != self.log_id:
                raise LogError(f"there is another log in {self._folder} now")
            for shard, check in self.checks.items():
                self._check_place(shard, check)

    def lag_s(self) -> float:
        """For how long the oldest row waits that is known and has not been worked off. For any thread."""
        waiting = [mark.seen_at for shard, mark in list(self._marks.items()) if self.positions[shard] < mark.end]
        return monotonic() - min(waiting) if waiting else 0.0

    def _bound(self, shard: int) -> Position:
        """Up to where to read now."""
        end = self._reader.end(shard)
        position = self.positions.setdefault(shard, self._reader.start(shard))
        self._check_end(shard, position, end)
        mark = self._marks.get(shard)
        if mark is None or position >= mark.end:
            self._marks[shard] = _Mark(end, monotonic())
        return end if self._bounds is None else min(end, self._bounds.get(shard, position))

    def _check_end(self, shard: int, position: Position, end: Position) -> None:
        if position > end:
            raise ForwardingError(
                f"shard {shard} was forwarded up to {_at(position)}, but ends at {_at(end)}: after a power cut, start "
                f"`threadline translate` first, which finds the end again; {_OLDER_COPY}"
            )

    def _check_place(self, shard: int, check: int | None) -> None:
        """Rows that were lost since, and are told to be, cannot be compared."""
        position = self.positions[shard]
        self._check_end(shard, position, self._reader.end(shard))
        before = Position(position.segment, max(position.row - 1, 0))
        try:
            found = next(iter(self._reader.rows(shard, before, position)), None)
        except LogDamaged as error:
            raise LogError(f"{error}; {_OLDER_COPY}") from error
        if check is not None and found is not None and check_of(found) != check:
            raise ForwardingError(
                f"before {_at(position)}, shard {shard} has other rows than were forwarded: {_OLDER_COPY}"
            )

    def _entries(self, row: Row) -> Iterator[Entry]:
        is_told = row.kind == Kind.PAYLOAD or (row.kind not in _OWN_KINDS and row.kind not in _FOR_THE_GRAPH)
        if not is_told or row.agent == NOBODY or (self._agent is not None and row.agent != self._agent):
            return
        epoch = self._epoch_of(row.agent, row.nonce)
        if epoch is None:
            raise LogError(f"the registry does not know start {row.nonce:016x} of {row.agent}")
        own = StreamId(row.agent, epoch, "", row.nonce)
        kind, data = payload_section(row.data) if row.kind == Kind.PAYLOAD else (Kind(row.kind), row.data)
        for record in records(decode_section(kind, data, own)):
            yield Entry(kind, row.agent, row.nonce, row.seq, self._with_shown_epochs(record), epoch)

    def _with_shown_epochs(self, record: Any) -> Any:
        """An agent knows other agents by how they count their starts, which is not always how people count them."""
        if not isinstance(record, Delivery):
            return record
        streams: dict[StreamId, StreamId] = {}
        for stream in {origin.stream for origin in record.origins}:
            epoch = self._epoch_of(stream.agent, stream.nonce)
            if epoch is not None and epoch != stream.epoch:
                streams[stream] = stream._replace(epoch=epoch)
        if not streams:
            return record
        origins = [Origin(at.kind, streams.get(at.stream, at.stream), at.seq, at.ts) for at in record.origins]
        return Delivery(record.stream, record.seq, record.ts, record.payload, tuple(origins))

    def _epoch_of(self, agent: str, nonce: int) -> int | None:
        """None of who has been named by others and has not been heard itself, at least before this round."""
        start = (agent, nonce)
        epoch = self._epochs.get(start)
        if epoch is None and start not in self._unknown:
            with closing(RegistryView(self._registry)) as registered:
                epoch = registered.epoch_of(agent, nonce)
            if epoch is None:
                self._unknown.add(start)
            else:
                self._epochs[start] = epoch
                if len(self._epochs) > _MOST_EPOCHS:
                    del self._epochs[next(iter(self._epochs))]
        return epoch


def _at(position: Position) -> str:
    return f"row {position.row} of segment {position.segment}"


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except SegmentRemoved as error:
        way_out = "a new --position file begins with what is left"
        raise ForwardingError(f"the log was removed before it was forwarded: {error}: {way_out}") from error
    except LogError as error:
        raise ForwardingError(f"the log cannot be read: {error}") from error
    except (MalformedBatch, OSError) as error:
        raise ForwardingError(f"the log cannot be read: {error}; `threadline log verify` says more") from error
