"""Every test writes its app file into a folder of its own, and nothing of it stays loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from edge_agent import app_file


@pytest.fixture(autouse=True)
def _no_app_stays_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    loaded: dict[str, ModuleType] = {}
    path = list(sys.path)
    monkeypatch.setattr(app_file, "_loaded", loaded)
    yield
    sys.path[:] = path
    for name in loaded:
        del sys.modules[name]


@pytest.fixture
def app(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "traffic_app.py"
        path.write_text(text)
        return str(path)

    return write
