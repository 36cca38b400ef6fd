from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from collector.log import LogReader, Position, Row, remove_segments
from collector.log_view import check, entries, gap_of, lines
from collector.registry import Registry, StreamName
from collector.shard_log import ShardLog
from protocol.records import Assertion, Declared, Delivery, End, Gap, Origin, OriginKind, Progress, SourcePayload
from protocol.wire.sections import Kind
from tests.collector.agents import SHARD, FakeAgent, Shard, event

AGENT = FakeAgent()
OTHER = FakeAgent("valve-1", 9)
REPORTS, ALERTS = AGENT.stream("reports"), AGENT.stream("alerts")
STREAM_OF_OTHER = OTHER.stream("sent")
SOURCE = SourcePayload(REPORTS, 3, 30, {"speed": 7})
DELIVERY = Delivery(ALERTS, 0, 40, ["stopped"], (Origin(OriginKind.SOURCE, REPORTS, 3, 30),))


def filled(shard: Shard) -> None:
    shard.take(
        AGENT,
        AGENT.framed(
            0, Declared("{}"), SourcePayload(REPORTS, 3, 30, {"speed": 7}), DELIVERY, Progress(ALERTS, 41, 39)
        ),
        AGENT.framed(1, event(0), Assertion(AGENT.stream("keys"), 0, 1, 2, b"\x01"), End(5)),
    )
    shard.take(OTHER, OTHER.framed(0))


def test_records_come_back_as_they_were_sent(shard: Shard) -> None:
    filled(shard)
    found = {entry.kind: entry for entry in entries(shard.folder, agent=AGENT.name)}
    assert found[Kind.SOURCE].record == SOURCE
    assert found[Kind.DELIVERY].record == DELIVERY
    assert found[Kind.PROGRESS].record == Progress(ALERTS, 41, 39)
    assert (found[Kind.END].record, found[Kind.END].seq) == (End(5), 1)
    assert found[Kind.EVENT].record.key == 0
    assert found[Kind.ASSERTION].record == Assertion(AGENT.stream("keys"), 0, 1, 2, b"\x01")


def test_kinds_and_agents_can_be_chosen(shard: Shard) -> None:
    filled(shard)
    assert [entry.agent for entry in entries(shard.folder, [Kind.EVENT])] == [AGENT.name, OTHER.name]
    assert [entry.kind for entry in entries(shard.folder, [Kind.EVENT, Kind.END], OTHER.name)] == [Kind.EVENT]


def test_names_are_known_when_their_segment_is_gone(shard: Shard) -> None:
    filled(shard)
    shard.reopen()
    shard.take(AGENT, AGENT.framed(2, Progress(ALERTS, 50, 50)))
    remove_segments(shard.folder, SHARD, Position(99, 0))
    assert [entry.record for entry in entries(shard.folder, [Kind.PROGRESS])] == [Progress(ALERTS, 50, 50)]


def test_a_line_of_json_per_record(shard: Shard) -> None:
    filled(shard)
    found = [json.loads(line) for line in lines(shard.folder, None, [], None)]
    by_kind = {line["kind"]: line["record"] for line in found if line["agent"] == AGENT.name}
    assert by_kind["source"] == {"id": "pump-7/reports@1:3", "ts": 30, "payload": {"speed": 7}}
    assert by_kind["delivery"]["origins"] == [{"id": "pump-7/reports@1:3", "kind": "source", "ts": 30}]
    assert by_kind["progress"] == {"stream": "pump-7/alerts@1", "watermark": 41, "hold": 39}
    assert (by_kind["event"]["event"], by_kind["event"]["id"]) == ("TaskBegun", "task-0")
    assert by_kind["assertion"]["payload"] == "01"
    assert by_kind["end"] == {"ts": 5}
    assert {line["batch"] for line in found} == {0, 1}


def test_every_value_that_can_be_captured_can_be_shown(shard: Shard) -> None:
    payload = {"at": datetime(2026, 1, 2, tzinfo=UTC), "d": Decimal("1.5"), 5: {b"k": float("inf")}, "big": 2**80}
    shard.take(AGENT, AGENT.framed(0, SourcePayload(REPORTS, 0, 0, payload)))
    (line,) = lines(shard.folder, None, ["source"], None)
    shown = json.loads(line)["record"]["payload"]
    assert shown["at"].startswith("2026-01-02")
    assert (shown["d"], shown["5"], shown["big"]) == ("1.5", {"b'k'": "inf"}, 2**80)


def test_lines_end_at_the_limit(shard: Shard) -> None:
    filled(shard)
    assert len(list(lines(shard.folder, None, [], 3))) == 3
    assert list(lines(shard.folder, None, [], 0)) == []
    assert len(list(lines(shard.folder, AGENT.name, ["event", "END"], None))) == 2


def test_what_is_no_log_and_no_kind_is_refused(shard: Shard, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no kind 'evnt', only plan, source"):
        list(lines(shard.folder, None, ["evnt"], None))
    for function in (lambda: list(lines(tmp_path, None, [], None)), lambda: list(check(tmp_path))):
        with pytest.raises(ValueError, match="is no log"):
            function()


def test_a_sound_log_is_called_sound(shard: Shard) -> None:
    filled(shard)
    for number in (0, 1, 7):
        ShardLog(shard.folder, number, shard.registry, shard.quarantine).close()
    summary, empty, total = check(shard.folder)
    assert summary[0].startswith(f"shard {SHARD}: 1 segments, 3 commits, ")
    assert summary[0].endswith(": sound")
    assert empty == ("nothing in shards 0-1,7", False)
    assert total[0].startswith("4 shards, ")
    assert total[0].endswith(" bytes: sound")
    assert (summary[1], total[1]) == (False, False)


def test_a_log_without_its_registry_is_no_sound_log(shard: Shard) -> None:
    filled(shard)
    (shard.folder / "registry.db").unlink()
    (missing, is_fault), *_, (total, _) = check(shard.folder)
    assert "registry.db is not there, though there are segments" in missing
    assert is_fault
    assert total.endswith(": 1 faults")
    events = [json.loads(line) for line in lines(shard.folder, OTHER.name, ["event"], None)]
    assert [line["epoch"] for line in events] == [OTHER.epoch], "the log tells it as well"


def test_a_log_without_its_id_is_no_sound_log(shard: Shard) -> None:
    filled(shard)
    (shard.folder / "id").unlink()
    assert [line for line, is_fault in check(shard.folder) if is_fault] == [
        f"{shard.folder}/id is not there: put it back, or all that was made from the log will be refused"
    ]


def test_a_log_that_has_just_been_begun_is_sound(tmp_path: Path) -> None:
    Registry(tmp_path / "registry.db").close()
    assert list(check(tmp_path)) == [("0 shards, 0 rows, 0 bytes: sound", False)]


def test_a_folder_that_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: File name too long"):
        list(check(tmp_path / ("x" * 300)))


def test_a_registry_that_did_not_give_the_numbers_of_the_log_is_found(shard: Shard, tmp_path: Path) -> None:
    """In whichever segment they are told, and by whom. Each is told once."""
    filled(shard)
    shard.take(
        AGENT, AGENT.framed(2, Delivery(ALERTS, 1, 41, "x", (Origin(OriginKind.REMOTE, STREAM_OF_OTHER, 0, 1),)))
    )
    shard.reopen()
    assert not any(is_fault for _, is_fault in check(shard.folder))
    shard.close()
    for path in shard.folder.glob("registry.db*"):
        path.unlink()
    other = Registry(shard.folder / "registry.db")
    other.number_of(StreamName(OTHER.name, OTHER.nonce, 9, "first"))
    other.number_of(StreamName(AGENT.name, AGENT.nonce, 1, "alerts"))
    other.close()
    faults = [
        line.partition(f" seq {seq}: ")[2] for line, is_fault in check(shard.folder) if is_fault for seq in (0, 2)
    ]
    assert [each for each in faults if each] == [
        "stream reports of pump-7 is number 1 here, and none in registry.db",
        "stream sent of valve-1 is number 4 here, and none in registry.db",
    ]


def test_two_starts_of_an_agent_can_be_told_apart(shard: Shard) -> None:
    first, second, reflashed = FakeAgent(nonce=70, epoch=1), FakeAgent(nonce=5, epoch=2), FakeAgent(nonce=6, epoch=2)
    for agent in (first, second, reflashed):
        shard.take(agent, agent.framed(0))
    shown = [json.loads(line) for line in lines(shard.folder, None, ["event"], None)]
    assert [line["epoch"] for line in shown] == [1, 2, 3]
    shard.reopen()
    assert [entry.epoch for entry in entries(shard.folder, [Kind.EVENT])] == [1, 2, 3]


def test_a_hole_is_a_fault_unless_a_gap_names_it(shard: Shard) -> None:
    shard.take(AGENT, AGENT.framed(0), AGENT.framed(4, oldest=True))
    assert not any(fault for _, fault in check(shard.folder))
    shard.log._writer.append([row for row in _rows(shard) if row.kind == Kind.EVENT][-1:])
    shard.log._writer.append([_rows(shard)[-1]._replace(seq=9)])
    shard.log.commit()
    faults = [line for line, fault in check(shard.folder) if fault]
    assert len(faults) == 2
    assert "seqs 5 to 8 never came" in faults[1]


def _rows(shard: Shard) -> list[Row]:
    reader = LogReader(shard.folder)
    return list(reader.rows(SHARD, Position(1, 0), reader.end(SHARD)))


def test_a_gap_says_of_which_start_it_is(shard: Shard) -> None:
    shard.take(AGENT, AGENT.framed(0, Gap("dropped", 7, 70, (0, 5)), Gap("crash", 8, 80)))
    shard.take(OTHER, OTHER.framed(0, Gap("dropped", 9, 9, (0, 2)), covers=3))
    assert [gap_of(row) for row in _rows(shard) if row.kind == Kind.GAP] == [(70, range(6)), None, (9, range(3))]
