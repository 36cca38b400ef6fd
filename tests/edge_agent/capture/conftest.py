"""Every test captures into a memory of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edge_agent.capture import use
from edge_agent.capture.misuse import misuse
from tests.edge_agent.capture.memory import Memory


@pytest.fixture(autouse=True)
def memory() -> Iterator[Memory]:
    memory = Memory()
    use(memory)
    misuse.counts.clear()
    yield memory
    use(None)
