"""A checkpoint remembers what it was made with, and is one job's at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from spark_jobs import checkpoint
from spark_jobs.checkpoint import CheckpointUnusable, Settings, made_with, opened

SETTINGS: Settings = {"algorithm": "ank-1", "buckets": 4}
START = {"0": [3, 7]}


def open_once(folder: Path, settings: Settings = SETTINGS, start: dict[str, list[int]] = START) -> dict[str, list[int]]:
    with opened(folder, settings, start) as found:
        return found.start


def begin(folder: Path) -> None:
    """As if Spark had run."""
    open_once(folder)
    (folder / "metadata").write_text('{"id": "q"}')


def test_it_begins_where_it_first_began(tmp_path: Path) -> None:
    (tmp_path / "new" / "lost+found").mkdir(parents=True)  # a disk of its own
    assert made_with(tmp_path / "new") == {}
    begin(tmp_path / "new")
    assert open_once(tmp_path / "new", start={"0": [9, 0], "1": [1, 0]}) == START
    assert made_with(tmp_path / "new") == SETTINGS


def test_a_job_that_did_not_begin_binds_nobody(tmp_path: Path) -> None:
    """It may have found no Java, or a store that it cannot have."""
    open_once(tmp_path, {**SETTINGS, "buckets": 8})
    assert open_once(tmp_path, start={"0": [9, 0]}) == {"0": [9, 0]}
    assert made_with(tmp_path) == SETTINGS


def test_other_settings_are_refused_with_both_values_and_the_way_out(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(CheckpointUnusable) as refusal:
        open_once(tmp_path, {**SETTINGS, "buckets": 8})
    assert str(refusal.value) == (
        f"{tmp_path} was made with --buckets 4, not 8: say --buckets 4, "
        "or take a new --checkpoint folder: it replays the log, and the store skips what it knows"
    )
    open_once(tmp_path)


def test_a_setting_that_it_does_not_know_is_refused(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(CheckpointUnusable, match="--u-ms"):
        open_once(tmp_path, {**SETTINGS, "u-ms": 5})


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id": "x"}')
    with pytest.raises(CheckpointUnusable, match=r"something else, or threadline\.json in it is gone"):
        open_once(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 3}'])
def test_a_manifest_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "threadline.json").write_text(text)
    with pytest.raises(CheckpointUnusable, match=r"threadline\.json cannot be read"):
        open_once(tmp_path)
    assert made_with(tmp_path) == {}


@pytest.mark.parametrize("other", [2, 4])
def test_another_format_is_told(tmp_path: Path, other: int) -> None:
    """The state of format 2 has agents that do not know of disks."""
    begin(tmp_path)
    path = tmp_path / "threadline.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": other}))
    expected = f"is of format {other}, this is for format 3: take a new --checkpoint"
    with pytest.raises(CheckpointUnusable, match=expected):
        open_once(tmp_path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointUnusable, match="Not a directory"):
        open_once(tmp_path / "file" / "checkpoint")


def test_what_cannot_be_prepared_is_told(tmp_path: Path) -> None:
    (tmp_path / "scratch").touch()
    with pytest.raises(CheckpointUnusable, match="File exists"), opened(tmp_path, SETTINGS, {}):
        pass


def test_scratch_is_empty_at_the_beginning_and_gone_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "left-by-a-crash").write_text("")
    with opened(tmp_path, SETTINGS, START) as found:
        assert list(found.scratch.iterdir()) == []
        (found.scratch / "file").write_text("")
    assert not found.scratch.exists()


@pytest.mark.parametrize("name", ["offsets", "commits"])
def test_what_was_being_written_at_a_crash_is_removed(tmp_path: Path, name: str) -> None:
    begin(tmp_path)
    folder = tmp_path / name
    folder.mkdir()
    for each in (".4.2759154e.tmp", "..4.2759154e.tmp.crc", "3", ".3.crc"):
        (folder / each).write_text("{}")
    open_once(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == [".3.crc", "3"]


def test_while_somebody_has_it_nobody_else_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_WAIT_S", 0.2)
    with (
        opened(tmp_path, SETTINGS, START),
        pytest.raises(CheckpointUnusable, match=f"is in use by process {os.getpid()}"),
    ):
        open_once(tmp_path)
    open_once(tmp_path)


def test_a_child_that_shares_the_lock_keeps_it_when_its_parent_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_WAIT_S", 0.2)
    with opened(tmp_path, SETTINGS, START) as found:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(found.lock,))
    with child:
        with pytest.raises(CheckpointUnusable, match="in use"):
            open_once(tmp_path)
        child.kill()
        child.wait()
    open_once(tmp_path)


@pytest.mark.parametrize(("stored", "words"), [(None, "no batch of it"), (6, "only those up to batch 6")])
def test_a_store_that_lacks_what_was_committed_is_refused(tmp_path: Path, stored: int | None, words: str) -> None:
    with opened(tmp_path, SETTINGS, START) as found:
        found.belongs_to(lambda _: None)  # there is nothing yet
        (tmp_path / "commits").mkdir()
        (tmp_path / "metadata").write_text('{"id": "q"}')
        for name in ("6", "7", ".7.crc"):
            (tmp_path / "commits" / name).touch()
        assert found.committed == 7
        for enough in (7, 8):
            found.belongs_to({"q": enough}.get)
        with pytest.raises(CheckpointUnusable, match=f"has come to batch 7, but the store has {words}: name the store"):
            found.belongs_to({"q": stored}.get)


@pytest.mark.parametrize(
    ("commits", "stored", "words"),
    [((6, 7), 9, "has come to batch 7 only"), ((), 1, "has committed nothing"), ((), 0, ""), ((), None, "")],
)
def test_an_older_copy_than_the_store_knows_is_refused(
    tmp_path: Path, commits: Sequence[int], stored: int | None, words: str
) -> None:
    """What it would tell once more, with other bounds, the store would skip."""
    with opened(tmp_path, SETTINGS, START) as found:
        (tmp_path / "commits").mkdir()
        (tmp_path / "metadata").write_text('{"id": "q"}')
        for each in commits:
            (tmp_path / "commits" / str(each)).touch()
        with pytest.raises(CheckpointUnusable, match=f"which {words}: it is an older") if words else nullcontext():
            found.belongs_to({"q": stored}.get)


@pytest.mark.parametrize("metadata", ["", "[]", None])
def test_a_query_without_its_name_is_refused(tmp_path: Path, metadata: str | None) -> None:
    with opened(tmp_path, SETTINGS, START) as found:
        (tmp_path / "commits").mkdir()
        (tmp_path / "commits" / "0").touch()
        if metadata is not None:
            (tmp_path / "metadata").write_text(metadata)
        with pytest.raises(CheckpointUnusable, match="metadata cannot be read"):
            found.belongs_to(lambda _: 0)


def test_a_manifest_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "threadline.json").mkdir()
    with pytest.raises(CheckpointUnusable, match="cannot be read"):
        open_once(tmp_path)


def test_a_folder_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "shard-00").mkdir()
    with pytest.raises(CheckpointUnusable, match="is not empty, and no checkpoint: name another"):
        open_once(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["shard-00"]
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointUnusable, match="file is no folder"):
        open_once(tmp_path / "file")


def test_where_a_batch_begins_is_where_the_one_before_ended(tmp_path: Path) -> None:
    with opened(tmp_path, SETTINGS, START) as found:
        (tmp_path / "offsets").mkdir()
        for batch in (0, 1):
            (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"0":[3,{8 + batch}]}}')
        assert [json.loads(found.since(batch)) for batch in (0, 1)] == [START, {"0": [3, 8]}]
        assert json.loads(found.upto(1)) == {"0": [3, 9]}
