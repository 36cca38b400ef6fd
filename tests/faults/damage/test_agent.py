"""The folder of an agent of which any file has changed: what is sent was written so, and what is missing has a name."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from edge_agent.epoch import Epoch, begin_epoch
from edge_agent.outbox.memory import Memory, Progressed
from edge_agent.outbox.recovery import FORGOTTEN, close_journal, gap_after_crash
from edge_agent.spool import Spool
from edge_agent.status_file import StatusFile, read_status_file
from protocol.events import DataItem, Event, TaskBegun
from protocol.records import Gap
from protocol.wire.batch import decode_batch
from tests.edge_agent.exchange.test_send_streams import stream_in, tuples
from tests.edge_agent.records import AGENT, EPOCH, Bench, begun
from tests.faults.damage.harm import Harm, harms

EVENTS = 23
RELEASED = 3
DICE = Random(1)
PAYLOADS = [DICE.randbytes(20) for _ in range(EVENTS)]


class Found(NamedTuple):
    """What the next process finds."""

    events: list[Event]
    seqs: list[int]
    gap: Gap | None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A process that was killed: some batches acknowledged, some in the spool, the last records in the journal."""
    folder = tmp_path_factory.mktemp("made") / "agent"
    with Bench(folder, flush_s=0.1, batch_records=2, batch_age_s=60.0, fsync="never") as bench:
        bench.spool._segment_bytes = 400
        begin_epoch(folder)
        for key, payload in enumerate(PAYLOADS):
            bench.put(begun(key, payload))
            bench.step()
            bench.step(0.2)
            if key == 2 * RELEASED + 1:
                bench.spool.release(RELEASED - 1)
        shutil.copytree(folder, folder.with_name("killed"))
    killed = folder.with_name("killed")
    assert len([path for path in (killed / "up").iterdir() if ".v" in path.name]) > 3
    return killed


def put(number: int) -> Event:
    """The event of this number, as the cloud has to read it."""
    data = DataItem(f"data-{number}", "w", (), PAYLOADS[number])
    return TaskBegun(number, 1_000 + number, number, 0, f"task-{number}", "f", (), (data,))


def found(folder: Path) -> Found:
    """What a new process makes of it: it starts, whatever has happened to the files."""
    with Spool.open(folder / "up", fsync="never") as spool:
        memory = Memory(folder)
        memory.close()
        epoch = begin_epoch(folder)
        close_journal(spool, AGENT)
        gap = gap_after_crash(spool, memory.last, AGENT, [], epoch)
        batches = [decode_batch(entry.data, AGENT) for entry in spool.entries()]
    events = [each for batch in batches for each in batch.records() if hasattr(each, "number")]
    return Found(events, [batch.header.seq for batch in batches], gap)


def examine(folder: Path, path: Path, harm: Harm | None, whole: Found) -> None:
    if harm is None:
        path.unlink()
    else:
        path.write_bytes(harm.content)
    told = f"{path.relative_to(folder)}: {harm or 'deleted'}"
    now = found(folder)
    numbers = [each.number for each in now.events]
    assert numbers == sorted(set(numbers)) and set(now.seqs) <= set(whole.seqs) | set(range(RELEASED)), told
    assert now.events == [put(number) for number in numbers], told
    missing = [seq for seq in whole.seqs if seq not in now.seqs]
    at_the_end = [seq for seq in missing if seq > max(now.seqs, default=-1)]  # others are missed by the cloud
    assert now.gap is not None, f"{told}: it was killed, and nobody says so"
    if now.gap.reason == FORGOTTEN:
        return
    assert now.gap.nonce == EPOCH.nonce, told
    named = range(now.gap.batches[0], now.gap.batches[1] + 1) if now.gap.batches else ()
    unnamed = [seq for seq in at_the_end if seq not in named]
    # Records that were in the journal only: how far the start had come is told instead.
    assert not unnamed or unnamed == [whole.seqs[-1]], f"{told}: batches {unnamed} are gone without a name"


def files(folder: Path) -> list[Path]:
    """Those with something in them."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", "reserve"))
    return sorted(path for path in found if path.stat().st_size)


def test_whatever_happens_to_a_file_nothing_wrong_is_sent_and_nothing_is_gone_unsaid(
    made: Path, tmp_path: Path
) -> None:
    whole = found(Path(shutil.copytree(made, tmp_path / "whole")))
    assert whole.gap is not None and whole.gap.batches is None
    assert whole.events == [put(number) for number in range(2 * RELEASED, EVENTS)]
    assert whole.seqs == list(range(RELEASED, (EVENTS + 1) // 2))
    for number, path in enumerate(files(made)):
        for case, harm in enumerate([None, *harms(path.read_bytes(), number, 12)]):
            folder = Path(shutil.copytree(made, tmp_path / f"agent-{number}-{case}"))
            examine(folder, folder / path.relative_to(made), harm, whole)
            shutil.rmtree(folder)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_same_many_times(made: Path, tmp_path: Path) -> None:
    whole = found(Path(shutil.copytree(made, tmp_path / "whole")))
    for number, path in enumerate(files(made)):
        for harm in harms(path.read_bytes(), number + 100, 200):
            folder = Path(shutil.copytree(made, tmp_path / "agent"))
            examine(folder, folder / path.relative_to(made), harm, whole)
            shutil.rmtree(folder)


def test_a_memory_with_another_count_is_not_taken_for_the_newer_one(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    for number in range(1, 4):
        memory.keep(Progressed(1, 5, next_seq=number), durable=False)
    memory.close()
    older = min(
        (path for path in tmp_path.glob("memory-*") if path.read_bytes()), key=lambda path: path.read_bytes()[:8][::-1]
    )
    content = older.read_bytes()
    for bit in range(2, 64):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        older.write_bytes(changed)
        memory = Memory(tmp_path)
        memory.close()
        assert memory.last is not None and memory.last.next_seq == 3, bit


def test_a_device_that_has_forgotten_everything_says_so(tmp_path: Path) -> None:
    with Spool.open(tmp_path / "up", fsync="never") as spool:
        assert gap_after_crash(spool, None, AGENT, [], Epoch(1, 7)) is None, "its first start"
        assert gap_after_crash(spool, None, AGENT, [], Epoch(2, 7)) == Gap(FORGOTTEN, 2, 7)
        spool.append(b"left by somebody")
        assert gap_after_crash(spool, None, AGENT, [], Epoch(1, 7)) == Gap(FORGOTTEN, 1, 7)


def test_the_number_of_a_send_stream_is_not_believed_if_it_has_changed(tmp_path: Path) -> None:
    """Receivers would take what they have for something new."""
    send = stream_in(tmp_path)
    send.add(tuples([1]), 1, 1, False, now=0.0)
    send.step(0.0)
    send.close()
    [path] = tmp_path.glob("send-*/id")
    content = path.read_bytes()
    older = content.partition(b" ")[0]
    for harm in [*harms(content, 3, 60), Harm("as older versions wrote it", 0, older)]:
        path.write_bytes(harm.content)
        again = stream_in(tmp_path)
        again.close()
        assert again.spool_id == send.spool_id, str(harm)  # the entries know it


def test_a_status_that_has_changed_is_not_shown(tmp_path: Path) -> None:
    status = StatusFile(str(tmp_path))
    status.write({"name": AGENT, "unacknowledged": 3})
    status.close()
    content = (tmp_path / "status").read_bytes()
    for harm in harms(content[:60], 1, 5):
        (tmp_path / "status").write_bytes(harm.content + content[60:])
        try:
            assert read_status_file(str(tmp_path)) == {"name": AGENT, "unacknowledged": 3}, str(harm)
        except ValueError as error:
            assert "does not hold what an agent writes" in str(error)
