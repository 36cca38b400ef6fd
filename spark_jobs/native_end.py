"""What ANK-N has to know of the fleet before it begins, and how it ends.

Spark's watermark goes by what comes: after the last row of a finite input it stands still, and what is not labelled
then never is. Once everybody has ended, a shard is added to the log that no log has. Its row moves the watermark as far
as needed to label what is there, and no further: a fleet that starts anew much later is not late, and may end again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from protocol.chunks import pack, read_deliveries
from protocol.ids import StreamId
from protocol.records import END_OF_TIME, Gap
from protocol.row import Row
from protocol.wire.sections import Kind, decode_section
from protocol.wire.values import decode
from spark_jobs.agents import Agent
from spark_jobs.checkpoint import read_checked, write_checked
from spark_jobs.flat_rows import ENDING, reached_ms
from spark_jobs.log_source import FIRST, Log, LogUnreadable, Position
from spark_jobs.native_mu import NativeOptions
from spark_jobs.reach import Reaches
from spark_jobs.ways import ways_of

_FILE = "native-end.json"


class Horizon:
    """What the rows of a log say of how long tuples matter, and whether any may still come."""

    def __init__(self) -> None:
        self.latest_ms: int | None = None
        """The latest time that Spark was told of."""
        self._agents: dict[str, Agent] = {}

    def add(self, rows: Iterable[Row]) -> None:
        """Rows of one shard, in order."""
        for row in rows:
            self._note(reached_ms(row))
            if row.kind == Kind.DELIVERY:
                chunk = read_deliveries(row.data)
                self._note([int(times.max()) for times in (chunk.ts, chunk.origin_ts) if len(times)])
            elif row.agent:
                self._tell(row)

    def _note(self, times: list[int]) -> None:
        if times:
            self.latest_ms = max(*times, times[0] if self.latest_ms is None else self.latest_ms)

    def _tell(self, row: Row) -> None:
        if row.kind == Kind.PLAN:
            self._agent(row.agent).started(row.nonce, ways_of(row.data))
        elif row.kind == Kind.END:
            self._agent(row.agent).ended(row.nonce)
        elif row.kind == Kind.RETIRE:
            self._agent(row.agent).given_up(row.nonce)
        elif row.kind == Kind.GAP:
            for gap in cast("list[Gap]", decode_section(Kind.GAP, row.data, StreamId(row.agent, 0, "", row.nonce))):
                if gap.next_event is not None:
                    self._agent(row.agent).ended(gap.nonce)
        elif row.kind == Kind.SNAPSHOT and row.agent not in self._agents:
            told = decode(row.data)
            if told["plan"]:
                self._agent(row.agent).started(row.nonce, ways_of(told["plan"]))
            if told["ended"]:
                self._agent(row.agent).ended(row.nonce)

    def _agent(self, name: str) -> Agent:
        return self._agents.setdefault(name, Agent())

    @property
    def u_ms(self) -> int:
        """The largest U of all streams and sinks, as far as plans are known."""
        reaches = Reaches(self._agents)
        streams = {
            (name, stream)
            for name, agent in self._agents.items()
            for plan in agent.plans.values()
            for stream in (*plan.delays, *plan.sends)
            if stream not in plan.receives
        }
        return max((delay for each in streams for delay in reaches.of(each).sinks.values()), default=0)

    @property
    def is_over(self) -> bool:
        """Whether all that have ever begun have ended. Who was given up has not: it may come back."""
        return bool(self._agents) and not any(agent.open or agent.retired for agent in self._agents.values())


def horizon_of(log: Log) -> Horizon:
    """All that the log says now."""
    found = Horizon()
    for shard in log.shards():
        found.add(log.rows(shard, log.start(shard), log.end(shard)))
    return found


class EndingLog:
    """A log, and the shard behind it once `finish` has been said."""

    def __init__(self, log: Log, checkpoint: Path) -> None:
        self._log = log
        self._path = checkpoint / _FILE

    def finish(self, options: NativeOptions) -> bool:
        """If everybody has ended, let the watermark pass all there is. To be called when all rows were read: the next
        run of the query labels what is left. Returns whether there is anything to do for it."""
        horizon, ends = horizon_of(self._log), self._ends()
        if not horizon.is_over or horizon.latest_ms is None:
            return False
        # Spark's watermark is behind by the lateness, then by U for each level; it counts in ms, and rounds.
        behind_ms = options.lateness_ms + options.levels * (options.u_ms + 1)
        passing_all = horizon.latest_ms + behind_ms + 1
        if passing_all in ends:
            return False
        write_checked(self._path, [*ends, passing_all])
        return True

    def _ends(self) -> list[int]:
        """The times that were passed so far."""
        try:
            found: list[int] = read_checked(self._path)
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise LogUnreadable(f"{error}: a new --checkpoint folder replays the log") from error
        return found

    def shards(self) -> Sequence[int]:
        return [*self._log.shards(), ENDING] if self._path.exists() else self._log.shards()

    def start(self, shard: int) -> Position:
        return FIRST if shard == ENDING else self._log.start(shard)

    def end(self, shard: int) -> Position:
        return FIRST._replace(row=len(self._ends())) if shard == ENDING else self._log.end(shard)

    def ahead(self, shard: int, start: Position, most_rows: int, most_bytes: int) -> Position:
        return self.end(shard) if shard == ENDING else self._log.ahead(shard, start, most_rows, most_bytes)

    def rows(self, shard: int, start: Position, end: Position) -> Iterator[Row]:
        if shard == ENDING:
            yield from map(_end_row, self._ends()[start.row : end.row])
        else:
            yield from self._log.rows(shard, start, end)


def _end_row(ts: int) -> Row:
    return Row(Kind.PROGRESS, "", 0, 0, pack([np.array([each], "<i8") for each in (0, ts, END_OF_TIME)]))
