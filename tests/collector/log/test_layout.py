from __future__ import annotations

import pytest

from collector.log import listed, parse_shards
from protocol.topics import SHARDS


@pytest.mark.parametrize(
    ("shards", "text"), [([], ""), ([5], "5"), ([1, 2], "1-2"), ([7, 0, 1, 2, 9], "0-2,7,9"), (range(16), "0-15")]
)
def test_shards_are_listed_as_people_write_them(shards: list[int], text: str) -> None:
    assert listed(shards) == text
    assert not text or parse_shards(text, SHARDS) == sorted(shards)


@pytest.mark.parametrize(
    ("text", "shards"), [("0-3", [0, 1, 2, 3]), ("5", [5]), ("1, 4-6,5", [1, 4, 5, 6]), ("0-15", list(range(16)))]
)
def test_shards_are_read(text: str, shards: list[int]) -> None:
    assert parse_shards(text, SHARDS) == shards


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is no list"),
        ("a", "is no list"),
        ("1-", "is no list"),
        ("5-3", "shards are 0 to 15"),
        ("16", "0 to 15, not 16"),
    ],
)
def test_wrong_shards_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_shards(text, SHARDS)
