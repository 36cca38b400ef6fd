from __future__ import annotations

import pytest

from collector.log import listed
from collector.translator import parse_shards


@pytest.mark.parametrize(
    ("shards", "text"), [([], ""), ([5], "5"), ([1, 2], "1-2"), ([7, 0, 1, 2, 9], "0-2,7,9"), (range(16), "0-15")]
)
def test_shards_are_listed_as_people_write_them(shards: list[int], text: str) -> None:
    assert listed(shards) == text
    assert not text or parse_shards(text, 16) == sorted(shards)
