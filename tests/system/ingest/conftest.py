"""A site for all tests that leave its services alone. Agents have names of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.ingest.site import Site
from threadline.lab import Mosquitto


@pytest.fixture(scope="session")
def site(mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("ingest"), mosquitto) as running:
        yield running


@pytest.fixture
def own_site(own_mosquitto: Mosquitto, tmp_path: Path) -> Iterator[Site]:
    """One that the test may harm."""
    with Site(tmp_path, own_mosquitto) as running:
        yield running
