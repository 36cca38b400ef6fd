"""A shard's log as a test sees it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from collector.log import LogReader, Position, Row
from collector.log_view import check
from protocol.wire.sections import Kind
from tests.collector.agents import SHARD, FakeAgent, Shard

AGENT = FakeAgent()


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing can be written meanwhile."""

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        yield


def rows(shard: Shard) -> list[Row]:
    """All but snapshots."""
    reader = LogReader(shard.folder)
    return [row for row in reader.rows(SHARD, Position(1, 0), reader.end(SHARD)) if row.kind != Kind.SNAPSHOT]


def findings(shard: Shard) -> list[str]:
    """What `threadline log verify` would find."""
    return [line for line, is_fault in check(shard.folder) if is_fault]
