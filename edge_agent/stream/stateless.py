"""Operators that look at one tuple at a time: Map, FlatMap, Filter, Multiplex."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from edge_agent.stream.lineage.base import Lineage, StreamTuple
from edge_agent.stream.operator import Faults, Operator


class Filter(Operator):
    """Forwards the tuples for which the predicate holds, as they are."""

    def __init__(self, name: str, faults: Faults, predicate: Callable[[Any], Any]) -> None:
        super().__init__(name, faults)
        self._predicate = predicate

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        self.taken += len(batch)
        predicate = self._predicate
        kept: list[StreamTuple] = []
        for t in batch:
            try:
                if predicate(t[1]):
                    kept.append(t)
            except Exception as error:
                if not self.faults.skip:
                    self.give(kept)  # what came before it
                self.faults.failed(predicate, t[0], t[1], error)
        self.give(kept)


class Map(Operator):
    """One new tuple per tuple, with the same ts."""

    def __init__(self, name: str, faults: Faults, lineage: Lineage, function: Callable[[Any], Any]) -> None:
        super().__init__(name, faults)
        self._lineage = lineage
        self._function = function

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        self.taken += len(batch)
        function = self._function
        values: list[Any] = []
        failed: set[int] = set()  # places in the list
        for t in batch:
            try:
                values.append(function(t[1]))
            except Exception as error:
                if not self.faults.skip:
                    self.give(self._lineage.mapped(batch[: len(values)], values))
                self.faults.failed(function, t[0], t[1], error)
                failed.add(len(values) + len(failed))
        if failed:
            batch = [t for place, t in enumerate(batch) if place not in failed]
        self.give(self._lineage.mapped(batch, values))


class FlatMap(Operator):
    """Any number of new tuples per tuple, with the same ts."""

    def __init__(self, name: str, faults: Faults, lineage: Lineage, function: Callable[[Any], Iterable[Any]]) -> None:
        super().__init__(name, faults)
        self._lineage = lineage
        self._function = function

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        self.taken += len(batch)
        function = self._function
        inputs: list[StreamTuple] = []
        values: list[Any] = []
        for t in batch:
            try:
                made = list(function(t[1]))
            except Exception as error:
                if not self.faults.skip:
                    self.give(self._lineage.mapped(inputs, values))
                self.faults.failed(function, t[0], t[1], error)
                continue
            values.extend(made)
            inputs.extend([t] * len(made))
        self.give(self._lineage.mapped(inputs, values))


class Multiplex(Operator):
    """Gives every tuple to each of several consumers."""

    def __init__(self, name: str, faults: Faults, lineage: Lineage) -> None:
        super().__init__(name, faults)
        self._lineage = lineage

    def feed(self, port: int, batch: list[StreamTuple]) -> None:
        self.taken += len(batch)
        self.given += len(batch)
        for consumer, input_port in self._outputs:
            consumer.feed(input_port, self._lineage.copied(batch))
