"""What is unread of the log, and what becomes of batches when that is too much."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import collector.brake
import threadline.spark
from collector.brake import Brake
from collector.log import Backlog, LogReader, Position, ReaderMark, log_id
from collector.translator import Translator, TranslatorOptions
from protocol.topics import shard_of
from protocol.wire.sections import Kind
from tests.collector.agents import FakeAgent
from tests.collector.log.batches import SHARD, batch, log_batches, opened, segments
from tests.support.waiting import wait_until
from threadline.spark import StoreMark

AGENT = FakeAgent("pump-0")
OTHER = FakeAgent("pump-1")


def unread_bytes(folder: Path) -> int:
    return Backlog(folder).unread().size_bytes


# How much is unread


def test_without_a_reader_everything_is_unread(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(3))
    found = Backlog(tmp_path).unread()
    assert found == (sum(path.stat().st_size for path in segments(tmp_path)), "", None, "")


def test_a_reader_that_has_read_everything_has_nothing_unread(tmp_path: Path) -> None:
    end = log_batches(tmp_path, "a", range(3))
    ReaderMark(tmp_path, "r").leave({SHARD: end})
    assert unread_bytes(tmp_path) == 0
    log_batches(tmp_path, "b", range(1))
    assert unread_bytes(tmp_path) > 0


def test_what_is_unread_is_what_the_files_hold_behind_the_reader(tmp_path: Path) -> None:
    """However the rows lie in segments, and wherever the reader stands: between two commits, to the byte."""
    writer, state = opened(tmp_path, segment_bytes=2_000, compression=None)
    mark = ReaderMark(tmp_path, "r")
    backlog = Backlog(tmp_path)
    ends: list[tuple[Position, int]] = []
    with writer:
        for seq in range(40):
            rows = batch("a", seq, size_bytes=100)
            state.note(rows)
            writer.append(rows)
            writer.commit()
            ends.append((writer.position, sum(path.stat().st_size for path in segments(tmp_path))))
        total = ends[-1][1]
        assert len(segments(tmp_path)) > 3
        for position, written_bytes in ends:
            mark.leave({SHARD: position})
            assert backlog.unread().size_bytes == total - written_bytes
            assert unread_bytes(tmp_path) == total - written_bytes, "with or without having walked there before"


def test_the_slowest_reader_counts(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(5))
    end = LogReader(tmp_path).end(SHARD)
    fast, slow = ReaderMark(tmp_path, "fast"), ReaderMark(tmp_path, "slow")
    fast.leave({SHARD: end})
    slow.leave({SHARD: Position(1, 2)})
    found = Backlog(tmp_path).unread()
    assert found.reader == "slow" and found.mark == slow.path and found.size_bytes > 0
    slow.path.unlink()
    assert unread_bytes(tmp_path) == 0, "a reader that will not come back is forgotten when its mark is deleted"


def test_a_mark_of_another_log_is_no_mark(tmp_path: Path) -> None:
    end = log_batches(tmp_path, "a", range(3))
    ReaderMark(tmp_path, "r").leave({SHARD: end})
    (tmp_path / "id").write_text("another\n")
    assert unread_bytes(tmp_path) > 0


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "number", "list"])
def test_a_damaged_mark_is_never_believed(tmp_path: Path, damage: str) -> None:
    end = log_batches(tmp_path, "a", range(3))
    mark = ReaderMark(tmp_path, "r")
    mark.leave({SHARD: end})
    backlog = Backlog(tmp_path)
    assert backlog.unread().size_bytes == 0
    content = mark.path.read_bytes()
    harmless = content.index(b'"reader"')
    damaged: dict[str, Callable[[], bytes]] = {
        "flip": lambda: content.replace(str(end.row).encode(), str(end.row + 4).encode()),
        "cut": lambda: content[: len(content) // 2],
        "empty": lambda: b"",
        "number": lambda: b"7",
        "list": lambda: b"[" + content[harmless:],
    }
    mark.path.write_bytes(damaged[damage]())
    log_batches(tmp_path, "b", range(2))
    fresh, knowing = Backlog(tmp_path).unread(), backlog.unread()
    assert fresh.size_bytes == sum(path.stat().st_size for path in segments(tmp_path)), "as if nothing had been read"
    assert fresh.trouble and fresh.mark == mark.path and not fresh.reader
    assert 0 < knowing.size_bytes < fresh.size_bytes, "who knows what it said before goes by that"


def test_no_flipped_bit_of_a_mark_hides_what_is_unread(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(3))
    mark = ReaderMark(tmp_path, "r")
    mark.leave({SHARD: Position(1, 3)})
    content = mark.path.read_bytes()
    least = unread_bytes(tmp_path)
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            mark.path.write_bytes(changed)
            assert unread_bytes(tmp_path) >= least, (place, bit)


# The brake


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_the_brake_is_on_from_the_bound_until_enough_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    end = log_batches(tmp_path, "a", range(10))
    clock = Clock()
    total = unread_bytes(tmp_path)
    brake = Brake(tmp_path, total, clock)

    def look() -> float:
        clock.now += 1.0  # it looks again
        return brake.look(0)

    assert look() == 0.0 and brake.is_on
    assert "nobody, so far: start `threadline spark`" in caplog.text
    mark = ReaderMark(tmp_path, "the job")
    mark.leave({SHARD: Position(1, 1)})
    assert look() == 0.0 and brake.is_on, "a little is not enough, or it would be on and off all the time"
    mark.leave({SHARD: end})
    assert look() == 2.0 and not brake.is_on
    assert look() == 0.0 and brake.held_s == 2.0
    mark.leave({})
    assert look() == 0.0 and brake.is_on
    assert f"the job (if it will not come back, delete {mark.path})" in caplog.text
    clock.now += 5.0
    assert brake.held_s == 7.0


def test_who_has_an_unreadable_mark_is_not_told_to_delete_it_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it, everything is unread as well."""
    log_batches(tmp_path, "a", range(10))
    mark = ReaderMark(tmp_path, "the job")
    mark.leave({SHARD: Position(1, 1)})
    mark.path.write_bytes(b"")
    Brake(tmp_path, 1, Clock()).look(0)
    assert f"one whose mark cannot be read ({mark.path}: " in caplog.text
    assert "its `threadline spark` writes it anew while it runs" in caplog.text
    assert "delete the mark and start another, or say --max-unread-bytes 0" in caplog.text


def test_it_looks_at_once_when_what_was_taken_may_be_too_much(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(3))
    before = unread_bytes(tmp_path)
    brake = Brake(tmp_path, 2 * before, Clock())
    brake.look(0)
    log_batches(tmp_path, "b", range(10))
    assert unread_bytes(tmp_path) > 2 * before
    brake.look(before // 4)
    assert not brake.is_on, "it has looked just now"
    brake.look(before // 2)
    assert brake.is_on


def test_a_disk_that_cannot_be_read_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log_batches(tmp_path, "a", range(3))
    brake = Brake(tmp_path, 1, Clock())
    brake.look(0)
    assert brake.is_on

    def broken(_: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", broken)
    brake._look_at = 0.0
    assert brake.look(0) == 0.0 and brake.is_on
    assert "nobody knows how much of the log is unread" in caplog.text


def test_without_a_bound_nothing_is_held_back(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(10))
    brake = Brake(tmp_path, None)
    assert brake.look(10**12) == 0.0 and not brake.is_on


# The translator


@pytest.fixture
def translator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Translator]:
    for name in ("EVERY_S", "CALM_S"):
        monkeypatch.setattr(collector.brake, name, 0.0)
    shards = sorted({shard_of(AGENT.name), shard_of(OTHER.name)})
    made = Translator(TranslatorOptions(("127.0.0.1", 1), tmp_path / "log", shards, most_unread_bytes=20_000))
    for shard in shards:
        assert made._open(shard) is None
    yield made
    made._end()


def told(translator: Translator, agent: FakeAgent, seq: int) -> dict[str, int]:
    """How far each agent is told that it has come when this batch was sent."""
    text: tuple[Any, ...] = (Kind.EVENT, 1, 1_000, seq, 0, os.urandom(500).hex(), "f", (), [])
    found = translator._work([(agent.name, agent.framed(seq, text, first_event=seq))], [], 0.0)
    return {agent: answer.next_seq for agent, answer in found}


def read_everything(folder: Path) -> None:
    reader = LogReader(folder)
    ReaderMark(folder, "r").leave({shard: reader.end(shard) for shard in reader.shards()})


def test_above_the_bound_nothing_is_taken_and_nothing_acknowledged(translator: Translator, tmp_path: Path) -> None:
    seq = 0
    while told(translator, AGENT, seq) == {AGENT.name: seq + 1}:
        seq += 1
        assert seq < 100, "the bound has to be reached"
    size_bytes = unread_bytes(tmp_path / "log")
    for _ in range(20):
        assert told(translator, AGENT, seq) == {} and told(translator, OTHER, 0) == {}
    assert unread_bytes(tmp_path / "log") == size_bytes < 20_000 + 5_000
    totals = translator.totals()
    assert totals["is_holding_back"] == 1 and totals["held_back"] == 41
    assert totals["unread_bytes"] == size_bytes and totals["most_unread_bytes"] == 20_000
    read_everything(tmp_path / "log")
    answers = told(translator, OTHER, 0)
    assert answers == {AGENT.name: seq, OTHER.name: 1}, "who waits is told that it goes on"
    assert told(translator, AGENT, seq) == {AGENT.name: seq + 1}
    assert translator.totals()["is_holding_back"] == 0 and translator.held_s > 0


def test_an_agent_that_is_not_listened_to_is_not_silent(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time in which nothing was taken is no reason to retire anybody, neither meanwhile nor afterwards."""
    now = Clock()
    shard = translator._shards[shard_of(AGENT.name)]
    monkeypatch.setattr(shard, "_clock", now)
    monkeypatch.setattr(translator._brake, "_clock", now)
    monkeypatch.setattr(translator, "_client", object())
    assert told(translator, AGENT, 0) == {AGENT.name: 1}
    translator._brake.most_bytes = 1
    translator._retire_at = 0.0
    assert told(translator, AGENT, 1) == {}
    now.now += 2 * 24 * 3600.0
    translator._retire_at = 0.0
    assert told(translator, AGENT, 1) == {}
    assert translator.totals()["retired"] == 0
    read_everything(tmp_path / "log")
    translator._brake.most_bytes = 10**9
    translator._retire_at = 0.0
    assert told(translator, AGENT, 1) == {AGENT.name: 2}
    assert translator.totals()["retired"] == 0


# The Spark job's mark


def test_the_job_marks_what_the_store_has_whichever_checkpoint_told_it(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(8))
    job = StoreMark(ReaderMark(tmp_path, "job"), ['{"5": [1, 4]}', "", '{"5": [1, 6], "-1": [1, 1]}'])
    before = unread_bytes(tmp_path)
    job.move('{"5": [1, 2]}')
    assert unread_bytes(tmp_path) == before, "a batch that the store had already"
    job.move('{"5": [1, 10]}')
    assert unread_bytes(tmp_path) < before


@pytest.mark.parametrize("is_deleted", [False, True], ids=["damaged", "deleted"])
def test_a_mark_that_is_lost_while_nothing_comes_is_left_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    """Else a translator that starts then would take nothing any more, and the job would never have a reason to move."""
    monkeypatch.setattr(threadline.spark, "_MARK_S", 0.01)
    end = log_batches(tmp_path, "a", range(10))
    mark = ReaderMark(tmp_path, "job")
    job = StoreMark(mark, [json.dumps({SHARD: end})])
    brake = Brake(tmp_path, 1, Clock())
    if is_deleted:
        mark.path.unlink()
    else:
        mark.path.write_bytes(mark.path.read_bytes()[:-20])
    brake.look(0)
    assert brake.is_on
    with job.kept():
        wait_until(lambda: unread_bytes(tmp_path) == 0, "the mark")
    brake._look_at = 0.0
    brake.look(0)
    assert not brake.is_on


def test_a_mark_that_cannot_be_left_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log_batches(tmp_path, "a", range(2))
    (tmp_path / "readers").write_text("in the way")
    job = StoreMark(ReaderMark(tmp_path, "job"), [])
    job.move('{"5": [1, 2]}')
    assert caplog.text.count("translators are not told how far the log is read") == 1
    assert log_id(tmp_path)
