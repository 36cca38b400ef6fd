"""A log has one id, from the first write on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collector.log import LogDamaged, LogError, ShardWriter, log_id


def test_it_is_the_same_whoever_writes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda shard: ShardWriter(tmp_path / "log", shard).close(), range(8)))
    first = log_id(tmp_path / "log")
    ShardWriter(tmp_path / "log", 3).close()
    assert log_id(tmp_path / "log") == first
    ShardWriter(tmp_path / "other", 3).close()
    assert log_id(tmp_path / "other") != first
    assert [each.name for each in (tmp_path / "other").iterdir() if each.is_file()] == ["id"]


def test_a_folder_that_is_no_log_has_none(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(LogError, match="there is no log in"):
            log_id(folder)


def test_nobody_writes_to_a_log_of_which_nobody_knows_which_it_is(tmp_path: Path) -> None:
    ShardWriter(tmp_path, 3).close()
    content = (tmp_path / "id").read_bytes()
    for other in (b"", content[:-2], b"\xff" + content[1:]):
        (tmp_path / "id").write_bytes(other)
        for shard in (3, 4):
            with pytest.raises(LogDamaged, match="id is damaged: put it back"):
                ShardWriter(tmp_path, shard)
        assert (tmp_path / "id").read_bytes() == other
    (tmp_path / "id").write_bytes(content)
    ShardWriter(tmp_path, 3).close()
