from __future__ import annotations

import pytest

from tests.faults.damage.rich import Rich, rich_store


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Rich:
    return rich_store(tmp_path_factory.mktemp("rich") / "graph.db")
