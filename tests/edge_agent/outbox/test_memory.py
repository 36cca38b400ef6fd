from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from edge_agent.outbox.memory import Memory, Progressed


def state(next_seq: int) -> Progressed:
    return Progressed(3, 2**64 - 1, next_seq, 7, False, {"alerts": 4}, {"alerts": [-5, 2**62]}, {"b/s": [9, 1]})


def last(folder: Path) -> Progressed | None:
    memory = Memory(folder)
    memory.close()
    return memory.last


def test_a_new_folder_remembers_nothing(tmp_path: Path) -> None:
    assert last(tmp_path) is None


def test_the_newest_state_is_remembered(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    for seq in range(5):
        memory.keep(state(seq), durable=False)
        assert last(tmp_path) == state(seq), "a killed process forgets nothing"
    memory.close()
    memory = Memory(tmp_path)
    memory.keep(state(9), durable=True)
    memory.close()
    assert last(tmp_path) == state(9)


def test_a_shorter_state_after_a_longer_one(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    for _ in range(2):
        memory.keep(Progressed(1, 1, next_seqs={"a" * 1000: 1}), durable=False)
    memory.keep(Progressed(1, 1, 5), durable=False)
    memory.close()
    assert last(tmp_path) == Progressed(1, 1, 5)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 30, b"\x00" * 200])
def test_if_the_newest_is_damaged_the_one_before_counts(tmp_path: Path, damage: bytes) -> None:
    memory = Memory(tmp_path)
    for seq in range(4):
        memory.keep(state(seq), durable=False)
    memory.close()
    newest = max(tmp_path.glob("memory-*"), key=lambda path: path.read_bytes()[:8][::-1])
    newest.write_bytes(damage)
    assert last(tmp_path) == state(2)


def test_every_torn_write_leaves_the_state_before_it(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    memory.keep(state(0), durable=False)
    memory.keep(state(1), durable=False)
    memory.close()
    newest = max(tmp_path.glob("memory-*"), key=lambda path: path.read_bytes()[:8][::-1])
    whole = newest.read_bytes()
    for size in range(len(whole)):
        newest.write_bytes(whole[:size])
        assert last(tmp_path) == state(0)


def test_a_state_that_the_disk_refuses_does_not_cost_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path)
    memory.keep(state(0), durable=False)
    memory.keep(state(1), durable=False)

    def full(fd: int, data: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        for _ in range(3):
            with pytest.raises(OSError, match="full"):
                memory.keep(state(2), durable=False)
    assert last(tmp_path) == state(1)
    memory.keep(state(3), durable=False)
    memory.close()
    assert last(tmp_path) == state(3)


def test_only_a_durable_state_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    memory = Memory(tmp_path)
    memory.keep(state(0), durable=False)
    assert synced == []
    memory.keep(state(1), durable=True)
    assert len(synced) == 1
    memory.sync()
    assert len(synced) == 1, "it is"
    memory.keep(state(2), durable=True)
    assert len(synced) == 2
    memory.close()


@pytest.mark.parametrize("again", [False, True])
def test_a_power_cut_leaves_what_was_synced_however_often_others_were_kept_since(tmp_path: Path, again: bool) -> None:
    memory = Memory(tmp_path)
    for seq in range(4):
        memory.keep(state(seq), durable=False)
    memory.sync()
    if again:  # a killed process has left it, and nobody knows what that had synced
        memory.close()
        memory = Memory(tmp_path)
    safe = {path: path.read_bytes() for path in tmp_path.glob("memory-*")}
    for seq in range(4, 8):
        memory.keep(state(seq), durable=False)
    memory.close()
    for path, content in safe.items():
        if path.read_bytes() != content:
            path.write_bytes(b"\0" * 30)
    assert last(tmp_path) == state(3)


def test_after_a_sync_that_failed_it_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have dropped what it could not write: another sync alone would prove nothing."""
    memory = Memory(tmp_path)
    memory.keep(state(0), durable=True)

    def drops(fd: int) -> None:
        os.ftruncate(fd, 0)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", drops)
        with pytest.raises(OSError, match="Input/output"):
            memory.keep(state(1), durable=True)
    assert last(tmp_path) == state(0)
    memory.sync()
    assert last(tmp_path) == state(1)
    memory.close()
