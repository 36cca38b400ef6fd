"""Hypothesis profiles, and the order of tests.

`ci`, for every run, takes the same examples each time: what fails then is the change. `soak`, for `make soak`, takes
many more and others each time: it is the one that searches.
"""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path

import pytest
import typer.testing
from hypothesis import settings

settings.register_profile("ci", max_examples=100, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("soak", settings.get_profile("ci"), max_examples=2_000, derandomize=False)
settings.load_profile("ci")


# Tests send these to processes that they start. Whoever runs under nohup, or in the background of a script, ignores
# them, and what it starts does, too; but a handler is not inherited.
for _number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

# The command is put together once: that takes longer than most of what tests have it do.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits most comes first: no worker is to be left alone with it at the end."""
    slowest: dict[Path, int] = {}
    for item in items:
        slowest[item.path] = min(_haste(item), slowest.get(item.path, _QUICK))
    items.sort(key=lambda item: slowest[item.path])  # workers take whole files


_QUICK = 2
_USUAL_LIMIT_S = 120


def _haste(item: pytest.Item) -> int:
    limit = item.get_closest_marker("timeout")
    if limit is not None and limit.args[0] > _USUAL_LIMIT_S:
        return 0
    return 1 if item.nodeid.startswith(("tests/system", "tests/threadline")) else _QUICK
