"""Syncing on another thread, if there can be one."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from time import monotonic, sleep

import pytest

from edge_agent.spool import Syncer


def handle_of(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


def wait_for(syncer: Syncer) -> None:
    until = monotonic() + 10
    while syncer.busy and monotonic() < until:
        sleep(0.001)
    assert not syncer.busy


def is_open(handle: int) -> bool:
    return Path(f"/proc/self/fd/{handle}").exists()


def test_files_are_synced_on_another_thread_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: threads.append(threading.current_thread()))
    syncer = Syncer()
    handle = handle_of(tmp_path / "file")
    syncer.order([handle])
    wait_for(syncer)
    assert syncer.error is None and not is_open(handle)
    assert len(threads) == 1 and threads[0] is not threading.current_thread()
    syncer.close()


def test_a_file_that_cannot_be_closed_was_not_synced_and_the_next_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system over a network may say so late what it could not write."""
    close = os.close

    def fails(handle: int) -> None:
        close(handle)
        raise OSError(errno.EIO, "broken")

    syncer = Syncer()
    handles = [handle_of(tmp_path / "one"), handle_of(tmp_path / "two")]
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fails)
        syncer.order(handles)
        wait_for(syncer)
    assert syncer.error is not None and not any(is_open(handle) for handle in handles)
    syncer.order([handle_of(tmp_path / "three")])
    wait_for(syncer)
    assert syncer.error is None
    syncer.close()


@pytest.mark.parametrize("is_broken", [False, True])
def test_without_a_thread_it_is_done_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_broken: bool) -> None:
    """Nothing would ever be synced again, and any power cut would take all of it."""
    synced: list[int] = []

    def sync(fd: int) -> None:
        synced.append(fd)
        if is_broken:
            raise OSError(errno.EIO, "broken")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(os, "fdatasync", sync)
    syncer = Syncer()
    handles = [handle_of(tmp_path / "one"), handle_of(tmp_path / "two")]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        syncer.order(handles)
    assert (synced, syncer.busy, syncer.error is not None) == (handles, False, is_broken)
    assert not any(is_open(handle) for handle in handles)
    syncer.order([handle_of(tmp_path / "three")])
    wait_for(syncer)
    assert len(synced) == 3, "now there was one"
    syncer.close()


def test_without_a_thread_there_is_nothing_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    syncer = Syncer()
    syncer.order([handle_of(tmp_path / "one")])
    syncer.close()
