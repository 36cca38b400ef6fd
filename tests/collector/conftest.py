from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collector.agents import Shard


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    made = Shard(tmp_path / "log")
    yield made
    made.close()
