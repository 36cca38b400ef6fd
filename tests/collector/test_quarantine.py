from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from collector.quarantine import MOST_KEPT_BYTES, Quarantine


def batches(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*.batch"))]


def index(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]


def test_a_batch_is_kept_with_its_reason(tmp_path: Path) -> None:
    folder = tmp_path / "quarantine"
    quarantine = Quarantine(folder)
    quarantine.keep("pump-7", b"one", "no batch\nat all")
    quarantine.keep("pump-8", b"two", "torn")
    assert batches(folder) == [b"one", b"two"]
    first, second = index(folder)
    assert (first["agent"], first["bytes"], first["reason"]) == ("pump-7", 3, "no batch\nat all")
    assert (folder / second["file"]).read_bytes() == b"two"
    assert (quarantine.kept, quarantine.not_kept) == (2, 0)


def test_a_folder_is_made_when_it_is_needed(tmp_path: Path) -> None:
    Quarantine(tmp_path / "quarantine")
    assert not (tmp_path / "quarantine").exists()


def test_room_is_bounded_over_restarts(tmp_path: Path) -> None:
    """A file takes up blocks of the disk, however small it is."""
    quarantine = Quarantine(tmp_path, most_bytes=50_000)
    for _ in range(4):
        quarantine.keep("pump-7", b"x", "small")
    assert (quarantine.kept, quarantine.not_kept) == (4, 0)
    quarantine = Quarantine(tmp_path, most_bytes=50_000)
    for _ in range(4):
        quarantine.keep("pump-7", b"x", "small")
    assert (quarantine.kept, quarantine.not_kept) == (2, 2)
    assert len(batches(tmp_path)) == len(index(tmp_path)) == 6


def test_of_a_huge_message_only_the_beginning_is_kept(tmp_path: Path) -> None:
    Quarantine(tmp_path).keep("pump-7", bytes(10_000_000), "r" * 10_000)
    assert [len(batch) for batch in batches(tmp_path)] == [MOST_KEPT_BYTES]
    assert index(tmp_path)[0]["bytes"] == 10_000_000
    assert len(index(tmp_path)[0]["reason"]) == 500


def test_a_full_disk_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quarantine = Quarantine(tmp_path)
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        write(path, data[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        quarantine.keep("pump-7", b"data", "torn")
    assert (quarantine.kept, quarantine.not_kept, batches(tmp_path)) == (0, 1, [])
    assert "No space left" in caplog.text
    quarantine.keep("pump-7", b"data", "torn")
    assert batches(tmp_path) == [b"data"]
