"""One API for all tests that leave it alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.threadline.commands.served import Api, fill


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody starts an API in the line before."""
    monkeypatch.setattr("threadline.commands.asking._PATIENCE_S", 0.0)


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("commands")
    fill(folder / "graph.db")
    with Api(folder, folder / "graph.db") as running:
        yield running
