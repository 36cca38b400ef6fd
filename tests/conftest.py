"""Hypothesis profiles, and the order of tests.

`ci`, for every run, takes the same examples each time: what fails then is the change. `soak`, for `make soak`, takes
many more and others each time: it is the one that searches.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("ci", max_examples=100, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("soak", settings.get_profile("ci"), max_examples=2_000, derandomize=False)
settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits most comes first: no worker is to be left alone with it at the end.

    Each worker begins with an equal part of all tests, so each part begins with an equal part of the slow ones.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items.sort(key=_haste)
    slow = sum(_haste(item) < _QUICK for item in items)
    first, rest = items[:slow], items[slow:]
    items.clear()
    for place in range(workers):
        items += first[place::workers]
        items += rest[len(rest) * place // workers : len(rest) * (place + 1) // workers]


_QUICK = 2
_USUAL_LIMIT_S = 120


def _haste(item: pytest.Item) -> int:
    limit = item.get_closest_marker("timeout")
    if limit is not None and limit.args[0] > _USUAL_LIMIT_S:
        return 0
    return 1 if item.nodeid.startswith(("tests/system", "tests/threadline")) else _QUICK
