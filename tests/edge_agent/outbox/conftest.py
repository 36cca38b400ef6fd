"""A disk that fills up when a test says so, and no patience with it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.edge_agent.records import (
    path_of,
)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """While there is something in the list, files whose path holds it cannot be written."""
    full: list[str] = []
    write = os.pwrite

    def maybe(fd: int, data: Any, offset: int) -> int:
        path = path_of(fd)
        if any(part in path for part in full):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", maybe)
    yield full
    full.clear()


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with a writer that does nothing nor with the disk: a test reads through the same kernel."""
    monkeypatch.setattr("edge_agent.outbox.intake._PATIENCE_S", 0.1)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
