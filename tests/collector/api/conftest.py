"""One application for the tests of a module: making it takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.collector.api.rich_store import fill
from tests.collector.api.served import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("api") / "graph.db") as made:
        yield made


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Another one, for tests that fill a store by themselves in a module whose tests share one."""
    with serving(tmp_path_factory.mktemp("other") / "graph.db") as made:
        yield made


@pytest.fixture(scope="module")
def rich(served: Served) -> Served:
    """With something of everything in its store."""
    with served.new_store() as writer:
        fill(writer)
    return served
