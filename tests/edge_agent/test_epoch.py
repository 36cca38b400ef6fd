from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from edge_agent import epoch
from edge_agent.epoch import begin_epoch
from protocol.ids import disk_of

ROOT = Path(epoch.__file__).parent.parent


def test_the_first_epoch_is_one_and_each_start_counts(tmp_path: Path) -> None:
    folder = tmp_path / "agent" / "state"
    assert [begin_epoch(folder).counter for _ in range(12)] == list(range(1, 13))


def test_nonces_differ_and_have_64_bits(tmp_path: Path) -> None:
    nonces = {begin_epoch(tmp_path / str(disk)).nonce for disk in range(50) for _ in range(2)}
    assert len(nonces) == 100
    assert all(0 <= nonce < 1 << 64 for nonce in nonces)
    assert max(nonces) >= 1 << 60


@pytest.mark.parametrize(
    "damaged", [b"", b"\0" * 12, b"7", b"7 00000000\n", b"-3 1\n", b"\xff\xfe 3", b"9" * 5000, b"7 4ef7 \n extra"]
)
def test_a_damaged_file_is_told_and_counting_starts_anew(
    tmp_path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "epoch").write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert begin_epoch(tmp_path).counter == 1
    assert "damaged" in caplog.text
    assert begin_epoch(tmp_path).counter == 2


def test_starts_of_one_disk_have_nonces_that_begin_alike(tmp_path: Path) -> None:
    disks = [{disk_of(begin_epoch(tmp_path / name).nonce) for _ in range(5)} for name in ("one", "other")]
    assert [len(each) for each in disks] == [1, 1]
    assert disks[0] != disks[1]


def test_a_disk_that_has_to_count_anew_has_another_name(tmp_path: Path) -> None:
    before = disk_of(begin_epoch(tmp_path).nonce)
    (tmp_path / "epoch").write_bytes(b"7 rubbish")
    assert disk_of(begin_epoch(tmp_path).nonce) != before


def test_a_file_of_an_older_version_is_counted_on(tmp_path: Path) -> None:
    (tmp_path / "epoch").write_bytes(b"7 %08x\n" % crc32(b"7"))
    first, second = begin_epoch(tmp_path), begin_epoch(tmp_path)
    assert (first.counter, second.counter) == (8, 9)
    assert disk_of(first.nonce) == disk_of(second.nonce)


def test_every_byte_counts(tmp_path: Path) -> None:
    for _ in range(9):
        begin_epoch(tmp_path)
    good = (tmp_path / "epoch").read_bytes()
    for at in range(len(good)):
        (tmp_path / "epoch").write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert begin_epoch(tmp_path).counter == 1


def test_a_crash_while_saving_leaves_the_last_counter(tmp_path: Path) -> None:
    begin_epoch(tmp_path)
    (tmp_path / "epoch.new").write_bytes(b"2")
    assert begin_epoch(tmp_path).counter == 2


def test_the_counter_is_synced_before_it_has_its_name_and_the_name_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    sync, rename = os.fsync, os.rename

    def noting_sync(fd: int) -> None:
        happened.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink().name}")
        sync(fd)

    def noting_rename(path: str, target: str) -> None:
        happened.append(f"{Path(path).name} becomes {Path(target).name}")
        rename(path, target)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(os, "rename", noting_rename)
    begin_epoch(tmp_path)
    assert happened == ["sync epoch.new", "epoch.new becomes epoch", f"sync {tmp_path.name}"]


def test_an_agent_starts_on_a_disk_that_takes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert begin_epoch(tmp_path).counter == 1
    (tmp_path / "epoch.new").mkdir()
    with caplog.at_level(logging.WARNING):
        first, second = begin_epoch(tmp_path), begin_epoch(tmp_path)
    assert (first.counter, second.counter) == (2, 2)
    assert first.nonce != second.nonce
    assert "cannot be kept" in caplog.text


def test_a_file_that_is_none_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "epoch").mkdir()
    with caplog.at_level(logging.WARNING):
        assert begin_epoch(tmp_path).counter == 1
    assert "cannot be read" in caplog.text


def test_no_counter_that_was_told_is_given_again_after_a_kill(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from edge_agent.epoch import begin_epoch\n"
        "while True: print(begin_epoch(Path(sys.argv[1])).counter, flush=True)"
    )
    told = 0
    for lines in (1, 7, 20):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            assert process.stdout is not None
            counters = [int(process.stdout.readline()) for _ in range(lines)]
            process.kill()
            counters += [int(line) for line in process.stdout if line.endswith("\n")]
        assert counters[0] > told
        assert counters == list(range(counters[0], counters[0] + len(counters)))
        told = counters[-1]
