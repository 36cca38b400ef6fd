"""What the spool asks of the file system, where that is more than one call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.spool.files import make_folder


def test_a_folder_is_made_with_those_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(str(tmp_path / "a" / "b" / "c"))
    make_folder(str(tmp_path / "a" / "b" / "c"))
    monkeypatch.chdir(tmp_path)
    make_folder("d")
    make_folder("e/f/")
    assert all((tmp_path / name).is_dir() for name in ("a/b/c", "d", "e/f"))


def test_somebody_else_may_make_it_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def slow_mkdir(path: str) -> None:
        if Path(path).parent.exists():
            mkdir(path)
        mkdir(path)

    monkeypatch.setattr(os, "mkdir", slow_mkdir)
    make_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("place", ["file", "file/a", "file/a/b", "dangling", "dangling/a", "dangling/a/b"])
def test_where_none_can_be_the_error_says_what_is_in_the_way(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(OSError) as expected:
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
    with pytest.raises(OSError) as raised:
        make_folder(str(tmp_path / place))
    assert (type(raised.value), str(raised.value)) == (type(expected.value), str(expected.value))


def test_a_file_system_that_takes_no_folders_is_told() -> None:
    with pytest.raises(FileNotFoundError, match="/proc/spool"):
        make_folder("/proc/spool/up")
