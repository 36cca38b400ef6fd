"""A checkpoint whose files have changed is refused by the name of the file, before Spark begins."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from protocol.chunks import read_progress
from spark_jobs.checkpoint import Checkpoint, CheckpointUnusable, opened, read_checked, write_checked
from spark_jobs.checkpoint_files import faults
from spark_jobs.flat_rows import ENDING
from spark_jobs.log_source import FIRST, LogStream, LogStreamReader, LogUnreadable, passed
from spark_jobs.native_end import EndingLog
from spark_jobs.placement import Placement
from tests.faults.damage.harm import flip, harms
from tests.system.graph.city import City, DiskLog, differences
from threadline.retention import remove_passed
from threadline.segment_log import SegmentLog

COMMITTED = 5
SNAPSHOT = 2


def write(path: Path, content: bytes) -> None:
    """As Hadoop does: with checksums beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    checks = [zlib.crc32(content[at : at + 512]) for at in range(0, len(content), 512)]
    path.with_name(f".{path.name}.crc").write_bytes(
        b"crc\0" + struct.pack(">i", 512) + b"".join(struct.pack(">I", each) for each in checks)
    )


def snapshot(sst: str) -> bytes:
    """As RocksDB's files are kept: what is large is beside it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("CURRENT", "MANIFEST-000005\n")
        parts = {"sstFiles": [{"localFileName": "8.sst", "dfsSstFileName": sst}]}
        archive.writestr("metadata", f"v1\n{json.dumps(parts)}")
    return made.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint as Spark leaves it, with files of every kind."""
    chance = Random(1)
    made = tmp_path / "checkpoint"
    with opened(made, {"buckets": 4}, {"0": [1, 0]}):
        pass
    write(made / "metadata", b'{"id":"q"}')
    for batch in range(1, COMMITTED + 2):
        write(made / "offsets" / str(batch), b'v1\n{"batchWatermarkMs":0}\n{"0":[1,%d]}' % batch)
        if batch <= COMMITTED:
            write(made / "commits" / str(batch), b'v1\n{"nextBatchWatermarkMs":0}')
    for stage, partition in itertools.product("01", "01"):
        store = made / "state" / stage / partition
        name = f"{chance.randrange(10**9)}.sst"
        write(store / f"{SNAPSHOT}.zip", snapshot(name))
        write(store / "SSTs" / name, chance.randbytes(2_000))
        for version in range(1, COMMITTED + 2):
            write(store / f"{version}.changelog", chance.randbytes(700))
    for stage in "01":
        write(made / "state" / stage / "_metadata" / "v2" / "0", metadata("default"))
    return made


def metadata(*stores: str) -> bytes:
    """What an operator with state says of itself."""
    told = [{"storeName": name, "numColsPrefixKey": 0, "numPartitions": 2} for name in stores]
    return b"v2\n" + json.dumps({"operatorInfo": {"operatorId": 0}, "stateStoreInfo": told}).encode()


def files(folder: Path) -> Iterator[Path]:
    """All that Spark has written, and its checksums."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in ("lock", "threadline.json", "spark.log", "log-position.json"):
            yield path


def open_again(folder: Path) -> Checkpoint:
    with opened(folder, {"buckets": 4}, {"0": [1, 0]}) as found:
        found.check_files()
        return found


def test_a_checkpoint_that_is_as_it_was_is_gone_on_with(folder: Path) -> None:
    assert open_again(folder).committed == COMMITTED


def test_any_change_of_any_file_is_refused_by_its_name(folder: Path) -> None:
    for number, path in enumerate(files(folder)):
        before = path.read_bytes()
        is_checks = path.name.startswith(".")
        name = path.name[1:-4] if is_checks else path.name
        for harm in harms(before, number, 1):
            path.write_bytes(harm.content)
            found = list(faults(folder, COMMITTED))
            assert found == [f"{path.with_name(name)} is not as it was written"] or (is_checks and not found), str(harm)
        path.write_bytes(before)
    path = folder / "metadata"
    path.write_bytes(b"")
    with pytest.raises(CheckpointUnusable, match=r"/metadata is not as it was written: put back .*, or take a new"):
        open_again(folder)


def test_a_file_that_is_gone_is_named(folder: Path) -> None:
    for path in [each for each in files(folder) if not each.name.startswith(".")]:
        before = path.read_bytes()
        path.unlink()
        with pytest.raises(CheckpointUnusable, match=rf"{path} is gone.*put back a copy of the whole folder"):
            open_again(folder)
        path.write_bytes(before)


def test_state_that_is_gone_with_its_checksums_is_missed(folder: Path) -> None:
    for version in range(SNAPSHOT + 1, COMMITTED + 2):
        path = folder / "state" / "1" / "0" / f"{version}.changelog"
        kept = [path, path.with_name(f".{path.name}.crc")]
        for each in kept:
            each.rename(f"{each}.away")
        assert list(faults(folder, COMMITTED)) == [f"{path} is gone"]
        for each in kept:
            Path(f"{each}.away").rename(each)
    for name in (str(COMMITTED), f".{COMMITTED}.crc"):
        (folder / "offsets" / name).unlink()
    assert list(faults(folder, COMMITTED)) == [f"{folder / 'offsets' / str(COMMITTED)} is gone"]


@pytest.mark.parametrize("gone", ["", "0", "0/1", "1/0", "1/1", "0/_metadata", "1/_metadata"])
def test_folders_of_the_state_that_are_gone_are_missed(folder: Path, gone: str) -> None:
    shutil.rmtree(folder / "state" / gone)
    assert list(faults(folder, COMMITTED)) == [f"{folder / 'state' / gone} is gone"]
    with pytest.raises(CheckpointUnusable, match=r"is gone: put back a copy of the whole folder, or take a new"):
        open_again(folder)
    assert list(faults(folder, None)) == [], "before anything is committed there need be none"


def test_an_operator_that_does_not_say_what_its_state_is_made_of_is_refused(folder: Path) -> None:
    write(folder / "state" / "1" / "_metadata" / "v2" / "3", b"v2\n{}")
    assert list(faults(folder, COMMITTED)) == [f"{folder}/state/1/_metadata/v2/3 is not as it was written"]


@pytest.mark.parametrize("gone", ["1/right/4.delta", "0/left", "1/left/5.delta"])
def test_state_of_the_kind_that_ank_n_keeps_is_missed(folder: Path, gone: str) -> None:
    """It has several stores, and Spark's own snapshots."""
    operator = folder / "state" / "2"
    write(operator / "_metadata" / "metadata", metadata("left", "right"))
    for partition, store in itertools.product("01", ("left", "right")):
        write(operator / partition / store / "3.snapshot", b"all of it")
        for version in range(3, COMMITTED + 2):
            write(operator / partition / store / f"{version}.delta", b"what has changed")
    assert list(faults(folder, COMMITTED)) == []
    path = operator / gone
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink()
    assert list(faults(folder, COMMITTED)) == [f"{path} is gone"]


def test_what_a_crash_leaves_is_no_damage(folder: Path) -> None:
    store = folder / "state" / "0" / "1"
    (store / f".{COMMITTED + 1}.changelog.crc").unlink()  # renamed without its checksums
    (folder / "offsets" / f".{COMMITTED + 1}.crc").unlink()
    (store / f"{COMMITTED + 2}.changelog").write_bytes(b"not committed")
    write(store / f"{COMMITTED + 3}.changelog", b"written once more")
    (store / f"{COMMITTED + 3}.changelog").write_bytes(b"with the checksums of the first time")
    (store / ".9.changelog.1234.tmp").write_bytes(b"half")
    (store / "..9.changelog.1234.tmp.crc").write_bytes(b"crc")
    write(store / f"{SNAPSHOT - 1}.zip", snapshot("deleted.sst"))
    write(store / "SSTs" / "half.sst", b"of a snapshot that was never finished")
    (store / "SSTs" / "half.sst").write_bytes(b"of a snap")
    assert list(faults(folder, COMMITTED)) == []
    for name in (f"{SNAPSHOT - 1}.changelog", f".{SNAPSHOT - 1}.changelog.crc"):
        (store / name).unlink()  # no longer needed
    assert list(faults(folder, COMMITTED)) == []


def test_nothing_of_our_own_is_believed_that_has_changed(folder: Path, tmp_path: Path) -> None:
    manifest = folder / "threadline.json"
    before = manifest.read_bytes()
    for harm in harms(before, 1, 60):
        manifest.write_bytes(harm.content)
        with pytest.raises(CheckpointUnusable, match=r"threadline\.json cannot be read|is of format"):
            open_again(folder)
    manifest.write_bytes(before)
    open_again(folder)
    path = tmp_path / "value.json"
    write_checked(path, {"3": [5, 7]})
    written = path.read_bytes()
    assert read_checked(path) == {"3": [5, 7]}
    for harm in harms(written, 2, 100):
        path.write_bytes(harm.content)
        try:
            assert read_checked(path) == {"3": [5, 7]}, str(harm)  # a blank more, perhaps
        except ValueError as error:
            assert "value.json is not as it was written" in str(error)


def test_segments_stay_if_nobody_knows_what_was_passed(folder: Path, tmp_path: Path) -> None:
    """The job itself only writes it: it goes on, and the next micro-batch says again what retention may go by."""
    path, log = folder / "log-position.json", SegmentLog(tmp_path / "log")
    reader = LogStreamReader(LogStream(log, lambda *_: (), Placement(4, 2), folder, {}, most_rows=1, most_bytes=1))
    reader.commit({"3": [5, 7]})
    assert passed(folder) == {3: (5, 7)}
    content = path.read_bytes()
    for harm in (flip(content, at, bit) for at in range(len(content)) for bit in range(8)):
        path.write_bytes(harm.content)
        try:
            assert passed(folder) == {3: (5, 7)}, str(harm)  # a blank that is another one
        except ValueError as error:
            assert f"{path} is not as it was written" in str(error)
    path.write_bytes(content.replace(b"[5, 7]", b"[9, 7]"))
    with pytest.raises(ValueError, match=r"log-position\.json is not as it was written"):
        remove_passed(tmp_path / "log", folder, 0)
    open_again(folder)
    reader.commit({"3": [6, 0]})
    assert passed(folder) == {3: (6, 0)}


def test_an_end_that_was_written_down_is_believed_only_as_it_was(tmp_path: Path) -> None:
    ending = EndingLog(SegmentLog(tmp_path / "log"), tmp_path)
    path = tmp_path / "native-end.json"
    write_checked(path, [1700000000000, 1700000090000])
    assert ending.end(ENDING) == (1, 2)
    assert [read_progress(row.data).watermark[0] for row in ending.rows(ENDING, FIRST, ending.end(ENDING))] == [
        1700000000000,
        1700000090000,
    ]
    for text in (path.read_text().replace("17", "18"), "[1700000000000, 1700000090000]"):
        path.write_text(text)
        with pytest.raises(LogUnreadable, match=r"native-end\.json is not as it was written"):
            ending.end(ENDING)


# With Spark


def spark(base: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "threadline", "spark", "--once", "--max-rows", "8", "--log", str(base / "log")]
    command += ["--store", f"sqlite:///{base / 'graph.db'}", "--checkpoint", str(base / "checkpoint")]
    while True:
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
        if "one of Spark's processes has ended" not in ended.stderr:  # on a busy machine, one may be too slow for Spark
            return ended


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_spark_itself_never_makes_a_wrong_graph_of_a_damaged_checkpoint(tmp_path: Path) -> None:
    """Of each kind of file one that has changed, without checksums that would tell: it ends in one line that names the
    way out, or the file was not needed and the graph is right."""
    base = tmp_path / "base"
    count = itertools.count()
    rounds = list(City(3).rounds(lambda: next(count) == 20))
    log = DiskLog(base / "log")
    for rows in rounds[:10]:
        log.append(rows)
    assert spark(base).returncode == 0
    last = max((base / "checkpoint" / "commits").glob("[0-9]*"), key=_number)
    assert list(faults(base / "checkpoint", int(last.name))) == []
    for rows in rounds[10:]:
        log.append(rows)
    log.close()
    kept = tmp_path / "kept"
    shutil.copytree(base, kept)
    for number, pattern in enumerate(("offsets/*", "commits/*", "state/0/*/*.changelog", "state/*/0/SSTs/*.sst")):
        _put_back(kept, base)
        path = max((base / "checkpoint").glob(pattern), key=_number)
        path.with_name(f".{path.name}.crc").unlink()
        (harm,) = harms(path.read_bytes(), number, 1)
        path.write_bytes(harm.content)
        ended = spark(base)
        if ended.returncode == 0:
            assert differences(f"sqlite:///{base / 'graph.db'}", log.told) == [], (path, harm)
            print(f"{pattern}: {harm}: the graph is right")
        else:
            (line,) = [each for each in ended.stderr.splitlines() if each.startswith("threadline:")]
            assert "--checkpoint" in line and "Traceback" not in ended.stderr, ended.stderr
            print(f"{pattern}: {harm}: {line}")


def _number(path: Path) -> int:
    stem = path.name.partition(".")[0]
    return int(stem) if stem.isdecimal() else 0


def _put_back(kept: Path, base: Path) -> None:
    """Store and checkpoint as they were. A checkpoint belongs to one path of a log."""
    for suffix in ("-wal", "-shm"):
        (base / f"graph.db{suffix}").unlink(missing_ok=True)
    shutil.copy(kept / "graph.db", base / "graph.db")
    shutil.rmtree(base / "checkpoint")
    shutil.copytree(kept / "checkpoint", base / "checkpoint")
