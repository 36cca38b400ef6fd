"""Any order of commits, crashes, torn tails and retention, against a model that is a list."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from collector.log import FIRST, LogReader, Position, Row, ShardWriter, remove_segments, verify
from collector.log.row import check_of
from collector.log.segment import encoded
from tests.collector.log.batches import NONCE, SHARD, SNAPSHOT, NextSeqs, batch, segments


class Log(RuleBasedStateMachine):
    """The model: all rows that were committed, snapshots left out, and a reader that follows from the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.reader = LogReader(self.folder)
        self.committed: list[Row] = []
        self.held: list[Row] = []
        self.followed: list[Row] = []
        self.at = FIRST
        self.position = FIRST

    @initialize(segment_bytes=st.sampled_from([1, 2_000, 1 << 20]), compression=st.sampled_from([None, "zstd"]))
    def open(self, segment_bytes: int, compression: str | None) -> None:
        self.options = (segment_bytes, compression)
        self._open()

    def _open(self) -> None:
        self.writer = ShardWriter(self.folder, SHARD, segment_bytes=self.options[0], compression=self.options[1])
        self.state = NextSeqs(self.writer.tail())
        assert self.state.next == NextSeqs(self.committed).next
        self.writer.begin(self.state.snapshot)

    @rule(agents=st.lists(st.sampled_from("abc"), max_size=4), size_bytes=st.integers(0, 900))
    def append(self, agents: list[str], size_bytes: int) -> None:
        for agent in agents:
            rows = batch(agent, self.state.next.get((agent, NONCE), 0), size_bytes=size_bytes)
            self.state.note(rows)
            self.writer.append(rows)
            self.held += rows

    @rule()
    def commit(self) -> None:
        self.committed += self.held
        self.held = []
        assert self.writer.commit() == self.reader.end(SHARD)

    @rule()
    def roll_back(self) -> None:
        self.writer.rollback()
        self.held = []
        self.state.next = NextSeqs(self.committed).next

    @rule(kept=st.floats(0, 1), is_whole=st.booleans())
    def crash(self, kept: float, is_whole: bool) -> None:
        """The writer dies within a commit: a part of it is on disk, perhaps all, but it was not published."""
        self.writer.close()
        torn = encoded(self.held, [check_of(row) for row in self.held], self.options[1]) if self.held else b""
        with segments(self.folder)[-1].open("ab") as handle:
            handle.write(torn if is_whole else torn[: int(kept * (len(torn) - 1))])
        if is_whole:
            self.committed += self.held
        self.held = []
        self._open()

    @rule()
    def crash_starting_a_segment(self) -> None:
        self.writer.close()
        number = int(segments(self.folder)[-1].stem) + 1
        (segments(self.folder)[-1].parent / f"{number:012d}.arrows").touch()
        self.held = []
        self._open()

    @rule(most_rows=st.integers(1, 20), most_bytes=st.integers(1, 4_000))
    def follow(self, most_rows: int, most_bytes: int) -> None:
        end = self.reader.ahead(SHARD, self.at, most_rows, most_bytes)
        self.followed += [row for row in self.reader.rows(SHARD, self.at, end) if row.kind != SNAPSHOT]
        self.at = end

    @rule()
    def retain(self) -> None:
        remove_segments(self.folder, SHARD, self.at)

    @invariant()
    def the_follower_has_a_part_from_the_beginning(self) -> None:
        assert self.followed == self.committed[: len(self.followed)]

    @invariant()
    def the_position_never_goes_back(self) -> None:
        if (position := self.reader.end(SHARD)) < self.position:
            raise AssertionError(f"{position} after {self.position}")
        self.position = position

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            end = self.reader.end(SHARD)
            self.followed += [row for row in self.reader.rows(SHARD, self.at, end) if row.kind != SNAPSHOT]
            assert self.followed == self.committed
            assert [each.findings for each in verify(self.folder, own_kinds=[SNAPSHOT])] == [[]]
            assert Position(1, 0) <= self.reader.start(SHARD) <= end
            self.writer.close()
        shutil.rmtree(self.folder)


TestLog = Log.TestCase
TestLog.settings = settings(deadline=None, max_examples=25, stateful_step_count=20)
