"""The baseline BL of the GeneaLog paper (after Ariadne): annotated tuples and a store of all source tuples.

Every source tuple gets an id at once and is stored; every tuple carries the set of the ids it came from, as long as
that may be; at the sink the set is joined with the store. It is one more lineage of our own engine, so operators, user
code and the records that come out are the same as in the other modes. Source tuples leave the store as soon as the
plan's U allows it, which is kinder than keeping them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from edge_agent.stream import Plan
from edge_agent.stream.lineage import LINEAGES, Lineage, StreamTuple, WindowLog
from protocol.plan import delays
from protocol.records import BEGINNING, Origin

Ids = frozenset[int]
_NOTHING: Ids = frozenset()


class AnnotationLog(WindowLog):
    """The tuples of one key's sliding window; every result unites their sets anew."""

    def __init__(self) -> None:
        self._tuples: deque[StreamTuple] = deque()

    def extend(self, tuples: list[StreamTuple]) -> None:
        self._tuples.extend(tuples)

    def drop(self, count: int) -> None:
        for _ in range(count):
            self._tuples.popleft()

    def lineage(self) -> Ids:
        return _NOTHING.union(*[t[2] for t in self._tuples])


class Annotation(Lineage):
    """The third field of a tuple is its set of source ids."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._store: dict[int, StreamTuple] = {}
        self._given = 0
        self._reached = BEGINNING

    @property
    def stored(self) -> int:
        """How many source tuples are in the store now."""
        return len(self._store)

    def born(self, batch: list[StreamTuple]) -> list[StreamTuple]:
        self._purge(self._reached - self._delay_ms)
        if batch:
            self._reached = batch[-1][0]
        annotated: list[StreamTuple] = []
        store = self._store
        number = self._given
        for t in batch:
            store[number] = t
            annotated.append((t[0], t[1], frozenset((number,))))
            number += 1
        self._given = number
        return annotated

    def _purge(self, before: int) -> None:
        store = self._store
        expired: list[int] = []
        for number, t in store.items():
            if t[0] >= before:
                break
            expired.append(number)
        for number in expired:
            del store[number]

    def mapped(self, inputs: list[StreamTuple], values: list[Any]) -> list[StreamTuple]:
        return [(t[0], value, t[2]) for t, value in zip(inputs, values, strict=True)]

    def of_pair(self, newer: StreamTuple, older: StreamTuple) -> Ids:
        united: Ids = newer[2] | older[2]
        return united

    def of_window(self, tuples: list[StreamTuple]) -> Ids:
        return _NOTHING.union(*[t[2] for t in tuples])

    def window_log(self) -> WindowLog:
        return AnnotationLog()

    def origins(self, root: StreamTuple) -> list[Origin]:
        # Ids are given in stream order, so sorted they are oldest first.
        sources = [self._store[number] for number in sorted(root[2])]
        return [t[2].origin(t) for t in sources]


@contextmanager
def annotated(plan: Plan) -> Iterator[Plan]:
    """The plan, of mode `none`, ready to be run with annotations as long as this lasts."""
    delay_ms = max(delay for sinks in delays(plan.document()).values() for delay in sinks.values())
    usual = LINEAGES["none"]
    LINEAGES["none"] = partial(Annotation, delay_ms)  # type: ignore[assignment]
    try:
        yield plan
    finally:
        LINEAGES["none"] = usual
