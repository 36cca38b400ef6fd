"""Hypothesis profiles (`ci` for every run, `soak` for `make soak`), and the order of tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("ci", max_examples=100, derandomize=False, deadline=None, print_blob=True)
settings.register_profile("soak", settings.get_profile("ci"), max_examples=2_000)
settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits most comes first: tests of whole systems, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/system", "tests/threadline")))
