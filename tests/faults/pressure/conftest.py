"""What the system tests here need."""

from __future__ import annotations

import pytest

from threadline.lab import find_mosquitto


@pytest.fixture(scope="session")
def mosquitto_installed() -> None:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed (Debian: apt install mosquitto)")
