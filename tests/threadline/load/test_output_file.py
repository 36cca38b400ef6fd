"""Whether a file can be written is known before there is anything to write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from threadline.load.output_file import CannotWrite, try_output, write_output


def test_what_is_there_stays_and_nothing_new_comes(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("figures")
    try_output(old)
    try_output(new)
    assert old.read_text() == "figures"
    assert not new.exists()


def test_a_link_to_nothing_stays_one(tmp_path: Path) -> None:
    """And what is written comes to where it shows."""
    link = tmp_path / "link"
    link.symlink_to("behind")
    try_output(link)
    assert link.is_symlink() and not link.exists()
    write_output(link, "figures")
    assert (tmp_path / "behind").read_text() == "figures"


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    """Whoever reads from it would wait for nothing any more; and without a reader, so would we."""
    os.mkfifo(tmp_path / "pipe")
    try_output(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize(
    ("place", "why"),
    [("", "Is a directory"), ("none/file", "No such file"), ("file/file", "Not a directory"), ("n" * 300, "too long")],
)
def test_what_cannot_be_written_is_told(tmp_path: Path, place: str, why: str) -> None:
    (tmp_path / "file").touch()
    for attempt in (try_output, lambda file: write_output(file, "figures")):
        with pytest.raises(CannotWrite, match=f"cannot be written: .*{why}"):
            attempt(tmp_path / place)
