"""The spool against a list in memory, through crashes that tear its files anywhere."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edge_agent.spool import Fsync, Spool, SpoolFull
from tests.edge_agent.spool.folders import folder_bytes, read, segments

MAX_BYTES = 6000
SEGMENT_BYTES = 500


class SpoolModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="spool-"))
        self.lives = 0
        self.folder = self.place / "0"
        self.fsync: Fsync = "interval"
        self.entries: list[tuple[int, int, bytes]] = []
        self.first = self.next = 0
        self.written: list[tuple[int, bytes]] = []
        """All pieces ever, with their numbers."""
        self.pieces: list[tuple[int, bytes]] = []
        """Those whose entries are neither there nor released."""
        self.recovered_from: int | None = None
        """The number of the first piece, if opening has found pieces for a later entry besides."""
        self.tail: list[tuple[int, int]] = []
        """The entries of the newest file: number, and where each ends."""
        self.tail_name = ""
        self.spool = self.opened()

    def opened(self) -> Spool:
        for oldest in segments(self.folder)[:1]:
            # Lost entries before the first file are not told from released ones any more.
            self.first = max(self.first, int(oldest.stem))
        return Spool.open(self.folder, max_bytes=MAX_BYTES, segment_bytes=SEGMENT_BYTES, fsync=self.fsync)

    def teardown(self) -> None:
        self.spool.close()
        shutil.rmtree(self.place)

    @rule(size_bytes=st.integers(0, 700), byte=st.integers(0, 255))
    def append(self, size_bytes: int, byte: int) -> None:
        data = bytes([byte]) * size_bytes
        for _ in range(MAX_BYTES):
            try:
                number = self.spool.append(data)
                break
            except SpoolFull:
                self.give_up()
        assert number == self.next
        self.next += 1
        self.pieces = []
        newest = segments(self.folder)[-1]
        if self.recovered_from is not None:  # it stands for the pieces' number too, and is synced with its name
            self.entries.append((max(number - 1, self.first), number, data))
            self.recovered_from = None
            self.tail, self.tail_name = [], ""
            return
        self.entries.append((number, number, data))
        if newest.name != self.tail_name:
            self.tail, self.tail_name = [], newest.name
        self.tail.append((number, newest.stat().st_size))

    @rule(data=st.binary(max_size=40))
    def journal(self, data: bytes) -> None:
        try:
            self.spool.journal(data, self.next)
            self.written.append((self.next, data))
            self.pieces.append((self.next, data))
        except SpoolFull:
            assert self.spool.size_bytes > MAX_BYTES - 100

    @precondition(lambda self: self.first < self.next)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        through = data.draw(st.integers(self.first, self.next - 1))
        self.spool.release(through)
        self.first = through + 1
        self.entries = [(max(first, self.first), last, each) for first, last, each in self.entries if last > through]
        self.pieces = [(number, piece) for number, piece in self.pieces if number > through]

    @precondition(lambda self: any(first == last for first, last, _ in self.entries))
    @rule()
    def give_up(self) -> None:
        old = [tuple(entry) for entry in self.spool.oldest()]
        if not old:
            assert len(self.entries) <= 1  # what is left is a replacement for one number
            return
        assert old == self.entries[: len(old)]
        gap = b"gap of %d" % len(old)
        self.spool.replace_oldest(gap)
        # It stands for all numbers of the files that it replaces, also for those whose entries are lost.
        end = self.next if self.recovered_from is None else self.recovered_from
        first, following = [*(int(path.stem) for path in segments(self.folder)), end][:2]
        self.entries[: len(old)] = [(max(first, self.first), following - 1, gap)]
        if len(self.entries) == 1:
            self.tail, self.tail_name = [], ""

    @rule(force=st.booleans())
    def sync(self, force: bool) -> None:
        self.spool.sync(force=force)

    @rule(fsync=st.sampled_from(["batch", "interval", "never"]))
    def restart(self, fsync: Fsync) -> None:
        self.spool.close()
        self.fsync = fsync
        self.spool = self.opened()
        self.check_opened(torn_bytes=0)

    @rule(tail=st.one_of(st.binary(max_size=60), st.integers(0, 600).map(bytes)))
    def crash(self, tail: bytes) -> None:
        self.move_to_what_a_kill_leaves()
        files = segments(self.folder)
        torn_bytes = len(tail) if files else 0
        if files:
            with files[-1].open("ab") as file:
                file.write(tail)
        self.spool = self.opened()
        self.check_opened(torn_bytes)

    @precondition(lambda self: self.tail)
    @rule(data=st.data())
    def power_cut(self, data: st.DataObject) -> None:
        """The newest file ends anywhere; the journal was written later and is whole."""
        self.move_to_what_a_kill_leaves()
        newest = segments(self.folder)[-1]
        assert newest.name == self.tail_name
        cut_at = data.draw(st.integers(0, newest.stat().st_size))
        os.truncate(newest, cut_at)
        kept = [number for number, end in self.tail if end <= cut_at]
        gone = [number for number, end in self.tail if end > cut_at]
        self.tail = self.tail[: len(kept)]
        self.spool = self.opened()
        self.entries = [entry for entry in self.entries if entry[0] not in gone]
        if not gone:
            self.check_opened(torn_bytes=None)
            return
        recovered = self.written[len(self.written) - len(self.spool.recovered_journal) :]
        assert self.spool.recovered_journal == [piece for _, piece in recovered]
        assert recovered[len(recovered) - len(self.pieces) :] == self.pieces
        end = max(gone[0], self.first)
        assert all(number >= end for number, _ in recovered)
        if self.pieces:
            assert self.spool.next == max(self.next, end)
        assert end <= self.spool.next <= self.next
        self.next = self.spool.next
        self.pieces = recovered
        self.find_recovered()
        to_be_made = self.recovered_from is not None
        assert [n for lost in self.spool.lost for n in lost if n >= end] == list(range(end, self.next - to_be_made))

    def find_recovered(self) -> None:
        numbers = [number for number, _ in self.pieces]
        self.recovered_from = numbers[0] if numbers and numbers[0] < self.next else None

    def move_to_what_a_kill_leaves(self) -> None:
        self.lives += 1
        image = self.place / str(self.lives)
        shutil.copytree(self.folder, image)
        self.spool.close()
        shutil.rmtree(self.folder)
        self.folder = image

    def check_opened(self, torn_bytes: int | None) -> None:
        assert self.spool.recovered_journal == [piece for _, piece in self.pieces]
        if torn_bytes is not None:
            assert self.spool.torn_bytes == torn_bytes
        self.find_recovered()
        readable = {n for first, last, _ in self.entries for n in range(first, last + 1)}
        end = self.next if self.recovered_from is None else self.next - 1
        assert {n for lost in self.spool.lost for n in lost} == set(range(self.first, end)) - readable

    @invariant()
    def same_as_the_model(self) -> None:
        assert (self.spool.first, self.spool.next) == (self.first, self.next)
        assert [tuple(entry) for entry in self.spool.entries()] == self.entries
        assert self.spool.count == len(self.entries)
        assert folder_bytes(self.folder) <= self.spool.size_bytes <= MAX_BYTES
        for first, last, data in self.entries[:1]:
            assert read(self.spool, first) == read(self.spool, last) == data


TestSpool = SpoolModel.TestCase
TestSpool.settings = settings(stateful_step_count=25)
