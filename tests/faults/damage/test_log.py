"""A log of which any file has changed: no reader gets a row that was not written, and what is lost is told."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from collector.forwarding.errors import PositionUnusable
from collector.forwarding.position import PositionFile, Purpose
from collector.log import (
    FIRST,
    LogDamaged,
    LogError,
    LogReader,
    Position,
    ShardWriter,
    log_id,
    remove_segments,
    verify,
)
from collector.log.identity import give_id
from collector.log.reader import _BOOKMARKS
from collector.log.segment import Segment
from collector.log_view import check, lines
from collector.quarantine import Quarantine
from collector.registry import ClosedEpoch, Registry, RegistryDamaged, RegistryError, StreamName, registry_fault
from collector.shard_log import ShardLog
from collector.translator import Translator, TranslatorOptions
from protocol.records import SourcePayload
from protocol.row import Row
from protocol.wire.sections import Kind
from tests.collector.agents import SHARD, FakeAgent, Shard
from tests.collector.log.batches import SNAPSHOT, NextSeqs, batch
from tests.faults.damage.harm import Harm, flip, harms, put, used
from tests.faults.damage.statements import harmed_statements

AGENTS = [FakeAgent(f"pump-{number}", number + 1) for number in (7, 8)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard of several segments, its registry, and something in quarantine."""
    folder = tmp_path_factory.mktemp("made") / "log"
    folder.mkdir()
    shard = Shard(folder, segment_bytes=3_000)
    for seq in range(14):
        for agent in AGENTS:
            readings = [SourcePayload(agent.stream("s"), 10 * seq + each, seq, f"{seq}-{each}") for each in range(3)]
            shard.take(agent, agent.framed(seq, *readings))
    shard.log.take(AGENTS[0].name, b"no batch")
    shard.close()
    assert len(list(folder.glob("shard-*/*.arrows"))) > 3
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "log"))


def read(folder: Path) -> tuple[list[Row], LogError | None]:
    """What a reader gets, and what stops it."""
    reader = LogReader(folder)
    rows: list[Row] = []
    try:
        for row in reader.rows(SHARD, reader.start(SHARD), reader.end(SHARD)):
            rows.append(row)
    except LogError as error:
        return rows, error
    return rows, None


def faults(folder: Path) -> list[str]:
    return [line for line, is_fault in check(folder) if is_fault]


def opened(folder: Path) -> tuple[Registry, ShardLog]:
    registry = Registry(folder / "registry.db", may_create=False)
    try:
        return registry, ShardLog(folder, SHARD, registry, Quarantine(folder / "quarantine"))
    except BaseException:
        registry.close()
        raise


def examine(folder: Path, path: Path, harm: Harm | None) -> None:
    """Change a file, or delete it: readers see a beginning of what was written or an error; `verify` has something to
    say unless they see all of it; and if a translator goes on, it tells the loss in the log."""
    before, _ = read(folder)
    if harm is None:
        path.unlink()
    else:
        path.write_bytes(harm.content)
    told = f"{path.name}: {harm or 'deleted'}"
    rows, error = read(folder)
    assert rows == before[: len(rows)], told
    assert error is not None or len(rows) == len(before), told
    assert faults(folder) or len(rows) == len(before), told
    list_of_lines(folder)
    try:
        registry, shard = opened(folder)
    except (LogError, RegistryError) as refused:
        assert str(folder) in str(refused) or "shard" in str(refused), told
        return
    shard.close()
    registry.close()
    after, error = read(folder)
    if error is None:
        kept = [row for row in after if row.kind not in (Kind.SNAPSHOT, Kind.GAP)]
        all_rows = [row for row in before if row.kind not in (Kind.SNAPSHOT, Kind.GAP)]
        gaps = [row for row in after if row.kind == Kind.GAP and row.agent == ""]
        assert kept == all_rows[: len(kept)], told
        assert len(kept) == len(all_rows) or gaps, f"{told}: rows are gone, and nobody says so"


def list_of_lines(folder: Path) -> None:
    """What `threadline log dump` prints, or says instead."""
    try:
        list(lines(folder, None, [], None))
    except (LogError, ValueError):
        pass


@pytest.mark.parametrize("which", ["position", "first", "middle", "last"])
def test_no_reader_gets_what_was_not_written(made: Path, tmp_path: Path, which: str) -> None:
    names = sorted(path.name for path in made.glob("shard-*/*.arrows"))
    name = {"position": "position", "first": names[0], "middle": names[1], "last": names[-1]}[which]
    content = (made / f"shard-{SHARD:02d}" / name).read_bytes()
    for number, harm in enumerate([None, *harms(content, 5, 2 if which == "position" else 8)]):
        folder = Path(shutil.copytree(made, tmp_path / f"log-{number}"))
        examine(folder, folder / f"shard-{SHARD:02d}" / name, harm)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_reader_gets_what_was_not_written_many_times(made: Path, tmp_path: Path) -> None:
    for path in sorted(made.glob("shard-*/*")):
        if path.name == "lock":
            continue
        for number, harm in enumerate(harms(path.read_bytes(), 6, 60)):
            folder = Path(shutil.copytree(made, tmp_path / f"{path.name}-{number}"))
            examine(folder, folder / path.parent.name / path.name, harm)
            shutil.rmtree(folder)


@pytest.mark.parametrize("compression", ["zstd", None])
def test_a_bit_of_a_segment_is_missed_or_no_row_rests_on_it(tmp_path: Path, compression: str | None) -> None:
    """Arrow and zstd have bytes that say nothing: what fills up to the next multiple of eight, lengths of tables that
    nobody looks at, places of buffers that are empty. Whatever else changes is noticed."""
    segment_of_every_kind(tmp_path, compression)
    silent = try_every_bit(tmp_path, lambda at: [] if at % 17 else [at % 8])
    assert 0 < silent < 0.4


def test_a_column_whose_name_is_no_text_any_more_is_damage(tmp_path: Path) -> None:
    segment_of_every_kind(tmp_path, "zstd")
    path = tmp_path / f"shard-{SHARD:02d}" / "000000000001.arrows"
    content = path.read_bytes()
    for at in (content.index(name) for name in (b"kind", b"agent", b"nonce", b"seq", b"data", b"check")):
        path.write_bytes(flip(content, at, 7).content)
        with Segment(path) as segment, pytest.raises(LogDamaged, match="no Arrow stream begins here"):
            list(segment.frames())


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("compression", ["zstd", None])
def test_every_byte_of_a_segment_is_missed_or_no_row_rests_on_it(tmp_path: Path, compression: str | None) -> None:
    segment_of_every_kind(tmp_path, compression)
    silent = try_every_bit(tmp_path, lambda at: [at % 8])
    print(f"{compression}: {silent:.0%} of the bits say nothing")


def segment_of_every_kind(folder: Path, compression: str | None) -> None:
    """An empty snapshot, one with rows, commits with one row and with several."""
    state = NextSeqs()
    with ShardWriter(folder, SHARD, compression=compression, segment_bytes=1_000) as writer:
        writer.begin(state.snapshot)
        for seq in range(4):
            rows = batch("a", seq, kinds=range(1, 2 + seq), size_bytes=30 * seq)
            state.note(rows)
            writer.append(rows)
            writer.commit()


def try_every_bit(folder: Path, bits: Callable[[int], Sequence[int]]) -> float:
    """Flip bits of every segment: readers never get another row, and where they stop `verify` says why. Returns the
    share of bytes that nobody has noticed."""
    reader = LogReader(folder)
    end = reader.end(SHARD)
    true = list(reader.rows(SHARD, FIRST, end))
    tried = silent = 0
    for path in sorted(folder.glob("shard-*/*.arrows")):
        content = path.read_bytes()
        for harm in (flip(content, at, bit) for at in range(len(content)) for bit in bits(at)):
            tried += 1
            path.write_bytes(harm.content)
            _BOOKMARKS.clear()  # as in a process that has never been here
            (report,) = verify(folder, own_kinds=[SNAPSHOT])
            try:
                assert list(reader.rows(SHARD, FIRST, end)) == true, f"{path.name}: {harm}"
            except LogError:
                assert report.findings, f"{path.name}: {harm}: readers stop, and verify has nothing to say"
            if not report.findings:
                silent += 1
                assert report.rows == len(true), f"{path.name}: {harm}"
        path.write_bytes(content)
    return silent / tried


# The registry


def test_a_registry_that_has_changed_gives_no_number(made: Path, tmp_path: Path) -> None:
    """Two streams with one number, or one with two: nobody could tell any more."""
    content = (made / "registry.db").read_bytes()
    path = tmp_path / "registry.db"
    names = [StreamName(agent.name, agent.nonce, agent.epoch, "s") for agent in AGENTS]
    put(path, content)
    registry = Registry(path)
    given = {each: number.number for each, number in registry.numbers_of(names).items()}
    registry.close()
    refused = 0
    for harm in harms(content, 3, 40, used(content)):
        put(path, harm.content)
        try:
            registry = Registry(path, may_create=False)
        except RegistryError as error:
            assert str(path) in str(error)
            refused += 1
            continue
        assert {each: number.number for each, number in registry.numbers_of(names).items()} == given, str(harm)
        registry.close()
    assert refused > 20


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE streams SET number=number+1 WHERE number=(SELECT max(number) FROM streams)",
        "UPDATE streams SET name='t'",
        "DELETE FROM streams WHERE number=1",
        "UPDATE epochs SET shown=shown+10",
        "UPDATE epochs SET closed_at=1",
        "DELETE FROM epochs",
        "UPDATE sums SET value=value+1",
    ],
)
def test_every_value_of_the_registry_is_summed_up(folder: Path, change: str) -> None:
    with sqlite3.connect(folder / "registry.db", isolation_level=None) as db:
        db.execute(change)
    with pytest.raises(RegistryDamaged, match=r"registry\.db is damaged \(rows of \w+ are not as they were written\)"):
        Registry(folder / "registry.db")


def test_a_table_of_the_registry_that_says_something_else_of_its_columns_is_damage(folder: Path) -> None:
    """The statement that made it is text in the file. With another one, SQLite would keep other values."""
    with sqlite3.connect(folder / "registry.db", isolation_level=None) as db:
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_master SET sql=replace(sql, 'nonce INTEGER', 'nonce HNTEGER') WHERE name='streams'")
    with pytest.raises(RegistryDamaged, match=r"registry\.db is damaged \(streams has other columns\)"):
        Registry(folder / "registry.db")
    assert [line for line in faults(folder) if "is damaged (streams has other columns)" in line]


def test_no_flipped_bit_of_a_statement_of_the_registry_is_believed(folder: Path) -> None:
    path = folder / "registry.db"
    for harm in harmed_statements(path, path.read_bytes(), 5, 60):
        put(path, harm.content)
        assert registry_fault(path), str(harm)
        with pytest.raises(RegistryDamaged):
            Registry(path).close()
            pytest.fail(str(harm))


@pytest.mark.parametrize("what", ["empty", "folder", "deleted", "flipped"])
def test_verify_finds_what_keeps_a_translator_from_going_on(made: Path, tmp_path: Path, what: str) -> None:
    """With its registry, or with the id of the log; what it finds, it says in a line each."""
    content = {name: (made / name).read_bytes() for name in ("registry.db", "id")}
    flips = [(name, harm) for name in content for harm in harms(content[name], 4, 25, used(content[name]))]
    found = 0
    for number, (name, harm) in enumerate(flips if what == "flipped" else [(name, None) for name in content]):
        folder = Path(shutil.copytree(made, tmp_path / f"log-{number}"))
        path = folder / name
        path.unlink()
        if what == "folder":
            path.mkdir()
        elif what != "deleted":
            path.write_bytes(harm.content if harm else b"")
        told = faults(folder)
        assert all(f"{path}" in line or "in registry.db" in line for line in told)
        found += bool(told)
        try:
            Translator(TranslatorOptions(("127.0.0.1", 1), folder, range(16)))._end()
            registry, shard = opened(folder)
            shard.close()
            registry.close()
            assert not told or name == "id", f"{path}: {harm}: a translator goes on with it"
        except (LogError, RegistryError):
            assert told, f"{path}: {harm}: a translator refuses what verify has nothing against"
    assert found == 2 or (what == "flipped" and found > 30)


def test_what_was_given_in_any_way_is_summed_up(folder: Path) -> None:
    path = folder / "registry.db"
    with sqlite3.connect(path, isolation_level=None) as db:  # as of a version without sums
        db.execute("DROP TABLE sums")
        db.execute("PRAGMA user_version=1")
    registry, other = Registry(path), Registry(path)
    registry.numbers_of([StreamName("a", 1, 1, "x"), StreamName("a", 1, 1, "y")])
    other.epoch_of("b", 2**64 - 1, 3)
    registry.close_epochs([ClosedEpoch("b", 2**64 - 1, 3, 17), ClosedEpoch("c", 5, 1, 0)])
    other.numbers_of([StreamName("b", 2**64 - 1, 3, "x")])
    registry.close()
    other.close()
    Registry(path).close()


def test_a_registry_that_is_older_than_the_log_is_refused(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "log"))
    older = (folder / "registry.db").read_bytes()
    for agent, streams in ((AGENTS[0], "st"), (FakeAgent("pump-9", 10), "s")):
        kept = Path(shutil.copytree(folder, tmp_path / agent.name))
        shard = Shard(kept)
        shard.take(agent, *[agent.framed(at, SourcePayload(agent.stream(streams[-1]), 1, 1, "x")) for at in (14, 0)])
        shard.close()
        registry, log = opened(kept)
        log.close()
        registry.close()
        put(kept / "registry.db", older)
        with pytest.raises(RegistryDamaged, match=f"does not fit the log: it knows .* of {agent.name} as nothing"):
            opened(kept)
        (fault,) = faults(kept)
        assert f"stream {streams[-1]} of {agent.name} is number 3 here, and none in registry.db" in fault


# Small files


def test_an_id_that_has_changed_is_none(folder: Path) -> None:
    identity = log_id(folder)
    content = (folder / "id").read_bytes()
    changes = [flip(content, at, bit) for at in range(len(content)) for bit in range(8)]
    for harm in [*changes, *harms(content, 1, 20)]:
        (folder / "id").write_bytes(harm.content)
        try:
            assert log_id(folder) == identity, str(harm)
        except LogDamaged as error:
            assert f"{folder / 'id'} is damaged" in str(error)
    (folder / "id").write_text(f"{identity}\n")
    assert log_id(folder) == identity, "as older versions wrote it"


def test_an_id_that_is_gone_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    identity = log_id(folder)
    (folder / "id").unlink()
    give_id(folder)
    assert log_id(folder) != identity
    assert "the log has segments but no id, and gets a new one" in caplog.text


def test_a_forwarder_does_not_believe_a_position_that_has_changed(tmp_path: Path) -> None:
    path, purpose = tmp_path / "position", Purpose("log", "there", None)
    file = PositionFile(path, purpose)
    file.positions, file.checks = {5: Position(3, 17)}, {5: 99}
    file.save({"left": [1, 2]})
    file.close()
    content = path.read_bytes()
    for harm in harms(content, 2, 150):
        path.write_bytes(harm.content)
        try:
            file = PositionFile(path, purpose)
        except PositionUnusable as error:
            assert str(path) in str(error)
            continue
        assert (file.positions, file.memory) == ({5: Position(3, 17)}, {"left": [1, 2]}), str(harm)
        file.close()


def test_nobody_reads_the_index_of_the_quarantine_but_people(folder: Path) -> None:
    """Whatever is in it: it is only appended to, and what is kept is counted by the files."""
    index = folder / "quarantine" / "index.jsonl"
    changes: list[Callable[[], object]] = [
        lambda: index.write_bytes(b"\0" * 100),
        index.unlink,
        lambda: shutil.rmtree(index.parent),
    ]
    for change in changes:
        change()
        quarantine = Quarantine(folder / "quarantine")
        quarantine.keep("pump-7", b"x", "why")
        assert quarantine.kept == 1 and index.read_bytes().endswith(b'"reason": "why"}\n')


def test_a_loss_has_a_name_for_whoever_reads_the_log(folder: Path) -> None:
    last = sorted(folder.glob("shard-*/*.arrows"))[-1]
    last.write_bytes(last.read_bytes()[:-200])
    registry, shard = opened(folder)
    shard.close()
    registry.close()
    (gap,) = [row for row in read(folder)[0] if row.kind == Kind.GAP and row.agent == ""]
    assert last.name.encode() in gap.data
    (fault,) = faults(folder)
    assert f"{last.name}.damaged" in fault


def test_a_segment_that_ends_between_two_commits_is_missed(folder: Path) -> None:
    """Every record batch in it is whole: only its number of rows says that there were more."""
    path = sorted(folder.glob("shard-*/*.arrows"))[1]
    with Segment(path) as segment:
        ends = [frame.end for frame in segment.frames()]
    content = path.read_bytes()
    for end in ends[:-1]:
        path.write_bytes(content[:end])
        _, error = read(folder)
        assert error is not None and path.name in str(error) and "but was published up to row" in str(error)
        assert any(f"segment {int(path.stem)} " in fault for fault in faults(folder))
    path.write_bytes(content)
    assert read(folder)[1] is None and not faults(folder)


def test_how_long_a_segment_is_is_not_believed_if_it_has_changed(folder: Path) -> None:
    path = sorted(folder.glob("shard-*/*.end"))[0]
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(flip(content, at, at % 8).content)
        _, error = read(folder)
        assert error is not None and f"{path} is not as it was written" in str(error)
        assert faults(folder)
    path.unlink()
    assert read(folder)[1] is None, "older versions did not note it"


def test_what_retention_removes_is_not_missed(folder: Path) -> None:
    assert remove_segments(folder, SHARD, Position(3, 0)) == [1, 2]
    assert read(folder)[1] is None and not faults(folder)
    assert not [path for path in folder.glob("shard-*/*.end") if int(path.stem) < 3]
