"""A cloud for all tests that leave its services alone. Devices have names of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.delivery.site import Cloud


@pytest.fixture(scope="session")
def cloud(mosquitto_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("cloud")) as running:
        yield running
