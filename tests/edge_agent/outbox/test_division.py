from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.outbox.division import LARGEST, divided
from edge_agent.outbox.recovery import close_journal
from edge_agent.spool import Spool
from protocol.records import Delivery, Origin, OriginKind, Progress, SourcePayload
from protocol.wire.batch import MOST_BATCH_BYTES, Header, decode_batch, frame
from protocol.wire.sections import pending, pending_sized
from tests.edge_agent.records import (
    AGENT,
    ALERTS,
    EPOCH,
    EVENT_BYTES,
    PACKER,
    STREAM,
    Bench,
    begun,
    crashed,
    records_after_crash,
)

HEADER = Header(EPOCH.counter, EPOCH.nonce, 7)
PROMISE = pending(Progress(ALERTS, 9, 9), PACKER)


def numbers_in(batches: list[bytes]) -> list[int]:
    decoded = [decode_batch(data, AGENT) for data in batches]
    assert [batch.header.seq for batch in decoded] == list(range(7, 7 + len(decoded)))
    return [each.number for batch in decoded for each in batch.records() if hasattr(each, "number")]


@given(st.lists(st.integers(0, 3_000), max_size=40), st.integers(64, 8_000), st.integers(0, 2**32))
def test_whatever_their_sizes_all_records_are_told_once_in_order_and_promises_last(
    sizes: list[int], batch_bytes: int, seed: int
) -> None:
    dice = Random(seed)
    rows = [begun(key, dice.randbytes(size)) for key, size in enumerate(sizes)]
    parts = list(divided(HEADER, rows, [PROMISE], 100, AGENT, batch_bytes))
    assert numbers_in([part.data for part in parts]) == list(range(100, 100 + len(rows)))
    promises = [
        [isinstance(each, Progress) for each in decode_batch(part.data, AGENT).records()].count(True) for part in parts
    ]
    assert promises == [0] * (len(parts) - 1) + [1]
    for part in parts:
        assert len(part.rows) <= 1 or len(part.data) <= 1.15 * batch_bytes


def test_large_records_before_small_ones_make_no_batch_that_cannot_be_sent() -> None:
    rows = [begun(key, os.urandom(15_900) if key < 5 else None) for key in range(400)]
    parts = list(divided(HEADER, rows, (), 0, AGENT, 8 << 10))
    assert max(len(frame(part.data, AGENT, True)) for part in parts) <= MOST_BATCH_BYTES


def test_what_compresses_very_well_can_still_be_unpacked() -> None:
    rows = [begun(key, f"{key:08}" + "much alike, " * 60) for key in range(1_000)]
    parts = list(divided(HEADER, rows, (), 0, AGENT, LARGEST))
    assert len(parts) > 1
    assert numbers_in([part.data for part in parts]) == list(range(1_000))


def source(seq: int, payload: Any) -> SourcePayload:
    return SourcePayload(STREAM, seq, 1_000 + seq, payload)


def test_alike_records_make_batches_that_can_be_unpacked(tmp_path: Path) -> None:
    with Bench(tmp_path, batch_bytes=32 << 10) as bench:
        for seq in range(2_000):
            bench.put(source(seq, f"{seq:08}" + "reading of a sensor, " * 40))
            if seq % 100 == 0:
                bench.step()
        bench.outbox.finish()
        bench.step()
        bench.step(1.0)
        found = [each.seq for entry in bench.spool.entries() for each in decode_batch(entry.data, AGENT).records()]
        assert found == list(range(2_000))


@pytest.mark.parametrize("records", [30, 300])
def test_the_journal_holds_a_group_that_is_divided_twice_at_most(tmp_path: Path, records: int) -> None:
    """Once as it came, and once as the batches that it becomes."""
    with Bench(tmp_path, batch_bytes=300, batch_records=1_000, spool_bytes=4 << 20) as bench:
        bench.outbox.put_all([pending_sized(source(seq, os.urandom(200)), PACKER) for seq in range(records)])
        longest = 0
        append = bench.spool.append

        def spied(data: bytes) -> int:
            nonlocal longest
            longest = max(longest, (tmp_path / "up" / "journal").stat().st_size)
            return append(data)

        bench.spool.append = spied  # type: ignore[method-assign,assignment]
        bench.outbox.finish()
        bench.step()
        bench.step(1.0)
        assert bench.spool.count > records / 4
        assert longest < 2.2 * 300 * records
        assert bench.outbox.dropped == 0


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What an agent would leave that was killed before or behind any write of a group that is divided."""
    found: list[Path] = []
    with Bench(tmp_path / "agent", batch_bytes=200, batch_records=1_000) as bench:
        bench.outbox.begin()
        bench.outbox.put_all([(begun(key, os.urandom(60)), EVENT_BYTES) for key in range(12)])
        for name in ("append", "journal"):
            real = getattr(bench.spool, name)

            def spied(*args: Any, real: Any = real) -> Any:
                result = real(*args)
                found.append(crashed(tmp_path / "agent", f"image-{len(found)}"))
                return result

            monkeypatch.setattr(bench.spool, name, spied)
        bench.outbox.finish()
        bench.step()
        bench.step(1.0)
    assert len(found) > 10, "pieces and batches"
    return found


def told_after(folder: Path) -> list[int]:
    """The numbers of all events, when the next process has begun; its batches have to follow one another."""
    with Spool.open(folder / "up") as spool:
        assert close_journal(spool, AGENT) == []
        assert spool.lost == []
        decoded = [decode_batch(entry.data, AGENT) for entry in spool.entries()]
    assert [batch.header.seq for batch in decoded] == list(range(len(decoded)))
    return [each.number for batch in decoded for each in batch.records()]


def test_a_crash_at_any_write_of_a_group_that_is_divided_takes_and_repeats_nothing(images: list[Path]) -> None:
    for folder in images:
        assert told_after(folder) == list(range(12)), folder.name


def test_nor_does_another_one_in_the_middle_of_what_the_next_process_makes_of_it(
    images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[Path] = []
    rename = os.rename

    def spied(draft: str, path: str) -> None:
        folder = Path(path).parent.parent
        again.append(crashed(folder, f"{folder.name}-before"))
        rename(draft, path)
        again.append(crashed(folder, f"{folder.name}-after"))

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", spied)
        for folder in images:
            told_after(folder)
    assert len(again) > 10
    for folder in again:
        assert told_after(folder) == list(range(12)), folder.name


def test_what_a_crash_left_of_a_very_large_group_can_be_sent(tmp_path: Path) -> None:
    """Nobody had divided it: it was still to become larger."""
    with Bench(tmp_path / "agent", batch_bytes=16 << 10, batch_records=1_000, batch_age_s=3600) as bench:
        for key in range(60):
            bench.put(begun(key, os.urandom(1_500)))
        bench.step()
        bench.step(0.3)
        assert bench.spool.count == 0, "all in the journal"
        after = crashed(tmp_path / "agent")
    with Spool.open(after / "up") as spool:
        assert close_journal(spool, AGENT) == []
        entries = [entry.data for entry in spool.entries()]
    assert len(entries) > 1
    assert max(len(frame(data, AGENT, True)) for data in entries) <= MOST_BATCH_BYTES
    found = [each.number for data in entries for each in decode_batch(data, AGENT).records()]
    assert found == list(range(60))


@pytest.mark.parametrize(
    ("windows", "size", "payload"), [(1_000, 200, 3), (9, 60_000, 3), (70_000, 0, None), (200, 0, [0] * 4_000)]
)
def test_nobody_refuses_to_read_what_compresses_to_almost_nothing(windows: int, size: int, payload: Any) -> None:
    """One message may close very many windows, whose origins are told by how far they are apart."""
    origins = tuple([Origin(OriginKind.SOURCE, STREAM, seq, seq) for seq in range(size)])
    rows = [pending(Delivery(ALERTS, seq, seq, payload, origins), PACKER) for seq in range(windows)]
    parts = list(divided(HEADER, rows, [PROMISE], 0, AGENT, LARGEST))
    told = [each for part in parts for each in decode_batch(part.data, AGENT).records() if isinstance(each, Delivery)]
    assert [(each.seq, len(each.origins)) for each in told] == [(seq, size) for seq in range(windows)]


def test_what_belongs_together_and_fills_many_batches_can_be_read(tmp_path: Path) -> None:
    origins = tuple([Origin(OriginKind.SOURCE, STREAM, seq, seq) for seq in range(200)])
    folder = tmp_path / "agent"
    folder.mkdir()
    with Bench(folder, spool_bytes=32 << 20) as bench:
        bench.outbox.put_all([pending_sized(Delivery(ALERTS, seq, 0, seq, origins), PACKER) for seq in range(1_000)])
        bench.step()
        bench.step(0.5)
        after = crashed(folder)
        bench.step(1.0)
        told = [[each.seq for each in batch.records()] for batch in bench.batches()]
    assert len(told) > 1
    assert [seq for each in told for seq in each] == list(range(1_000))
    assert [each.seq for each in records_after_crash(after)] == list(range(1_000))
