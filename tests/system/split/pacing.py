"""Sources of the queries in three parts, so that a test can do harm in the middle of their streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

MIDDLE, LAST = "middle", "last"
_LOOK_S = 0.1
_GENERATORS = ("reports", "readings")


def paced(generator: Callable[[], Iterator[Any]], folder: Path, middle_s: float) -> Callable[[], Iterator[Any]]:
    """The first quarter of the items at once; the half after it when the folder has a file `middle`, spread over
    so many seconds; the rest when it has a file `last`."""

    def items() -> Iterator[Any]:
        made = list(generator())
        quarter = len(made) // 4
        yield from made[:quarter]
        _wait_for(folder / MIDDLE)
        looks = max(1, round(middle_s / _LOOK_S))
        for look in range(looks):
            time.sleep(_LOOK_S)
            yield from made[quarter + 2 * quarter * look // looks : quarter + 2 * quarter * (look + 1) // looks]
        _wait_for(folder / LAST)
        yield from made[3 * quarter :]

    return items


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(_LOOK_S)


def slow_down(query: ModuleType, folder: str, middle_s: float) -> None:
    """Have the source of a query wait for the test."""
    for name in _GENERATORS:
        if hasattr(query, name):
            setattr(query, name, paced(getattr(query, name), Path(folder), middle_s))


def paced_app(folder: Path, query: str, middle_s: float) -> Path:
    """An app file that is a part of a split query and waits for files in this folder."""
    path = folder / f"paced_{query}.py"
    path.write_text(
        f"from edge_agent.queries.split import {query} as query\n"
        "from tests.system.split.pacing import slow_down\n\n"
        f"slow_down(query, {str(folder)!r}, {middle_s})\n"
        "build = query.build\n"
    )
    return path
