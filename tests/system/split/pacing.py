"""Sources of the queries, slowed down: their items take as long as the test needs to harm what is behind them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_TICK_S = 0.25
_GENERATORS = ("reports", "readings")


def paced(generator: Callable[[], Iterator[Any]], seconds: float) -> Callable[[], Iterator[Any]]:
    """The same items, spread evenly over so many seconds; some at a time."""

    def items() -> Iterator[Any]:
        made = list(generator())
        begun = time.monotonic()
        for number, item in enumerate(made):
            due = begun + seconds * number / len(made)
            if due - time.monotonic() > _TICK_S:
                time.sleep(_TICK_S)
            yield item

    return items


def slow_down(query: ModuleType, seconds: float) -> None:
    """Make the source of a query take so long."""
    for name in _GENERATORS:
        if hasattr(query, name):
            setattr(query, name, paced(getattr(query, name), seconds))


def paced_app(folder: Path, query: str, seconds: float) -> Path:
    """An app file that is a part of a split query, slowed down."""
    path = folder / f"paced_{query}.py"
    path.write_text(
        f"from edge_agent.queries.split import {query} as query\n"
        "from tests.system.split.pacing import slow_down\n\n"
        f"slow_down(query, {seconds})\n"
        "build = query.build\n"
    )
    return path
