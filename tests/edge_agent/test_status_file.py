from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from edge_agent.status_file import NAME, StatusFile, WritingTimes, read_status_file


def test_what_was_written_last_is_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_status_file(str(tmp_path))
    file = StatusFile(str(tmp_path))
    with pytest.raises(ValueError, match="does not hold"):
        read_status_file(str(tmp_path))
    for status in ({"trouble": "x" * 500, "pid": 7}, {"trouble": "", "pid": None, "link": {"sent": 1.5}}):
        file.write(status)
        assert read_status_file(str(tmp_path)) == status
    file.close()


def test_it_has_its_room_before_there_is_anything_to_say(tmp_path: Path) -> None:
    """So that it can be written on a disk that is full: the file keeps its blocks."""
    file = StatusFile(str(tmp_path))
    before = (tmp_path / NAME).stat()
    file.write({"trouble": "No space left on device" * 50})
    after = (tmp_path / NAME).stat()
    assert (after.st_ino, after.st_size, after.st_blocks) == (before.st_ino, before.st_size, before.st_blocks)
    file.close()


def test_a_disk_that_has_no_room_for_it_costs_no_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again with every status, for as long as the disk is full."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    handles = Path("/proc/self/fd")
    before = len(list(handles.iterdir()))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        for _ in range(10):
            with pytest.raises(OSError, match="No space left"):
                StatusFile(str(tmp_path))
    assert len(list(handles.iterdir())) == before


def test_a_reader_never_sees_half_a_status(tmp_path: Path) -> None:
    file = StatusFile(str(tmp_path))
    file.write({"text": "a", "number": 0})
    stop = threading.Event()

    def write() -> None:
        for number in range(100_000):
            if stop.is_set():
                return
            file.write({"text": "ab"[number % 2] * (number % 3_000), "number": number})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            status = read_status_file(str(tmp_path))
            assert set(status["text"]) <= {"ab"[status["number"] % 2]}
    finally:
        stop.set()
        writer.join()
        file.close()


def test_damage_is_noticed(tmp_path: Path) -> None:
    file = StatusFile(str(tmp_path))
    file.write({"pid": 7})
    file.close()
    fd = os.open(tmp_path / NAME, os.O_RDWR)
    os.pwrite(fd, b"?", 10)
    os.close(fd)
    with pytest.raises(ValueError, match="does not hold"):
        read_status_file(str(tmp_path))


def test_news_are_written_when_they_are_complete_or_soon_after_they_began() -> None:
    times = WritingTimes()
    assert times.due(100.0, "begun", is_complete=False) == 100.0, "at once, the first time"
    times.written(100.0, "begun")
    assert times.due(100.1, "begun", is_complete=False) == 108.0, "nothing new: only to be seen alive"
    assert times.due(105.0, "a record", is_complete=False) == 107.0
    assert times.due(106.2, "a batch", is_complete=False) == 107.0, "it does not wait for ever to be complete"
    assert times.due(106.3, "acknowledged", is_complete=True) == 102.0, "now that it is"
    times.written(106.3, "acknowledged")
    assert times.due(106.5, "a record", is_complete=False) == 108.5
    assert times.due(106.6, "acknowledged", is_complete=True) == 114.3, "as it was written"
    assert times.due(106.7, "another batch", is_complete=True) == 108.3, "but not more often than that"
