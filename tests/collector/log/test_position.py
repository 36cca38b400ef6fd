"""The published position, read while it is being overwritten."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from collector.log import FIRST, LogDamaged, Position
from collector.log.position import PublishedPosition, position_path, published


def test_it_only_moves_forward(tmp_path: Path) -> None:
    writer = PublishedPosition(tmp_path)
    for position, wanted in [((2, 5), (2, 5)), ((2, 4), (2, 5)), ((1, 99), (2, 5)), ((3, 0), (3, 0))]:
        writer.publish(Position(*position))
        assert published(tmp_path) == writer.position == wanted
    writer.close()
    writer = PublishedPosition(tmp_path)
    assert writer.position == (3, 0)
    writer.close()


def test_before_anything_was_published_it_is_the_beginning(tmp_path: Path) -> None:
    assert published(tmp_path) == FIRST


@pytest.mark.parametrize("flipped", range(28))
def test_a_wrong_byte_is_noticed(tmp_path: Path, flipped: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.log.position._TRIES", 2)
    PublishedPosition(tmp_path).close()
    content = bytearray(position_path(tmp_path).read_bytes())
    assert len(content) == 28
    content[flipped] ^= 0x10
    position_path(tmp_path).write_bytes(content)
    with pytest.raises(LogDamaged, match="not a position"):
        published(tmp_path)


def test_a_reader_never_sees_a_mixture(tmp_path: Path) -> None:
    writer = PublishedPosition(tmp_path)
    writer.publish(Position(1, 1))
    done = threading.Event()
    seen: list[Position] = []

    def watch() -> None:
        while not done.is_set():
            seen.append(published(tmp_path))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(1, 20_000):
        writer.publish(Position(number, number))
    done.set()
    watcher.join()
    writer.close()
    assert len(seen) > 10
    assert all(segment == row for segment, row in seen)
    assert seen == sorted(seen)


def test_segments_without_a_position_are_damage(tmp_path: Path) -> None:
    (tmp_path / "000000000001.arrows").touch()
    with pytest.raises(LogDamaged, match="position: not there, though there are segments"):
        published(tmp_path)
    PublishedPosition(tmp_path).close()
    assert published(tmp_path) == FIRST
