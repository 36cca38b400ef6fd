"""The report on a whole log finds each kind of fault, and nothing in a log without one."""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path
from time import process_time

import pytest

from collector.log import FIRST, NOBODY, Fault, Position, Row, ShardReport, ShardWriter, remove_segments, verify
from collector.log.position import position_path
from collector.log.segment import Segment, encoded
from tests.collector.log.batches import GAP, NONCE, SHARD, SNAPSHOT, batch, log_batches, opened, segments

RETIRE = 7


def gap_of(row: Row) -> tuple[int, range] | None:
    """A gap's data are a nonce, and the first and the last of its seqs that will never come."""
    if row.kind != GAP:
        return None
    nonce, first, last = map(int, row.data.decode().split("-"))
    return nonce, range(first, last + 1)


def gap(seq: int, first: int, last: int, nonce: int = NONCE, of: int = NONCE) -> Row:
    return Row(GAP, "a", nonce, seq, f"{of}-{first}-{last}".encode())


def retire(seq: int) -> Row:
    return Row(RETIRE, "a", NONCE, seq, b"")


def report(folder: Path) -> ShardReport:
    (only,) = verify(folder, own_kinds=[SNAPSHOT, RETIRE], gap_of=gap_of)
    return only


def faults(folder: Path, *commits: list[Row]) -> list[tuple[Fault, Position]]:
    """What is found after these were committed."""
    writer, _ = opened(folder)
    for rows in commits:
        writer.append(rows)
        writer.commit()
    writer.close()
    return [(each.fault, each.at) for each in report(folder).findings]


def test_a_sound_log_has_no_findings(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(3))
    log_batches(tmp_path, "b", range(2))
    log_batches(tmp_path, "a", range(3, 5))
    size_bytes = sum(path.stat().st_size for path in segments(tmp_path))
    assert report(tmp_path) == ShardReport(SHARD, 3, 10, 17, size_bytes)


def test_every_shard_has_its_report(tmp_path: Path) -> None:
    assert list(verify(tmp_path, own_kinds=[SNAPSHOT])) == []
    for shard in (1, 3):
        (tmp_path / f"shard-{shard:02d}").mkdir()
    assert list(verify(tmp_path, own_kinds=[SNAPSHOT])) == [ShardReport(1), ShardReport(3)]


# The order


def test_another_start_of_the_agent_has_its_own_order(tmp_path: Path) -> None:
    assert faults(tmp_path, batch("a", 0), batch("a", 0, nonce=1), batch("a", 1), batch("a", 1, nonce=1)) == []


def test_an_agent_batch_may_have_several_rows_of_one_kind(tmp_path: Path) -> None:
    assert faults(tmp_path, batch("a", 0, [1, 2, 2, 1]), batch("a", 1, [2, 2])) == []


def test_what_the_cloud_writes_by_itself_is_part_of_no_batch(tmp_path: Path) -> None:
    """Its seq says how far the agent had come: it is that of the batch which comes next, or never."""
    assert faults(tmp_path, batch("a", 0), [retire(1)], [*batch("a", 1), retire(2)], [retire(2)], batch("a", 2)) == []


@pytest.mark.parametrize(
    ("commits", "wanted"),
    [
        ([batch("a", 0), batch("a", 2)], [(Fault.MISSING_SEQ, Position(1, 2))]),
        ([batch("a", 0), batch("a", 3), batch("a", 1)], [(Fault.MISSING_SEQ, (1, 2)), (Fault.OUT_OF_ORDER, (1, 4))]),
        ([batch("a", 4), batch("a", 3)], [(Fault.MISSING_SEQ, (1, 0)), (Fault.OUT_OF_ORDER, (1, 2))]),
        ([batch("a", 0), [retire(3)]], [(Fault.MISSING_SEQ, (1, 2))]),
        ([batch("a", 0), batch("a", 1), batch("a", 0)], [(Fault.DUPLICATE, (1, 4))]),
        ([batch("a", 0, [1]), batch("a", 0, [2])], [(Fault.OUT_OF_ORDER, (1, 1))]),
        ([batch("a", 0, [1]) + batch("b", 0) + batch("a", 0, [1])], [(Fault.OUT_OF_ORDER, (1, 3))]),
    ],
)
def test_what_breaks_the_order_is_found(
    tmp_path: Path, commits: list[list[Row]], wanted: list[tuple[Fault, tuple[int, int]]]
) -> None:
    assert faults(tmp_path, *commits) == wanted


@pytest.mark.parametrize(
    ("commits", "missing"),
    [
        ([batch("a", 0), [*batch("a", 5), gap(5, 1, 4)]], ""),
        ([batch("a", 0), [gap(1, 2, 4)], batch("a", 5)], ""),
        ([batch("a", 0), [gap(1, 4, 4)], [gap(5, 2, 3)]], ""),
        ([batch("a", 0), [gap(6, 2, 3)]], "seqs 1 to 1, seqs 4 to 5"),
        ([batch("a", 0), [gap(6, 0, 3)]], "seqs 4 to 5"),
        ([batch("a", 0), [gap(6, 3, 99)]], "seqs 1 to 2"),
        ([batch("a", 0), [gap(9, 2, 3), *batch("a", 9), gap(9, 6, 6)]], "seqs 1 to 1, seqs 4 to 5, seqs 7 to 8"),
    ],
)
def test_a_gap_names_seqs_that_may_be_missing(tmp_path: Path, commits: list[list[Row]], missing: str) -> None:
    faults(tmp_path, *commits)
    found = [each for each in report(tmp_path).findings if each.fault is Fault.MISSING_SEQ]
    assert ", ".join(each.text.split(": ")[1].removesuffix(" never came") for each in found) == missing


def test_a_gap_may_be_told_by_another_start(tmp_path: Path) -> None:
    told = [gap(0, 1, 4, nonce=1), gap(0, 0, 2, nonce=1, of=2)]
    assert faults(tmp_path, batch("a", 0), told, batch("a", 5), batch("a", 3, nonce=2)) == []
    assert faults(tmp_path / "more", batch("a", 0), told, batch("a", 6), batch("a", 4, nonce=2)) == [
        (Fault.MISSING_SEQ, Position(1, 4)),
        (Fault.MISSING_SEQ, Position(1, 6)),
    ]


def test_what_is_missing_at_the_beginning_is_found(tmp_path: Path) -> None:
    assert faults(tmp_path, batch("a", 5)) == [(Fault.MISSING_SEQ, Position(1, 0))]
    assert faults(tmp_path / "named", [gap(0, 0, 4)], batch("a", 5)) == []


@pytest.mark.parametrize(("seq", "fault"), [(3, None), (9, Fault.MISSING_SEQ), (1, Fault.DUPLICATE)])
@pytest.mark.parametrize("is_removed", [False, True])
def test_a_snapshot_says_what_comes_next(tmp_path: Path, seq: int, fault: Fault | None, is_removed: bool) -> None:
    """Also if the segments before it were removed."""
    end = log_batches(tmp_path, "a", range(3))
    if is_removed:
        log_batches(tmp_path, "b", [0])
        assert remove_segments(tmp_path, SHARD, Position(end.segment + 1, 0)) == [1]
    log_batches(tmp_path, "a", [seq])
    assert [each.fault for each in report(tmp_path).findings] == [fault] * (fault is not None)


def test_what_a_snapshot_takes_for_logged_and_was_not_is_missing(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(3))
    with ShardWriter(tmp_path, SHARD) as writer:
        writer.begin(lambda: [Row(SNAPSHOT, "a", NONCE, 5, b"")])
    (finding,) = report(tmp_path).findings
    assert (finding.fault, finding.at) == (Fault.MISSING_SEQ, Position(2, 0))
    assert finding.text.endswith("seqs 3 to 4 never came")


def test_of_whom_nobody_knows_how_far_he_had_come_anything_may_be_next(tmp_path: Path) -> None:
    """As old segments were removed, or as the log tells that some were lost: others know more than it does."""
    log_batches(tmp_path, "b", [0])
    log_batches(tmp_path, "b", [1])
    remove_segments(tmp_path, SHARD, Position(2, 0))
    log_batches(tmp_path, "a", range(5, 7))
    assert report(tmp_path).findings == []
    with ShardWriter(tmp_path / "lost", SHARD) as writer:
        writer.begin(list, [Row(GAP, NOBODY, 0, 0, b"0-0-0")])
        writer.append(batch("a", 5))
        writer.commit()
    assert report(tmp_path / "lost").findings == []


def test_many_gaps_take_no_longer_each(tmp_path: Path) -> None:
    rows = [gap(2 * seq + 1, 2 * seq, 2 * seq) for seq in range(10_000)]
    begun = process_time()
    assert faults(tmp_path, rows) == []
    assert process_time() - begun < 5


def test_a_finding_reads_well(tmp_path: Path) -> None:
    faults(tmp_path, batch("a", 0), batch("a", 2))
    (finding,) = report(tmp_path).findings
    assert str(finding) == (
        "shard 5 segment 1 row 2: missing seq: kind 1 of a nonce fffffffffffffffd seq 2: seqs 1 to 1 never came"
    )


# The files


def test_a_torn_tail_is_counted_but_is_no_fault(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    with segments(tmp_path)[0].open("ab") as handle:
        handle.write(b"half")
    assert (report(tmp_path).torn_bytes, report(tmp_path).findings) == (4, [])


def test_damage_before_the_position_is_a_fault(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    with Segment(segments(tmp_path)[0]) as segment:
        second = list(segment.frames())[2]
    with segments(tmp_path)[0].open("r+b") as handle:
        handle.truncate(second.end - 1)
    (finding,) = report(tmp_path).findings
    assert (finding.fault, finding.at) == (Fault.DAMAGED, Position(1, 2))
    with segments(tmp_path)[0].open("r+b") as handle:
        handle.truncate(second.offset)
    (finding,) = report(tmp_path).findings
    assert (finding.fault, finding.at) == (Fault.DAMAGED, Position(1, 2))


def test_a_wrong_check_is_found_and_the_rest_is_read(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path, compression=None)
    writer.append(batch("a", 0) + batch("a", 1))
    writer.commit()
    writer.close()
    path = segments(tmp_path)[0]
    path.write_bytes(path.read_bytes().replace(b"a:0:2", b"a:0:7"))
    (finding,) = report(tmp_path).findings
    assert (finding.fault, finding.at) == (Fault.WRONG_CHECK, Position(1, 1))
    assert report(tmp_path).rows == 4


def test_a_check_covers_every_field(tmp_path: Path) -> None:
    writer, _ = opened(tmp_path)
    writer.append([Row(1, "a", 2, 3, b"4")])
    writer.commit()
    writer.close()
    path = segments(tmp_path)[0]
    with Segment(path) as segment:
        *_, last = segment.frames()
        checks = segment.batch(last).column("check").to_pylist()
    for row in (
        Row(2, "a", 2, 3, b"4"),
        Row(1, "b", 2, 3, b"4"),
        Row(1, "a", 3, 3, b"4"),
        Row(1, "a", 2, 4, b"4"),
        Row(1, "a", 2, 3, b"5"),
        Row(1, "a4", 2, 3, b""),
    ):
        content = path.read_bytes()[: last.offset] + encoded([row], checks, None)
        path.write_bytes(content)
        assert report(tmp_path).findings[0].fault is Fault.WRONG_CHECK, row


def test_a_missing_segment_is_found(tmp_path: Path) -> None:
    for seq in range(4):
        log_batches(tmp_path, "a", [seq])
    assert remove_segments(tmp_path, SHARD, Position(2, 0)) == [1]
    assert report(tmp_path).findings == []
    segments(tmp_path)[1].unlink()
    segments(tmp_path)[1].unlink()
    found = [(each.fault, each.at) for each in report(tmp_path).findings]
    assert found == [(Fault.MISSING_SEGMENT, Position(3, 0)), (Fault.MISSING_SEGMENT, Position(4, 0))]


@pytest.mark.parametrize("content", [None, b"foo"])
def test_a_shard_without_a_position_is_a_fault_and_the_others_are_read(tmp_path: Path, content: bytes | None) -> None:
    log_batches(tmp_path, "a", range(2))
    shutil.copytree(tmp_path / "shard-05", tmp_path / "shard-06")
    position = position_path(tmp_path / "shard-05")
    position.unlink() if content is None else position.write_bytes(content)
    first, second = verify(tmp_path, own_kinds=[SNAPSHOT])
    assert [(each.fault, each.at) for each in first.findings] == [(Fault.NO_POSITION, FIRST)]
    assert (first.rows, second.rows, second.findings) == (4, 4, [])
    segments(tmp_path)[0].write_bytes(segments(tmp_path)[0].read_bytes()[:-1])
    assert [each.fault for each in report_of(tmp_path, 5).findings] == [Fault.NO_POSITION, Fault.DAMAGED]


def report_of(folder: Path, shard: int) -> ShardReport:
    (found,) = [each for each in verify(folder, own_kinds=[SNAPSHOT]) if each.shard == shard]
    return found


def test_a_shard_whose_segments_are_all_gone_is_a_fault(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    segments(tmp_path)[0].unlink()
    assert [(each.fault, each.at) for each in report(tmp_path).findings] == [(Fault.MISSING_SEGMENT, FIRST)]


def test_a_loss_is_a_fault_until_somebody_takes_away_what_was_set_aside(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    log_batches(tmp_path, "a", range(2, 4))
    segments(tmp_path)[1].write_bytes(b"gone")
    with ShardWriter(tmp_path, SHARD) as writer:
        assert [each.fault for each in report(tmp_path).findings] == [Fault.LOST, Fault.MISSING_SEGMENT]
        writer.begin(list, [Row(GAP, NOBODY, 0, 0, b"0-0-0"), Row(GAP, NOBODY, 0, 0, b"0-0-0")])
        writer.append(batch("a", 2))
        writer.commit()
    (finding,) = report(tmp_path).findings
    assert (finding.fault, finding.at.segment, report(tmp_path).losses) == (Fault.LOST, 2, 1)
    assert "what followed row 4 of segment 1, up to row 5 of segment 2," in finding.text
    assert finding.text.endswith("(take 000000000002.arrows.damaged away to say that you know)")
    (tmp_path / "shard-05" / "000000000002.arrows.damaged").unlink()
    assert (report(tmp_path).findings, report(tmp_path).losses) == ([], 1)


@pytest.mark.parametrize("name", ["000000000001.arrows", "000000000001.end", "position", "000000000001.arrows.damaged"])
def test_a_folder_in_the_place_of_a_file_is_a_fault_and_the_rest_is_read(tmp_path: Path, name: str) -> None:
    for seq in range(3):
        log_batches(tmp_path, "a", [seq])
    path = tmp_path / "shard-05" / name
    path.unlink(missing_ok=True)
    path.mkdir()
    (finding,) = report(tmp_path).findings
    assert name in finding.text and ("Is a directory" in finding.text or finding.fault is Fault.LOST)
    assert report(tmp_path).rows >= 6, "the others"


def test_a_segment_that_is_no_file_is_a_fault_though_nothing_of_it_was_published(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", [0])
    (tmp_path / "shard-05" / "000000000009.arrows").mkdir()
    assert [(each.fault, each.at) for each in report(tmp_path).findings] == [(Fault.DAMAGED, Position(9, 0))]


def test_a_file_in_the_place_of_a_shard_is_a_fault(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(2))
    (tmp_path / "shard-06").write_text("")
    first, second = verify(tmp_path, own_kinds=[SNAPSHOT])
    assert first.findings == []
    assert [str(each) for each in second.findings] == [
        f"shard 6 segment 1 row 0: no position: {tmp_path}/shard-06/position cannot be read: Not a directory"
    ]


def test_a_disk_that_does_not_answer_is_a_fault_of_its_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_batches(tmp_path, "a", range(2))

    def broken(shard: Path) -> list[int]:
        raise OSError(errno.EIO, "Input/output error", str(shard))

    monkeypatch.setattr(sys.modules["collector.log.verify"], "segment_numbers", broken)
    assert [(each.fault, each.text) for each in report(tmp_path).findings] == [
        (Fault.DAMAGED, f"{tmp_path}/shard-05 cannot be read: Input/output error")
    ]


def test_what_is_removed_meanwhile_is_not_missed(tmp_path: Path) -> None:
    for seq in range(5):
        log_batches(tmp_path, "a", [seq])
    paths = segments(tmp_path)

    def removing(row: Row) -> str:
        if row.kind == 1 and row.seq == 0:
            remove_segments(tmp_path, SHARD, Position(3, 0))
        if row.kind == 1 and row.seq == 2:
            paths[3].unlink()
        return ""

    (found,) = verify(tmp_path, own_kinds=[SNAPSHOT], misfit_of=removing)
    assert [(each.fault, each.at.segment) for each in found.findings] == [
        (Fault.MISSING_SEGMENT, 4),
        (Fault.MISSING_SEQ, 5),
    ]


def test_what_does_not_fit_what_others_know_is_found(tmp_path: Path) -> None:
    log_batches(tmp_path, "a", range(3))
    seen: list[Row] = []

    def misfit_of(row: Row) -> str:
        seen.append(row)
        return "odd" if (row.kind, row.seq) == (2, 1) else ""

    (found,) = verify(tmp_path, own_kinds=[SNAPSHOT], misfit_of=misfit_of)
    assert [str(each) for each in found.findings] == [
        f"shard 5 segment 1 row 3: does not fit: kind 2 of a nonce {NONCE:016x} seq 1: odd"
    ]
    assert len(seen) == 6
