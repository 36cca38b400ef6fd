"""The answers to questions about the graph, from the log alone, in the plainest way: sets, and loops over them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from protocol.chunks import SEQ_BITS
from tests.support.told_log import Log


class GraphTruth:
    """What the log says of tuples: who came directly from whom, over all agents."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.direct: dict[str, set[str]] = {}
        """Of deliveries: what each came from directly."""
        for number, delivered in log.deliveries.items():
            self.direct[self.name(number)] = {self.name(origin.id) for origin in delivered.origins}
        self.sinks = {self.name(number) for number in log.sink_tuples}
        self.sent = {self.name(number) for number, each in log.deliveries.items() if each.sent}
        named = {origin for origins in self.direct.values() for origin in origins}
        self.sources = named - self.direct.keys()
        self.every = named | self.direct.keys()
        self.pairs = {(origin, each) for each, origins in self.direct.items() for origin in origins}
        """(origin, derived)."""
        self._results: dict[str, set[str]] = {}

    def name(self, number: int) -> str:
        """As people write it; in these logs, the last byte of a nonce is the epoch."""
        agent, nonce, name = self.log.streams[number >> SEQ_BITS]
        return f"{agent}/{name}@{nonce & 0xFF}:{number & (1 << SEQ_BITS) - 1}"

    def origins_of(self, vertex: str) -> set[str]:
        """The readings that something came from."""
        return {each for each in self.reached([vertex], backward=True) if each in self.sources} - {vertex}

    def results_of(self, vertex: str) -> set[str]:
        """The results that came from something."""
        if vertex not in self._results:
            reached = self.reached([vertex], backward=False)
            self._results[vertex] = {each for each in reached if each in self.sinks} - {vertex}
        return self._results[vertex]

    def reached(self, start: Collection[str], *, backward: bool, levels: int | None = None) -> dict[str, int]:
        """All that can be reached in so many steps, and in how many."""
        found = dict.fromkeys(start, 0)
        level = 0
        steps = self.pairs if backward else {pair[::-1] for pair in self.pairs}
        while levels is None or level < levels:
            level += 1
            new = {origin for origin, each in steps if found.get(each) == level - 1} - found.keys()
            if not new:
                break
            found |= dict.fromkeys(new, level)
        return found

    def paths(self, begin: str, end: str) -> Iterator[list[str]]:
        """All ways from one to another, of at least one step."""
        if begin == end:
            return
        for derived in (each for origin, each in self.pairs if origin == begin):
            if derived == end:
                yield [begin, end]
            else:
                yield from ([begin, *rest] for rest in self.paths(derived, end))

    def like(self, pattern: str) -> set[str]:
        """The vertices of which agent and stream match."""
        return {each for each in self.every if re.fullmatch(pattern, each.rpartition("@")[0])}
