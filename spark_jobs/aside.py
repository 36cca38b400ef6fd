"""Streams that were forgotten, should somebody name a tuple of them after all.

Others may name what the log has never seen: a tuple that was sent on, and then lost on the way to the log. So that the
fleet does not grow with every start of an agent, such streams are not kept with it but here, where they are read only
when they are asked for.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from spark_jobs.fleet import Stream
from spark_jobs.state import State

_NAME = "aside"
_PAGE_BITS = 8


class Forgotten(NamedTuple):
    """A stream, and the time before which its tuples are late."""

    stream: Stream
    limit: int


class Aside:
    """Those of one bucket."""

    def __init__(self, state: State) -> None:
        self._state = state

    def put(self, forgotten: Mapping[int, Forgotten]) -> None:
        """More of them, by their numbers."""
        pages: dict[int, dict[int, tuple[str, int, str, int]]] = defaultdict(dict)
        for number, (stream, limit) in forgotten.items():
            pages[number >> _PAGE_BITS][number] = (*stream, limit)
        for page, streams in pages.items():
            self._state.put(_NAME, page, pickle.dumps(self._page(page) | streams, protocol=5))

    def get(self, number: int) -> Forgotten:
        """One that was put here before."""
        agent, nonce, name, limit = self._page(number >> _PAGE_BITS)[number]
        return Forgotten(Stream(agent, nonce, name), limit)

    def _page(self, page: int) -> dict[int, tuple[str, int, str, int]]:
        data = self._state.get(_NAME, page)
        found: dict[int, tuple[str, int, str, int]] = pickle.loads(data) if data else {}
        return found
