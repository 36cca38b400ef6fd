"""ANK-N as the Ananke paper composes it (section 5.2), in memory: the same graph from windows alone.

Nothing is remembered but what stands in a window. Delay holds a tuple back by more than U and at most 2U; Forward-Once
lets one of several copies through, as late as Delay would have the first; a last Aggregate over single instants sorts
all of it. For queries without windows (U = 0) both are identities, and the last Aggregate removes what comes twice.

The paper stamps results of windows with their right boundary. The Join of Forward-Once needs both boundaries of its
window inside, hence one instant more, which its stamp leaves out again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

RANKS = ("K", "S", "E", "L")


@dataclass(frozen=True)
class SinkTuple:
    """A sink tuple and the source tuples that it came from, as (id, ts)."""

    id: str
    ts: int
    sources: tuple[tuple[str, int], ...]


class Element(NamedTuple):
    """A part of the graph. An edge is (source, sink), all others have one id."""

    stamp: int
    rank: int
    ids: tuple[str, ...]

    @property
    def kind(self) -> str:
        return RANKS[self.rank]


def element(kind: str, stamp: int, *ids: str) -> Element:
    return Element(stamp, RANKS.index(kind), ids)


# ---------------------------------------------------------------------- operators made of windows


def windows_of(ts: int, size: int, advance: int, offset: int = 0) -> Iterator[tuple[int, int]]:
    """All windows [left, right) that a tuple falls in, the earliest first."""
    left = offset + (ts - offset) // advance * advance
    while left + size > ts:
        left -= advance
    while (left := left + advance) <= ts:
        yield left, left + size


def delay(ts: int, u: int) -> int:
    """What Delay makes of a timestamp, as the paper defines it."""
    return (ts // u + 2) * u


def delayed(ts: int, u: int) -> list[int]:
    """The same by windows: an Aggregate of 2U every U, and a Filter that lets through what was held for more than U."""
    return [right for _, right in windows_of(ts, 2 * u, u) if right - ts > u]


class _Counted(NamedTuple):
    ts: int
    copies: int


def forward_once(copies: Iterable[tuple[str, int]], u: int) -> list[tuple[str, int]]:
    """One of the copies of each id that are less than U apart: two Aggregates whose windows lie U apart, and a Join."""
    groups: dict[str, list[int]] = defaultdict(list)
    for name, ts in copies:
        groups[name].append(ts)
    out = []
    for name, times in groups.items():
        first, second = _counts(times, 2 * u, 0), _counts(times, 2 * u, u)
        for r in first:
            for s in second:
                shared = {*windows_of(r.ts, u + 1, u)} & {*windows_of(s.ts, u + 1, u)}
                if _forwards(r, s):
                    out += [(name, right - 1) for _, right in shared]
    return sorted(out, key=lambda each: (each[1], each[0]))


def _counts(times: Sequence[int], size: int, offset: int) -> list[_Counted]:
    """An Aggregate of tumbling windows that counts."""
    counts: dict[int, int] = defaultdict(int)
    for ts in times:
        for _, right in windows_of(ts, size, size, offset):
            counts[right] += 1
    return [_Counted(right, count) for right, count in sorted(counts.items())]


def _forwards(r: _Counted, s: _Counted) -> bool:
    """The predicate 5.1 of the paper."""
    return (r.ts <= s.ts and r.copies <= s.copies) or (s.ts <= r.ts and s.copies <= r.copies)


def last_aggregate(elements: Iterable[Element]) -> list[Element]:
    """One of each in every instant, in the order of stamps, and of ranks where these are equal."""
    return sorted(set(elements))


# ---------------------------------------------------------------------- the composition


def ank_n(tuples: Sequence[SinkTuple], u: int) -> list[Element]:
    """The graph of sink tuples that came in the order of time."""
    sinks = [element("K", each.ts, each.id) for each in tuples]
    copies = [(source, each.ts) for each in tuples for source, _ in each.sources]
    edges = [(each.ts, source, each.id) for each in tuples for source, _ in each.sources]
    if u == 0:
        sources = [element("S", ts, source) for source, ts in copies]
        joined = [element("E", ts, source, sink) for ts, source, sink in edges]
        labels = [element("L", each.stamp, *each.ids) for each in (*sinks, *sources)]
        return last_aggregate([*sinks, *sources, *joined, *labels])
    sources = [element("S", stamp, source) for source, stamp in forward_once(copies, u)]
    joined = [element("E", stamp, source, sink) for ts, source, sink in edges for stamp in delayed(ts, u)]
    labels = [element("L", stamp, *each.ids) for each in (*sinks, *sources) for stamp in delayed(each.stamp, u)]
    return last_aggregate([*sinks, *sources, *joined, *labels])


def defined(tuples: Sequence[SinkTuple], u: int) -> list[Element]:
    """What ANK-N must give, without windows: the paper's claim about it."""

    def later(ts: int) -> int:
        return delay(ts, u) if u else ts

    firsts: dict[str, int] = {}
    found = []
    for each in sorted(tuples, key=lambda one: one.ts):
        found += [element("K", each.ts, each.id), element("L", later(each.ts), each.id)]
        for source, _ in each.sources:
            firsts.setdefault(source, each.ts)
            found.append(element("E", later(each.ts), source, each.id))
    for source, ts in firsts.items():
        found += [element("S", later(ts), source), element("L", later(later(ts)), source)]
    return sorted(found)


def as_sets(elements: Iterable[Element]) -> dict[str, set[tuple[str, ...]]]:
    """The graph without its stamps."""
    found: dict[str, set[tuple[str, ...]]] = {kind: set() for kind in RANKS}
    for each in elements:
        found[each.kind].add(each.ids)
    return found
